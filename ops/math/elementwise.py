"""Operators that act element by element, broadcasting as ONNX does (numpy's rules).

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import weights
from ..core.expr import Expr, Expressions
from ..op import Builder, Op, Sample, Value, pointwise
from ..types import DType, Tensor, f32, i64
from .derivatives import derivative, flat, primitive

if TYPE_CHECKING:
    from typing import Unpack

    from ..traits import Traits

ONE = [Sample([f32(2, 3)])]
PAIR = [Sample([f32(2, 3), f32(3)]), Sample([f32(2, 1, 4), f32(3, 1)]), Sample([f32(), f32(2)])]
INTS = Sample([i64(2, 3), i64(3)])
POSITIVE = [Sample([np.linspace(0.1, 4, 6, dtype=np.float32)])]
OPERATORS = """
    Neg Abs Exp Log Sqrt Reciprocal Floor Ceil Round Sign Max Min Sum Equal Less LessOrEqual Greater GreaterOrEqual
    And Or Xor Not IsNaN mezzo::ReciprocalGrad
"""


@pointwise(
    "Add",
    complex_numbers="direct",
    weights=weights.alike,
    follows=True,
    quantized="com.microsoft::QLinearAdd",
    since=14,
    output="C",
    samples=[*PAIR, INTS],
)
def add(e: Expressions, A: Expr, B: Expr) -> Expr:
    return A + B


@add.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return dys[0], dys[0]  # whoever differentiates sums broadcast axes back, for every broadcasting operator alike


@pointwise(
    "Sub", complex_numbers="direct", weights=weights.alike, follows=True, since=14, output="C", samples=[*PAIR, INTS]
)
def sub(e: Expressions, A: Expr, B: Expr) -> Expr:
    return A - B


@sub.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return dys[0], g.Neg(dys[0])


@pointwise(
    "Mul",
    complex_numbers="holomorphic",
    weights=weights.alike,
    follows=True,
    quantized="com.microsoft::QLinearMul",
    since=14,
    output="C",
    samples=[*PAIR, INTS],
)
def mul(e: Expressions, A: Expr, B: Expr) -> Expr:
    return A * B


@mul.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return g.Mul(dys[0], xs[1]), g.Mul(dys[0], xs[0])


@pointwise(
    "Div",
    partial=True,
    complex_numbers="holomorphic",
    weights=weights.alike,
    follows=True,
    since=14,
    output="C",
    samples=[*PAIR, Sample([np.array([7, -7, 9]), np.array([2, 2, -4])])],
)
def div(e: Expressions, A: Expr, B: Expr) -> Expr:
    if A.dtype.integer:  # ONNX divides integers as C does, towards zero
        return e.floor_div(A - e.fmod(A, B), B)
    return A / B


@div.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    dA = g.Div(dys[0], xs[1])
    return dA, g.Neg(g.Mul(dA, ys[0])) if g.wants[1] else None


@pointwise("Pow", partial=True, complex_numbers="holomorphic", weights=weights.alike, mixed="wide", since=15,
           output="Z", samples=[
    Sample([np.array([[1.5, 2, 3]], np.float32), f32(2, 3)]),
    Sample([f32(3), np.array([2, 3, 0])]),
    *(Sample([f32(2, 3), np.float32(n)]) for n in (2, 3)),
])  # fmt: skip
def pow_(e: Expressions, X: Expr, Y: Expr) -> Expr:
    if X.dtype.integer and Y.dtype.floating:
        return e.cast(e.pow(e.cast(X, DType.DOUBLE), e.cast(Y, DType.DOUBLE)), X.dtype)
    return e.pow(X, e.cast(Y, X.dtype))


@pow_.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    (dy,), (z,), (X, Y) = dys, ys, xs
    dY = g.PowExponentGrad(dy, X, Y, z, domain="mezzo") if g.wants[1] else None
    known = g.type_of(Y)
    n = known.value.item() if isinstance(known, Tensor) and known.value is not None and known.value.ndim == 0 else 0
    if n == 2:
        return g.Mul(dy, g.Mul(X, g.scalar(2, X))), dY
    if n:  # a power by one known number has fast kernels
        return g.Mul(dy, g.Mul(g.Pow(X, g.scalar(n - 1, X)), g.scalar(n, X))), dY
    return g.PowGrad(dy, X, Y, domain="mezzo"), dY


POWERS = Sample([f32(5), np.array([0, 0, 1.5, 2, 0.5], np.float32), np.array([0, 2, 0, -1, 3], np.float32)])


@pointwise(
    "PowGrad", domain="mezzo", output="dX", samples=[POWERS, Sample([f32(2, 3), f32(1, 3), np.array([2, 3, 0])])]
)
def pow_grad(e: Expressions, dZ: Expr, X: Expr, Y: Expr) -> Expr:
    """The gradient with respect to the base; zero where the exponent is 0, whatever the base (and no infinity for
    second derivatives)."""
    exponent = e.cast(Y, X.dtype)
    constant = e.equal(exponent, 0)
    return e.where(constant, 0, dZ * exponent * e.pow(e.where(constant, 1, X), exponent - 1))


@pointwise("PowExponentGrad", domain="mezzo", output="dY", samples=[Sample([*POWERS.inputs, f32(5)])])
def pow_exponent_grad(e: Expressions, dZ: Expr, X: Expr, Y: Expr, Z: Expr) -> Expr:
    """The gradient with respect to the exponent; zero where the base is 0 and stays so."""
    still = e.and_(e.equal(X, 0), e.greater_equal(Y, 0))
    return e.cast(e.where(still, 0, dZ * Z * e.log(e.where(still, 1, X))), Y.dtype)


neg = primitive("Neg", 13, "neg", ONE, lambda g, dy, y, x: g.Neg(dy), complex_numbers="direct", follows=True)
abs_ = primitive("Abs", 13, "abs", ONE, lambda g, dy, y, x: g.Mul(dy, g.Sign(x)), follows=True)
exp = primitive(
    "Exp", 13, "exp", ONE, lambda g, dy, y, x: g.Mul(dy, y),
    operands="input", output="output", complex_numbers="holomorphic", mixed="wide",
)  # fmt: skip
log = primitive(
    "Log", 13, "log", POSITIVE, lambda g, dy, y, x: g.Div(dy, x),
    operands="input", output="output", complex_numbers="holomorphic", mixed="wide",
)  # fmt: skip
sqrt = primitive(
    "Sqrt", 13, "sqrt", POSITIVE, lambda g, dy, y, x: g.Div(g.Mul(dy, g.scalar(0.5, dy)), y),
    complex_numbers="holomorphic", follows=True,
)  # fmt: skip
reciprocal = primitive("Reciprocal", 13, "reciprocal", POSITIVE, complex_numbers="holomorphic", mixed="wide")


@derivative(reciprocal)
def _(e: Expressions, dY: Expr, Y: Expr) -> Expr:
    return -(dY * Y * Y)


floor = primitive("Floor", 13, "floor", ONE, jumps=True)
ceil = primitive("Ceil", 13, "ceil", ONE, jumps=True)
round_ = primitive("Round", 22, "rint", [*ONE, Sample([np.array([-2.5, -0.5, 0.5, 1.5, 2.6], np.float32)])], jumps=True)
sign = primitive(
    "Sign", 13, "sign", [*ONE, Sample([i64(2, 3)]), Sample([np.array([0, 7], np.uint8)])],
    operands="input", output="output", jumps=True,
)  # fmt: skip
flat(floor, ceil, round_, sign)


@pointwise("Mod", partial=True, since=28, jumps=True, output="C", samples=[
    Sample([np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])]),
    Sample([np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])], {"fmod": 1}),
    Sample([np.array([[7], [9]], np.uint8), np.array([4, 5], np.uint8)]),
    Sample([np.array([[5.5], [-5.5]], np.float32), np.array([2, -2], np.float32)], {"fmod": 1}),
])  # fmt: skip
def mod(e: Expressions, A: Expr, B: Expr, *, fmod: int = 0) -> Expr:
    return e.fmod(A, B) if fmod else e.mod(A, B)


@mod.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, fmod: int = 0) -> tuple[Value | None, ...]:
    (dC,), (C,), (A, B) = dys, ys, xs
    return dC, g.Mul(dC, g.Div(g.Sub(C, A), B)) if g.wants[1] else None


@pointwise("Clip", follows=True, since=13, output="output", samples=[
    *ONE, Sample([f32(2, 3), np.float32(-0.5), np.float32(0.5)]), Sample([f32(4), None, np.float32(0.1)]),
])  # fmt: skip
def clip(e: Expressions, input: Expr, min: Expr | None = None, max: Expr | None = None) -> Expr:
    low = input if min is None else e.max(input, min)
    return low if max is None else e.min(low, max)


@clip.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    (dy,), (x, low, high), zero = dys, xs, g.scalar(0, dys[0])
    raised, lowered = g.Less(x, low) if low is not None else None, None
    if high is not None:
        lowered = g.Less(high, x if low is None else g.Max(x, low))
    if raised is not None and lowered is not None:  # of limits that cross, the higher counts
        raised = g.And(raised, g.Not(lowered))
    dlow = g.Where(raised, dy, zero) if raised is not None and g.wants[1] else None
    dhigh = g.Where(lowered, dy, zero) if lowered is not None and g.wants[2] else None
    return g.ClipGrad(dy, x, low, high, domain="mezzo"), dlow, dhigh


@pointwise("ClipGrad", domain="mezzo", output="dX", samples=[
    Sample([f32(2, 3), f32(2, 3)]), Sample([f32(4), f32(4), None, np.float32(0.1)]),
    Sample([f32(4), np.array([-1, -0.5, 0, 0.7], np.float32), np.float32(-0.5), np.float32(0.5)]),
])  # fmt: skip
def clip_grad(e: Expressions, dY: Expr, X: Expr, min: Expr | None = None, max: Expr | None = None) -> Expr:
    above = dY if min is None else e.where(e.less(X, min), 0, dY)
    return above if max is None else e.where(e.greater(X, max), 0, above)


MANY = [*ONE, *PAIR, Sample([f32(2), f32(2), f32(1)])]


def _many(name: str, since: int, combine: Callable[[Expressions, Expr, Expr], Expr], **traits: Unpack[Traits]) -> Op:
    """Define an operator that combines any number of operands, one after the other."""

    @pointwise(name, since=since, output=name.lower(), samples=MANY, **traits)
    def record(e: Expressions, *data_0: Expr) -> Expr:
        result = data_0[0]
        for x in data_0[1:]:
            result = combine(e, result, x)
        return result

    return record


max_ = _many("Max", 13, lambda e, a, b: e.max(a, b), weights=weights.alike, follows=True)
min_ = _many("Min", 13, lambda e, a, b: e.min(a, b), weights=weights.alike, follows=True)
sum_ = _many("Sum", 13, lambda e, a, b: a + b, weights=weights.alike, complex_numbers="direct")


@max_.grad
@min_.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    if len(xs) == 1:
        return (dys[0],)
    return tuple(
        g.ExtremeGrad(dys[0], ys[0], x, *xs[:i], *xs[i + 1 :], domain="mezzo") if g.wants[i] else None
        for i, x in enumerate(xs)
    )


@pointwise("ExtremeGrad", domain="mezzo", output="dX", samples=[
    Sample([f32(3), np.array([1, 2, 3], np.float32), np.array([1, 2, 2], np.float32), np.array([0, 2, 3], np.float32)]),
    Sample([f32(2, 3), f32(2, 3), f32(3), f32(2, 1), f32()]),
])  # fmt: skip
def extreme_grad(e: Expressions, dY: Expr, Y: Expr, X: Expr, *others: Expr) -> Expr:
    """The part of dY that X gets, if it equals the extreme Y: operands that do share evenly."""
    count = e.cast(e.equal(X, Y), dY.dtype)
    for x in others:
        count = count + e.cast(e.equal(x, Y), dY.dtype)
    return e.where(e.equal(X, Y), dY / count, 0)


@sum_.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (dys[0],) * len(xs)


@pointwise(
    "Mean",
    complex_numbers="direct",
    weights=weights.alike,
    since=13,
    output="mean",
    samples=MANY,
)
def mean(e: Expressions, *data_0: Expr) -> Expr:
    result = data_0[0]
    for x in data_0[1:]:
        result = result + x
    return result / len(data_0) if len(data_0) > 1 else result


@mean.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Mul(dys[0], g.scalar(1 / len(xs), dys[0])),) * len(xs)


EQUAL = [INTS, Sample([np.array([1.0, 2, np.nan]), np.array([1.0, 3, np.nan])])]
equal = primitive("Equal", 19, "equal", EQUAL, operands="A B", output="C")
less = primitive("Less", 13, "less", PAIR, operands="A B", output="C")
less_or_equal = primitive("LessOrEqual", 16, "less_equal", [*PAIR, INTS], operands="A B", output="C")
greater = primitive("Greater", 13, "greater", PAIR, operands="A B", output="C")
greater_or_equal = primitive("GreaterOrEqual", 16, "greater_equal", [*PAIR, INTS], operands="A B", output="C")

BOOLS = [Sample([Tensor(DType.BOOL, (2, 3)), Tensor(DType.BOOL, (3,))])]


and_ = primitive("And", 7, "and", BOOLS, operands="A B", output="C")
or_ = primitive("Or", 7, "or", BOOLS, operands="A B", output="C")
xor = primitive("Xor", 7, "xor", BOOLS, operands="A B", output="C")
not_ = primitive("Not", 1, "not", [Sample([Tensor(DType.BOOL, (2, 3))])])


@pointwise(
    "Where",
    complex_numbers="direct",
    since=16,
    output="output",
    samples=[Sample([Tensor(DType.BOOL, (2, 3)), f32(3), f32(2, 1)])],
)
def where(e: Expressions, condition: Expr, X: Expr, Y: Expr) -> Expr:
    return e.where(condition, X, Y)


@where.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    zero = g.scalar(0, dys[0])
    return None, g.Where(xs[0], dys[0], zero), g.Where(xs[0], zero, dys[0])


_SPECIAL = Sample([np.array([-np.inf, -1, 0, np.nan, np.inf], np.float32)])


is_nan = primitive("IsNaN", 20, "isnan", [*ONE, _SPECIAL])


@pointwise("IsInf", since=20, samples=[
    *ONE, _SPECIAL, *(Sample(_SPECIAL.inputs, {"detect_negative": n, "detect_positive": 1 - n}) for n in (0, 1)),
    Sample(_SPECIAL.inputs, {"detect_negative": 0, "detect_positive": 0}),
])  # fmt: skip
def is_inf(e: Expressions, X: Expr, *, detect_negative: int = 1, detect_positive: int = 1) -> Expr:
    if detect_negative and detect_positive:
        return e.isinf(X)
    side = e.less(X, 0) if detect_negative else e.greater(X, 0)
    return e.and_(e.isinf(X), side if detect_negative or detect_positive else False)
