"""The bindings of cuBLASLt (nvmath.bindings), loaded with the first product on a device: they raise without a driver.

What a call is made of lives here: descriptors of matrices and of the operation, algorithms, a handle.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from .....ops import DType
from .....ops.dataclasses import dataclass, field
from ..found import tried
from .product import LtProduct, LtRefused, Matrix

HINT = "pip install 'nvmath-python>=1.0,<2' 'mezzo[cuda13]'"
ALIGNED = 16  # bytes to which operands are aligned, if nothing else is known
WIDEST = 256  # bytes; cuBLASLt knows no better alignment
REDUCTIONS = 2  # partial sums are added in the type of sums (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), or there are none
LASTING = ("NOT_SUPPORTED", "INVALID_VALUE", "ARCH_MISMATCH")  # statuses that come again for the same product
_DATA = {
    DType.FLOAT: "CUDA_R_32F", DType.FLOAT16: "CUDA_R_16F", DType.BFLOAT16: "CUDA_R_16BF", DType.DOUBLE: "CUDA_R_64F",
}  # fmt: skip
_EPILOGUES = {
    ("", False): "DEFAULT", ("", True): "BIAS", ("relu", False): "RELU", ("relu", True): "RELU_BIAS",
    ("gelu", False): "GELU", ("gelu", True): "GELU_BIAS",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CublasLt:
    """The modules, and the version of cuBLASLt."""

    lt: Any
    cublas: Any
    types: Any
    version: str

    def __str__(self) -> str:
        return f"cuBLASLt {self.version}"


@cache
def find() -> CublasLt | str:
    """cuBLASLt, or why there is none; looked for once."""

    def load() -> CublasLt:
        lt, cublas = import_module("nvmath.bindings.cublasLt"), import_module("nvmath.bindings.cublas")
        return CublasLt(lt, cublas, import_module("nvmath").CudaDataType, str(lt.get_version()))

    return tried("cuBLASLt", HINT, load)


class _Handles:
    """A handle of cuBLASLt for each device; threads share it."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}
        self._lock = threading.Lock()

    def get(self, library: CublasLt, index: int) -> int:
        """The handle for the current device, which is `index`."""
        with self._lock:
            if index not in self._handles:
                self._handles[index] = int(library.lt.create())
            return self._handles[index]

    def forget(self) -> None:
        """Let go of all; for tests."""
        with self._lock:
            self._handles.clear()


HANDLES = _Handles()


@dataclass(eq=False)
class Descriptors:
    """A product as cuBLASLt describes it. Its matrices are column-major: a row-major matrix is the transpose of one, so
    that D^T = B^T A^T is computed, with A and B swapped."""

    library: CublasLt
    product: LtProduct
    operation: int = 0
    layouts: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        lt, p = self.library.lt, self.product
        compute, scale = _compute(p)
        self.operation = lt.matmul_desc_create(
            getattr(self.library.cublas.ComputeType, compute), getattr(self.library.types, scale)
        )
        name = lt.MatmulDescAttribute
        turned = self.library.cublas.Operation
        self._set(name.TRANSA, turned.T if p.b.turned else turned.N)
        self._set(name.TRANSB, turned.T if p.a.turned else turned.N)
        self._set(name.EPILOGUE, getattr(lt.Epilogue, _EPILOGUES[p.epilogue, p.bias is not None]))
        if p.bias is not None:
            self._set(name.BIAS_DATA_TYPE, getattr(self.library.types, _DATA[p.d.dtype]))
        for key, matrix in (("a", p.b), ("b", p.a), ("c", p.c or p.d), ("d", p.d)):
            self.layouts[key] = self._layout(matrix)

    def _set(self, attribute: Any, value: Any) -> None:
        lt = self.library.lt
        held = np.array([int(value)], lt.get_matmul_desc_attribute_dtype(attribute))
        lt.matmul_desc_set_attribute(self.operation, attribute, held.ctypes.data, held.itemsize)

    def _layout(self, m: Matrix) -> int:
        lt, name = self.library.lt, self.library.lt.MatrixLayoutAttribute
        rows, columns = (m.rows, m.columns) if m.turned else (m.columns, m.rows)  # by columns, as it is stored
        layout = int(lt.matrix_layout_create(getattr(self.library.types, _DATA[m.dtype]), rows, columns, m.leading))
        if self.product.batch > 1:
            for attribute, value in ((name.BATCH_COUNT, self.product.batch), (name.STRIDED_BATCH_OFFSET, m.apart)):
                held = np.array([value], lt.get_matrix_layout_attribute_dtype(attribute))
                lt.matrix_layout_set_attribute(layout, attribute, held.ctypes.data, held.itemsize)
        return layout

    def point_bias(self, address: int) -> None:
        """Set the address of the bias."""
        self._set(self.library.lt.MatmulDescAttribute.BIAS_POINTER, address)

    def algorithms(self, handle: int, workspace: int, most: int, aligned: int = ALIGNED) -> list[Algorithm]:
        """Return the algorithms that the heuristics suggest, best first, for operands aligned to `aligned` bytes.
        Raises LtRefused if there is none."""
        lt, name = self.library.lt, self.library.lt.MatmulPreferenceAttribute
        preference = lt.matmul_preference_create()
        try:
            wanted = {
                name.MAX_WORKSPACE_BYTES: workspace,
                name.REDUCTION_SCHEME_MASK: REDUCTIONS,
                **dict.fromkeys((getattr(name, f"MIN_ALIGNMENT_{key}_BYTES") for key in "ABCD"), min(aligned, WIDEST)),
            }
            for attribute, value in wanted.items():
                held = np.array([value], lt.get_matmul_preference_attribute_dtype(attribute))
                lt.matmul_preference_set_attribute(preference, attribute, held.ctypes.data, held.itemsize)
            results, count = np.zeros(most, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
            lt.matmul_algo_get_heuristic(
                handle, self.operation, *self._ordered, preference, most, results.ctypes.data, count.ctypes.data
            )
        except Exception as error:  # cuBLASLtError: a type of the bindings, which are not imported here
            refused = LtRefused(f"cuBLASLt: {error}")
            refused.for_now = not any(word in str(error) for word in LASTING)
            raise refused from error
        finally:
            lt.matmul_preference_destroy(preference)
        good = [row for row in results[: count[0]] if row["state"] == 0]
        if not good:
            raise LtRefused("cuBLASLt names no algorithm")
        return [Algorithm(row["algo"].tobytes().hex(), int(row["workspace_size"])) for row in good]

    @property
    def _ordered(self) -> tuple[int, ...]:
        return tuple(self.layouts[key] for key in "abcd")

    def call(
        self, handle: int, starts: tuple[int, int, int, int], algorithm: Algorithm, workspace: int, stream: int
    ) -> None:
        """Run on a stream: `starts` are the addresses of A, B, C and D as the product names them."""
        a, b, c, d = starts
        alpha, beta = self.scales
        algo = np.frombuffer(bytes.fromhex(algorithm.data), np.uint64)
        la, lb, lc, ld = self._ordered
        self.library.lt.matmul(
            *(handle, self.operation, alpha.ctypes.data, b, la, a, lb, beta.ctypes.data, c, lc, d, ld),
            *(algo.ctypes.data, workspace, algorithm.workspace, stream),
        )

    @property
    def scales(self) -> tuple[Any, Any]:
        """alpha and beta, where they are read from while a call is made."""
        kind = np.float64 if self.product.d.dtype is DType.DOUBLE else np.float32
        return np.array([self.product.alpha], kind), np.array([self.product.beta], kind)

    def close(self) -> None:
        """Give the descriptors back."""
        lt = self.library.lt
        for layout in self.layouts.values():
            lt.matrix_layout_destroy(layout)
        lt.matmul_desc_destroy(self.operation)
        self.layouts.clear()

    def __del__(self) -> None:
        if self.layouts:
            self.close()


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm in cuBLASLt's own encoding, as hexadecimal digits, with its workspace in bytes and its time if it
    was measured."""

    data: str
    workspace: int
    milliseconds: float | None = None


def _compute(p: LtProduct) -> tuple[str, str]:
    """Return the compute type, and the type of alpha and beta."""
    if p.d.dtype is DType.DOUBLE:
        return "COMPUTE_64F", "CUDA_R_64F"
    fast = p.d.dtype is DType.FLOAT and p.math == "tf32"
    return "COMPUTE_32F_FAST_TF32" if fast else "COMPUTE_32F", "CUDA_R_32F"


def alignment(addresses: Iterable[int]) -> int:
    """The bytes to which all addresses are aligned.

    >>> alignment([4096, 48])
    16
    """
    return min((at & -at or WIDEST for at in addresses), default=WIDEST)
