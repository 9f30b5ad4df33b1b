"""MatMulNBits and its gradient with weights that stay packed: some rows are unpacked, multiplied, and forgotten.

Memory is that of the file's own packing and a bounded workspace (docs/decisions/0025-packed-weights-and-adapters.md).
"""

from __future__ import annotations

import math

import numpy as np

from ....ops import DType, Tensor, Type
from ....ops.contrib.weights import Multiply, PackedForm, UnpackedRows, times, times_back, wide_of
from ....ops.types import Array
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed
from ...memory.liveness import aligned

Room = tuple[DType, tuple[int, ...]]


def _around(x: Tensor, y: Tensor, wide: DType, backward: bool) -> list[Room]:
    """Room for the left operand and the result in the type of the sums, where they have another, and for a sum."""
    rows = math.prod(x.sizes[:-1])
    room: list[Room] = [(wide, (rows, t.sizes[-1])) for t in (x, y) if t.dtype is not wide]
    return [*room, (wide, (rows, y.sizes[-1]))] if backward else room


class PackedProduct(Listed):
    """Blocks of rows of weights at a time, through NumPy's product; the constants are read as the file has them."""

    name = "numpy.matmul_n_bits"
    operators = listed("com.microsoft::MatMulNBits mezzo::MatMulNBitsGrad")
    multiply: Multiply = staticmethod(np.matmul)

    def select(self, request: KernelRequest) -> Choice | Declined:
        x, (y,) = request.inputs[0], request.outputs
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not x.static or not y.static:
            return Declined("sizes are not known")
        zeros, order = (_operand(request.inputs, at) for at in (3, 4))
        wide = wide_of(x.dtype)
        room = PackedForm.of(request.node.attrs).buffers(
            None if zeros is None else zeros.dtype, order is not None, wide
        )
        room += _around(x, y, wide, request.node.op == "MatMulNBitsGrad")
        return Choice(self.name, workspace=sum(aligned(math.prod(shape) * dtype.itemsize) for dtype, shape in room))

    def prepare(self, args: KernelArgs) -> Call:
        x, packed, scales, zeros, order, bias = (*args.inputs, *[None] * 5)[:6]
        (out,), node = args.outputs, args.node
        assert x is not None and packed is not None and scales is not None and out is not None
        form, wide, backward = PackedForm.of(node.attrs), wide_of(DType.of(x.dtype)), node.op == "MatMulNBitsGrad"
        weights = UnpackedRows(form, packed, scales, zeros, order, wide, args.scratch)
        flat, whole = x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
        left = flat if x.dtype == wide.numpy else args.scratch(wide, flat.shape)
        sums = whole if out.dtype == wide.numpy else args.scratch(wide, whole.shape)
        part = args.scratch(wide, whole.shape) if backward else None
        multiply = self.multiply
        row: Array | None = None if bias is None else bias.reshape(-1)

        def run() -> None:
            if left is not flat:
                left[...] = flat
            if part is not None:
                times_back(left, weights, form, sums, part, multiply)
            else:
                times(left, weights, form, sums, multiply)
            if row is not None:
                sums[...] += row
            if sums is not whole:
                whole[...] = sums

        return run


def _operand(types: object, at: int) -> Tensor | None:
    """The type of an optional operand."""
    assert isinstance(types, list | tuple)
    type_: Type | None = types[at] if at < len(types) else None
    return type_ if isinstance(type_, Tensor) else None
