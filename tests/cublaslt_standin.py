"""A stand-in for cuBLASLt's bindings (nvmath.bindings): it records products on their streams, and computes nothing.

LtStandin(standin).install(monkeypatch)
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import types
from typing import Any

import numpy as np
import pytest

from mezzo.runtime.gpu.cublaslt import kernel, library

from .cupy_standin import Standin

RESULT = np.dtype([
    ("algo", np.uint64, 8), ("workspace_size", np.uint64), ("state", np.int32), ("waves", np.float32),
    ("reserved", np.int32, 4),
])  # fmt: skip


def forget() -> None:
    """Let cuBLASLt be looked for again; also when a test ends."""
    library.find.cache_clear()


class Numbers:
    """An enumeration: a number for each name that is asked."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._found.setdefault(name, len(self._found))


class LtStandin:
    """The module `nvmath.bindings.cublasLt`; its one algorithm asks for no workspace."""

    matmul_heuristic_result_dtype = RESULT

    def __init__(self, standin: Standin) -> None:
        self._standin, self._made = standin, itertools.count(1)
        self.MatmulDescAttribute = self.MatrixLayoutAttribute = Numbers()
        self.MatmulPreferenceAttribute = self.Epilogue = Numbers()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the bindings be this, until the test ends."""
        nvmath, bindings = types.ModuleType("nvmath"), types.ModuleType("nvmath.bindings")
        cublas = types.SimpleNamespace(ComputeType=Numbers(), Operation=Numbers())
        nvmath.CudaDataType = Numbers()  # type: ignore[attr-defined]
        for name, module in {
            "nvmath": nvmath, "nvmath.bindings": bindings, "nvmath.bindings.cublasLt": self,
            "nvmath.bindings.cublas": cublas,
        }.items():  # fmt: skip
            monkeypatch.setitem(sys.modules, name, module)
        forget()
        monkeypatch.setattr(kernel, "ALGORITHMS", kernel.Algorithms())
        monkeypatch.setattr(library.HANDLES, "_made", {})

    def get_version(self) -> str:
        return "0 (a stand-in)"

    def create(self, *_: Any) -> int:
        return next(self._made)

    matmul_desc_create = matrix_layout_create = matmul_preference_create = create

    def done(self, *_: Any) -> None:
        pass

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = done
    matmul_desc_set_attribute = matrix_layout_set_attribute = matmul_preference_set_attribute = done

    def get_matmul_desc_attribute_dtype(self, attribute: int) -> type:
        return np.int64

    get_matrix_layout_attribute_dtype = get_matmul_preference_attribute_dtype = get_matmul_desc_attribute_dtype

    def matmul_algo_get_heuristic(self, *given: Any) -> None:
        ctypes.c_int32.from_address(given[-1]).value = 1  # `found` is zero: that is an algorithm, and its state is good

    def matmul(self, *given: Any) -> None:
        """As cublasLtMatmul: the addresses are those of A, B, C and D, and the last is the stream."""
        a, b, c, d = (given[i] for i in (3, 5, 8, 10))
        standin, stream = self._standin, given[-1]
        on = next(s for s in (*standin._streams, standin.null) if s.ptr == stream)

        def work() -> None:
            standin.touch(on, [(p, p + 1) for p in (a, b, c)], [(d, d + 1)])
            standin.say("launch", "cublasLt", 0, on)

        standin.submit(on, work, "cublasLt")
