"""Operators of the domain com.microsoft that ONNX Runtime's optimiser writes into transformers and CNNs.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.composed import composed
from ..core.expr import Expr, Expressions
from ..core.rules import has_rank, same
from ..errors import ShapeError
from ..math.linear import matmul
from ..nn.activations import gelu_by_erf, gelu_by_tanh
from ..nn.conv import conv
from ..nn.windows import CONV
from ..op import Builder, Sample, Value, pointwise
from ..types import DType, Tensor, Type, f32

Types = Sequence[Type | None]
GELU_SAMPLES = [Sample([f32(2, 3, 4)]), Sample([np.linspace(-6, 6, 25, dtype=np.float32)]), Sample([f32(0, 3)])]


def dtype_of(types: Types) -> DType:
    """The element type of the first input."""
    first = types[0]
    assert isinstance(first, Tensor)
    return first.dtype


def rank_of(kind: Type | None) -> int | None:
    """The rank of an operand, where known."""
    return len(kind.dims) if isinstance(kind, Tensor) and kind.dims is not None else None


# The Gelu family


def _gelu_body(g: Builder, x: Value, dtype: DType) -> Value:
    erf = g.Erf(g.Mul(x, g.const(math.sqrt(0.5), dtype)))
    return g.Mul(g.Mul(x, g.const(0.5, dtype)), g.Add(erf, g.const(1, dtype)))


@pointwise("Gelu", domain="com.microsoft", written_out=True, since=1, samples=GELU_SAMPLES)
def gelu(e: Expressions, X: Expr) -> Expr:
    return gelu_by_erf(e, X)


@gelu.body
def _(g: Builder, xs: Sequence[Value], types: Types) -> Value:
    return _gelu_body(g, xs[0], dtype_of(types))


@pointwise("BiasGelu", domain="com.microsoft", written_out=True, since=1, output="C", samples=[
    Sample([f32(2, 3, 4), f32(4)]), Sample([f32(2, 3), f32(3)]), Sample([f32(1, 2, 5), f32(5)]),
])  # fmt: skip
def bias_gelu(e: Expressions, A: Expr, B: Expr) -> Expr:
    return gelu_by_erf(e, A + B)


@bias_gelu.body
def _(g: Builder, xs: Sequence[Value], types: Types) -> Value:
    return _gelu_body(g, g.Add(*xs), dtype_of(types))


@pointwise(
    "FastGelu",
    domain="com.microsoft",
    written_out=True,
    since=1,
    samples=[*GELU_SAMPLES, Sample([f32(2, 3, 4), f32(4)])],
)
def fast_gelu(e: Expressions, X: Expr, bias: Expr | None = None) -> Expr:
    return gelu_by_tanh(e, X if bias is None else X + bias)


@fast_gelu.body
def _(g: Builder, xs: Sequence[Value | None], types: Types) -> Value:
    dtype, (x, bias) = dtype_of(types), xs
    if bias is not None:
        x = g.Add(x, bias)
    cube = g.Mul(g.Mul(g.Mul(x, x), x), g.const(0.044715, dtype))
    tanh = g.Tanh(g.Mul(g.Add(x, cube), g.const(math.sqrt(2 / math.pi), dtype)))
    return g.Mul(g.Mul(x, g.const(0.5, dtype)), g.Add(tanh, g.const(1, dtype)))


@pointwise("QuickGelu", domain="com.microsoft", written_out=True, since=1, samples=[
    Sample([f32(2, 3)]), Sample([f32(5)], {"alpha": 1.0}), Sample([f32(2, 3, 4)], {"alpha": -0.5}),
])  # fmt: skip
def quick_gelu(e: Expressions, X: Expr, *, alpha: float = 1.702) -> Expr:
    return X * e.reciprocal(e.exp(X * -alpha) + 1)


@quick_gelu.body
def _(g: Builder, xs: Sequence[Value], types: Types, *, alpha: float = 1.702) -> Value:
    return g.Mul(xs[0], g.Sigmoid(g.Mul(xs[0], g.const(alpha, dtype_of(types)))))


# Conv with what follows it

# Activation -> the attributes that activation_params holds, in this order.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
IMAGE, KERNEL = f32(1, 2, 5, 5), f32(3, 2, 3, 3)


def _activation(name: str, params: Sequence[float] | None) -> dict[str, float]:
    if name not in ACTIVATIONS:
        raise ShapeError(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
    return dict(zip(ACTIVATIONS[name], params or (), strict=False))


@composed(
    "FusedConv",
    domain="com.microsoft",
    inputs=("X", "W", "B?", "Z?"),
    attributes=CONV,
    written_out=True,
    samples=[
        Sample([IMAGE, KERNEL, f32(3)], {"activation": "Relu", "pads": [1, 1, 1, 1]}),
        Sample([IMAGE, KERNEL], {"activation": "LeakyRelu", "activation_params": [0.25], "strides": [2, 2]}),
        Sample([IMAGE, KERNEL, f32(3)], {"activation": "Clip", "activation_params": [-0.5, 0.75]}),
        Sample([IMAGE, KERNEL, f32(3)], {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}),
        Sample([IMAGE, KERNEL, None, f32(1, 3, 3, 3)], {"activation": "Relu"}),
        Sample([IMAGE, KERNEL, f32(3)], {"activation": "Tanh"}),
        Sample([f32(1, 4, 5, 5), f32(4, 1, 3, 3), f32(4)], {"activation": "Sigmoid", "group": 4}),
    ],
)
def fused_conv(
    g: Builder,
    xs: Sequence[Value | None],
    types: Types,
    *,
    activation: str = "",
    activation_params: Sequence[float] | None = None,
    **attrs: Any,
) -> Value:
    y = g.Conv(*xs[:3], **attrs)
    if xs[3] is not None:
        y = g.Add(y, xs[3])
    if not activation:
        return y
    params = _activation(activation, activation_params)
    if activation == "Clip":
        limits = [g.const(params[p], dtype_of(types)) if p in params else None for p in ACTIVATIONS["Clip"]]
        return g.Clip(y, *limits)
    return getattr(g, activation)(y, **params)


@fused_conv.infer
def _(X: Tensor, W: Tensor, B: Tensor | None = None, Z: Tensor | None = None, *, activation: str = "",
      activation_params: Sequence[float] | None = None, **attrs: Any) -> Any:  # fmt: skip
    if activation:
        _activation(activation, activation_params)
    result = conv.inferred(X, W, B, **attrs)
    if isinstance(result, Tensor) and result.dims is not None and Z is not None and Z.dims is not None:
        has_rank(Z, len(result.dims))
        for a, b in zip(Z.dims, result.dims, strict=True):
            same(a, b, f"Z {Z} is added to {result}")
    return result


# MatMul with what stands before and after it


def _order(rank: int, trans: int, batch: int) -> tuple[int, ...]:
    """The axes of an operand in the order in which it is multiplied: with `batch` axis 0 holds the rows and the axes
    after it count the matrices; `trans` then turns each matrix."""
    axes = list(range(rank))
    if batch and rank > 2:
        axes = [*axes[1:-1], 0, axes[-1]]
    if trans and rank > 1:
        axes[-2:] = axes[:-3:-1]
    return tuple(axes)


def _turned(t: Tensor, trans: int, batch: int) -> Tensor:
    return t if t.dims is None else t.of(t.dims[a] for a in _order(len(t.dims), trans, batch))


@composed(
    "FusedMatMul",
    domain="com.microsoft",
    inputs=("A", "B"),
    written_out=True,
    samples=[
        Sample([f32(2, 3), f32(3, 4)], {"alpha": 0.5}),
        Sample([f32(3, 2), f32(4, 3)], {"transA": 1, "transB": 1, "alpha": 2.0}),
        Sample([f32(2, 5, 3), f32(2, 4, 3)], {"transB": 1}),
        Sample([f32(2, 2, 3, 5), f32(2, 2, 3, 4)], {"transA": 1}),
        Sample([f32(5, 2, 3), f32(2, 3, 4)], {"transBatchA": 1}),
        Sample([f32(2, 5, 3), f32(4, 2, 3)], {"transBatchB": 1, "transB": 1}),
        Sample([f32(3), f32(3, 4)]),
    ],
)
def fused_matmul(
    g: Builder,
    xs: Sequence[Value],
    types: Types,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value | None:
    turned = []
    for x, kind, flags in zip(xs, types, ((transA, transBatchA), (transB, transBatchB)), strict=True):
        rank = rank_of(kind)
        if any(flags) and rank is None:
            return None  # which axes to exchange is not known
        order = _order(rank or 0, *flags)
        turned.append(x if order == tuple(range(rank or 0)) else g.Transpose(x, perm=order))
    y = g.MatMul(*turned)
    return y if alpha == 1 else g.Mul(y, g.const(alpha, dtype_of(types)))


@fused_matmul.infer
def _(A: Tensor, B: Tensor, *, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0) -> Any:
    return matmul.inferred(_turned(A, transA, transBatchA), _turned(B, transB, transBatchB))


# Layer normalisation with what stands before it


HIDDEN = [f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8)]


@composed(
    "SkipLayerNormalization",
    domain="com.microsoft",
    inputs=("input", "skip", "gamma", "beta?", "bias?"),
    outputs=("output", "mean?", "inv_std_var?", "input_skip_bias_sum?"),
    rowwise=True,
    written_out=True,
    samples=[
        Sample(HIDDEN),
        Sample([*HIDDEN, f32(8)], {"epsilon": 1e-3}, 4),
        Sample(HIDDEN[:3], {"epsilon": 1e-5}),
        Sample([f32(2, 3, 8), f32(1, 3, 8), f32(8), f32(8)], {"epsilon": 1e-2}, 4),
    ],
)
def skip_layer_normalization(
    g: Builder, xs: Sequence[Value | None], types: Types, *, epsilon: float = 1e-12
) -> tuple[Value, ...]:
    input, skip, gamma, beta, bias = xs
    x = g.Add(input, skip)
    if bias is not None:
        x = g.Add(x, bias)
    return (*g.LayerNormalization(x, gamma, beta, epsilon=epsilon, outputs=3), x)


@skip_layer_normalization.infer
def _(
    input: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    if input.dims is not None:
        if skip.dims is not None and len(skip.dims) <= len(input.dims):
            for a, b in zip(skip.dims[::-1], input.dims[::-1], strict=False):
                if a != 1:
                    same(a, b, f"skip {skip} does not fit {input}")
        for name, t in (("gamma", gamma), ("beta", beta), ("bias", bias)):
            if t is not None:
                has_rank(t, 1)
                if t.dims:
                    same(t.dims[0], input.dims[-1], f"{name} {t} does not fit {input}")
    row = Tensor(DType.FLOAT, None if input.dims is None else (*input.dims[:-1], 1))
    return input.forget(), row, row, input.forget()
