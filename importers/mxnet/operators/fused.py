"""Layers that MXNet's oneDNN backend fused: a subgraph as one operator, of floats, or of bytes with their ranges.

Those of bytes compute what their subgraph does with floats, of weights that are rounded as MXNet rounds them: by
channels where the range of the result was measured, else as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....ops import DType
from ....ops.errors import ModelError, UnsupportedModel
from ..converter import Converter, Part, Value
from ..rules import literal, rule
from .quantised import STEPS, calibrated, dequantize, products

NEVER_BELOW = {"clip", "square", "sqrt", "exp", "abs"}  # fused operators whose results are unsigned bytes


def _unsigned(op: str, attrs: Mapping[str, str]) -> bool:
    """Say whether results of this operator become unsigned bytes."""
    if op == "Activation":
        return attrs.get("act_type") in ("relu", "sigmoid", "softrelu")
    return op in NEVER_BELOW or (op == "LeakyReLU" and literal(attrs.get("slope", "0.25")) == 0)


def _factor(c: Converter, part: Part, values: Sequence[str]) -> Value:
    """Factors that a fused normalisation has for the channels of the weight."""
    attrs_by_op = dict(part.uses)
    first = 2 if literal(attrs_by_op["Convolution"].get("no_bias", "False")) else 3
    gamma, variance = values[first], values[first + 3]
    eps = float(literal(attrs_by_op["BatchNorm"].get("eps", "0.001")))
    scale = c.number(1, gamma) if literal(attrs_by_op["BatchNorm"].get("fix_gamma", "True")) else gamma
    factor = c.Div(scale, c.Sqrt(c.Add(variance, c.number(eps, variance))))
    return c.unsqueeze(factor, *range(1, c.rank(values[1])))


def _rounded_weight(
    c: Converter, weight: str, *, by_channel: bool, factor: str | None = None
) -> tuple[Value, Value, Value]:
    """A weight in whole steps, of which one is rounded that has a factor, and its lowest and highest element."""
    if factor is not None:
        near, *reached = _rounded_weight(c, c.Mul(weight, factor), by_channel=by_channel)
        none = c.Equal(factor, c.number(0, factor))
        return c.Where(none, weight, c.Div(near, c.Where(none, c.number(1, factor), factor))), *reached
    axes = c.ints(*range(1 if by_channel else 0, c.rank(weight)))
    reach = c.ReduceMax(c.Abs(weight), axes, keepdims=1)
    nothing = c.Equal(reach, c.number(0, reach))
    steps = c.Div(c.number(STEPS[DType.INT8], reach), c.Where(nothing, c.number(1, reach), reach))
    ends = c.number(-128, weight), c.number(127, weight)
    near = c.Clip(c.Round(c.Mul(weight, steps)), *ends)
    every = c.ints(*range(c.rank(weight)))
    low, high = (getattr(c, op)(weight, every, keepdims=0) for op in ("ReduceMin", "ReduceMax"))
    return c.Div(near, steps), low, high


def _measured(c: Converter, floats: str, part: Part, ends: tuple[Any, Any], data: str, ranges: Sequence[str]) -> Any:
    """The result of a subgraph as bytes of a measured range, or as sums of products of data and weights, of which the
    ranges are given."""
    if None in ends:
        return products(c, floats, c.dtype(data), *ranges)
    unsigned = _unsigned(*part.uses[-1])
    return calibrated(c, floats, *ends, DType.UINT8 if unsigned else DType.INT8)


@rule("_sg_mkldnn_conv")
def fused_convolution(
    c: Converter,
    *operands: str,
    quantized: bool = False,
    min_calib_range: Any = None,
    max_calib_range: Any = None,
    with_bn: bool = False,
    with_act: bool = False,
    with_relu: bool = False,
    with_sum: bool = False,
    with_postsum_act: bool = False,
    with_postsum_relu: bool = False,
) -> Any:
    """A convolution with its normalisation, a sum and rectifiers."""
    (part,) = c.parts
    if not quantized:
        return _only(c, part, operands)
    values, ranges = [*operands[: part.inputs]], operands[part.inputs :]
    if len(ranges) != (4 if with_sum else 2):
        raise ModelError(f"it has {len(ranges)} ends of ranges")
    ends = min_calib_range, max_calib_range
    values[0] = dequantize(c, values[0], *ranges[:2])
    if with_sum:
        values[-1] = dequantize(c, values[-1], *ranges[2:])
    factor = _factor(c, part, values) if with_bn else None
    values[1], *of_weight = _rounded_weight(c, values[1], by_channel=None not in ends, factor=factor)
    return _measured(c, _only(c, part, values), part, ends, operands[0], [*of_weight, *ranges[:2]])


@rule("_sg_mkldnn_fully_connected")
def fused_dense(
    c: Converter,
    *operands: str,
    quantized: bool = False,
    min_calib_range: Any = None,
    max_calib_range: Any = None,
    with_eltwise: bool = False,
    with_relu: bool = False,
    enable_float_output: bool = False,
    channel_wise_quantize: Any = None,
) -> Any:
    """A dense layer with what follows element by element. Weights are bytes already, or rounded by channels here."""
    (part,) = c.parts
    if not quantized:
        return _only(c, part, operands)
    values, ranges = [*operands[: part.inputs]], operands[part.inputs :]
    if channel_wise_quantize:
        values[0] = dequantize(c, values[0], *ranges[:2])
        values[1], *of_weight = _rounded_weight(c, values[1], by_channel=True)
    else:
        if len(ranges) != 2 * len(values):
            raise ModelError(f"it has {len(ranges)} ends of ranges for {len(values)} operands")
        of_weight = [*ranges[2:4]]
        values = [dequantize(c, v, *ranges[2 * i : 2 * i + 2]) for i, v in enumerate(values)]
    floats = _only(c, part, values)
    if enable_float_output:
        return floats
    ends = min_calib_range, max_calib_range
    return _measured(c, floats, part, ends, operands[0], [*ranges[:2], *of_weight])


def _only(c: Converter, part: Part, operands: Any) -> Value:
    results = part.write(c, operands)
    if len(results) != 1:
        raise ModelError(f"its subgraph has {len(results)} results")
    return results[0]


@rule("_sg_mkldnn_selfatt_qk", "_sg_mkldnn_selfatt_valatt")
def fused_attention(
    c: Converter,
    *operands: str,
    heads: int,
    quantized: bool = False,
    enable_float_output: bool = False,
    min_calib_range: Any = None,
    max_calib_range: Any = None,
) -> Any:
    """Interleaved products, of floats or of bytes."""
    (part,) = c.parts
    if not quantized:
        return _only(c, part, operands)
    count = len(operands) // 3
    values = [dequantize(c, v, *operands[count + 2 * i :][:2]) for i, v in enumerate(operands[:count])]
    floats = _only(c, part, values)
    if enable_float_output:
        return floats
    if min_calib_range is None or max_calib_range is None:
        raise UnsupportedModel("products of attention in a range that was not measured are not carried")
    return calibrated(c, floats, min_calib_range, max_calib_range, DType.INT8)
