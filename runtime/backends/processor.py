"""The CPU as a device: the kernels of oneDNN and of NumPy, in the memory of the host."""

from __future__ import annotations

from typing import Final

from ..compile.target import Target
from ..execution.executor import Executor
from ..memory.pool import aligned_empty
from . import onednn
from .cpu import CPU_KERNELS

CPU: Final = Target("cpu", (*onednn.KERNELS, *CPU_KERNELS))
EXECUTOR: Final = Executor(CPU, aligned_empty)
