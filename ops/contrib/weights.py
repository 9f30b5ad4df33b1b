"""Products with weights of few bits that stay packed: MatMulNBits of the domain com.microsoft, and its gradient.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..dataclasses import dataclass
from ..errors import ShapeError
from ..op import REQUIRED, Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor
from .fused import Types, dtype_of
from .quantized import numbers

ROOM = 1 << 18  # weights that are unpacked at once
FOUR = np.dtype(np.complex128)  # as large as four float32 numbers
WHOLE = DType.UINT8
Take = Callable[[DType, tuple[int, ...]], Array]
Multiply = Callable[..., Any]  # (a, b, out=): the product of two matrices


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    """Numbers of `bits` bits out of bytes, lowest bits first, `count` of each last axis."""
    check_bits(bits)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return apart.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts))[..., :count]


def check_bits(bits: int) -> None:
    """Raise ShapeError unless bytes hold integers of so many bits."""
    if bits not in (2, 4, 8):
        raise ShapeError(f"{bits} bits are not supported", hint="quantise the weights to 2, 4 or 8 bits")


@dataclass(frozen=True, slots=True)
class PackedForm:
    """The attributes that say how weights (N, K) are packed: each row in blocks of `block_size` numbers of `bits` bits,
    the last one filled up."""

    K: int
    N: int
    bits: int
    block_size: int

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> PackedForm:
        """The form that the attributes of a node tell."""
        return cls(attrs["K"], attrs["N"], attrs.get("bits", 4), attrs["block_size"])

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.K // self.block_size)

    @property
    def whole(self) -> int:
        """Numbers of a row, those behind the last weight too."""
        return self.blocks * self.block_size

    @property
    def row_bytes(self) -> int:
        return self.whole * self.bits // 8

    @property
    def zero_bytes(self) -> int:
        """Bytes of the packed zero points of a row."""
        return -(-self.blocks * self.bits // 8)

    @property
    def at_once(self) -> int:
        """Rows that are unpacked at once."""
        return max(1, min(self.N, ROOM // max(self.whole, 1)))

    def buffers(self, zeros: DType | None, ordered: bool, wide: DType) -> list[tuple[DType, tuple[int, ...]]]:
        """The buffers that `UnpackedRows` works in; `zeros` is the type of the zero points, if any, `ordered` tells
        whether each column names its block, `wide` is the type that weights are wanted in."""
        rows, single = self.at_once, DType.FLOAT
        kept: list[tuple[DType, tuple[int, ...]]] = [(single, (rows, self.whole)), (single, (rows, self.blocks))]
        if self.bits < 8:
            kept.append((DType.INT64, (rows, self.whole // 4)))
        if zeros is not None:
            kept.append((single, (rows, self.blocks)))
        if zeros is WHOLE and self.bits < 8:
            kept.append((WHOLE, (rows, self.zero_bytes, 8 // self.bits)))
        if ordered:
            kept.append((single, (rows, self.K)))
        if wide is not single:
            kept.append((wide, (rows, self.K)))
        return kept


PACKED_FORM = {"K": REQUIRED, "N": REQUIRED, "bits": 4, "block_size": REQUIRED}


@cache
def _fours(bits: int, middle: int) -> Array:
    """Four numbers, less `middle`, for each 16 bits of numbers of 4, or 8 bits of numbers of 2."""
    codes = np.arange(1 << 4 * bits)
    four = np.stack([(codes >> bits * i) & (1 << bits) - 1 for i in range(4)], 1) - middle
    return np.ascontiguousarray(four, np.float32).view(FOUR)[:, 0]


class UnpackedRows:
    """Weights as numbers, some rows at a time, in buffers that are taken once: `self[i:j]` is (j - i, K), valid until
    the next ones are asked for, at most `form.at_once`. Each number is `(step - zero point) * scale` in float32."""

    def __init__(
        self,
        form: PackedForm,
        B: Array,
        scales: Array,
        zero_points: Array | None,
        g_idx: Array | None,
        wide: DType,
        take: Take,
    ) -> None:
        self._form, self._packed = form, B.reshape(form.N, form.row_bytes)
        self._scales = scales.reshape(form.N, form.blocks)
        whole = zero_points is not None and zero_points.dtype == np.uint8
        self._zeros = None if zero_points is None else zero_points.reshape(form.N, -1)
        self._order = None if g_idx is None else g_idx.reshape(-1)[: form.K]
        kind = None if zero_points is None else WHOLE if whole else DType.of(zero_points.dtype)
        room = iter([take(dtype, shape) for dtype, shape in form.buffers(kind, g_idx is not None, wide)])
        self._dense, self._scale = next(room), next(room)
        self._codes = next(room) if form.bits < 8 else None
        self._zero = None if kind is None else next(room)
        self._apart = next(room) if kind is WHOLE and form.bits < 8 else None
        self._each = None if g_idx is None else next(room)
        self._wide = None if wide is DType.FLOAT else next(room)
        self._middle = 0 if zero_points is not None else 1 << form.bits - 1

    def __getitem__(self, part: slice) -> Array:
        form, first, last = self._form, int(part.start), int(part.stop)
        count = last - first
        dense, scale, zero = self._dense[:count], self._scale[:count], self._zero
        packed = self._packed[first:last]
        if self._codes is None:
            np.copyto(dense, packed)
            if self._middle:
                np.subtract(dense, np.float32(self._middle), out=dense)
        else:
            codes = self._codes[:count]
            np.copyto(codes, packed.view("<u2") if form.bits == 4 else packed)
            fours = _fours(form.bits, self._middle)
            np.take(fours, codes, out=dense.view(FOUR), mode="clip")  # no code is outside; "clip" needs no buffer
        np.copyto(scale, self._scales[first:last])
        if zero is not None:
            zero = zero[:count]
            self._zero_points(first, last, zero)
        if self._order is None:
            blocks = dense.reshape(count, form.blocks, form.block_size)
            if zero is not None:
                np.subtract(blocks, zero[..., None], out=blocks)
            np.multiply(blocks, scale[..., None], out=blocks)
            numbers = dense[:, : form.K]
        else:
            numbers = self._by_order(dense[:, : form.K], scale, zero)
        if self._wide is None:
            return numbers
        np.copyto(self._wide[:count], numbers)
        return self._wide[:count]

    def _zero_points(self, first: int, last: int, out: Array) -> None:
        """The zero point of each block of some rows."""
        form, zeros = self._form, self._zeros
        assert zeros is not None
        part = zeros[first:last]
        if self._apart is not None:
            apart = self._apart[: last - first]
            np.right_shift(part[..., None], np.arange(0, 8, form.bits, dtype=np.uint8), out=apart)
            np.bitwise_and(apart, np.uint8((1 << form.bits) - 1), out=apart)
            part = apart.reshape(last - first, -1)
        np.copyto(out, part[:, : form.blocks])

    def _by_order(self, dense: Array, scale: Array, zero: Array | None) -> Array:
        """The numbers where each column names its block."""
        assert self._order is not None and self._each is not None
        order, each = self._order.astype(np.intp), self._each[: len(dense)]
        if order.size and not 0 <= order.min() <= order.max() < self._form.blocks:
            raise ShapeError(f"g_idx names blocks {order.min()} to {order.max()} of {self._form.blocks}")
        if zero is not None:
            np.take(zero, order, 1, out=each, mode="clip")
            np.subtract(dense, each, out=dense)
        np.take(scale, order, 1, out=each, mode="clip")
        np.multiply(dense, each, out=dense)
        return dense


def times(A: Array, weights: UnpackedRows, form: PackedForm, out: Array, multiply: Multiply = np.matmul) -> None:
    """A (M, K) times the weights transposed, into `out` (M, N)."""
    for first in range(0, form.N, form.at_once):
        last = min(first + form.at_once, form.N)
        multiply(A, weights[first:last].T, out=out[:, first:last])


def times_back(
    dY: Array, weights: UnpackedRows, form: PackedForm, out: Array, part: Array, multiply: Multiply = np.matmul
) -> None:
    """dY (M, N) times the weights, into `out` (M, K); `part` is room for a sum of its size."""
    for first in range(0, form.N, form.at_once):
        last = min(first + form.at_once, form.N)
        multiply(dY[:, first:last], weights[first:last], out=part if first else out)
        if first:
            np.add(out, part, out=out)


def wide_of(dtype: DType) -> DType:
    """The type in which products of activations of a type are summed up."""
    return DType.DOUBLE if dtype is DType.DOUBLE else DType.FLOAT


def taken(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Room for a buffer, outside of a plan."""
    return np.empty(shape, dtype.numpy)


def dense_weights(B: Array, scales: Array, zero_points: Array | None, g_idx: Array | None, **packed: Any) -> Array:
    """The weights (N, K) of MatMulNBits with these attributes in float32."""
    form = PackedForm.of(packed)
    check_bits(form.bits)
    rows = UnpackedRows(form, B, scales, zero_points, g_idx, DType.FLOAT, taken)
    dense = np.empty((form.N, form.K), np.float32)
    for first in range(0, form.N, form.at_once):
        last = min(first + form.at_once, form.N)
        dense[first:last] = rows[first:last]
    return dense


N_BITS = {"K": 32, "N": 3, "block_size": 16}
PACKED: list[Any] = [numbers(3, 2, 8), Tensor(DType.FLOAT, (3, 2))]
EIGHT = {"K": 40, "N": 5, "block_size": 32, "bits": 8}
# A left operand of each width; behind it what the weights are; attributes.
FORMS: list[tuple[tuple[int, ...], int, list[Any], dict[str, Any]]] = [
    ((2,), 3, PACKED, {**N_BITS, "bits": 4}),
    ((2, 3), 3, [PACKED[0], Tensor(DType.FLOAT, (6,)), numbers(3)], {**N_BITS, "bits": 4}),
    ((1,), 5, [numbers(5, 2, 32), Tensor(DType.FLOAT, (5, 2)), numbers(5, 2)], EIGHT),
    ((2,), 3, [*PACKED, Tensor(DType.FLOAT, (3, 2))], N_BITS),
    ((2,), 3, [numbers(3, 3, 4), Tensor(DType.FLOAT, (3, 3)), numbers(3, 1)],
     {"K": 40, "N": 3, "block_size": 16, "bits": 2}),
    ((2,), 3, [*PACKED, None, np.arange(32, dtype=np.int32) % 2], {**N_BITS, "bits": 4}),
]  # fmt: skip


@op(
    "MatMulNBits", domain="com.microsoft", attributes=PACKED_FORM, mixed="first", rowwise=True,
    since=1,
    samples=[
        *(Sample([Tensor(DType.FLOAT, (*lead, attrs["K"])), *packed], attrs) for lead, _, packed, attrs in FORMS),
        Sample([Tensor(DType.FLOAT, (2, 3, 32)), PACKED[0], Tensor(DType.FLOAT, (6,)), numbers(3)],
               {**N_BITS, "bits": 4, "accuracy_level": 1}),
        Sample([Tensor(DType.FLOAT, (2, 32)), *PACKED, Tensor(DType.FLOAT, (3, 2)), None, Tensor(DType.FLOAT, (3,))],
               N_BITS),
    ],
)  # fmt: skip
def matmul_n_bits(
    k: Context,
    A: Array,
    B: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
    **packed: Any,
) -> Array:
    """Sums are taken in float32, or in float64 where the activations are: whatever `accuracy_level` permits."""
    form, wide = PackedForm.of(packed), wide_of(DType.of(A.dtype))
    rows = UnpackedRows(form, B, scales, zero_points, g_idx, wide, taken)
    y = np.empty((*A.shape[:-1], form.N), wide.numpy)
    times(A.reshape(-1, form.K).astype(wide.numpy, copy=False), rows, form, y.reshape(-1, form.N))
    return (y if bias is None else y + bias.astype(wide.numpy)).astype(A.dtype, copy=False)


@matmul_n_bits.infer
def _(
    A: Tensor,
    B: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    weight_prepacked: int = 0,
    **packed: Any,
) -> Tensor:
    if weight_prepacked:
        raise ShapeError("weights that are packed for one kind of GPU cannot be read", hint="export them unpacked")
    form = PackedForm.of(packed)
    check_packed(form, B, scales, zero_points, g_idx)
    if bias is not None and bias.elements not in (form.N, None):
        raise ShapeError(f"the bias {bias} is not one number for each of {form.N} columns")
    return A.of(_last(A, form.K, form.N, "K"))


def _last(x: Tensor, size: int, other: int, name: str) -> tuple[Any, ...] | None:
    """The dims with another last one; ShapeError where it is not what it should be."""
    if x.dims is None:
        return None
    if not x.dims or (isinstance(x.dims[-1], int) and x.dims[-1] != size):
        raise ShapeError(f"{x} should have {size} columns (attribute {name})")
    return (*x.dims[:-1], other)


def check_packed(form: PackedForm, B: Tensor, scales: Tensor, zero_points: Tensor | None, g_idx: Tensor | None) -> None:
    """Raise ShapeError where operands are not the weights that the attributes tell of."""
    check_bits(form.bits)
    if form.K < 1 or form.N < 1 or form.block_size < 16 or form.block_size & (form.block_size - 1):
        raise ShapeError(
            f"N={form.N}, K={form.K} in blocks of {form.block_size}", hint="blocks have 16, 32, 64, ... numbers"
        )
    if B.dtype is not WHOLE:
        raise ShapeError(f"{B} are no bytes")
    expected = form.N * form.row_bytes
    about = f"N={form.N}, K={form.K} in blocks of {form.block_size}"
    if B.elements not in (expected, None):
        raise ShapeError(f"{B} has {B.elements} bytes; {about} take {expected}")
    if scales.elements not in (form.N * form.blocks, None):
        raise ShapeError(f"the scales {scales} are not one for each of {form.N * form.blocks} blocks: {about}")
    if zero_points is not None:
        each = form.zero_bytes if zero_points.dtype is WHOLE else form.blocks
        if zero_points.elements not in (form.N * each, None):
            raise ShapeError(f"the zero points {zero_points} are not those of {about}, which are {form.N * each}")
    if g_idx is not None and isinstance(g_idx.elements, int) and g_idx.elements < form.K:
        raise ShapeError(f"g_idx {g_idx} names no block for each of {form.K} columns")


@matmul_n_bits.body
def _(g: Builder, xs: Sequence[Value | None], types: Types, **attrs: Any) -> Value:
    bias = xs[5]
    dense = _dense_form(g, xs[1:5], types[1:5], PackedForm.of(attrs), dtype_of(types))
    y = g.MatMul(xs[0], g.Transpose(dense, perm=(1, 0)))
    return y if bias is None else g.Add(y, bias)


def _dense_form(g: Builder, packed: Sequence[Value | None], types: Types, form: PackedForm, dtype: DType) -> Value:
    """The weights (N, K) as standard operators."""
    B, zero_points = (t.value if isinstance(t, Tensor) else None for t in (types[0], types[2]))
    is_whole = isinstance(types[2], Tensor) and types[2].dtype is WHOLE
    single, rows, order = DType.FLOAT.onnx, g.const([form.N, form.blocks]), packed[3]
    scales = g.Cast(g.Reshape(packed[1], rows), to=single)
    zeros = np.full((form.N, form.blocks), 1 << form.bits - 1, np.uint8)
    if zero_points is not None and is_whole:
        zeros = _unpacked(np.asarray(zero_points).reshape(form.N, -1), form.bits, form.blocks)
    known = packed[2] is None or (is_whole and zero_points is not None)
    if B is not None and known and order is None:
        kind = {2: DType.UINT2, 4: DType.UINT4, 8: DType.UINT8}[form.bits]
        weights = g.const(_unpacked(np.asarray(B).reshape(form.N, -1), form.bits, form.K), kind)
        dense = g.DequantizeLinear(weights, scales, g.const(zeros, kind), axis=1, block_size=form.block_size)
    else:  # columns name their blocks, zero points are no integers, or bytes are not known before the run
        order = g.const(np.arange(form.K) // form.block_size) if order is None else _first(g, order, form.K)
        if known:
            zero = g.const(zeros, DType.FLOAT)
        elif is_whole:
            zero = _apart(g, packed[2], form, form.zero_bytes, form.blocks)
        else:
            zero = g.Cast(g.Reshape(packed[2], rows), to=single)
        steps = g.Sub(_apart(g, packed[0], form, form.row_bytes, form.K), g.Gather(zero, order, axis=1))
        dense = g.Mul(steps, g.Gather(scales, order, axis=1))
    return dense if dtype is DType.FLOAT else g.Cast(dense, to=dtype.onnx)


def _apart(g: Builder, packed: Value, form: PackedForm, row: int, count: int) -> Value:
    """The first `count` numbers of rows of so many bytes, in float32."""
    shifts, codes = np.arange(0, 8, form.bits), g.Reshape(packed, g.const([form.N, row, 1]))
    if form.bits < 8:
        codes = g.BitShift(codes, g.const(shifts, WHOLE), direction="RIGHT")
        codes = g.Mod(codes, g.const(1 << form.bits, WHOLE))
    numbers = g.Cast(g.Reshape(codes, g.const([form.N, row * len(shifts)])), to=DType.FLOAT.onnx)
    return g.Slice(numbers, g.const([0]), g.const([count]), g.const([1]))


def _first(g: Builder, x: Value, count: int) -> Value:
    """The first elements of a vector."""
    return g.Slice(g.Reshape(x, g.const([-1])), g.const([0]), g.const([count]), g.const([0]))


@matmul_n_bits.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    """To the activations and the bias: the weights stay as they are, scales and zero points too."""
    packed = {name: attrs[name] for name in PACKED_FORM if name in attrs}
    dA = g.op("MatMulNBitsGrad", dys[0], *xs[1:5], domain="mezzo", **packed) if g.wants[0] else None
    dbias = None if xs[5] is None or not g.wants[5] else g.sum_to(dys[0], xs[5])
    return (dA, None, None, None, None, dbias)[: len(g.wants)]


@op(
    "MatMulNBitsGrad", domain="mezzo", attributes=PACKED_FORM, mixed="first", rowwise=True,
    outputs=("dA",),
    samples=[Sample([Tensor(DType.FLOAT, (*lead, n)), *packed], attrs) for lead, n, packed, attrs in FORMS],
)  # fmt: skip
def matmul_n_bits_grad(
    k: Context,
    dY: Array,
    B: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    **packed: Any,
) -> Array:
    """The gradient of MatMulNBits to its activations: dY times the weights, which are unpacked some rows at a time."""
    form, wide = PackedForm.of(packed), wide_of(DType.of(dY.dtype))
    rows = UnpackedRows(form, B, scales, zero_points, g_idx, wide, taken)
    dA = np.empty((*dY.shape[:-1], form.K), wide.numpy)
    flat = dA.reshape(-1, form.K)
    times_back(dY.reshape(-1, form.N).astype(wide.numpy, copy=False), rows, form, flat, np.empty_like(flat))
    return dA.astype(dY.dtype, copy=False)


@matmul_n_bits_grad.infer
def _(
    dY: Tensor, B: Tensor, scales: Tensor, zero_points: Tensor | None = None, g_idx: Tensor | None = None, **packed: Any
) -> Tensor:
    form = PackedForm.of(packed)
    check_packed(form, B, scales, zero_points, g_idx)
    return dY.of(_last(dY, form.N, form.K, "N"))


@matmul_n_bits_grad.body
def _(g: Builder, xs: Sequence[Value | None], types: Types, **attrs: Any) -> Value:
    return g.MatMul(xs[0], _dense_form(g, xs[1:5], types[1:5], PackedForm.of(attrs), dtype_of(types)))


@matmul_n_bits_grad.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    dY = g.op("MatMulNBits", dys[0], *xs[1:], domain="com.microsoft", **attrs) if g.wants[0] else None
    return (dY, *[None] * (len(g.wants) - 1))
