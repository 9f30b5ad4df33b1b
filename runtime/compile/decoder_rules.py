"""Rules of padding (see padding_rules.py) for operators of decoders: rotary positions, places of experts,
grouped queries over a cache."""

from __future__ import annotations

from ...ops import OPS, DType, Tensor
from ...ops.dataclasses import replace
from ..ir.graph import Graph, Node
from .padding import PaddedGraph, PaddedValue
from .padding_rules import operands, refused, rule_for, typed
from .sizes import as_terms, minus


@rule_for("RotaryEmbedding")
def rotary(g: PaddedGraph, node: Node) -> None:
    """RotaryEmbedding of either domain: places of padding become 0, which every table has."""
    x, *others = operands(g, node)
    assert x is not None
    inputs, at = list(node.inputs), 1 if node.domain else 3
    tables = [o for i, o in enumerate(others, 1) if i != at and o is not None]
    if g.pads(x.axes[-1]) or any(map(g.pads, (axis for t in tables for axis in t.axes))):
        raise refused(node, "heads or tables have padding")
    if len(inputs) > at and inputs[at]:
        if node.domain and len(g.value(inputs[at]).axes) < 2:
            raise refused(node, "one first place stands for all")
        for axis in range(len(g.value(inputs[at]).axes)):
            inputs[at] = g.filled(node, inputs[at], axis, 0.0)
    g.emit(node, inputs, {node.outputs[0]: PaddedValue(x.dtype, x.axes)})


@rule_for("OneHot")
def one_hot(g: PaddedGraph, node: Node) -> None:
    """OneHot of places with padding, which may be anything: what is no place is 0 everywhere."""
    places, _, values = (g.value(n) for n in node.inputs)
    (sizes,) = typed(g, node)
    axis = int(node.attrs.get("axis", -1)) % len(sizes)
    if g.padded(sizes[axis]) or node.inputs[1] in g.numbers:
        raise refused(node, "its depth follows a size that is rounded up")
    own = () if sizes[axis] == 1 else (sizes[axis],)
    g.emit(
        node, node.inputs, {node.outputs[0]: PaddedValue(values.dtype, (*places.axes[:axis], own, *places.axes[axis:]))}
    )


@rule_for("GroupQueryAttention")
def grouped(g: PaddedGraph, node: Node) -> None:
    """GroupQueryAttention whose caches grow by the new rows: how many of each count is told beside."""
    names = [*node.inputs, *[""] * (12 - len(node.inputs))]
    past, query = (g.value(names[i]) if names[i] else None for i in (3, 0))
    if past is None or query is None or len(node.outputs) < 3 or not all(node.outputs[:3]):
        raise refused(node, "it has no cache")
    out, present, _ = typed(g, node)[:3]
    rows, before = (axis[0] if axis else 1 for axis in (query.axes[1], past.axes[2]))
    grown = minus(as_terms(present[2]), as_terms(before))
    if grown != as_terms(rows) or any(len(axis) > 1 for axis in (query.axes[1], past.axes[2])):
        raise refused(node, "its cache does not grow by its rows")
    for name in (*names[:6], *names[7:]):
        if name and any(map(g.pads, g.value(name).axes[:1])):
            raise refused(node, "the batch is rounded up")
    counts = g.array([rows, before], (2,))
    if names[9]:
        names[9] = g.filled(node, names[9], 1, 0.0)
    kept = {k: v for k, v in node.attrs.items() if k in OPS["mezzo", "GroupedRows"].attrs}
    batch, heads, _, size = past.axes
    cache = (batch, heads, () if present[2] == 1 else (present[2],), size)
    answer = (*query.axes[:2], () if out[2] == 1 else (out[2],))
    results = {o: PaddedValue(query.dtype, axes) for o, axes in zip(node.outputs, (answer, cache, cache), strict=True)}
    for o in node.outputs[1:3]:
        results[o].fills[2] = 0.0
    g.emit(node, (counts, *names[:6], *names[7:]), results, op="GroupedRows", domain="mezzo",
           attrs={**kept, "size": g.planned(present[2])})  # fmt: skip


def read_directly(graph: Graph) -> Graph:
    """The graph in which GroupQueryAttention reads its total length before the Cast to int32 that its schema asks for:
    sizes are followed as int64 alone."""
    makers, nodes = graph.producers(), list[Node]()
    for node in graph.nodes:
        maker = makers.get(node.inputs[6]) if node.op == "GroupQueryAttention" and len(node.inputs) > 6 else None
        source = graph.types.get(maker.inputs[0]) if maker is not None and maker.op == "Cast" else None
        if maker is not None and isinstance(source, Tensor) and source.dtype is DType.INT64:
            node = replace(node, inputs=(*node.inputs[:6], maker.inputs[0], *node.inputs[7:]))
        nodes.append(node)
    same = all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else graph.but(nodes=tuple(nodes))
