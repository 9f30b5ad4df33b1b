"""A stand-in for cuBLASLt's bindings (nvmath.bindings): it records products on their streams, and computes them with
NumPy from what their descriptors say, where the device `computes`. It is no cuBLASLt, and knows no speed.

    LtStandin(standin).install(monkeypatch)

Matrices lie by columns, as cuBLASLt has them; descriptors that contradict each other are refused.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mezzo.runtime.backends.cuda.cublaslt import kernel, library

from .cupy_standin import Standin

RESULT = np.dtype([
    ("algo", np.uint64, 8), ("workspace_size", np.uint64), ("state", np.int32), ("waves", np.float32),
    ("reserved", np.int32, 4),
])  # fmt: skip
# the numbers and the types of cuBLASLt's attributes
Operation = IntEnum("Operation", {"N": 0, "T": 1})
ComputeType = IntEnum("ComputeType", {"COMPUTE_32F": 68, "COMPUTE_32F_FAST_TF32": 77, "COMPUTE_64F": 70})
CudaDataType = IntEnum("CudaDataType", {"CUDA_R_32F": 0, "CUDA_R_64F": 1, "CUDA_R_16F": 2, "CUDA_R_16BF": 14})
Epilogue = IntEnum("Epilogue", {"DEFAULT": 1, "RELU": 2, "BIAS": 4, "RELU_BIAS": 6, "GELU": 32, "GELU_BIAS": 36})
Described = IntEnum("Described", {"TRANSA": 3, "TRANSB": 4, "EPILOGUE": 7, "BIAS_POINTER": 8, "BIAS_DATA_TYPE": 26})
Laid = IntEnum("Laid", {"BATCH_COUNT": 5, "STRIDED_BATCH_OFFSET": 6})


class Preferred(IntEnum):
    """Preferences."""

    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


OF_EACH: dict[Any, Any] = {
    Described.TRANSA: np.int32, Described.TRANSB: np.int32, Described.EPILOGUE: np.uint32,
    Described.BIAS_POINTER: np.int64, Described.BIAS_DATA_TYPE: np.int32, Laid.BATCH_COUNT: np.int32,
    Laid.STRIDED_BATCH_OFFSET: np.int64, Preferred.MAX_WORKSPACE_BYTES: np.uint64,
}  # fmt: skip
ELEMENTS: dict[int, Any] = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}


def forget() -> None:
    """Let cuBLASLt be looked for again; also when a test ends."""
    library.find.cache_clear()


@dataclass
class Made:
    """A descriptor: what it was made with, and the attributes that were set."""

    given: Sequence[int]
    attributes: dict[str, int] = field(default_factory=dict)


class LtStandin:
    """The module `nvmath.bindings.cublasLt`. Its algorithms are numbered from 1; `times` says how long each takes, and
    `workspaces` what each asks for: there are as many as that has entries."""

    matmul_heuristic_result_dtype = RESULT
    MatmulDescAttribute, MatrixLayoutAttribute, MatmulPreferenceAttribute = Described, Laid, Preferred
    Epilogue = Epilogue

    def __init__(self, standin: Standin, workspaces: Sequence[int] = (0,), times: Sequence[float] = (1.0,)) -> None:
        self._standin, self._numbers = standin, itertools.count(1)
        self.workspaces, self.times = workspaces, times
        self.made: dict[int, Made] = {}
        self.asked: list[dict[str, int]] = []  # the preferences of each question to the heuristics
        self.ran: list[int] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the bindings be this, until the test ends."""
        nvmath, bindings = types.ModuleType("nvmath"), types.ModuleType("nvmath.bindings")
        cublas = types.SimpleNamespace(ComputeType=ComputeType, Operation=Operation)
        nvmath.CudaDataType = CudaDataType  # type: ignore[attr-defined]
        for name, module in {
            "nvmath": nvmath, "nvmath.bindings": bindings, "nvmath.bindings.cublasLt": self,
            "nvmath.bindings.cublas": cublas,
        }.items():  # fmt: skip
            monkeypatch.setitem(sys.modules, name, module)
        forget()
        monkeypatch.setattr(kernel, "ALGORITHMS", kernel.Algorithms())
        monkeypatch.setattr(library.HANDLES, "_handles", {})

    def get_version(self) -> str:
        return "0 (a stand-in)"

    def create(self, *given: Any) -> int:
        if not given:
            self._standin.refuse_in_capture("cublasLtCreate")
        number = next(self._numbers)
        self.made[number] = Made(tuple(map(int, given)))
        return number

    matmul_desc_create = matrix_layout_create = matmul_preference_create = create

    def done(self, number: int) -> None:
        del self.made[number]

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = done

    def set(self, number: int, attribute: IntEnum, address: int, size: int) -> None:
        kind = np.dtype(self.dtype_of(attribute))
        assert size == kind.itemsize, f"{attribute!r} has {kind.itemsize} bytes"
        self.made[number].attributes[attribute.name] = int(np.frombuffer(ctypes.string_at(address, size), kind)[0])

    matmul_desc_set_attribute = matrix_layout_set_attribute = matmul_preference_set_attribute = set

    def dtype_of(self, attribute: IntEnum) -> Any:
        return OF_EACH.get(attribute, np.uint32)

    get_matmul_desc_attribute_dtype = get_matrix_layout_attribute_dtype = dtype_of
    get_matmul_preference_attribute_dtype = dtype_of

    def matmul_algo_get_heuristic(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, preference: int, most: int, results: int,
        count: int,
    ) -> None:  # fmt: skip
        wanted = self.made[preference].attributes
        self.asked.append(wanted)
        self.check(operation, a, b, c, d)
        good = [(n, w) for n, w in enumerate(self.workspaces, start=1) if w <= wanted["MAX_WORKSPACE_BYTES"]][:most]
        held: Any = (ctypes.c_char * (RESULT.itemsize * most)).from_address(results)
        found = np.frombuffer(held, RESULT)
        for row, (number, workspace) in zip(found, good, strict=False):
            row["algo"][0], row["workspace_size"] = number, workspace
        ctypes.c_int32.from_address(count).value = len(good)

    def check(self, operation: int, a: int, b: int, c: int, d: int) -> None:
        """That the descriptors belong together."""
        told = self.made[operation].attributes
        sizes = []
        for layout, turned in ((a, told["TRANSA"]), (b, told["TRANSB"]), (c, 0), (d, 0)):
            _, rows, columns, leading = self.made[layout].given
            assert leading >= rows, "columns overlap"
            sizes.append((columns, rows) if turned else (rows, columns))
        (m, k), (also_k, n), *results = sizes
        assert k == also_k and results == [(m, n)] * 2, sizes  # noqa: PT018
        assert len({self.made[layout].attributes.get("BATCH_COUNT", 1) for layout in (a, b, c, d)}) == 1
        compute, scale = self.made[operation].given
        double = self.made[d].given[0] == CudaDataType.CUDA_R_64F
        assert (compute == ComputeType.COMPUTE_64F) is double is (scale == CudaDataType.CUDA_R_64F)

    def matmul(
        self, handle: int, operation: int, alpha: int, a: int, la: int, b: int, lb: int, beta: int, c: int, lc: int,
        d: int, ld: int, algorithm: int, workspace: int, size: int, stream: int,
    ) -> None:  # fmt: skip
        """As cublasLtMatmul."""
        standin = self._standin
        number = ctypes.c_uint64.from_address(algorithm).value
        assert size == self.workspaces[number - 1] and (workspace or not size)  # noqa: PT018
        assert handle in self.made
        self.check(operation, la, lb, lc, ld)
        kind = np.float64 if self.made[operation].given[1] == CudaDataType.CUDA_R_64F else np.float32
        scales = [float(np.frombuffer(ctypes.string_at(at, kind().itemsize), kind)[0]) for at in (alpha, beta)]
        told = dict(self.made[operation].attributes)
        matrices = [(self.made[layout], at) for layout, at in ((la, a), (lb, b), (lc, c), (ld, d))]
        on = next(s for s in (*standin._streams, standin.null) if s.ptr == stream)

        def work() -> None:
            standin.touch(on, [(p, p + 1) for p in (a, b, c)], [(d, d + 1)])
            standin.say("launch", "cublasLt", 0, on)
            standin.clock += self.times[number - 1]
            self.ran.append(number)
            if standin.computes:
                standin.later(on, lambda: compute(told, scales, matrices))

        standin.submit(on, work, "cublasLt")


def compute(told: dict[str, int], scales: Sequence[float], matrices: Sequence[tuple[Made, int]]) -> None:
    """D = epilogue(alpha * op(A) op(B) + beta * C + bias), for each of a batch."""
    a, b, c, d = (at_address(made, at) for made, at in matrices)
    left = np.swapaxes(a, 1, 2) if told["TRANSA"] else a
    right = np.swapaxes(b, 1, 2) if told["TRANSB"] else b
    made = scales[0] * np.matmul(left.astype(np.float64), right.astype(np.float64))
    if scales[1]:
        made += scales[1] * c.astype(np.float64)
    epilogue = told["EPILOGUE"]
    if epilogue & Epilogue.BIAS:
        kind = np.dtype(ELEMENTS[told["BIAS_DATA_TYPE"]])
        made += np.frombuffer(ctypes.string_at(told["BIAS_POINTER"], made.shape[1] * kind.itemsize), kind)[:, None]
    if epilogue & Epilogue.RELU:
        made = np.maximum(made, 0)
    if epilogue & Epilogue.GELU:
        made = made / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (made + 0.044715 * made**3)))
    d[...] = made


def at_address(made: Made, address: int) -> Any:
    """The matrices of a batch, [number, row, column], where they lie."""
    number, rows, columns, leading = made.given
    kind, batch = np.dtype(ELEMENTS[number]), made.attributes.get("BATCH_COUNT", 1)
    apart = made.attributes.get("STRIDED_BATCH_OFFSET", 0)
    count = (batch - 1) * apart + (columns - 1) * leading + rows
    held: Any = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    strides = [n * kind.itemsize for n in (apart, 1, leading)]
    return np.lib.stride_tricks.as_strided(np.frombuffer(held, kind), (batch, rows, columns), strides)
