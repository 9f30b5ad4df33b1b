"""The CPU as a device: the kernels of oneDNN and of NumPy, in the memory of the host."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from ...ops.dataclasses import dataclass
from ...ops.errors import InputError
from ..compile.program import Program
from ..compile.target import Target
from ..execution.call_order import CallOrder
from ..execution.executor import Executor
from ..ir.graph import Node
from ..memory.pool import aligned_empty
from . import machine, onednn
from .cpu import CPU_KERNELS
from .onednn.ahead import made_ahead
from .onednn.call_order import OneDnnCallOrder
from .onednn.kernel import held
from .onednn.library import fetch, find, library
from .onednn.postops import loses, noisy


@dataclass(frozen=True, slots=True)
class CpuExecutor(Executor):
    """The CPU, with oneDNN where it is found."""

    @property
    def precisions(self) -> tuple[str, ...]:
        return ("fp32", "bf16-math", "bf16")

    def check_precision(self, precision: str, onednn: bool) -> str:
        precision = Executor.check_precision(self, precision, onednn)
        if precision == "fp32":
            return precision  # the library is not even looked for: loading it takes milliseconds
        loaded = library() if onednn else None
        if loaded is None or not loaded.bf16:
            raise InputError(
                f"this machine computes no bfloat16 ({loaded or find()})", where="Session", hint="leave out precision="
            )
        return precision

    def making_ahead(self, onednn: bool) -> AbstractContextManager[None]:
        if not onednn:
            return nullcontext()
        fetch()
        return made_ahead()

    def call_order(self, program: Program, arrays: Mapping[str, Any], careful: bool) -> CallOrder:
        return OneDnnCallOrder(program, arrays, careful)

    def held(self, program: Program) -> Mapping[Any, int]:
        return held(program)

    def may_lose_nan(self, node: Node) -> bool:
        return loses(node, [None]) or noisy(node, ())


CPU: Final = Target("cpu", (*machine.KERNELS, *onednn.KERNELS, *CPU_KERNELS))
EXECUTOR: Final = CpuExecutor(CPU, aligned_empty)
