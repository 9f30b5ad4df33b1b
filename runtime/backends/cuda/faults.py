"""Faults of a device: CUDA tells of them at whatever call comes next, and gives up all that the process has there.

https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
"""

from __future__ import annotations

from typing import Final

from ....ops.errors import ExecutionError
from ...environment import switch
from .driver import cupy

CHECK: Final = "MEZZO_GPU_CHECK"
# Parts of names of statuses after which nothing works on the device until the process ends. The runtime says
# cudaErrorIllegalAddress, the driver, which launches kernels, CUDA_ERROR_ILLEGAL_ADDRESS.
LASTING: Final = (
    "IllegalAddress", "IllegalInstruction", "MisalignedAddress", "InvalidAddressSpace", "InvalidPc", "LaunchFailure",
    "LaunchFailed", "LaunchTimeout", "HardwareStackError", "Assert", "ECCUncorrectable", "NvlinkUncorrectable",
    "ContextIsDestroyed", "DevicesUnavailable", "Contained", "TensorMemoryLeak",
)  # fmt: skip


class DeviceLost(ExecutionError):
    """A kernel has failed on a GPU, or the GPU itself: CUDA takes no more calls of this process for it."""


def step_by_step() -> bool:
    """True if each step is to be waited for before the next one begins."""
    return switch(CHECK) == "1"


def lost(error: BaseException) -> bool:
    """True if an error is that of a fault, and may have come from any step before."""
    cuda = cupy().cuda
    kinds = [cuda.runtime.CUDARuntimeError]
    if (of_driver := getattr(getattr(cuda, "driver", None), "CUDADriverError", None)) is not None:
        kinds.append(of_driver)
    said = str(error).replace("_", "").lower()
    return isinstance(error, tuple(kinds)) and any(name.lower() in said for name in LASTING)


def told(error: BaseException, device: str, place: str = "") -> DeviceLost:
    """The fault as an error that says what to do; `place` is the step, where it is known."""
    if place:
        hint = "the operands of this step, and `mezzo doctor`, say more; go on in a new process"
    else:
        hint = f"{CHECK}=1 in a new process runs step by step and names the one that fails"
    return DeviceLost(f"{device} takes no more calls of this process: {error}", where=place or device, hint=hint)
