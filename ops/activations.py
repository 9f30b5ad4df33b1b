"""Activation functions of networks, element by element.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math

import numpy as np

from .errors import ShapeError
from .expr import Expr, Expressions
from .op import Sample, pointwise
from .special import erf
from .types import DType, Tensor, f32, i64

FAR = Sample([np.array([-200, -100, -1, 0, 1, 100, 200], np.float32)])
ONE = [Sample([f32(2, 3)]), FAR]


def _sigmoid(e: Expressions, x: Expr) -> Expr:
    return e.reciprocal(e.exp(-x) + 1)


def _softplus(e: Expressions, x: Expr) -> Expr:
    return e.max(x, 0) + e.log1p(e.exp(-e.abs(x)))  # exp of a large x would overflow


@pointwise("Sigmoid", since=13, samples=ONE)
def sigmoid(e: Expressions, X: Expr) -> Expr:
    return _sigmoid(e, X)


@pointwise("Relu", since=14, samples=ONE)
def relu(e: Expressions, X: Expr) -> Expr:
    return e.max(X, 0)


@pointwise("LeakyRelu", since=16, samples=[*ONE, Sample([f32(5)], {"alpha": 0.3})])
def leaky_relu(e: Expressions, X: Expr, *, alpha: float = 0.01) -> Expr:
    return e.where(e.less(X, 0), X * alpha, X)


@pointwise("PRelu", since=16, samples=[Sample([f32(2, 3), f32(3)]), Sample([f32(2, 3, 2), f32(3, 1)]),
                                       Sample([i64(2, 3), np.array([2])])])  # fmt: skip
def p_relu(e: Expressions, X: Expr, slope: Expr) -> Expr:
    return e.where(e.less(X, 0), X * slope, X)


@pointwise("ThresholdedRelu", since=22, samples=[*ONE, Sample([f32(5)], {"alpha": 0.3})])
def thresholded_relu(e: Expressions, X: Expr, *, alpha: float = 1.0) -> Expr:
    return e.where(e.greater(X, alpha), X, 0)


@pointwise("Elu", since=22, samples=[*ONE, Sample([f32(5)], {"alpha": 2.0})])
def elu(e: Expressions, X: Expr, *, alpha: float = 1.0) -> Expr:
    return e.where(e.less(X, 0), e.expm1(X) * alpha, X)


@pointwise("Selu", since=22, samples=[*ONE, Sample([f32(5)], {"alpha": 2.0, "gamma": 3.0})])
def selu(
    e: Expressions, X: Expr, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Expr:
    return e.where(e.less(X, 0), e.expm1(X) * alpha, X) * gamma


@pointwise("Celu", since=28, samples=[*ONE, Sample([f32(5)], {"alpha": 2.0}), Sample([f32(5)], {"alpha": -2.0})])
def celu(e: Expressions, X: Expr, *, alpha: float = 1.0) -> Expr:
    return e.max(X, 0) + e.min(e.expm1(X / alpha) * alpha, 0)


@pointwise("HardSigmoid", since=22, samples=[*ONE, Sample([f32(5)], {"alpha": 0.3, "beta": 0.4})])
def hard_sigmoid(e: Expressions, X: Expr, *, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    return e.max(e.min(X * alpha + beta, 1), 0)


@pointwise("HardSwish", since=22, samples=ONE)
def hard_swish(e: Expressions, X: Expr) -> Expr:
    return X * e.max(e.min(X * (1 / 6) + 0.5, 1), 0)


@pointwise("Swish", since=24, samples=[*ONE, Sample([f32(5)], {"alpha": 0.3})])
def swish(e: Expressions, X: Expr, *, alpha: float = 1.0) -> Expr:
    return X * _sigmoid(e, X * alpha)


@pointwise("SwiGLU", since=28, samples=[Sample([f32(2, 3), f32(2, 3)]), Sample([f32(2), f32(2)], {"alpha": 1.7})])
def swiglu(e: Expressions, A: Expr, B: Expr, *, alpha: float = 1.0) -> Expr:
    return A * _sigmoid(e, A * alpha) * B


@pointwise("Softplus", since=22, samples=ONE)
def softplus(e: Expressions, X: Expr) -> Expr:
    return _softplus(e, X)


@pointwise("Softsign", since=22, output="output", samples=ONE)
def softsign(e: Expressions, input: Expr) -> Expr:
    return input / (e.abs(input) + 1)


@pointwise("Mish", since=22, samples=ONE)
def mish(e: Expressions, X: Expr) -> Expr:
    return X * e.tanh(_softplus(e, X))


@pointwise("Erf", since=13, output="output", samples=[*ONE, Sample([np.linspace(-5, 5, 41, dtype=np.float32)]),
                                                      Sample([np.linspace(-7, 7, 57)])])  # fmt: skip
def erf_(e: Expressions, input: Expr) -> Expr:
    return erf(e, input)


@pointwise("Gelu", since=20, samples=[*ONE, *(Sample(s.inputs, {"approximate": "tanh"}) for s in ONE)])
def gelu(e: Expressions, X: Expr, *, approximate: str = "none") -> Expr:
    if approximate not in ("none", "tanh"):
        raise ShapeError(f"approximate {approximate!r} is none of none, tanh")
    if approximate == "none":
        return X * 0.5 * (erf(e, X * math.sqrt(0.5)) + 1)
    bent = (X * X * X * 0.044715 + X) * math.sqrt(2 / math.pi)
    return X * 0.5 * (e.tanh(bent) + 1)


@pointwise("Shrink", since=9, output="output", samples=[*ONE, Sample([f32(9)], {"bias": 0.25, "lambd": 1.0}),
           Sample([Tensor(DType.INT8, (9,))], {"lambd": 1.5, "bias": 1.5})])  # fmt: skip
def shrink(e: Expressions, input: Expr, *, bias: float = 0.0, lambd: float = 0.5) -> Expr:
    x = e.cast(input, DType.DOUBLE) if input.dtype.integer else input  # the attributes are floats
    shrunk = e.where(e.less(x, -lambd), x + bias, e.where(e.greater(x, lambd), x - bias, 0))
    return e.cast(shrunk, input.dtype)
