"""Expected values of a graph in float64, and bounds on the rounding error of each.

The exact answer is that of the operators' references on the same values in float64. A result that is further away than
its tolerance is compared with *worlds* too: the references in the graph's own types, and on values that are off by a
little. How far those lie apart is how ill-conditioned each element is; what rounding decides is nobody's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.budget import Budget
from ..ops.dataclasses import dataclass, replace
from ..ops.errors import MezzoError
from ..ops.types import Array
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.interpreter import evaluate
from .finite import ROUNDED, SINGLE
from .gaps import SMALLEST, Gap, usual

WORLDS = 4  # besides the one of the node's own types
PARTED = 8.0  # times as far as the worlds lie apart, a result may be off
FLOAT32, ROUNDING = 2.0**-21, 2.0**-17  # by how much operands are off, and where integers come of them
NOISE = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-8}


@dataclass(slots=True)
class Nearly:
    """Expected values of a graph (often of one node) by name, captured values among them.

    `kinds` are the element types that the results were computed in, `key` is that of the run's random numbers. What is
    asked raises MezzoError where the references do.
    """

    graph: Graph
    values: Mapping[str, Any]
    budget: Budget
    kinds: Iterable[DType]
    key: tuple[int, ...] = (0,)
    _exact: dict[str, Any] | None = None
    _worlds: list[dict[str, Any]] | None = None

    @classmethod
    def of(
        cls, node: Node, values: Mapping[str, Any], budget: Budget, kinds: Iterable[DType], key: tuple[int, ...]
    ) -> Nearly:
        """Return the expected values of one node."""
        graph = Graph(tuple(values), tuple(filter(None, node.outputs)), (node,))
        return cls(graph, values, budget, kinds, key)

    def wrong(self, results: Mapping[str, Any]) -> Iterator[tuple[str, Gap]]:
        """The results that are further away than rounding explains, and how far, in their order."""
        least = max((usual(k) for k in self.kinds if k.floating), default=0.0)
        if self._exact is None:
            self._exact = self._answer(_doubled(self.graph, _wide), _wide)
        for name, result in results.items():
            exact = self._exact[name]
            if _apart(result, exact, [], least).agrees:
                continue
            if self._worlds is None:
                self._worlds = self._off_by_a_little(any(_whole(r) for r in results.values()))
            gap = _apart(result, exact, [w[name] for w in self._worlds], least)
            if not gap.agrees:
                yield name, gap

    def _off_by_a_little(self, whole: bool) -> list[dict[str, Any]]:
        noise = max((NOISE.get(k, FLOAT32) for k in self.kinds), default=FLOAT32)
        rng = np.random.default_rng(77)
        shaken = partial(_shaken, max(noise, ROUNDING) if whole else noise, rng)
        answers = [self._answer(_doubled(self.graph, shaken), shaken) for _ in range(WORLDS)]
        with suppress(MezzoError):  # references may take no mixed types, as kernels do
            answers.append(self._answer(self.graph, _same))
        return answers

    def _answer(self, graph: Graph, change: Callable[[Any], Any]) -> dict[str, Any]:
        """The outputs, node by node: what a reference makes of a narrower type is changed before others read it."""
        values = {**graph.initializers, **{n: change(v) for n, v in self.values.items()}}
        for node in graph.nodes:
            read = {n: values[n] for n in node.reads()}
            values |= {n: change(v) for n, v in self._node_answer(node, read).items()}
        return {n: values[n] for n in graph.outputs}

    def _node_answer(self, node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
        graph = Graph(tuple(values), tuple(filter(None, node.outputs)), (node,))
        try:
            return evaluate(graph, values, budget=self.budget, key=self.key)
        except MezzoError:  # some take nothing wider than float32
            narrow = {n: _narrow(v) for n, v in values.items()}
            if all(narrow[n] is v for n, v in values.items()):
                raise
            return evaluate(graph, narrow, budget=self.budget, key=self.key)


def _whole(result: Any) -> bool:
    return isinstance(result, np.ndarray) and result.dtype.kind in "iub"


def _apart(ours: Any, exact: Any, worlds: Sequence[Any], least: float) -> Gap:
    if isinstance(exact, list):
        if not isinstance(ours, list) or len(ours) != len(exact):
            return Gap(np.inf, 0.0, f"{type(ours).__name__} here, a list of {len(exact)} meant")
        sides = [[w[i] for w in worlds if len(w) > i] for i in range(len(exact))]
        gaps = [_apart(f, e, s, least) for f, e, s in zip(ours, exact, sides, strict=True)]
        return max(gaps, key=lambda g: (bool(g.unlike), not g.agrees, g.error), default=Gap(0.0))
    if exact is None or ours is None or not isinstance(exact, np.ndarray):
        return Gap(0.0) if type(ours) is type(exact) else Gap(np.inf, 0.0, f"{ours!r} here, {exact!r} meant")
    if any(w.shape != exact.shape for w in worlds):
        return Gap(0.0)  # rounding decides of the shape
    ours = np.asarray(ours)
    if ours.shape != exact.shape:
        return Gap(np.inf, 0.0, f"shape {list(ours.shape)} here, {list(exact.shape)} meant")
    if ours.dtype.kind in "OUS" or not (DType.of(ours.dtype).floating or ours.dtype.kind == "c"):
        wrong = np.asarray(ours != exact)
        for world in worlds:
            wrong &= world == exact
        return Gap(float(wrong.mean()) if wrong.size else 0.0)
    return _off(ours, exact, worlds, max(least, usual(DType.of(ours.dtype))))


def _off(ours: Array, exact: Array, worlds: Sequence[Array], tolerance: float) -> Gap:
    wide = np.complex128 if exact.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        got, want = ours.astype(wide), exact.astype(ours.dtype).astype(wide)  # what is too large is infinite
        others = [w.astype(ours.dtype).astype(wide) for w in worlds]
        same = (got == want) | ((got != got) & (want != want))
        apart = np.abs(got - want)
        spread = np.zeros(want.shape)
        for other in others:
            far = np.abs(other - want)
            alike = (other == want) | ((other != other) & (want != want))
            spread = np.maximum(spread, np.where(alike, 0.0, np.where(np.isfinite(far), far, np.inf)))
        finite = np.abs(want[np.isfinite(want)])
        scale = max(float(finite.max(initial=0)), SMALLEST)
        left = np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))
        left = np.where(np.isinf(spread), 0.0, np.maximum(left - PARTED * np.where(np.isinf(spread), 0.0, spread), 0.0))
    return Gap(float(left.max(initial=0.0)) / scale, tolerance)


def _same(x: Any) -> Any:
    return x


def _wide(x: Any) -> Any:
    """Floats up to float32 in float64."""
    if isinstance(x, list):
        return [_wide(v) for v in x]
    narrow = isinstance(x, np.ndarray) and x.dtype != object and DType.of(x.dtype) in SINGLE
    return x.astype(np.float64) if narrow else x


def _narrow(x: Any) -> Any:
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x


def _shaken(noise: float, rng: Any, x: Any) -> Any:
    if isinstance(x, list):
        return [_shaken(noise, rng, v) for v in x]
    wide = _wide(x)
    if not (isinstance(wide, np.ndarray) and wide.dtype == np.float64):
        return wide
    return wide * (1 + noise * rng.choice((-1.0, -0.5, 0.5, 1.0), wide.shape))


def _doubled(graph: Graph, change: Callable[[Any], Any]) -> Graph:
    """The graph with its casts and statistics in float64, and its constants changed."""
    constants = {n: change(a) for n, a in graph.initializers.items()}
    return graph.but(nodes=tuple(_doubled_node(n, change) for n in graph.nodes), initializers=constants)


def _doubled_node(node: Node, change: Callable[[Any], Any]) -> Node:
    attrs = {a: _attribute(node.op, a, v, change) for a, v in node.attrs.items()}
    if "stash_type" in node.record.attrs:
        attrs["stash_type"] = DType.DOUBLE.onnx
    return replace(node, attrs=attrs)


def _attribute(op: str, name: str, value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Graph):
        return _doubled(value, change)
    if (op, name) == ("Fused", "chain"):
        return tuple(
            (domain, link, operands, tuple((a, _attribute(link, a, v, change)) for a, v in attrs))
            for domain, link, operands, attrs in value
        )
    if (op, name) in ROUNDED and value:
        return DType.DOUBLE.onnx if DType.from_onnx(value) in SINGLE else value
    return change(value) if isinstance(value, np.ndarray) else value
