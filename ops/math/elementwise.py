"""Operators that act element by element, broadcasting as ONNX does (numpy's rules).

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import weights
from ..core.expr import Expr, Expressions
from ..op import Builder, Sample, Value, pointwise
from ..types import DType, Tensor, f32, i64
from .derivatives import derivative, flat

ONE = [Sample([f32(2, 3)])]
PAIR = [Sample([f32(2, 3), f32(3)]), Sample([f32(2, 1, 4), f32(3, 1)]), Sample([f32(), f32(2)])]
INTS = Sample([i64(2, 3), i64(3)])
POSITIVE = [Sample([np.linspace(0.1, 4, 6, dtype=np.float32)])]
OPERATORS = "mezzo::ReciprocalGrad"


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


@pointwise("Neg", complex_numbers="direct", follows=True, since=13, samples=ONE)
def neg(e: Expressions, X: Expr) -> Expr:
    return -X


@neg.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Neg(dys[0]),)


@pointwise("Abs", follows=True, since=13, samples=ONE)
def abs_(e: Expressions, X: Expr) -> Expr:
    return e.abs(X)


@abs_.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Mul(dys[0], g.Sign(xs[0])),)


@pointwise("Exp", complex_numbers="holomorphic", mixed="wide", since=13, output="output", samples=ONE)
def exp(e: Expressions, input: Expr) -> Expr:
    return e.exp(input)


@exp.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Mul(dys[0], ys[0]),)


@pointwise("Log", complex_numbers="holomorphic", mixed="wide", since=13, output="output", samples=POSITIVE)
def log(e: Expressions, input: Expr) -> Expr:
    return e.log(input)


@log.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Div(dys[0], xs[0]),)


@pointwise("Sqrt", complex_numbers="holomorphic", follows=True, since=13, samples=POSITIVE)
def sqrt(e: Expressions, X: Expr) -> Expr:
    return e.sqrt(X)


@sqrt.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Div(g.Mul(dys[0], g.scalar(0.5, dys[0])), ys[0]),)


@pointwise("Reciprocal", complex_numbers="holomorphic", mixed="wide", since=13, samples=POSITIVE)
def reciprocal(e: Expressions, X: Expr) -> Expr:
    return e.reciprocal(X)


@derivative(reciprocal)
def _(e: Expressions, dY: Expr, Y: Expr) -> Expr:
    return -(dY * Y * Y)


@pointwise("Floor", since=13, jumps=True, samples=ONE)
def floor(e: Expressions, X: Expr) -> Expr:
    return e.floor(X)


@pointwise("Ceil", since=13, jumps=True, samples=ONE)
def ceil(e: Expressions, X: Expr) -> Expr:
    return e.ceil(X)


@pointwise("Round", since=22, jumps=True, samples=[*ONE, Sample([np.array([-2.5, -0.5, 0.5, 1.5, 2.6], np.float32)])])
def round_(e: Expressions, X: Expr) -> Expr:
    return e.rint(X)


@pointwise(
    "Sign",
    since=13,
    jumps=True,
    output="output",
    samples=[*ONE, Sample([i64(2, 3)]), Sample([np.array([0, 7], np.uint8)])],
)
def sign(e: Expressions, input: Expr) -> Expr:
    return e.sign(input)


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


@pointwise(
    "Max",
    weights=weights.alike,
    follows=True,
    since=13,
    output="max",
    samples=[*ONE, *PAIR, Sample([f32(2), f32(2), f32(1)])],
)
def max_(e: Expressions, *data_0: Expr) -> Expr:
    result = data_0[0]
    for x in data_0[1:]:
        result = e.max(result, x)
    return result


@pointwise(
    "Min",
    weights=weights.alike,
    follows=True,
    since=13,
    output="min",
    samples=[*ONE, *PAIR, Sample([f32(2), f32(2), f32(1)])],
)
def min_(e: Expressions, *data_0: Expr) -> Expr:
    result = data_0[0]
    for x in data_0[1:]:
        result = e.min(result, x)
    return result


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


@pointwise(
    "Sum",
    complex_numbers="direct",
    weights=weights.alike,
    since=13,
    output="sum",
    samples=[*ONE, *PAIR, Sample([f32(2), f32(2), f32(1)])],
)
def sum_(e: Expressions, *data_0: Expr) -> Expr:
    result = data_0[0]
    for x in data_0[1:]:
        result = result + x
    return result


@sum_.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (dys[0],) * len(xs)


@pointwise(
    "Mean",
    complex_numbers="direct",
    weights=weights.alike,
    since=13,
    output="mean",
    samples=[*ONE, *PAIR, Sample([f32(2), f32(2), f32(1)])],
)
def mean(e: Expressions, *data_0: Expr) -> Expr:
    result = data_0[0]
    for x in data_0[1:]:
        result = result + x
    return result / len(data_0) if len(data_0) > 1 else result


@mean.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Mul(dys[0], g.scalar(1 / len(xs), dys[0])),) * len(xs)


@pointwise(
    "Equal", since=19, output="C", samples=[INTS, Sample([np.array([1.0, 2, np.nan]), np.array([1.0, 3, np.nan])])]
)
def equal(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.equal(A, B)


@pointwise("Less", since=13, output="C", samples=PAIR)
def less(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.less(A, B)


@pointwise("LessOrEqual", since=16, output="C", samples=[*PAIR, INTS])
def less_or_equal(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.less_equal(A, B)


@pointwise("Greater", since=13, output="C", samples=PAIR)
def greater(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.greater(A, B)


@pointwise("GreaterOrEqual", since=16, output="C", samples=[*PAIR, INTS])
def greater_or_equal(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.greater_equal(A, B)


BOOLS = [Sample([Tensor(DType.BOOL, (2, 3)), Tensor(DType.BOOL, (3,))])]


@pointwise("And", since=7, output="C", samples=BOOLS)
def and_(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.and_(A, B)


@pointwise("Or", since=7, output="C", samples=BOOLS)
def or_(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.or_(A, B)


@pointwise("Xor", since=7, output="C", samples=BOOLS)
def xor(e: Expressions, A: Expr, B: Expr) -> Expr:
    return e.xor(A, B)


@pointwise("Not", since=1, samples=[Sample([Tensor(DType.BOOL, (2, 3))])])
def not_(e: Expressions, X: Expr) -> Expr:
    return e.not_(X)


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


@pointwise("IsNaN", since=20, samples=[*ONE, _SPECIAL])
def is_nan(e: Expressions, X: Expr) -> Expr:
    return e.isnan(X)


@pointwise("IsInf", since=20, samples=[
    *ONE, _SPECIAL, *(Sample(_SPECIAL.inputs, {"detect_negative": n, "detect_positive": 1 - n}) for n in (0, 1)),
    Sample(_SPECIAL.inputs, {"detect_negative": 0, "detect_positive": 0}),
])  # fmt: skip
def is_inf(e: Expressions, X: Expr, *, detect_negative: int = 1, detect_positive: int = 1) -> Expr:
    if detect_negative and detect_positive:
        return e.isinf(X)
    side = e.less(X, 0) if detect_negative else e.greater(X, 0)
    return e.and_(e.isinf(X), side if detect_negative or detect_positive else False)
