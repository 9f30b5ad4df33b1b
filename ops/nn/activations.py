"""Activation functions of networks, element by element.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core.expr import Expr, Expressions
from ..errors import ShapeError
from ..math.derivatives import derivative
from ..math.special import erf
from ..op import Builder, Sample, Value, pointwise
from ..types import DType, Tensor, f32, i64

OPERATORS = """
    mezzo::SigmoidGrad mezzo::ReluGrad mezzo::LeakyReluGrad mezzo::ThresholdedReluGrad mezzo::EluGrad
    mezzo::SeluGrad mezzo::CeluGrad mezzo::HardSigmoidGrad mezzo::HardSwishGrad mezzo::SwishGrad mezzo::SoftplusGrad
    mezzo::SoftsignGrad mezzo::MishGrad mezzo::ErfGrad mezzo::GeluGrad mezzo::ShrinkGrad
"""
FAR = Sample([np.array([-200, -100, -1, 0, 1, 100, 200], np.float32)])
ONE = [Sample([f32(2, 3)]), FAR]


def _sigmoid(e: Expressions, x: Expr) -> Expr:
    return e.reciprocal(e.exp(-x) + 1)


def _softplus(e: Expressions, x: Expr) -> Expr:
    return e.max(x, 0) + e.log1p(e.exp(-e.abs(x)))  # exp of a large x would overflow


@pointwise("Sigmoid", follows=True, quantized="com.microsoft::QLinearSigmoid", since=13, samples=ONE)
def sigmoid(e: Expressions, X: Expr) -> Expr:
    return _sigmoid(e, X)


@derivative(sigmoid)
def _(e: Expressions, dY: Expr, Y: Expr) -> Expr:
    return dY * Y * (1 - Y)


@pointwise("Relu", follows=True, since=14, samples=ONE)
def relu(e: Expressions, X: Expr) -> Expr:
    return e.max(X, 0)


@derivative(relu)
def _(e: Expressions, dY: Expr, Y: Expr) -> Expr:
    return e.where(e.greater(Y, 0), dY, 0)


@pointwise("LeakyRelu", follows=True, since=16, samples=[*ONE, Sample([f32(5)], {"alpha": 0.3})])
def leaky_relu(e: Expressions, X: Expr, *, alpha: float = 0.01) -> Expr:
    return e.where(e.less(X, 0), X * alpha, X)


@derivative(leaky_relu)
def _(e: Expressions, dY: Expr, X: Expr, *, alpha: float = 0.01) -> Expr:
    return e.where(e.greater(X, 0), dY, dY * alpha)


@pointwise("PRelu", since=16, samples=[Sample([f32(2, 3), f32(3)]), Sample([f32(2, 3, 2), f32(3, 1)]),
                                       Sample([i64(2, 3), np.array([2])])])  # fmt: skip
def p_relu(e: Expressions, X: Expr, slope: Expr) -> Expr:
    return e.where(e.less(X, 0), X * slope, X)


@p_relu.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    (dy,), (X, slope) = dys, xs
    zero = g.scalar(0, X)
    above = g.Greater(X, zero)
    dslope = g.Where(above, zero, g.Mul(dy, X)) if g.wants[1] else None
    return g.Where(above, dy, g.Mul(dy, slope)), dslope


@pointwise("ThresholdedRelu", since=22, jumps=True, samples=[*ONE, Sample([f32(5)], {"alpha": 0.3})])
def thresholded_relu(e: Expressions, X: Expr, *, alpha: float = 1.0) -> Expr:
    return e.where(e.greater(X, alpha), X, 0)


@derivative(thresholded_relu)
def _(e: Expressions, dY: Expr, X: Expr, *, alpha: float = 1.0) -> Expr:
    return e.where(e.greater(X, alpha), dY, 0)


@pointwise("Elu", follows=True, planned_from=4096, since=22, samples=[*ONE, Sample([f32(5)], {"alpha": 2.0})])
def elu(e: Expressions, X: Expr, *, alpha: float = 1.0) -> Expr:
    return e.where(e.less(X, 0), e.expm1(X) * alpha, X)


def _decay(e: Expressions, x: Expr) -> Expr:
    """exp(x) below zero; above, where it would overflow, 1."""
    return e.exp(e.min(x, 0))


@derivative(elu)
def _(e: Expressions, dY: Expr, X: Expr, *, alpha: float = 1.0) -> Expr:
    return e.where(e.greater(X, 0), dY, dY * _decay(e, X) * alpha)


@pointwise("Selu", since=22, samples=[*ONE, Sample([f32(5)], {"alpha": 2.0, "gamma": 3.0})])
def selu(
    e: Expressions, X: Expr, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Expr:
    return e.where(e.less(X, 0), e.expm1(X) * alpha, X) * gamma


@derivative(selu)
def _(
    e: Expressions,
    dY: Expr,
    X: Expr,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
) -> Expr:
    return e.where(e.greater(X, 0), dY, dY * _decay(e, X) * alpha) * gamma


@pointwise("Celu", since=28, samples=[*ONE, Sample([f32(5)], {"alpha": 2.0}), Sample([f32(5)], {"alpha": -2.0})])
def celu(e: Expressions, X: Expr, *, alpha: float = 1.0) -> Expr:
    return e.max(X, 0) + e.min(e.expm1(X / alpha) * alpha, 0)


@derivative(celu)
def _(e: Expressions, dY: Expr, X: Expr, *, alpha: float = 1.0) -> Expr:
    return dY * e.exp(e.min(X, 0) / alpha)


@pointwise("HardSigmoid", follows=True, since=22, samples=[*ONE, Sample([f32(5)], {"alpha": 0.3, "beta": 0.4})])
def hard_sigmoid(e: Expressions, X: Expr, *, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    return e.max(e.min(X * alpha + beta, 1), 0)


@derivative(hard_sigmoid)
def _(e: Expressions, dY: Expr, X: Expr, *, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    line = X * alpha + beta
    return e.where(e.and_(e.greater(line, 0), e.less(line, 1)), dY * alpha, 0)


@pointwise("HardSwish", follows=True, planned_from=4096, since=22, samples=ONE)
def hard_swish(e: Expressions, X: Expr) -> Expr:
    return X * e.max(e.min(X * (1 / 6) + 0.5, 1), 0)


@derivative(hard_swish)
def _(e: Expressions, dY: Expr, X: Expr) -> Expr:
    bent = e.where(e.greater(X, -3), dY * (X * (1 / 3) + 0.5), 0)
    return e.where(e.less(X, 3), bent, dY)


@pointwise("Swish", follows=True, planned_from=4096, since=24, samples=[*ONE, Sample([f32(5)], {"alpha": 0.3})])
def swish(e: Expressions, X: Expr, *, alpha: float = 1.0) -> Expr:
    return X * _sigmoid(e, X * alpha)


@derivative(swish)
def _(e: Expressions, dY: Expr, X: Expr, *, alpha: float = 1.0) -> Expr:
    s = _sigmoid(e, X * alpha)
    return dY * s * (X * alpha * (1 - s) + 1)


@pointwise("SwiGLU", since=28, samples=[Sample([f32(2, 3), f32(2, 3)]), Sample([f32(2), f32(2)], {"alpha": 1.7})])
def swiglu(e: Expressions, A: Expr, B: Expr, *, alpha: float = 1.0) -> Expr:
    return A * _sigmoid(e, A * alpha) * B


@swiglu.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, alpha: float = 1.0) -> tuple[Value, ...]:
    (dy,), (A, B) = dys, xs
    return g.SwishGrad(g.Mul(dy, B), A, alpha=alpha, domain="mezzo"), g.Mul(dy, g.Swish(A, alpha=alpha))


@pointwise("Softplus", mixed="wide", since=22, samples=ONE)
def softplus(e: Expressions, X: Expr) -> Expr:
    return _softplus(e, X)


@derivative(softplus)
def _(e: Expressions, dY: Expr, X: Expr) -> Expr:
    return dY * _sigmoid(e, X)


@pointwise("Softsign", since=22, output="output", samples=ONE)
def softsign(e: Expressions, input: Expr) -> Expr:
    return input / (e.abs(input) + 1)


@derivative(softsign)
def _(e: Expressions, dY: Expr, X: Expr) -> Expr:
    size = e.abs(X) + 1
    return dY / (size * size)


@pointwise("Mish", planned_from=4096, since=22, samples=ONE)
def mish(e: Expressions, X: Expr) -> Expr:
    return X * e.tanh(_softplus(e, X))


@derivative(mish)
def _(e: Expressions, dY: Expr, X: Expr) -> Expr:
    t = e.tanh(_softplus(e, X))
    return dY * (X * _sigmoid(e, X) * (1 - t * t) + t)


@pointwise("Erf", mixed="wide", since=13, output="output", samples=[
    *ONE, Sample([np.linspace(-5, 5, 41, dtype=np.float32)]), Sample([np.linspace(-7, 7, 57)]),
])  # fmt: skip
def erf_(e: Expressions, input: Expr) -> Expr:
    return erf(e, input)


@derivative(erf_)
def _(e: Expressions, dY: Expr, X: Expr) -> Expr:
    return dY * e.exp(-(X * X)) * (2 / math.sqrt(math.pi))


def gelu_by_erf(e: Expressions, x: Expr) -> Expr:
    return x * 0.5 * (erf(e, x * math.sqrt(0.5)) + 1)


def gelu_by_tanh(e: Expressions, x: Expr) -> Expr:
    return x * 0.5 * (e.tanh((x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)) + 1)


@pointwise(
    "Gelu",
    mixed="wide",
    follows=True,
    planned_from=4096,
    since=20,
    samples=[*ONE, *(Sample(s.inputs, {"approximate": "tanh"}) for s in ONE)],
)
def gelu(e: Expressions, X: Expr, *, approximate: str = "none") -> Expr:
    if approximate not in ("none", "tanh"):
        raise ShapeError(f"approximate {approximate!r} is none of none, tanh")
    return gelu_by_erf(e, X) if approximate == "none" else gelu_by_tanh(e, X)


@derivative(gelu)
def _(e: Expressions, dY: Expr, X: Expr, *, approximate: str = "none") -> Expr:
    if approximate == "none":
        density = e.exp(X * X * -0.5) * (1 / math.sqrt(2 * math.pi))
        return dY * ((erf(e, X * math.sqrt(0.5)) + 1) * 0.5 + X * density)
    c, square = math.sqrt(2 / math.pi), X * X
    t = e.tanh((square * X * 0.044715 + X) * c)
    return dY * 0.5 * (t + 1 + X * (1 - t * t) * (square * (3 * 0.044715 * c) + c))


@pointwise("Shrink", since=9, jumps=True, output="output", samples=[
           *ONE, Sample([f32(9)], {"bias": 0.25, "lambd": 1.0}),
           Sample([Tensor(DType.INT8, (9,))], {"lambd": 1.5, "bias": 1.5})])  # fmt: skip
def shrink(e: Expressions, input: Expr, *, bias: float = 0.0, lambd: float = 0.5) -> Expr:
    x = e.cast(input, DType.DOUBLE) if input.dtype.integer else input  # the attributes are floats
    shrunk = e.where(e.less(x, -lambd), x + bias, e.where(e.greater(x, lambd), x - bias, 0))
    return e.cast(shrunk, input.dtype)


@derivative(shrink)
def _(e: Expressions, dY: Expr, X: Expr, *, lambd: float = 0.5) -> Expr:
    return e.where(e.greater(e.abs(X), lambd), dY, 0)
