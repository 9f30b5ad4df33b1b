"""Quantised operators: bytes with the range of floats that they stand for, which goes along as two more values.

Scales are those of MXNet 1.9.1 on processors: 127.5 steps of a signed byte and 255.5 of an unsigned one; `quantize`
and the range of sums have 127 and 255. Sums have 2**31 - 1 steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops import DType
from ....ops.errors import UnsupportedModel
from ..converter import Converter, Value
from ..rules import rule
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
    """Sums of 32 bits as bytes."""
    scale = c.Div(_reach(c, min_range, max_range), c.const(STEPS[DType.INT32], DType.FLOAT))
    floats = c.Mul(c.cast(data, DType.FLOAT), scale)
    return quantize_v2(c, floats, out_type=out_type, min_calib_range=min_calib_range, max_calib_range=max_calib_range)


def _sums(c: Converter, sums: str, ranges: tuple[str, ...], bias: str | None, axes: int) -> Any:
    """32-bit sums of products of bytes with their range, and a bias of bytes in the steps of the sums."""
    both = c.Mul(_reach(c, *ranges[:2]), _reach(c, *ranges[2:4]))
    if bias is not None:
        share = c.Div(c.Mul(_reach(c, *ranges[4:6]), c.const(STEPS[DType.INT8], DType.FLOAT)), both)
        shift = c.cast(c.Mul(c.cast(bias, DType.FLOAT), share), DType.INT32)  # cut off, as MXNet does
        sums = c.Add(sums, c.unsqueeze(shift, *range(1, 1 + axes)) if axes else shift)
    reach = c.Mul(both, c.const(STEPS[DType.INT32] / WHOLE[DType.INT8] ** 2, DType.FLOAT))
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
    return _sums(c, c.MatMulInteger(rows, c.transpose(weight, (1, 0))), ranges, bias, 0)


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
) -> Any:
    """The largest of each window, or the mean, rounded."""
    pooled = pooling(c, c.cast(data, DType.FLOAT), kernel=kernel, pool_type=pool_type, global_pool=global_pool,
                     pooling_convention=pooling_convention, stride=stride, pad=pad)  # fmt: skip
    return _along(c, _rounded(c, pooled, c.const(1.0, DType.FLOAT), c.dtype(data)), min_data, max_data)
