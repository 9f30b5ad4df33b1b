"""MatMulNBits with weights that stay packed, some rows at a time, through oneDNN's product of plain matrices.

NumPy's BLAS has threads of its own, which wait for one another at each product, and for long where others compute too.
"""

from __future__ import annotations

from ctypes import c_char, c_float, c_int64, c_void_p
from functools import cache
from typing import Any

from ....ops import DType, Tensor
from ....ops.errors import ExecutionError
from ....ops.types import Array
from ...compile.kernel import Choice, Declined, KernelRequest
from ..cpu import packed_weights
from .library import library


@cache
def _sgemm() -> Any:
    """dnnl_sgemm of row-major matrices; None where there is no oneDNN.

    https://oneapi-src.github.io/oneDNN/v3.2/group_dnnl_api_blas.html
    """
    loaded = library()
    if loaded is None:
        return None
    function = loaded.handle.dnnl_sgemm
    size, number, place = c_int64, c_float, c_void_p
    function.argtypes = (c_char, c_char, size, size, size, number, place, size, place, size, number, place, size)
    return function


def _turned(x: Array) -> tuple[bytes, int]:
    """The letter of a matrix that lies by rows or by columns, and the distance of these in elements."""
    rows, columns = x.strides
    if columns == x.itemsize or x.shape[1] == 1:
        return b"N", max(rows // x.itemsize, x.shape[1])
    return b"T", max(columns // x.itemsize, x.shape[0])


def multiply(a: Array, b: Array, out: Array) -> None:
    """The product of float32 matrices into `out`, whose rows may lie apart."""
    (m, k), n = a.shape, b.shape[1]
    (left, lda), (right, ldb), (_, ldc) = _turned(a), _turned(b), _turned(out)
    status = _sgemm()(left, right, m, n, k, 1.0, a.ctypes.data, lda, b.ctypes.data, ldb, 0.0, out.ctypes.data, ldc)
    if status:
        raise ExecutionError(f"dnnl_sgemm answered with status {status}", hint="see `mezzo doctor`")


class PackedSgemm(packed_weights.PackedProduct):
    """The kernel of NumPy with another product: of activations that are summed up in float32."""

    name = "onednn.matmul_n_bits"
    multiply = staticmethod(multiply)

    def select(self, request: KernelRequest) -> Choice | Declined:
        x = request.inputs[0]
        if _sgemm() is None or not isinstance(x, Tensor) or x.dtype is DType.DOUBLE:
            return Declined("dnnl_sgemm has float32 alone")
        if not x.static or not x.elements:
            return Declined("nothing is multiplied")
        return super().select(request)
