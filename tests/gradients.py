"""Gradients of samples: by the rules (in graphs and on an eager tape), and by finite differences in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mezzo.ops import DType, Op, Sample, Tensor, Type
from mezzo.ops.budget import Budget
from mezzo.ops.types import Optional, Sequence, differentiable, type_of
from mezzo.runtime.autodiff import fresh, gradients, padded
from mezzo.runtime.eager import Eager, evaluate, node_key
from mezzo.runtime.graph import Graph, Node
from mezzo.runtime.infer import body_of, infer
from mezzo.runtime.typed import TypedBuilder

from .graphs import in_float64, sample_graph

# Operators that round a result to a narrow float, of which differences would say nothing, and the attribute that asks.
ROUNDED = {("Cast", "to"), ("DequantizeLinear", "output_dtype")}
# Inputs that a derivative would exist to, and that no rule gives: operator, number of the input, the reason.
NOT_TO: dict[tuple[str, int], str] = {
    ("Dropout", 1): "how much is dropped is given, not learnt",
    ("RoiAlign", 1): "regions are given, not learnt; torchvision has no gradient to them either",
    ("Resize", 1): "the part of an image that is looked at is given, not learnt",
    ("Resize", 2): "factors are given, not learnt",
    ("ResizeGrad", 2): "the part of an image that is looked at is given, not learnt",
    ("ResizeGrad", 3): "factors are given, not learnt",
    ("NegativeLogLikelihoodLoss", 2): "weights of classes are given, not learnt; PyTorch has none either",
    ("SoftmaxCrossEntropyLoss", 2): "weights of classes are given, not learnt; PyTorch has none either",
}
# Operators of com.microsoft with standard forms that compute in float32, or in whole numbers.
SINGLE_ONLY = {"SkipLayerNormalization", "QGemm", "DynamicQuantizeMatMul", "MatMulNBits"}
QUOTIENTS = {"ReduceProd", "CumProd"}  # gradients that are right at zeros, while their own gradients are not
SMALL = 45  # elements of all floating inputs together, where second derivatives are looked at
MOST = 48  # elements of one input that are moved by a little; of larger ones so many drawn at random


@dataclass(frozen=True)
class Case:
    """A sample as a graph in float64, its feeds, the gradients of its outputs, and the inputs to differentiate to."""

    graph: Graph
    feeds: dict[str, Any]
    dys: dict[str, Any]
    wrt: tuple[str, ...]


SINGLE = (DType.FLOAT, DType.FLOAT16, DType.BFLOAT16)


def retyped(type: Type, to: DType) -> Type:
    """Another element type in place of float32 and what is narrower."""
    if isinstance(type, Sequence | Optional):
        return replace(type, element=retyped(type.element, to))
    return type.to(to) if isinstance(type, Tensor) and type.dtype in SINGLE else type


def doubles(value: Any) -> Any:
    """float32 arrays as float64, narrower ones too, and those in lists."""
    if isinstance(value, list):
        return [doubles(v) for v in value]
    return value.astype(np.float64) if value is not None and DType.of(value.dtype) in SINGLE else value


def case(op: Op, sample: Sample, seed: int = 0) -> Case | None:
    """The sample in float64; None where no input or no output has gradients."""
    return case_of(*sample_graph(op, sample), seed)


def case_of(graph: Graph, feeds: Mapping[str, Any], seed: int = 0) -> Case | None:
    """A graph in float64 with its feeds; None where no input or no output has gradients."""
    graph = in_float64(graph)

    def exact(op: str, name: str, v: Any) -> Any:
        if (op, name) in ROUNDED and v and DType.from_onnx(v).narrow:
            return DType.DOUBLE.onnx
        return typed(v) if isinstance(v, Graph) else v

    def stash(node: Node) -> dict[str, Any]:  # statistics are taken in float32 otherwise
        return {"stash_type": DType.DOUBLE.onnx} if "stash_type" in node.record.attrs else {}

    def typed(part: Graph) -> Graph:
        nodes = tuple(
            replace(n, attrs={a: exact(n.op, a, v) for a, v in n.attrs.items()} | stash(n)) for n in part.nodes
        )
        return part.but(nodes=nodes, types={n: retyped(t, DType.DOUBLE) for n, t in part.types.items()})

    graph = infer(typed(graph))
    feeds = {n: doubles(v) for n, v in feeds.items()}
    outputs, wrt = ends(graph)
    if not wrt or not outputs:
        return None
    rng = np.random.default_rng(seed)
    ys = evaluate(graph, feeds)
    return Case(graph, feeds, {o: _random(rng, ys[o]) for o in outputs}, wrt)


def _random(rng: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [_random(rng, v) for v in value]
    return np.asarray(rng.uniform(0.5, 1.5, value.shape) * rng.choice([-1, 1], value.shape), value.dtype)


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


def differentiated(graph: Graph, seeds: Iterator[str] | Any, wrt: tuple[str, ...]) -> Graph:
    """The graph with inputs `dy NAME` for the gradients of `seeds`, and the gradients to `wrt` as its outputs.

    A gradient that never arrives is left out."""
    g = TypedBuilder(graph.types, prefix=fresh("grad/", set(graph.types)))
    given = {o: g.input(f"{g.prefix}dy {o}", graph.types[o]) for o in seeds}
    found = gradients(g, graph.nodes, given, wrt)
    for n, value in found.items():
        g.add(Node("Identity", (value,), (f"{g.prefix}dx {n}",)))
    return graph.but(
        inputs=(*graph.inputs, *given.values()),
        outputs=tuple(f"{g.prefix}dx {n}" for n in found),
        nodes=g.nodes(),
        initializers={**graph.initializers, **g.constants()},
        types=g.types,
    ).verify()


def by_graph(c: Case, graph: Graph) -> dict[str, Any]:
    """Gradients by name of input, from a differentiated graph that the interpreter runs."""
    made = differentiated(graph, c.dys, c.wrt)
    found = evaluate(made, {**c.feeds, **dict(zip(made.inputs[len(graph.inputs) :], c.dys.values(), strict=True))})
    return {n.partition("dx ")[2]: v for n, v in found.items()}


def again(c: Case, seed: int = 2) -> Case | None:
    """The differentiated graph of a case as a case of its own: to the inputs and to the gradients that arrive. None
    where there is nothing to differentiate."""
    made = differentiated(c.graph, c.dys, c.wrt)
    feeds = {**c.feeds, **dict(zip(made.inputs[len(c.graph.inputs) :], c.dys.values(), strict=True))}
    if not made.outputs:
        return None
    rng, found = np.random.default_rng(seed), evaluate(made, feeds)
    wrt = tuple(n for n in made.inputs if n in c.wrt or n not in c.feeds)
    return Case(made, feeds, {o: _random(rng, found[o]) for o in made.outputs}, wrt)


def elements(c: Case) -> int:
    """How many numbers the inputs with gradients hold together; 0 if one of them is empty."""
    sizes = [x.size for n in c.wrt for x in leaves(c.feeds[n])]
    return sum(sizes) if all(sizes) else 0


def ends(graph: Graph) -> tuple[list[str], tuple[str, ...]]:
    """The outputs that have gradients, and the inputs."""
    outputs = [o for o in graph.outputs if differentiable(graph.types[o])]
    return outputs, tuple(n for n in graph.inputs if differentiable(graph.types[n]))


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
        dxs = record.grad_rule(g, [*dys, *[None] * missing], [*ys, *[None] * missing], xs, **_bound(node, inside))
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


def leaves(value: Any) -> list[Any]:
    """The arrays in a value: itself, or those of a list."""
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, list) else [] if value is None else [value]


def numeric(
    graph: Graph, feeds: Mapping[str, Any], dys: Mapping[str, Any], name: str, most: int = MOST
) -> list[tuple[Any, Any]]:
    """For each array of an input: the gradient by central differences and where it is known.

    Elements at a kink, where the slopes to both sides differ, are marked as not known.
    """
    rng = np.random.default_rng(1)

    def loss() -> float:
        ys = evaluate(graph, feeds)
        pairs = [(a, b) for o, dy in dys.items() for a, b in zip(leaves(ys[o]), leaves(dy), strict=True)]
        with np.errstate(invalid="ignore"):  # of infinite results no difference is known
            return float(sum(np.sum(np.asarray(y, np.float64) * dy) for y, dy in pairs))

    def around(array: Any, index: Any, h: float) -> tuple[float, float]:
        kept = array[index].copy()
        array[index] = kept + h
        up = loss()
        array[index] = kept - h
        down = loss()
        array[index] = kept
        return up, down

    found = []
    for array in leaves(feeds[name]):
        slope, known = np.zeros(array.shape), np.zeros(array.shape, bool)
        places = rng.permutation(np.flatnonzero(np.isfinite(np.asarray(array, np.float64))))[:most]
        middle = loss()
        for at in places:
            index = np.unravel_index(at, array.shape)
            h = 1e-5 * max(1.0, abs(float(array[index])))
            up, down = around(array, index, h)
            right, left = (up - middle) / h, (middle - down) / h
            slope[index] = (up - down) / (2 * h)
            known[index] = abs(right - left) <= 1e-3 * max(1.0, abs(right), abs(left)) and np.isfinite(slope[index])
            if known[index] and abs(slope[index]) > 1e3:  # a jump, if half the step finds it twice as steep
                up, down = around(array, index, h / 2)
                known[index] = abs((up - down) / h - slope[index]) <= 1e-3 * abs(slope[index])
        found.append((slope, known))
    return found


def disagreement(c: Case, grads: Mapping[str, Any], name: str, differences: list[tuple[Any, Any]]) -> str:
    """Empty where a gradient agrees with the differences (1e-4 of the largest), else what differs."""
    given = grads.get(name)
    arrays = [np.zeros(x.shape) for x in leaves(c.feeds[name])] if given is None else leaves(given)
    for x, dx, (slope, known) in zip(leaves(c.feeds[name]), arrays, differences, strict=True):
        if dx.shape != x.shape:
            return f"the gradient of {name} has shape {dx.shape}, its value {x.shape}"
        scale = max(1.0, float(np.abs(slope[known]).max(initial=0)))
        off = np.abs(np.asarray(dx, np.float64) - slope)[known]
        if not (off <= 1e-4 * scale).all():  # not: NaN must fail
            return f"gradient of {name}:\n{dx}\nby differences:\n{slope}\nknown:\n{known}"
    return ""
