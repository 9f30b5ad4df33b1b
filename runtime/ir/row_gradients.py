"""Sparse gradients of tables: only the rows that Gather has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ops import DType, Tensor
from ...ops.core.rules import axis_of
from .graph import Node
from .typed import TypedBuilder

SUMS = {"Add", "Sum", "Identity"}


def makers_of(g: TypedBuilder) -> dict[str, Node]:
    """The node that makes each value."""
    return {o: n for n in g.nodes() for o in n.outputs}


def reads_of(g: TypedBuilder, gradient: str, makers: Mapping[str, Node]) -> list[Node] | None:
    """The GatherGrads along axis 0 that a gradient is the sum of; None where anything else is in it, as of a table that
    a MatMul reads too. `makers` are those of `makers_of`, once for all gradients."""
    known = g.type_of(gradient)
    if not isinstance(known, Tensor) or not known.dims or not known.static or not known.dtype.floating:
        return None
    reads: list[Node] = []
    todo = [gradient]
    while todo:
        node = makers.get(todo.pop())
        if node is None:
            return None
        if not node.domain and node.op in SUMS:
            todo += reversed(node.inputs)
        elif (node.domain, node.op) == ("mezzo", "GatherGrad") and not axis_of(node.attrs.get("axis", 0), known.rank):
            reads.append(node)
        else:
            return None
    return reads


def as_rows(g: TypedBuilder, gradient: str, reads: Sequence[Node]) -> tuple[str, str]:
    """Add the gradient as rows: their numbers, and the rows (`mezzo.GatherGradRows`)."""
    known = g.type_of(gradient)
    assert isinstance(known, Tensor)
    by: dict[str, list[str]] = {}  # what arrives for equal indices has equal places
    for node in reads:
        by.setdefault(node.inputs[1], []).append(node.inputs[0])
    dys, indices = [g.total(parts) for parts in by.values()], [*by]
    if len(by) > 1:
        flat = g.const([-1])
        dys = [g.Reshape(dy, g.const([-1, *known.sizes[1:]])) for dy in dys]
        indices = [g.Reshape(g.Cast(i, to=DType.INT64.onnx), flat) for i in indices]
        dys, indices = [g.Concat(*dys, axis=0)], [g.Concat(*indices, axis=0)]
    ids, rows = g.op("GatherGradRows", dys[0], indices[0], g.shape_of(gradient), domain="mezzo", outputs=2)
    return ids, rows
