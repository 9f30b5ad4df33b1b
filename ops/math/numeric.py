"""Functions of numbers that every array library has and ONNX lacks: each one expression, with a body of standard
operators.

Their edge cases are those of the Python array API standard, https://data-apis.org/array-api/2024.12.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core.expr import Expr, Expressions
from ..op import Builder, Sample, Value, pointwise
from ..types import f32
from .derivatives import flat

_LN2, _LN10 = math.log(2), math.log(10)
_SMALL = Sample([np.array([[-0.9, -1e-6, 0], [1e-7, 0.5, 3]], np.float32)])
_ABOVE = Sample([np.array([[0.25, 1, 2], [10, 1e-3, 7]], np.float32)])
_SIDES = Sample([np.array([1, -1, 2, -2, 0.5], np.float32), np.array([2, 3, -1, -4, 1], np.float32)])
_PAIRS = [Sample([f32(2, 3), f32(3)]), _SIDES]


@pointwise("Expm1", domain="mezzo", complex_numbers="holomorphic", samples=[Sample([f32(2, 3)]), _SMALL])
def expm1(e: Expressions, X: Expr) -> Expr:
    """exp(X) - 1, exact near 0."""
    return e.expm1(X)


@expm1.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Mul(dys[0], g.Add(ys[0], g.scalar(1, ys[0]))),)


@pointwise("Log1p", domain="mezzo", complex_numbers="holomorphic", samples=[_SMALL])
def log1p(e: Expressions, X: Expr) -> Expr:
    """log(1 + X), exact near 0."""
    return e.log1p(X)


@log1p.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Div(dys[0], g.Add(xs[0], g.scalar(1, xs[0]))),)


@pointwise("Log2", domain="mezzo", complex_numbers="holomorphic", samples=[_ABOVE])
def log2(e: Expressions, X: Expr) -> Expr:
    """The logarithm to base 2."""
    return e.log(X) / _LN2


@log2.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Div(dys[0], g.Mul(xs[0], g.scalar(_LN2, xs[0]))),)


@pointwise("Log10", domain="mezzo", complex_numbers="holomorphic", samples=[_ABOVE])
def log10(e: Expressions, X: Expr) -> Expr:
    """The logarithm to base 10."""
    return e.log(X) / _LN10


@log10.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Div(dys[0], g.Mul(xs[0], g.scalar(_LN10, xs[0]))),)


def _negative(e: Expressions, x: Expr) -> Expr:
    """True if the sign is negative, also that of a zero."""
    return e.or_(e.less(x, 0), e.and_(e.equal(x, 0), e.less(e.reciprocal(x), 0)))


@pointwise("Atan2", domain="mezzo", samples=_PAIRS)
def atan2(e: Expressions, Y: Expr, X: Expr) -> Expr:
    """The angle of the point (X, Y), from -pi to pi."""
    y, x = e.abs(Y), e.abs(X)
    endless = e.and_(e.isinf(Y), e.isinf(X))
    ratio = e.where(endless, 1, y / x)
    quadrant = e.atan(e.where(e.and_(e.equal(y, 0), e.equal(x, 0)), 0, ratio))
    half = e.where(_negative(e, X), math.pi - quadrant, quadrant)
    return e.where(_negative(e, Y), -half, half)


@atan2.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    Y, X = xs
    zero, square = g.scalar(0, X), g.Add(g.Mul(X, X), g.Mul(Y, Y))
    part = g.Where(g.Equal(square, zero), zero, g.Div(dys[0], square))  # nothing at the origin, as PyTorch's
    return g.Mul(part, X), g.Neg(g.Mul(part, Y))


@pointwise("Hypot", domain="mezzo", samples=_PAIRS)
def hypot(e: Expressions, A: Expr, B: Expr) -> Expr:
    """The root of A*A + B*B, without overflow on the way."""
    a, b = e.abs(A), e.abs(B)
    long, short = e.max(a, b), e.min(a, b)
    ratio = e.where(e.equal(long, 0), 0, short / long)
    length = long * e.sqrt(ratio * ratio + 1)
    return e.where(e.isinf(a), a, e.where(e.isinf(b), b, length))


@hypot.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    zero = g.scalar(0, ys[0])  # at the tip of the cone the slope is nothing, as PyTorch's of the length of a complex 0
    part = g.Where(g.Equal(ys[0], zero), zero, g.Div(dys[0], ys[0]))
    return g.Mul(part, xs[0]), g.Mul(part, xs[1])


@pointwise("LogAddExp", domain="mezzo", samples=_PAIRS)
def log_add_exp(e: Expressions, A: Expr, B: Expr) -> Expr:
    """log(exp(A) + exp(B)), without overflow on the way."""
    high, low = e.max(A, B), e.min(A, B)
    return e.where(e.equal(A, B), A + _LN2, high + e.log1p(e.exp(low - high)))


@log_add_exp.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return tuple(g.Mul(dys[0], g.Exp(g.Sub(x, ys[0]))) for x in xs)


@pointwise(
    "FloorDiv",
    domain="mezzo",
    samples=[
        Sample([np.array([7, -7, 7.5, -0.5], np.float32), np.array([2, 2, -4, 3], np.float32)]),
        Sample([np.array([7, -7, 7, -7]), np.array([2, 2, -4, -4])]),
    ],
)
def floor_div(e: Expressions, A: Expr, B: Expr) -> Expr:
    """The quotient rounded down; at infinities floor(A / B), where NumPy's goes with the remainder."""
    if not A.dtype.floating:
        return e.floor_div(A, B)
    return e.where(e.or_(e.isinf(A), e.isinf(B)), e.floor(A / B), e.floor_div(A, B))


@floor_div.body
def _(g: Builder, xs: Any, types: Any) -> tuple[Value, ...] | None:
    """Of floats: less the remainder, divided, rounded; A / B itself may round up to the next whole number."""
    if types[0] is None or types[1] is None:
        return None
    A, B = xs
    if not types[0].dtype.floating:
        return (g.Div(g.Sub(A, g.Mod(A, B)), B),)
    ratio = g.Div(A, B)
    whole = g.Round(g.Div(g.Sub(A, _remainder(g, A, B)), B))
    whole = g.Where(g.Equal(whole, g.scalar(0, A)), g.Mul(ratio, g.scalar(0, A)), whole)  # with the sign of the ratio
    return (g.Where(g.Or(g.IsInf(ratio), g.IsInf(B)), g.Floor(ratio), whole),)


flat(floor_div)


@pointwise(
    "Remainder",
    domain="mezzo",
    jumps=True,
    samples=[
        Sample([np.array([5.5, -5.5, 5.5, -5.5, 6, -6], np.float32), np.array([2, 2, -2, -2, 3, -3], np.float32)]),
        Sample([np.array([[7], [-7]]), np.array([3, -3])]),
    ],
)
def remainder(e: Expressions, A: Expr, B: Expr) -> Expr:
    """The remainder of A divided by B, with the sign of B, as Python's `%` has it: also of floats, for which ONNX's Mod
    has the sign of A."""
    return e.mod(A, B)


@remainder.body
def _(g: Builder, xs: Any, types: Any) -> tuple[Value, ...] | None:
    if types[0] is None:
        return None
    return (_remainder(g, *xs) if types[0].dtype.floating else g.Mod(*xs),)


@remainder.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    (dY,), (Y,), (A, B) = dys, ys, xs
    return dY, g.Mul(dY, g.Div(g.Sub(Y, A), B)) if g.wants[1] else None


def _remainder(g: Builder, A: Value, B: Value) -> Value:
    """That of floats by Mod of the sign of A: B more where the signs differ, and zeros of the sign of B."""
    rest, zero = g.Mod(A, B, fmod=1), g.scalar(0, A)
    turned = g.Where(g.Xor(g.Less(rest, zero), g.Less(B, zero)), g.Add(rest, B), rest)
    return g.Where(g.Equal(rest, zero), g.Mul(g.Sign(B), zero), turned)
