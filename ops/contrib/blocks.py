"""Operators of the domain com.microsoft on weights of 4 or 8 bits with a scale for each block, which the quantisation
tool writes beside MatMulNBits.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.rules import axis_of, has_dims
from ..errors import ShapeError
from ..op import OPS, Builder, Context, Sample, Value, op
from ..types import Array, Dim, DType, Tensor, f32
from .fused import rank_of
from .quantized import numbers
from .weights import _unpacked

# Values of the 16 steps of bitsandbytes' two kinds of 4 bits: FP4, and NF4, the quantiles of a normal distribution.
FP4 = [0.0, 0.00520833333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25]
NF4 = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]
TABLES = np.array([[*FP4, *(-v for v in FP4)], NF4], np.float32)
SHAPE = {"K": 32, "N": 3, "block_size": 16}


@op(
    "MatMulBnb4",
    domain="com.microsoft",
    since=1,
    samples=[
        Sample([f32(2, 32), numbers(48), f32(6)], {**SHAPE, "quant_type": 0}),
        Sample([f32(2, 3, 32), numbers(48), f32(6)], {**SHAPE, "quant_type": 1}),
        Sample([f32(1, 32), numbers(80, seed=1), f32(5)], {"K": 32, "N": 5, "block_size": 32, "quant_type": 1}),
    ],
)
def matmul_bnb4(
    k: Context,
    A: Array,
    B: Array,
    absmax: Array,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Array:
    """The upper half of each byte comes first."""
    steps = np.stack([B >> np.uint8(4), B & np.uint8(15)], -1).reshape(-1)[: N * K]
    each = np.repeat(absmax.astype(np.float32), block_size)[: N * K]
    dense = (TABLES[quant_type][steps] * each).reshape(N, K)
    return k.xp.matmul(A.astype(np.float32), dense.T).astype(A.dtype)


@matmul_bnb4.infer
def _(
    A: Tensor, B: Tensor, absmax: Tensor, *, K: int, N: int, block_size: int, quant_type: int, transB: int = 1
) -> Tensor:
    if quant_type not in (0, 1) or not transB:
        raise ShapeError(f"quant_type {quant_type} and transB {transB}", hint="0 and 1 are FP4 and NF4, transB is 1")
    check_blocks(block_size)
    if B.dtype is not DType.UINT8:
        raise ShapeError(f"{B} are not bytes", hint="each byte holds two weights")
    if A.dims is None:
        return A.of(None)
    if not A.dims or (isinstance(A.dims[-1], int) and A.dims[-1] != K):
        raise ShapeError(f"{A} should have {K} columns (attribute K)")
    for part, count in ((B, -(-N * K // 2)), (absmax, -(-N * K // block_size))):
        if part.elements not in (None, count):
            raise ShapeError(f"{part} should have {count} entries for {N} x {K} weights")
    return A.of((*A.dims[:-1], N))


@matmul_bnb4.body
def _(g: Builder, xs: Any, types: Any, *, K: int, N: int, block_size: int, quant_type: int, **_: Any) -> Value | None:
    if N * K % block_size or N * K % 2 or types[0].dtype is not DType.FLOAT:
        return None
    a, packed, absmax = xs
    packed = g.Cast(g.Reshape(packed, g.const([-1])), to=DType.INT64.onnx)
    upper = g.Div(packed, g.const(16))
    both = (g.Unsqueeze(x, g.const([1])) for x in (upper, g.Sub(packed, g.Mul(upper, g.const(16)))))
    steps = g.Reshape(g.Concat(*both, axis=1), g.const([-1, block_size]))
    each = g.Mul(g.Gather(g.const(TABLES[quant_type]), steps, axis=0), g.Reshape(absmax, g.const([-1, 1])))
    return g.MatMul(a, g.Transpose(g.Reshape(each, g.const([N, K])), perm=(1, 0)))


PICKED = np.array([[1, 0], [4, -2]])
FOUR = {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}


@op(
    "GatherBlockQuantized",
    domain="com.microsoft",
    since=1,
    outputs=("output",),
    samples=[
        Sample([numbers(5, 16), PICKED, f32(5, 2), numbers(5, 1)], FOUR),
        Sample([numbers(5, 16), PICKED.astype(np.int32), f32(5, 2)], FOUR),
        Sample([numbers(3, 4, 32), np.array([2, 0]), f32(3, 4, 2), numbers(3, 4, 2)],
               {"bits": 8, "block_size": 16, "gather_axis": 0, "quantize_axis": 2}),
    ],
)  # fmt: skip
def gather_block_quantized(
    k: Context,
    data: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    """Rows are picked first, then taken apart and scaled. Bytes hold numbers without a sign, lowest bits first."""
    gathered, quantized = (axis_of(axis, data.ndim) for axis in (gather_axis, quantize_axis))
    packed = data.dtype == np.uint8

    def picked(x: Array, at: Array) -> Array:
        rows_at: Array = k.xp.take(x, at, axis=gathered)
        return rows_at

    def each(x: Array) -> Array:
        """The entries of blocks, one for each number."""
        if gathered == quantized:
            return picked(x, indices % data.shape[gathered] // block_size)
        at = quantized + (indices.ndim - 1) * (gathered < quantized)
        repeated: Array = k.xp.repeat(picked(x, indices), block_size, at)
        return repeated[(slice(None),) * at + (slice(rows.shape[at]),)]

    rows = picked(data, indices)
    zeros: Any = np.float32(2 ** (bits - 1) if packed else 0)
    if packed:
        rows = _unpacked(rows, bits, rows.shape[-1] * 8 // bits)
    if zero_points is not None:
        zeros = _unpacked(zero_points, bits, scales.shape[-1]) if packed else zero_points
        zeros = each(zeros).astype(np.float32)
    return ((rows.astype(np.float32) - zeros) * each(scales.astype(np.float32))).astype(scales.dtype)


@gather_block_quantized.infer
def _(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Tensor:
    packed = data.dtype is DType.UINT8
    if bits not in ((4, 8) if packed else (4,)) or data.dtype not in (DType.UINT8, DType.UINT4, DType.INT4):
        raise ShapeError(f"bits {bits} of {data}", hint="4 or 8 bits in bytes, 4 in numbers of 4 bits")
    check_blocks(block_size)
    if zero_points is not None and zero_points.dtype is not data.dtype:
        raise ShapeError(f"the zero points {zero_points} and {data} differ in type")
    if data.dims is None or indices.dims is None:
        return scales.of(None)
    last, at = data.rank - 1, axis_of(quantize_axis, data.rank)
    if packed and (at != last or axis_of(gather_axis, data.rank) == last):
        raise ShapeError("bytes are packed along the last axis, which is the one that has blocks, and stays whole")
    numbers = [*data.dims]
    if packed:
        numbers[last] = _scaled(numbers[last], 8, bits)
    blocks = [*numbers]
    blocks[at] = _scaled(numbers[at], 1, block_size)
    has_dims(scales, blocks, f"blocks of {block_size} of {data}")
    if zero_points is not None:
        blocks[at] = _scaled(blocks[at], bits, 8) if packed else blocks[at]
        has_dims(zero_points, blocks, f"blocks of {block_size} of {data}")
    picked = OPS["", "Gather"].inferred(data.of(numbers), indices, axis=gather_axis)
    assert isinstance(picked, Tensor)
    return scales.of(picked.dims)


def _scaled(size: Dim, by: int, over: int) -> Dim:
    """A size multiplied and divided, rounded up; None where it is unknown."""
    return -(-size * by // over) if isinstance(size, int) else None


def check_blocks(block_size: int) -> None:
    """Raise ShapeError unless a block has 16 numbers, or 32, 64 and so on."""
    if block_size < 16 or block_size & (block_size - 1):
        raise ShapeError(f"block_size {block_size}", hint="blocks have 16, 32, 64, ... numbers")


@gather_block_quantized.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value | None:
    operands: list[Any] = [*xs, *[None] * (4 - len(xs))]
    data, indices, scales, zeros = operands
    last = types[0].dims[-1] if types[0].dims else None
    if types[0].dtype is not DType.UINT8 or rank_of(types[1]) is None or not isinstance(last, int):
        return None
    whole, kind = last * 8 // bits, types[2].dtype
    if whole % block_size or kind is not DType.FLOAT:
        return None
    count = whole // block_size
    rank = len(types[0].dims) + len(types[1].dims) - 1

    def picked(x: Value) -> Value:
        return g.Gather(x, indices, axis=gather_axis)

    def apart(x: Value, entries: int, *dims: int) -> Value:
        """Bytes as float32 numbers, the last axis as these dims."""
        x = g.Cast(picked(x), to=DType.INT32.onnx)
        if bits == 4:
            upper = g.Div(x, g.const(16, DType.INT32))
            lower = g.Sub(x, g.Mul(upper, g.const(16, DType.INT32)))
            x = g.Concat(*(g.Unsqueeze(v, g.const([rank])) for v in (lower, upper)), axis=rank)
            x = g.Reshape(x, g.const([0] * (rank - 1) + [-1]))
            x = g.Slice(x, g.const([0]), g.const([entries]), g.const([rank - 1]))
        return g.Reshape(g.Cast(x, to=DType.FLOAT.onnx), g.const([*[0] * (rank - 1), *dims]))

    steps = apart(data, whole, count, block_size)
    middle = g.const(2 ** (bits - 1), DType.FLOAT) if zeros is None else apart(zeros, count, count, 1)
    each = g.Mul(g.Sub(steps, middle), g.Unsqueeze(picked(scales), g.const([rank])))
    return g.Reshape(each, g.const([*[0] * (rank - 1), whole]))
