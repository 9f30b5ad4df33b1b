"""Quantised operators: bytes with the range of floats that they stand for, which goes along as two more values.

Scales are those of MXNet 1.9.1 on processors: 127.5 steps of a signed byte and 255.5 of an unsigned one; `quantize`
and the range of sums have 127 and 255. Sums have 2**31 - 1 steps.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops import DType
from ....ops.errors import UnsupportedModel
from ..converter import Converter, Value
from ..rules import rule
from .indexing import embedding
from .nn import WEIGHTED, pooling, weighted

STEPS = {DType.INT8: 127.5, DType.UINT8: 255.5, DType.INT32: 2147483647.0}
WHOLE = {DType.INT8: 127.0, DType.UINT8: 255.0}
KINDS = {"int8": DType.INT8, "uint8": DType.UINT8}


def _one(c: Converter, x: str) -> Value:
    return c.reshape(x, [1])


def _reach(c: Converter, low: str, high: str) -> Value:
    """The largest size of a range."""
    return c.Max(c.Abs(_one(c, low)), c.Abs(_one(c, high)))


def _rounded(c: Converter, data: str, steps: str, kind: DType) -> Value:
    """Whole numbers, halves to the even one, cut off at the ends of their type."""
    ends = np.iinfo(kind.numpy)
    if kind is DType.INT32:  # more than float32 tells apart, in operators that ONNX Runtime has for float64
        scaled = c.Round(c.Mul(*(c.cast(v, DType.DOUBLE) for v in (data, steps))))
        return c.cast(c.Max(c.Min(scaled, c.number(ends.max, scaled)), c.number(ends.min, scaled)), kind)
    low, high = (c.const(float(v), DType.FLOAT) for v in (ends.min, ends.max))
    return c.cast(c.Clip(c.Round(c.Mul(data, steps)), low, high), kind)


def _quantised(c: Converter, data: str, low: str, high: str, kind: DType, steps: float) -> Any:
    reach = _reach(c, low, high)
    values = _rounded(c, data, c.Div(c.const(steps, DType.FLOAT), reach), kind)
    if kind is DType.INT8:
        return values, c.Neg(reach), reach
    return values, c.Identity(_one(c, low)), c.Identity(_one(c, high))


def _kind(name: str) -> DType:
    if name not in KINDS:
        raise UnsupportedModel(f"quantised values of the type {name!r} are not known")
    return KINDS[name]


@rule("_contrib_quantize")
def quantize(c: Converter, data: str, min_range: str, max_range: str, *, out_type: str = "uint8") -> Any:
    return _quantised(c, data, min_range, max_range, _kind(out_type), WHOLE[_kind(out_type)])


@rule("_contrib_quantize_v2")
def quantize_v2(
    c: Converter, data: str, *, out_type: str = "int8", min_calib_range: Any = None, max_calib_range: Any = None
) -> Any:
    """By a range that was measured before, or that of the data."""
    if min_calib_range is None or max_calib_range is None:
        low, high = c.ReduceMin(data, keepdims=0), c.ReduceMax(data, keepdims=0)
        kind = DType.INT8 if out_type == "auto" else _kind(out_type)
    else:
        low, high = (c.const(np.float32(v)) for v in (min_calib_range, max_calib_range))
        signed = out_type == "auto" and min_calib_range < 0
        kind = (DType.INT8 if signed else DType.UINT8) if out_type == "auto" else _kind(out_type)
    return _quantised(c, data, low, high, kind, STEPS[kind])


@rule("_contrib_dequantize")
def dequantize(c: Converter, data: str, min_range: str, max_range: str, *, out_type: str = "float32") -> Any:
    steps = c.const(STEPS[c.dtype(data)], DType.FLOAT)
    return c.Mul(c.cast(data, DType.FLOAT), c.Div(_reach(c, min_range, max_range), steps))


@rule("_contrib_requantize")
def requantize(
    c: Converter,
    data: str,
    min_range: str,
    max_range: str,
    *,
    out_type: str = "int8",
    min_calib_range: Any = None,
    max_calib_range: Any = None,
) -> Any:
    """Sums of 32 bits as bytes, of 127 and 255 steps; signed where the kind is left to the range."""
    scale = c.Div(_reach(c, min_range, max_range), c.const(STEPS[DType.INT32], DType.FLOAT))
    if min_calib_range is None or max_calib_range is None:
        most = c.ReduceMax(c.Abs(c.cast(data, DType.DOUBLE)), keepdims=0)
        reach = c.Mul(_one(c, c.cast(most, DType.FLOAT)), scale)
        kind = DType.INT8 if out_type == "auto" else _kind(out_type)
    else:
        reach = c.const(np.array([max(abs(min_calib_range), abs(max_calib_range))], np.float32))
        kind = DType.UINT8 if out_type == "auto" and min_calib_range >= 0 else DType.INT8
        kind = kind if out_type == "auto" else _kind(out_type)
    steps = c.Div(c.Mul(scale, c.const(WHOLE[kind], DType.FLOAT)), reach)
    low = c.Neg(reach) if kind is DType.INT8 else c.const(np.zeros(1, np.float32))
    return _rounded(c, c.cast(data, DType.FLOAT), steps, kind), low, c.Identity(reach)


def _sums(
    c: Converter, sums: str, ranges: tuple[str, ...], bias: str | None, axes: int, data: DType = DType.INT8
) -> Any:
    """32-bit sums of products of bytes with their range, and a bias of bytes in the steps of the sums."""
    if bias is not None:
        both = c.Mul(_reach(c, *ranges[:2]), _reach(c, *ranges[2:4]))
        share = c.Div(c.Mul(_reach(c, *ranges[4:6]), c.const(STEPS[data], DType.FLOAT)), both)
        shift = c.cast(c.Mul(c.cast(bias, DType.FLOAT), share), DType.INT32)  # cut off, as MXNet does
        sums = c.Add(sums, c.unsqueeze(shift, *range(1, 1 + axes)) if axes else shift)
    reach = reach_of_products(c, *ranges[:4], data=data)
    return sums, c.Neg(reach), reach


def _parts(operands: tuple[str, ...], no_bias: bool) -> tuple[str | None, tuple[str, ...]]:
    return (None, operands) if no_bias else (operands[0], operands[1:])


@rule("_contrib_quantized_conv", attributes=WEIGHTED)
def quantized_conv(
    c: Converter, data: str, weight: str, *more: str, no_bias: bool = False, layout: Any = None, **window: Any
) -> Any:
    if layout not in (None, "NCHW"):
        raise UnsupportedModel(f"a quantised convolution of the layout {layout!r} is not carried")
    bias, ranges = _parts(more, no_bias)
    sums = c.ConvInteger(data, weight, **weighted(**window))
    return _sums(c, sums, ranges, bias, len(window["kernel"]))


@rule("_contrib_quantized_fully_connected")
def quantized_dense(
    c: Converter, data: str, weight: str, *more: str, num_hidden: int, no_bias: bool = False, flatten: bool = True
) -> Any:
    bias, ranges = _parts(more, no_bias)
    rows = c.Flatten(data, axis=1) if flatten and c.rank(data) != 2 else data
    return _sums(c, c.MatMulInteger(rows, c.transpose(weight, (1, 0))), ranges, bias, 0, c.dtype(data))


def _along(c: Converter, result: str, low: str, high: str) -> Any:
    return result, c.Identity(_one(c, low)), c.Identity(_one(c, high))


@rule("_contrib_quantized_act")
def quantized_act(c: Converter, data: str, min_data: str, max_data: str, *, act_type: str) -> Any:
    if act_type != "relu":
        raise UnsupportedModel(f"the quantised activation {act_type!r} is not known")
    return _along(c, c.Max(data, c.number(0, data)), min_data, max_data)


@rule("_contrib_quantized_flatten")
def quantized_flatten(c: Converter, data: str, min_data: str, max_data: str) -> Any:
    return _along(c, c.Flatten(data, axis=1), min_data, max_data)


@rule("_contrib_quantized_pooling")
def quantized_pooling(
    c: Converter,
    data: str,
    min_data: str,
    max_data: str,
    *,
    kernel: tuple[int, ...] = (),
    pool_type: str = "max",
    global_pool: bool = False,
    pooling_convention: str = "valid",
    stride: tuple[int, ...] = (),
    pad: tuple[int, ...] = (),
    count_include_pad: Any = None,
    layout: Any = None,
) -> Any:
    """The largest of each window, or the mean, rounded."""
    pooled = pooling(c, c.cast(data, DType.FLOAT), kernel=kernel, pool_type=pool_type, global_pool=global_pool,
                     pooling_convention=pooling_convention, stride=stride, pad=pad,
                     count_include_pad=count_include_pad, layout=layout)  # fmt: skip
    return _along(c, _rounded(c, pooled, c.const(1.0, DType.FLOAT), c.dtype(data)), min_data, max_data)


def calibrated(c: Converter, floats: str, low: float, high: float, kind: DType) -> Any:
    """Floats as integers of a range that was measured before, and the range."""
    ends = [c.const(np.array([v], np.float32)) for v in (low, high)]
    return _rounded(c, floats, c.Div(c.const(STEPS[kind], DType.FLOAT), _reach(c, *ends)), kind), *ends


def reach_of_products(c: Converter, *ranges: str, data: DType = DType.INT8) -> Value:
    """The range of integers of 32 bits for products of signed bytes and bytes of the type `data`."""
    both = c.Mul(_reach(c, *ranges[:2]), _reach(c, *ranges[2:4]))
    return c.Mul(both, c.const(STEPS[DType.INT32] / WHOLE[DType.INT8] / WHOLE[data], DType.FLOAT))


def products(c: Converter, floats: str, data: DType, *ranges: str) -> Any:
    """Floats as the sums of 32 bits that products of bytes make."""
    both = c.Mul(_reach(c, *ranges[:2]), _reach(c, *ranges[2:4]))
    steps = c.Div(c.const(STEPS[DType.INT8] * STEPS[data], DType.FLOAT), both)
    reach = reach_of_products(c, *ranges, data=data)
    return _rounded(c, floats, steps, DType.INT32), c.Neg(reach), reach


@rule("_contrib_quantized_embedding")
def quantized_embedding(
    c: Converter,
    data: str,
    weight: str,
    min_weight: str,
    max_weight: str,
    *,
    input_dim: int,
    output_dim: int,
    dtype: Any = "float32",
) -> Any:
    rows = embedding(c, data, weight, input_dim=input_dim, output_dim=output_dim)
    return _along(c, rows, min_weight, max_weight)


@rule("_contrib_quantized_concat")
def quantized_concat(c: Converter, *operands: str, dim: int = 1) -> Any:
    """Bytes in the widest of the ranges; signed where one of them is."""
    count = len(operands) // 3
    parts, lows, highs = operands[:count], operands[count::2], operands[count + 1 :: 2]
    zero = c.const(np.zeros(1, np.float32))
    low = c.Min(zero, *(_one(c, v) for v in lows))
    high = c.Max(zero, *(_one(c, v) for v in highs))
    signed = any(c.dtype(p) is DType.INT8 for p in parts)
    kind = DType.INT8 if signed else DType.UINT8
    floats = [dequantize(c, *v) for v in zip(parts, lows, highs, strict=True)]
    joined = c.op("Concat", *floats, axis=c.axis(parts[0], dim))
    return _rounded(c, joined, c.Div(c.const(STEPS[kind], DType.FLOAT), _reach(c, low, high)), kind), low, high


@rule("_contrib_quantized_elemwise_add")
def quantized_add(
    c: Converter, lhs: str, rhs: str, *ranges: str, min_calib_range: Any = None, max_calib_range: Any = None
) -> Any:
    floats = c.Add(dequantize(c, lhs, *ranges[:2]), dequantize(c, rhs, *ranges[2:]))
    if min_calib_range is None or max_calib_range is None:
        reach = c.Add(_reach(c, *ranges[:2]), _reach(c, *ranges[2:]))
        steps = c.Div(c.const(STEPS[DType.INT32], DType.FLOAT), reach)
        return _rounded(c, floats, steps, DType.INT32), c.Neg(reach), c.Identity(reach)
    kind = c.dtype(lhs) if c.dtype(lhs) is c.dtype(rhs) else DType.INT8
    return calibrated(c, floats, min_calib_range, max_calib_range, kind)


@rule("_contrib_quantized_elemwise_mul")
def quantized_mul(
    c: Converter,
    lhs: str,
    rhs: str,
    *ranges: str,
    min_calib_range: Any = None,
    max_calib_range: Any = None,
    enable_float_output: bool = False,
) -> Any:
    """Bytes of a measured range are cut off, and not rounded, as MXNet does."""
    floats = c.Mul(dequantize(c, lhs, *ranges[:2]), dequantize(c, rhs, *ranges[2:]))
    if enable_float_output:
        return floats
    if min_calib_range is None or max_calib_range is None:
        reach = reach_of_products(c, *ranges)
        return c.Mul(c.cast(lhs, DType.INT32), c.cast(rhs, DType.INT32)), c.Neg(reach), reach
    ends = [c.const(np.array([v], np.float32)) for v in (min_calib_range, max_calib_range)]
    steps = c.Div(c.const(STEPS[DType.INT8], DType.FLOAT), _reach(c, *ends))
    return c.cast(c.Mul(floats, steps), DType.INT8), *ends


@rule(
    "_contrib_quantized_batch_norm", attributes={"momentum": 0.9, "use_global_stats": False, "output_mean_var": False}
)
def quantized_batch_norm(
    c: Converter,
    data: str,
    gamma: str,
    beta: str,
    moving_mean: str,
    moving_var: str,
    min_data: str,
    max_data: str,
    *,
    eps: float = 1e-3,
    fix_gamma: bool = True,
    axis: int = 1,
    min_calib_range: Any = None,
    max_calib_range: Any = None,
    **_: Any,
) -> Any:
    """Signed bytes. The scale counts even where it is said to be fixed, and eps once more beside a variance of 1."""
    if axis != 1 or min_calib_range is None or max_calib_range is None:
        raise UnsupportedModel(f"a quantised normalisation of the axis {axis} in a range that was not measured")
    floats = c.Mul(dequantize(c, data, min_data, max_data), c.const(1 / math.sqrt(1 + eps), DType.FLOAT))
    normal = c.op("BatchNormalization", floats, gamma, beta, moving_mean, moving_var, epsilon=eps)
    return calibrated(c, normal, min_calib_range, max_calib_range, DType.INT8)
