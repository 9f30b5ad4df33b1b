"""Gradients of samples, in graphs and on an eager tape; mezzo.tools.finite compares them with finite differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mezzo.ops import DType, Op, Sample, Tensor, Type
from mezzo.ops.budget import Budget
from mezzo.ops.core.complexes import derived
from mezzo.ops.types import differentiable, type_of
from mezzo.runtime.ir.autodiff import padded
from mezzo.runtime.ir.graph import Graph, Node
from mezzo.runtime.ir.infer import body_of, infer
from mezzo.runtime.ir.interpreter import Eager, evaluate, node_key
from mezzo.tools.finite import (
    NOT_TO,
    Case,
    by_graph,
    case_of,
    differentiated,
    disagreement,
    ends,
    leaves,
    numeric,
    random_like,
    retyped,
)
from mezzo.tools.samples import sample_graph

__all__ = [
    "Case",
    "again",
    "by_graph",
    "by_tape",
    "case",
    "case_of",
    "differentiated",
    "disagreement",
    "elements",
    "ends",
    "has_derivative",
    "in_float32",
    "in_type",
    "leaves",
    "numeric",
    "ranks_only",
    "twice",
    "wanted",
]

# Operators of com.microsoft with standard forms that compute in float32, or in whole numbers.
SINGLE_ONLY = {
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "QGemm", "DynamicQuantizeMatMul", "MatMulNBits",
    "MatMulIntegerToFloat", "QAttention", "QEmbedLayerNormalization", "MatMulBnb4", "GatherBlockQuantized",
}  # fmt: skip
QUOTIENTS = {"ReduceProd", "CumProd"}  # gradients that are right at zeros, while their own gradients are not
SMALL = 45  # elements of all floating inputs together, where second derivatives are looked at


def case(op: Op, sample: Sample, seed: int = 0) -> Case | None:
    """The sample in float64; None where no input or no output has gradients."""
    return case_of(*sample_graph(op, sample), seed)


def ranks_only(graph: Graph, *, lists: bool = False) -> Graph:
    """The graph with no size of its inputs known, but with `lists` the lengths of lists of whole numbers, such as
    shapes: where those tell the rank of a result they stay known anyhow."""

    def less(t: Type) -> Type:
        if not isinstance(t, Tensor) or t.dims is None or (lists and len(t.dims) == 1 and t.dtype.integer):
            return t
        return t.of((None,) * len(t.dims))

    made = infer(graph.but(types={n: less(t) for n, t in graph.types.items() if n in graph.inputs}))
    ranks = [t.dims is not None for o in made.outputs if isinstance(t := made.types[o], Tensor)]
    return made if lists or all(ranks) else ranks_only(graph, lists=True)


def again(c: Case, seed: int = 2) -> Case | None:
    """The differentiated graph of a case as a case of its own: to the inputs and to the gradients that arrive. None
    where there is nothing to differentiate."""
    made = differentiated(c.graph, c.dys, c.wrt)
    feeds = {**c.feeds, **dict(zip(made.inputs[len(c.graph.inputs) :], c.dys.values(), strict=True))}
    if not made.outputs:
        return None
    rng, found = np.random.default_rng(seed), evaluate(made, feeds)
    wrt = tuple(n for n in made.inputs if n in c.wrt or n not in c.feeds)
    return Case(made, feeds, {o: random_like(rng, found[o]) for o in made.outputs}, wrt)


def elements(c: Case) -> int:
    """How many numbers the inputs with gradients hold together; 0 if one of them is empty."""
    sizes = [x.size for n in c.wrt for x in leaves(c.feeds[n])]
    return sum(sizes) if all(sizes) else 0


def in_type(op: Op, sample: Sample, dtype: DType) -> Graph:
    """The graph of a sample with another element type in place of float32."""
    graph, _ = sample_graph(op, sample)
    return infer(graph.but(types={n: retyped(t, dtype) for n, t in graph.types.items()}))


def has_derivative(o: Op) -> bool:
    """Whether an operator has a derivative: a rule, or a standard form that is made of operators with rules."""
    standard = o.domain in ("", "com.microsoft") and o.name not in SINGLE_ONLY
    return o.grad_rule is not None or (standard and o.body_rule is not None)


def wanted(o: Op, c: Case) -> tuple[str, ...]:
    """The inputs that a rule gives a gradient to."""
    return tuple(n for n in c.wrt if (o.name, int(n.removeprefix("x"))) not in NOT_TO)


def twice(o: Op, sample: Sample) -> Case | None:
    """The differentiated graph of a small sample as a case; None where there is nothing to differentiate again."""
    c = case(o, sample)
    if c is None or not 0 < elements(c) <= SMALL or (o.name in QUOTIENTS and not np.all(c.feeds["x0"])):
        return None
    return again(replace(c, wrt=wanted(o, c)))


def in_float32(op: Op, sample: Sample, c: Case) -> tuple[Graph, dict[str, Any]]:
    """The differentiated graph of a sample in its own element types, with the feeds of its case."""
    graph, feeds = sample_graph(op, sample)
    graph = infer(graph)
    made = differentiated(graph, c.dys, c.wrt)

    def given(value: Any, type: Type) -> Any:
        while not isinstance(type, Tensor):
            type = type.element
        return [given(v, type) for v in value] if isinstance(value, list) else value.astype(type.dtype.numpy)

    dys = {f"grad/dy {o}": given(dy, graph.types[o]) for o, dy in c.dys.items()}
    return made, {**feeds, **dys}


def by_tape(c: Case) -> dict[str, Any]:
    """Gradients by name of input: a small eager tape. Each operator runs as it is recorded, and its rule runs on the
    arrays in reverse order."""
    values: dict[str, Any] = {**c.graph.initializers, **c.feeds}
    taped: list[tuple[Node, list[Any]]] = []
    for node in c.graph.nodes:
        types = [type_of(values[i]) if i else None for i in node.inputs]
        record = node.record
        count, attrs, op, domain = len(node.outputs), node.attrs, node.op, node.domain
        inside = {n: type_of(values[n]) for body in node.bodies.values() for n in body.captures()}
        twin = record.twin_rule(types, node.wanted, **_bound(node, inside)) if record.twin_rule else None
        if twin is not None:
            op, domain, attrs, count = twin.op, twin.domain, twin.attrs, twin.outputs
        xs = [values[i] if i else None for i in node.inputs]
        made = Eager(around=values, key=node_key(node, (0,))).op(op, *xs, domain=domain, outputs=max(count, 1), **attrs)
        results = [made] if count == 1 else list(made)
        values.update((o, r) for o, r in zip(node.outputs, results, strict=False) if o)
        taped.append((replace(node, op=op, domain=domain, attrs=attrs), results))
    grads: dict[str, Any] = dict(c.dys)
    for node, ys in reversed(taped):
        dys = [*(grads.get(o) for o in node.outputs), *[None] * (len(ys) - len(node.outputs))]
        record = node.record
        if all(dy is None for dy in dys):
            continue
        if record.grad_rule is None:
            raise NotImplementedError(f"no rule for {node.op}")
        names = padded(record, node.inputs)
        xs = padded(record, [values[i] if i else None for i in node.inputs])
        wants = tuple(x is not None and differentiable(type_of(x)) for x in xs)
        inside = {n: type_of(values[n]) for body in node.bodies.values() for n in body.captures()}
        captured = tuple(n for n, t in inside.items() if differentiable(t))
        g = Eager(wants, around=values, captured=captured)
        missing = 0 if any(p.variadic for p in record.outputs) else len(record.outputs) - len(ys)
        dxs = derived(record, g, [*dys, *[None] * missing], [*ys, *[None] * missing], xs, **_bound(node, inside))
        given, wanted = [*zip(names, xs, strict=True)], [*wants, *[True] * len(captured)]
        given += [(n, values[n]) for n in captured]
        for (name, x), dx, needed in zip(given, dxs, wanted, strict=True):
            if name and dx is not None and needed:
                dx = g.sum_to(dx, x) if record.tree is not None else dx
                grads[name] = dx if name not in grads else g.total([grads[name], dx])
    return {n: grads[n] for n in c.wrt if n in grads}


def _bound(node: Node, types: Mapping[str, Type]) -> dict[str, Any]:
    """The attributes for a rule, with bodies that infer."""
    bodies = {a: body_of(b, types, Budget()) for a, b in node.bodies.items()}
    return node.record.bind({**node.attrs, **bodies})
