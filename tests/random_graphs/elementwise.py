"""Moves element by element: activations, arithmetic with partners of every shape, casts and comparisons; reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mezzo.ops import DType

from .maker import Array, Maker, Unfit
from .moves import move

Domain = Callable[[Array], bool]


def anywhere(x: Array) -> bool:
    return True


def inside(low: float, high: float) -> Domain:
    return lambda x: bool(x.size) and low <= float(x.min()) and float(x.max()) <= high


# Activations with how often they are taken, and where their numbers must lie.
UNARY: dict[str, tuple[float, Domain]] = {
    "Relu": (8, anywhere), "Sigmoid": (4, anywhere), "Tanh": (4, anywhere), "Gelu": (3, anywhere),
    "Neg": (2, anywhere), "Abs": (2, anywhere), "Exp": (2, inside(-9, 5)), "Log": (1.5, inside(0.02, 300)),
    "Sqrt": (2, inside(0.01, 300)), "Reciprocal": (1.5, inside(0.1, 300)), "Erf": (2, anywhere),
    "Softplus": (1, inside(-9, 30)), "Softsign": (1, anywhere), "HardSigmoid": (1.5, anywhere),
    "HardSwish": (2, anywhere), "Mish": (1, inside(-9, 30)), "Swish": (2, anywhere), "Elu": (1.5, anywhere),
    "Selu": (1, anywhere), "Celu": (1, anywhere), "LeakyRelu": (2, anywhere), "ThresholdedRelu": (0.7, anywhere),
    "Shrink": (0.5, anywhere), "Floor": (0.5, anywhere), "Ceil": (0.5, anywhere), "Round": (0.5, anywhere),
    "Sign": (0.5, anywhere), "Sin": (1, inside(-40, 40)), "Cos": (1, inside(-40, 40)), "Tan": (0.3, inside(-1.2, 1.2)),
    "Asin": (0.3, inside(-0.9, 0.9)), "Acos": (0.3, inside(-0.9, 0.9)), "Atan": (0.4, anywhere),
    "Sinh": (0.3, inside(-5, 5)), "Cosh": (0.3, inside(-5, 5)), "Asinh": (0.3, anywhere),
    "Acosh": (0.3, inside(1.1, 300)), "Atanh": (0.3, inside(-0.9, 0.9)), "Identity": (0.7, anywhere),
}  # fmt: skip
SHARES = np.cumsum([w for w, _ in UNARY.values()]) / sum(w for w, _ in UNARY.values())
ATTRS: dict[str, Callable[[Maker], dict[str, Any]]] = {
    "Gelu": lambda m: {"approximate": m.one(("none", "tanh"))},
    "Elu": lambda m: {"alpha": m.one((1.0, 0.5))},
    "LeakyRelu": lambda m: {"alpha": m.one((0.01, 0.2, 1.5))},
    "Swish": lambda m: {"alpha": m.one((1.0, 1.5))},
    "Celu": lambda m: {"alpha": m.one((1.0, 0.7))},
    "HardSigmoid": lambda m: {"alpha": m.one((0.2, 1 / 6)), "beta": 0.5},
    "ThresholdedRelu": lambda m: {"alpha": m.one((1.0, 0.3))},
    "Shrink": lambda m: {"lambd": 0.5, "bias": m.one((0.0, 0.5))},
}


def activated(m: Maker, x: str) -> str:
    """An activation, where need be of numbers brought into its domain."""
    name = list(UNARY)[int(np.searchsorted(SHARES, m.rng.random()))]
    domain = UNARY[name][1]
    if not domain(m.exact(x)):
        if name in ("Log", "Sqrt", "Reciprocal"):
            x = m.add("Add", m.add("Abs", x), m.const(0.3))
        elif name == "Acosh":
            x = m.add("Add", m.add("Abs", x), m.const(1.2))
        else:
            x = m.add("Mul", m.add("Tanh", x), m.const(0.85))
    return m.add(name, x, **ATTRS[name](m) if name in ATTRS else {})


@move(16, "elementwise")
def unary(m: Maker) -> str:
    return activated(m, m.pick())


def partner_shape(m: Maker, shape: tuple[int, ...]) -> Any:
    """What a constant looks like beside a value of a shape: all of it, a channel, a scalar, of more dims than it."""
    kind = m.one(("scalar", "full", "channel", "last", "some", "some", "higher", "higher", "one"))
    if kind == "scalar" or not shape:
        return m.one(((), (), (1,), (1, 1), (1, 1, 1, 1)))
    if kind == "one":
        return (1,) * int(m.rng.integers(1, 6))
    if kind == "channel" and len(shape) > 2:
        dims = (shape[1], *(1,) * (len(shape) - 2))
        return (1, *dims) if m.chance(0.5) else dims
    if kind == "last":
        return shape[-1:]
    dims = tuple(n if kind == "full" or m.chance(0.5) else 1 for n in shape)
    if kind == "some":
        return dims[int(m.rng.integers(len(dims))) :]
    if kind == "higher" and len(dims) < 5:
        extra = (1,) * int(m.rng.integers(1, 6 - len(dims)))
        return (m.one((1, 1, 1, 2, 3)), *extra[1:], *dims)
    return dims


def partner(m: Maker, x: str) -> str:
    """The other operand: a constant, a value of the same shape, one that broadcasts, a transposed one, itself."""
    shape = m.shape(x)
    kind = m.rng.random()
    if kind < 0.45:
        return m.weight(*partner_shape(m, shape))
    if kind < 0.65:
        return m.pick(lambda n: m.shape(n) == shape)
    if kind < 0.72:
        return x
    if kind < 0.82 and len(shape) > 1:
        turned = m.pick(lambda n: m.rank(n) == len(shape) and sorted(m.shape(n)) == sorted(shape))
        perms = [p for p in (m.rng.permutation(len(shape)).tolist() for _ in range(12))
                 if tuple(m.shape(turned)[i] for i in p) == shape]  # fmt: skip
        if perms:
            return m.add("Transpose", turned, perm=perms[0])
    if kind < 0.87:
        return m.input(m.numbers(partner_shape(m, shape)))
    return m.pick(lambda n: broadcasts(m.shape(n), shape))


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(a, b)) <= 4096
    except ValueError:
        return False


def swapped(m: Maker, x: str, y: str) -> tuple[str, str]:
    return (y, x) if m.chance(0.35) else (x, y)


@move(20, "elementwise")
def binary(m: Maker) -> str:
    x = m.pick()
    op = m.one(("Add", "Add", "Add", "Mul", "Mul", "Sub", "Sub", "Div", "Max", "Min", "PRelu", "Pow"))
    if op == "Div":
        y = m.positive(*partner_shape(m, m.shape(x)))
        if m.chance(0.3):
            y = m.add("Add", m.add("Abs", m.pick(lambda n: broadcasts(m.shape(n), m.shape(x)))), m.const(0.5))
        return m.add(op, x, y)
    if op == "Pow":
        return m.add(op, x, m.const(m.one((2.0, 2.0, 3.0, 1.0, 0.0))))
    if op == "PRelu":
        return m.add(op, x, m.weight(*m.one(((1,), (), m.shape(x)[1:], m.shape(x)[-1:]))))
    return m.add(op, *swapped(m, x, partner(m, x)))


@move(2, "elementwise")
def scaled_and_shifted(m: Maker) -> str:
    """x * a + b, or (x + a) * b, with constants of shapes of their own: what folds into a norm or a post-op."""
    x = m.pick()
    for op in m.one((("Mul", "Add"), ("Add", "Mul"), ("Sub", "Div"), ("Div", "Add"), ("Add", "Add"), ("Mul", "Mul"))):
        shape = partner_shape(m, m.shape(x))
        x = m.add(op, x, m.positive(*shape) if op == "Div" else m.weight(*shape))
    return x


@move(2, "elementwise")
def many(m: Maker) -> str:
    x = m.pick()
    others = [partner(m, x) for _ in range(int(m.rng.integers(0, 4)))]
    return m.add(m.one(("Sum", "Sum", "Mean", "Max", "Min")), x, *others)


@move(2, "elementwise")
def clip(m: Maker) -> str:
    low, high = sorted(m.rng.uniform(-2, 2, 2).tolist())
    bounds = [m.const(low), m.const(high)]
    return m.add("Clip", m.pick(), *m.one((bounds, bounds, bounds[:1], [None, bounds[1]])))


@move(3, "elementwise")
def where(m: Maker) -> str:
    x = m.pick(lambda n: 0 not in m.shape(n))
    op = m.one(("Greater", "Less", "GreaterOrEqual", "LessOrEqual"))
    truth = m.add(op, x, m.const(m.rng.uniform(-1, 1)) if m.chance(0.6) else partner(m, x))
    if m.chance(0.2):
        truth = m.add("Not", truth)
    if m.chance(0.2):
        other = m.add("Less", partner(m, x), m.const(0.3))
        truth = m.add(m.one(("And", "Or", "Xor")), truth, other)
    return m.add("Where", truth, *swapped(m, x, partner(m, x)))


@move(3, "casts")
def cast_and_back(m: Maker) -> str:
    """Through a narrower or wider type, with a step between."""
    to = m.one((DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE, DType.DOUBLE, DType.INT32, DType.INT64))
    x = m.pick()
    y = m.add("Cast", x, to=to.onnx)
    if to.integer:
        y = m.add(m.one(("Add", "Mul", "Sub", "Max")), y, m.const(m.one((1, 2, 3)), to))
    elif m.chance(0.7):
        y = m.add(m.one(("Relu", "Tanh", "Neg", "Sigmoid")), y)
    return m.add("Cast", y, to=DType.FLOAT.onnx)


@move(2, "elementwise")
def whole(m: Maker) -> str:
    """Arithmetic on whole numbers: positions, lengths, masks."""
    x = m.pick(lambda n: m.rank(n) > 0, m.one((DType.INT64, DType.INT32)))
    dtype = m.dtype(x)
    op = m.one(("Add", "Mul", "Sub", "Div", "Mod", "Max", "Min", "Cast", "Cast"))
    if op == "Cast":
        return m.add("Cast", x, to=DType.FLOAT.onnx)
    other = m.const(m.rng.integers(1, 5, m.one(((), (1,), m.shape(x)[-1:]))), dtype)
    return m.add(op, x, other)


REDUCTIONS = (
    "ReduceMean", "ReduceMean", "ReduceMean", "ReduceSum", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1",
    "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "ReduceLogSum", "ReduceProd",
)  # fmt: skip


@move(10, "reductions")
def reduce(m: Maker) -> str:
    x = m.pick(lambda n: m.rank(n) > 0 and 0 not in m.shape(n))
    op = m.one(REDUCTIONS)
    if op == "ReduceLogSum":
        x = m.add("Add", m.add("Abs", x), m.const(0.3))
    if op == "ReduceProd":
        x = m.add("Sigmoid", x)
    rank = m.rank(x)
    count = int(m.one((1, 1, 1, 2, 2, rank)))
    axes = m.rng.permutation(rank)[:count].tolist()
    if rank == 4 and m.chance(0.25):
        axes = [2, 3]
    elif m.chance(0.2):
        axes = [rank - 1]
    keep = int(m.one((0, 1)))
    if m.chance(0.08):
        return m.add(op, x, keepdims=keep)
    return m.add(op, x, m.ints([a - rank if m.chance(0.4) else a for a in axes]), keepdims=keep)


@move(2, "reductions")
def search(m: Maker) -> object:
    x = m.pick(lambda n: m.rank(n) > 0 and 0 not in m.shape(n))
    axis = int(m.rng.integers(m.rank(x)))
    op = m.one(("ArgMax", "ArgMin", "TopK", "TopK", "CumSum", "CumSum"))
    if op == "TopK":
        k = int(m.rng.integers(1, m.shape(x)[axis] + 1))
        return m.several(op, x, m.ints([k]), axis=axis, largest=int(m.one((0, 1))), outputs=2)
    if op == "CumSum":
        how: dict[str, Any] = {"exclusive": int(m.one((0, 1))), "reverse": int(m.one((0, 1)))}
        return m.add(op, x, m.const(axis, DType.INT64), **how)
    return m.add(op, x, axis=axis, keepdims=int(m.one((0, 1))))


@move(1, "reductions")
def normal_range(m: Maker) -> str:
    """Numbers that have grown large or small brought back, as networks do."""
    x = m.pick(lambda n: m.rank(n) > 0 and 0 not in m.shape(n))
    most = m.add("ReduceMax", m.add("Abs", x), keepdims=1)
    if m.chance(0.5):
        return m.add("Div", x, m.add("Add", most, m.const(0.5)))
    raise Unfit("nothing to bring back")
