"""Fake quantisation: quantise-dequantise in floats as one operator, with straight-through gradients.

Straight-through estimates (Bengio et al. 2013, arXiv 1308.3432) let the gradient of what was rounded pass, and stop
that of what was saturated. The gradient of a scale is that of Learned Step Size Quantization (Esser et al. 2020, arXiv
1902.08153).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.expr import Expr, Expressions
from ..op import Builder, Sample, Value, pointwise
from ..types import DType, f32

LEAST = 2.0**-126  # a scale counts as no less, wherever learning takes it: nothing is divided by zero

X = np.array([[-40, -1.6, 0.3], [2.4, 3, 900]], np.float32)
ZERO = np.float32(0)
OPERANDS: list[tuple[list[Any], dict[str, int]]] = [
    ([X, np.float32(0.5), ZERO], {"low": -128, "high": 127}),
    ([X, np.array([0.5, 0.03125, 4], np.float32), np.array([0, 3, 200], np.float32)], {"low": 0, "high": 255}),
    ([X, np.array([[0.5], [2]], np.float32), ZERO], {"low": -8, "high": 7}),
]
BACK = [Sample([f32(2, 3), *given], attrs) for given, attrs in OPERANDS]


def _counted(e: Expressions, X: Expr, scale: Expr, zero: Expr) -> tuple[Expr, Expr, Expr]:
    """Return the size of a step, X in steps, and the number of the nearest step before saturation."""
    step = e.max(scale, LEAST)
    steps = X / step
    return step, steps, e.rint(steps) + zero


def _saturated(e: Expressions, number: Expr, low: int, high: int) -> Expr:
    return e.min(e.max(number, low), high)


@pointwise(
    "FakeQuantize", domain="mezzo", rounds=True, jumps=True, samples=[Sample(given, attrs) for given, attrs in OPERANDS]
)
def fake_quantize(e: Expressions, X: Expr, scale: Expr, zero: Expr, *, low: int = -128, high: int = 127) -> Expr:
    step, _, number = _counted(e, X, scale, zero)
    return (_saturated(e, number, low, high) - zero) * step


@pointwise("FakeQuantizeGrad", domain="mezzo", output="dX", samples=BACK)
def fake_quantize_grad(
    e: Expressions, dY: Expr, X: Expr, scale: Expr, zero: Expr, *, low: int = -128, high: int = 127
) -> Expr:
    _, _, number = _counted(e, X, scale, zero)
    return e.where(_inside(e, number, low, high), dY, 0)


@pointwise("FakeQuantizeScaleGrad", domain="mezzo", output="dScale", samples=BACK)
def fake_quantize_scale_grad(
    e: Expressions, dY: Expr, X: Expr, scale: Expr, zero: Expr, *, low: int = -128, high: int = 127
) -> Expr:
    _, steps, number = _counted(e, X, scale, zero)
    taken = _saturated(e, number, low, high) - zero
    return dY * e.where(_inside(e, number, low, high), taken - steps, taken)


def _inside(e: Expressions, number: Expr, low: int, high: int) -> Expr:
    return e.and_(e.greater_equal(number, low), e.less_equal(number, high))


@fake_quantize.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, low: int = -128, high: int = 127) -> tuple[Value | None, ...]:
    """To the scale: times sqrt(Q / N), Q being the steps of the range and N the elements that have this scale.

    Esser's factor is 1 / sqrt(N Q), with which steps learn about as fast as weights do. The rest of it, 1 / Q, is one
    of the rate (see train/quantize.py), which also tells optimizers that take no notice of how large gradients are.
    """
    X, scale, zero = xs
    given: dict[str, Any] = {"domain": "mezzo", "low": low, "high": high}
    dX = g.FakeQuantizeGrad(dys[0], X, scale, zero, **given) if g.wants[0] else None
    if not g.wants[1]:
        return dX, None, None
    whole = g.sum_to(g.FakeQuantizeScaleGrad(dys[0], X, scale, zero, **given), scale)
    each = g.Cast(g.Max(g.Div(g.Size(X), g.Size(scale)), g.const(1)), to=DType.DOUBLE.onnx)
    factor = g.Sqrt(g.Div(g.const(high - low, DType.DOUBLE), each))
    return dX, g.Mul(whole, g.CastLike(factor, scale)), None
