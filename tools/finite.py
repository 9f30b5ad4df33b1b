"""Gradients by finite differences in float64, beside those of our rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..ops import DType, Tensor, Type
from ..ops.dataclasses import dataclass, replace
from ..ops.types import Optional, Sequence, differentiable
from ..runtime.ir.autodiff import gradients, unused_name
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.interpreter import evaluate
from ..runtime.ir.typed import TypedBuilder

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
    ("MatMulNBits", 2): "packed weights stay as they are",
    ("MatMulNBits", 3): "packed weights stay as they are",
    ("MatMulNBitsGrad", 2): "packed weights stay as they are",
    ("MatMulNBitsGrad", 3): "packed weights stay as they are",
}
MOST = 48  # elements of one input that are moved by a little; of larger ones so many drawn at random


@dataclass(frozen=True)
class Case:
    """A sample as a graph in float64, its feeds, the gradients of its outputs, and the inputs to differentiate with
    respect to."""

    graph: Graph
    feeds: dict[str, Any]
    dys: dict[str, Any]
    wrt: tuple[str, ...]


SINGLE = (DType.FLOAT, DType.FLOAT16, DType.BFLOAT16)


def retyped(type: Type, to: DType) -> Type:
    """Another element type in place of float32 and what is narrower."""
    if isinstance(type, Sequence | Optional):
        return replace(type, element=retyped(type.element, to))
    if to is DType.DOUBLE and isinstance(type, Tensor) and type.dtype is DType.COMPLEX64:
        return type.to(DType.COMPLEX128)
    return type.to(to) if isinstance(type, Tensor) and type.dtype in SINGLE else type


def doubles(value: Any) -> Any:
    """float32 arrays as float64, narrower ones too, and those in lists; all of them copies, since they are moved."""
    if isinstance(value, list):
        return [doubles(v) for v in value]
    if value is None:
        return None
    if value.dtype == np.complex64:
        return np.array(value, np.complex128)
    return np.array(value, np.float64 if DType.of(value.dtype) in SINGLE else None)


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
    return Case(graph, feeds, {o: random_like(rng, ys[o]) for o in outputs}, wrt)


def random_like(rng: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [random_like(rng, v) for v in value]
    if value.dtype.kind == "c":
        return np.asarray(random_like(rng, value.real) + 1j * random_like(rng, value.imag), value.dtype)
    return np.asarray(rng.uniform(0.5, 1.5, value.shape) * rng.choice([-1, 1], value.shape), value.dtype)


def differentiated(graph: Graph, seeds: Iterable[str], wrt: tuple[str, ...]) -> Graph:
    """The graph with inputs `dy NAME` for the gradients of `seeds`, and the gradients to `wrt` as its outputs.

    A gradient that never arrives is left out."""
    g = TypedBuilder(graph.types, prefix=unused_name("grad/", set(graph.types)))
    given = {o: g.input(f"{g.prefix}dy {o}", graph.types[o]) for o in seeds}
    grads = gradients(g, graph.nodes, given, wrt)
    for n, value in grads.items():
        g.add(Node("Identity", (value,), (f"{g.prefix}dx {n}",)))
    return graph.but(
        inputs=(*graph.inputs, *given.values()),
        outputs=tuple(f"{g.prefix}dx {n}" for n in grads),
        nodes=g.nodes(),
        initializers={**graph.initializers, **g.constants()},
        types=g.types,
    ).verify()


def by_graph(c: Case, graph: Graph) -> dict[str, Any]:
    """Gradients by name of input, from a differentiated graph that the interpreter runs."""
    backward = differentiated(graph, c.dys, c.wrt)
    grads = evaluate(
        backward, {**c.feeds, **dict(zip(backward.inputs[len(graph.inputs) :], c.dys.values(), strict=True))}
    )
    return {n.partition("dx ")[2]: v for n, v in grads.items()}


def ends(graph: Graph) -> tuple[list[str], tuple[str, ...]]:
    """The outputs that have gradients, and the inputs."""
    outputs = [o for o in graph.outputs if differentiable(graph.types[o])]
    return outputs, tuple(n for n in graph.inputs if differentiable(graph.types[n]))


def leaves(value: Any) -> list[Any]:
    """The arrays in a value: itself, or those of a list."""
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, list) else [] if value is None else [value]


def numeric(
    graph: Graph, feeds: Mapping[str, Any], dys: Mapping[str, Any], name: str, most: int = MOST
) -> list[tuple[Any, Any]]:
    """Return, for each array of an input, the gradient by central differences and where it is known. For complex
    numbers it is the slope along the real parts plus 1j times that along the imaginary parts.

    Elements at a kink, where the slopes to both sides differ, are marked as not known.
    """
    rng = np.random.default_rng(1)

    def loss() -> float:
        ys = evaluate(graph, feeds)
        pairs = [(a, b) for o, dy in dys.items() for a, b in zip(leaves(ys[o]), leaves(dy), strict=True)]
        with np.errstate(invalid="ignore"):  # of infinite results no difference is known
            return float(sum(np.sum((_wide(y) * np.conj(dy)).real) for y, dy in pairs))

    def around(array: Any, index: Any, h: complex) -> tuple[float, float]:
        kept = array[index].copy()
        array[index] = kept + h
        up = loss()
        array[index] = kept - h
        down = loss()
        array[index] = kept
        return up, down

    def slope_along(array: Any, index: Any, way: complex, middle: float) -> tuple[float, bool]:
        h = 1e-5 * max(1.0, float(abs(array[index])))
        up, down = around(array, index, h * way)
        right, left = (up - middle) / h, (middle - down) / h
        slope = (up - down) / (2 * h)
        known = abs(right - left) <= 1e-3 * max(1.0, abs(right), abs(left)) and np.isfinite(slope)
        if known and abs(slope) > 1e3:  # a jump, if half the step finds it twice as steep
            up, down = around(array, index, h / 2 * way)
            known = abs((up - down) / h - slope) <= 1e-3 * abs(slope)
        return slope, bool(known)

    slopes = []
    for array in leaves(feeds[name]):
        ways = (1, 1j) if array.dtype.kind == "c" else (1,)
        slope, known = np.zeros(array.shape, _wide(array).dtype), np.zeros(array.shape, bool)
        places = rng.permutation(np.flatnonzero(np.isfinite(_wide(array))))[:most]
        middle = loss()
        for at in places:
            index = np.unravel_index(at, array.shape)
            several = [(way, *slope_along(array, index, way, middle)) for way in ways]
            slope[index] = sum(way * s for way, s, _ in several)
            known[index] = all(k for _, _, k in several)
        slopes.append((slope, known))
    return slopes


def _wide(x: Any) -> Any:
    """The numbers in 64 bits, or complex in twice that."""
    return np.asarray(x, np.complex128 if x.dtype.kind == "c" else np.float64)


def disagreement(c: Case, grads: Mapping[str, Any], name: str, differences: list[tuple[Any, Any]]) -> str:
    """Empty where a gradient agrees with the differences (1e-4 of the largest), else what differs."""
    given = grads.get(name)
    arrays = [np.zeros(x.shape) for x in leaves(c.feeds[name])] if given is None else leaves(given)
    for x, dx, (slope, known) in zip(leaves(c.feeds[name]), arrays, differences, strict=True):
        if dx.shape != x.shape:
            return f"the gradient of {name} has shape {dx.shape}, its value {x.shape}"
        scale = max(1.0, float(np.abs(slope[known]).max(initial=0)))
        off = np.abs(_wide(dx) - slope)[known]
        if not (off <= 1e-4 * scale).all():  # not: NaN must fail
            return f"gradient of {name}:\n{dx}\nby differences:\n{slope}\nknown:\n{known}"
    return ""


def in_float64(graph: Graph) -> Graph:
    """The same graph with every float32 constant and cast in float64: what exact arithmetic would answer, nearly."""

    def value(name: str, v: Any) -> Any:
        if isinstance(v, Graph):
            return in_float64(v)
        if name == "to" and v == DType.FLOAT.onnx:
            return DType.DOUBLE.onnx
        return wide(v) if isinstance(v, np.ndarray) else v

    nodes = tuple(replace(n, attrs={a: value(a, v) for a, v in n.attrs.items()}) for n in graph.nodes)
    return graph.but(nodes=nodes, initializers={n: wide(a) for n, a in graph.initializers.items()})


def wide(x: Any) -> Any:
    """float32 arrays as float64, others as they are."""
    return x.astype(np.float64) if x.dtype == np.float32 else x
