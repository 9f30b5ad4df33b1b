"""What a graph answers: its operators' references run node by node in float64, and how far rounding may lead away.

Beside the exact values run a few *worlds* in which every float is off by a little after every step, as it is where a
step computes in float32 (or in bfloat16). How far the worlds part is how ill-conditioned a value is, and its tolerance
follows from that. A whole number, or a truth, that differs between worlds depends on rounding alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ml_dtypes import finfo

from mezzo.ops import Context, DType
from mezzo.ops.budget import Budget
from mezzo.ops.errors import MezzoError
from mezzo.runtime.ir.graph import Graph, Node
from mezzo.runtime.ir.interpreter import InterpretedBody, Meter, _interpreter, node_key
from mezzo.tools.finite import ROUNDED, in_float64

Array = np.ndarray[Any, Any]
WIDE = {"float16", "bfloat16", "float32"}  # what the exact world has in float64
FLOAT32, BFLOAT16 = (
    2.0**-21,
    2.0**-8,
)  # by how much floats of the other worlds are off: what their kernels may be off by
NOISE = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-8}  # at least, in tensors of these element types
# Operators that answer floats and jump: behind one of them, bfloat16 may be anywhere. So may what is made from whole
# numbers and truths that come from floats.
JUMPS = {"Round", "Floor", "Ceil", "Sign", "Hardmax", "Mod", "Shrink", "ThresholdedRelu"}
# Where docs/decisions/0011 leaves open how far what is no number reaches: from any input, and from all but the first.
REACHING = {"Softmax", "LogSoftmax", "Resize", "PRelu"}
# Operands times a factor from 0 to 1, whose digits near 0 are lost in float32.
SATURATING = {"Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Mish", "Swish"}
# Logarithms of sums near 1, by how much they are off whatever their size: oneDNN's is that of a table.
LOGARITHMS = {"LogSoftmax": 2.0**-18}
MULTIPLIED = {"Conv", "ConvTranspose", "FusedConv", "LSTM", "GRU", "RNN"}
WORLDS = 2
OFF = (-1.0, -0.5, 0.5, 1.0)  # by how many times its noise a number of a world is off; never by nothing
TRIES = 5  # of a world to fall on the other side of a rounding, where the exact value lies between both
BUDGET = Budget(steps=1 << 12)


class OnEdge(Exception):
    """A value depends on rounding: whole numbers that differ between worlds, or floats that lie far apart."""


def widened(x: Any) -> Any:
    """Floats in float64; lists, texts and whole numbers as they are."""
    if isinstance(x, list):
        return [widened(v) for v in x]
    if isinstance(x, np.generic):  # which NumPy answers for arrays of rank 0
        x = np.asarray(x)
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.name in WIDE else x


def narrowed(x: Any) -> Any:
    """Floats in float32, for references that take nothing wider."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x


@dataclass
class Worlds:
    """The values of a graph by name: in `exact` in float64, and in each of `others` a little off. Of those in
    `unspecified` nothing is expected: whole numbers made from what is no number, and under bfloat16 what jumps."""

    noise: float = FLOAT32
    seed: int = 0
    count: int = WORLDS
    even: bool = False
    exact: dict[str, Any] = field(default_factory=dict[str, Any])
    others: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    unspecified: set[str] = field(default_factory=set[str])
    history: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])  # the values given, the nodes run

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng((self.seed, 77))
        self.ties = np.random.default_rng((self.seed, 78))
        self.others = [{} for _ in range(self.count)]

    def give(self, name: str, value: Any) -> None:
        """An input or a constant."""
        self.history.append((name, value))
        self._keep(
            name, widened(value), [widened(value)] * self.count, 0.0 if _narrow(value) else self._noise_of(value)
        )

    def _noise_of(self, value: Any) -> float:
        known = NOISE.get(DType.of(value.dtype)) if isinstance(value, np.ndarray) else None
        return max(self.noise, known or 0.0)

    def _keep(self, name: str, exact: Any, others: Sequence[Any], noise: float) -> None:
        self.exact[name] = exact
        for i, (world, value) in enumerate(zip(self.others, others, strict=True)):
            world[name] = self._shaken(value, noise, even=self.even and i % 2 > 0)

    def _shaken(self, value: Any, noise: float, rng: np.random.Generator | None = None, *, even: bool = False) -> Any:
        if isinstance(value, list):
            return [self._shaken(v, noise, rng, even=even) for v in value]
        if not (isinstance(value, np.ndarray) and value.dtype == np.float64):
            return value
        return np.asarray(value * (1 + noise * (rng or self.rng).choice(OFF, () if even else value.shape)))

    def step(self, node: Node, dtypes: Sequence[DType | None] = ()) -> tuple[Any, ...]:
        """Run one node in every world; `dtypes` are the element types that the graph declares of its outputs."""
        self.history.append((node, tuple(dtypes)))
        attrs = {a: _exact(node.op, a, v) for a, v in node.attrs.items()}
        if "stash_type" in node.record.attrs:
            attrs["stash_type"] = DType.DOUBLE.onnx
        found = [_run(node, attrs, world) for world in (self.exact, *self.others)]
        if any(_whole(x) for x in found[0]) and any(_floating(self.exact[i]) for i in node.inputs if i):
            found[1:] = [
                self._tried(node, attrs, found[0], f, world) for f, world in zip(found[1:], self.others, strict=True)
            ]
        if node.op in SATURATING:
            found[1:] = [self._saturated(node, f, world) for f, world in zip(found[1:], self.others, strict=True)]
        if node.op in LOGARITHMS:
            found[1:] = [self._beside(f, LOGARITHMS[node.op]) for f in found[1:]]
        if node.op in ("Cast", "CastLike") and dtypes and dtypes[0] is not None:
            found = [(_within(made[0], dtypes[0]),) for made in found]
        for i, name in enumerate(node.outputs):
            if name:
                dtype = dtypes[i] if i < len(dtypes) else None
                noise = max(self.noise, NOISE.get(dtype, 0.0)) if dtype is not None else self.noise
                self._keep(name, found[0][i], [f[i] for f in found[1:]], noise)
        if self._leaps(node, found[0]) or not self.unspecified.isdisjoint(node.reads()):
            self.unspecified.update(o for o in node.outputs if o)
        return found[0]

    def _tried(
        self, node: Node, attrs: Mapping[str, Any], exact: Any, found: tuple[Any, ...], world: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """What a node answers in a world: whole numbers unlike the exact ones, if a little noise makes such ones. Half
        of what lies between two whole numbers would else fall on the exact one's side in every world."""
        for _ in range(TRIES):
            if any(_whole(x) and _apart(x, f) for x, f in zip(exact, found, strict=True)):
                break
            values = {i: self._shaken(world[i], self.noise, self.ties) for i in node.inputs if i}
            found = _run(node, attrs, {**world, **values})
        return found

    def _saturated(self, node: Node, found: tuple[Any, ...], world: Mapping[str, Any]) -> tuple[Any, ...]:
        """Results that are off by a part of the operand: a factor near 0 is the difference of numbers near 1."""
        y, x = found[0], world[node.inputs[0]]
        if not (_floating(y) and _floating(x) and y.shape == x.shape):
            return found
        return (np.asarray(y + self.noise * np.abs(x) * self.ties.choice(OFF, y.shape)), *found[1:])

    def _beside(self, found: tuple[Any, ...], distance: float) -> tuple[Any, ...]:
        """Results that are off by as much, wherever they lie."""
        y = found[0]
        return (np.asarray(y + distance * self.ties.choice(OFF, y.shape)), *found[1:]) if _floating(y) else found

    def _leaps(self, node: Node, made: Sequence[Any]) -> bool:
        floats = [x for i in node.inputs if i and _floating(x := self.exact[i])]
        if self.noise >= BFLOAT16 and floats:
            return node.op in JUMPS or any(isinstance(x, np.ndarray) and x.dtype.kind in "iub" for x in made)
        whole = any(isinstance(x, np.ndarray) and x.dtype.kind in "iu" for x in made)
        if whole or node.op in REACHING:
            return any(not np.isfinite(x).all() for x in floats)
        weights = [x for i in node.inputs[1:] if i and _floating(x := self.exact[i])]
        return node.op in MULTIPLIED and any(not np.isfinite(x).all() for x in weights)

    def again(self, count: int) -> Worlds:
        """The same values with more worlds: two may both lie on one side of where rounding decides. In every second
        one all elements of a tensor are off alike, as those of a row are that share a sum."""
        made = Worlds(self.noise, self.seed + 1, count, even=True)
        for what, more in self.history:
            if isinstance(what, Node):
                made.step(what, more)
            else:
                made.give(what, more)
        made.unspecified |= self.unspecified
        return made

    def deviation(self, name: str) -> float:
        """How far the worlds lie from the exact value, at most; infinite where they differ in more than size."""
        return max((_apart(self.exact[name], w[name]) for w in self.others), default=0.0)


def _within(x: Any, dtype: DType) -> Any:
    """Floats that were cast to a narrower type, in float64: what is too small for the type is 0."""
    if not _floating(x) or dtype not in (DType.FLOAT, DType.FLOAT16, DType.BFLOAT16):
        return x
    least = float(finfo(dtype.numpy).smallest_subnormal)  # type: ignore[no-untyped-call]
    return np.where(np.abs(x) < least / 2, np.copysign(0.0, x), x)


def _narrow(x: Any) -> bool:
    """Whether all elements are numbers of bfloat16, as scales and exponents are: no cast moves them."""
    return isinstance(x, np.ndarray) and x.dtype == np.float32 and not (x.view(np.uint32) & 0xFFFF).any()


def _whole(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "iub"


def _floating(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


def _exact(op: str, name: str, value: Any) -> Any:
    if isinstance(value, Graph):
        return in_float64(value)
    if (op, name) in ROUNDED and value:
        return DType.DOUBLE.onnx if DType.from_onnx(value).numpy.name in WIDE else value
    return widened(value) if isinstance(value, np.ndarray) else value


def _run(node: Node, attrs: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Any, ...]:
    meter = Meter(BUDGET.steps)
    k = Context(wanted=node.wanted, run=_interpreter(BUDGET, meter, (0,), False), key=node_key(node, (0,)))
    held = {
        a: InterpretedBody(v, values, BUDGET, meter) if isinstance(v, Graph) else v for a, v in attrs.items()
    }  # fmt: skip
    given = [values[i] if i else None for i in node.inputs]
    with np.errstate(all="ignore"):
        try:
            found = node.record.run(k, given, held)
        except MezzoError:
            if not any(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in given):
                raise
            found = node.record.run(k, [narrowed(x) for x in given], held)
    return tuple(widened(f) for f in found)


def _apart(a: Any, b: Any) -> float:
    """The largest difference between floats; infinite where anything else differs."""
    if isinstance(a, list):
        same = isinstance(b, list) and len(a) == len(b)
        return max(map(_apart, a, b), default=0.0) if same else np.inf
    if not isinstance(a, np.ndarray) or a.dtype != np.float64:
        return 0.0 if np.array_equal(a, b) else np.inf
    if a.shape != b.shape:
        return np.inf
    odd = ~np.isfinite(a)
    if not np.array_equal(a[odd], b[odd], equal_nan=True):
        return np.inf
    return float(np.abs(a[~odd] - b[~odd]).max(initial=0.0))


def evaluated(graph: Graph, feeds: Mapping[str, Any], noise: float = FLOAT32, count: int = WORLDS) -> Worlds:
    """Every value of a typed graph; states begin with their initialisers."""
    made = Worlds(noise, count=count)
    for name, value in {**graph.initializers, **feeds}.items():
        made.give(name, value)
    for node in graph.nodes:
        made.step(node, [getattr(graph.types.get(o), "dtype", None) for o in node.outputs])
    return made
