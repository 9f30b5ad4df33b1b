"""CUDA through CuPy, imported on first use: kernels are loaded and launched on CuPy's current stream."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ....ops import DType
from ....ops.dataclasses import dataclass
from ....ops.errors import MissingPackage
from ...compile.kernel import Call, KernelArgs, nothing
from .launch import In, Launch, LaunchKey, Operand, Out, Scratch, Source, Written
from .nvrtc import compiled

SHARED = 48 << 10  # bytes of shared memory that a launch may ask for without saying so before
DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def cupy() -> Any:
    """The module; MissingPackage names the line that installs it."""
    try:
        return import_module("cupy")
    except ImportError as error:
        raise MissingPackage(
            f"a GPU is asked for and CuPy cannot be imported: {error}",
            hint="pip install 'mezzo[cuda13]', or 'mezzo[cuda12]' for drivers of CUDA 12",
        ) from error


@dataclass(frozen=True, slots=True)
class Description:
    """A GPU as its driver describes it: `sm` is 90 for sm_90, memory is in bytes."""

    index: int
    name: str
    sm: int
    memory: int

    def __str__(self) -> str:
        return f"gpu:{self.index}: {self.name}, sm_{self.sm}, {self.memory >> 20} MiB"


def count() -> int:
    """Return the number of GPUs. Raises MissingPackage if CuPy or a driver for it is missing."""
    runtime = cupy().cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        raise MissingPackage(
            f"CUDA shows no GPU: {error}",
            hint="`mezzo doctor` shows the driver and the libraries; device='gpu:0@sm_90' plans without a GPU",
        ) from error


def described(index: int) -> Description:
    """GPU `index`. Raises MissingPackage where CuPy or the device is missing."""
    visible = count()
    if index >= visible:
        raise MissingPackage(
            f"gpu:{index} is not there: CUDA shows {visible} GPU{'' if visible == 1 else 's'}",
            hint="devices are counted from 0; CUDA_VISIBLE_DEVICES may hide some",
        )
    properties = cupy().cuda.runtime.getDeviceProperties(index)
    name = properties["name"]
    sm = 10 * int(properties["major"]) + int(properties["minor"])
    return Description(index, name.decode() if isinstance(name, bytes) else name, sm, int(properties["totalGlobalMem"]))


class _Loaded:
    """Kernels loaded on the devices of this process, each once; a context of CUDA belongs to the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: dict[tuple[int, str], Any] = {}
        self._modules: dict[tuple[int, bytes], Any] = {}

    def load(self, sources: Iterable[Source], index: int, sm: int) -> None:
        """Compile what is not loaded yet, together, and load it on the current device, which is `index`."""
        with self._lock:
            missing = {s.name: s for s in sources if (index, s.name) not in self._functions}
            for name, image in compiled(missing.values(), f"sm_{sm}").items() if missing else ():
                self._functions[index, name] = self._module(image, index).get_function(name)

    def function(self, source: Source, index: int, sm: int) -> Any:
        """A kernel that can be launched on the current device, which is `index`."""
        kernel = self._functions.get((index, source.name))
        if kernel is None:
            self.load([source], index, sm)
            kernel = self._functions[index, source.name]
        return kernel

    def forget(self) -> None:
        """Let go of all; for tests."""
        with self._lock:
            self._functions.clear()
            self._modules.clear()

    def _module(self, image: bytes, index: int) -> Any:
        key = index, hashlib.sha256(image).digest()
        if key not in self._modules:
            module = import_module("cupy.cuda.function").Module()
            module.load(image)
            self._modules[key] = module
        return self._modules[key]


LOADED = _Loaded()


def index_of(device: str) -> int:
    """The number in a device's name."""
    return int(device.partition(":")[2].partition("@")[0])


def bound(written: Written, args: KernelArgs) -> Call:
    """The launches of a step as one call over its buffers, on CuPy's current stream; it allocates nothing."""
    places = [[int(_address(a)) for a in arrays] for arrays in (args.inputs, args.outputs)]
    launches = [launch for launch in written.launches if not launch.in_place(*places)]
    if not launches:
        return nothing
    scratch = args.scratch(DType.UINT8, (written.workspace,)) if written.workspace else None
    calls = [_call(launch, args, scratch) for launch in launches]
    if len(calls) == 1:
        return calls[0]

    def run() -> None:
        for call in calls:
            call()

    return run


def _call(launch: Launch, args: KernelArgs, scratch: Any) -> Callable[[], None]:
    target = args.request.target
    function = LOADED.function(launch.source, index_of(target.device), target.sm)
    if launch.shared > SHARED:
        cupy().cuda.driver.funcSetAttribute(function.ptr, DYNAMIC_SHARED, launch.shared)
    operands = tuple(_argument(o, args, scratch) for o in launch.operands)
    return partial(function, launch.grid, launch.block, operands, launch.shared)


def _argument(operand: Operand, args: KernelArgs, scratch: Any) -> np.generic:
    """Return the value of a kernel's parameter: an address on the device as a number of 8 bytes, or the number
    itself."""
    match operand:
        case In(index):
            return _address(args.inputs[index])
        case Out(index):
            return _address(args.outputs[index])
        case Scratch(offset):
            return np.uint64(scratch.data.ptr + offset)
        case LaunchKey():
            return _address(args.words)
    return operand


def _address(array: Any) -> np.uint64:
    return np.uint64(0 if array is None else array.data.ptr)


def reach(device: int, *others: int) -> None:
    """Let a GPU read the memory of others where it can; where not, CUDA copies through the host."""
    runtime = cupy().cuda.runtime
    for other in dict.fromkeys(others):
        with cupy().cuda.Device(device):
            if runtime.deviceCanAccessPeer(device, other):
                try:
                    runtime.deviceEnablePeerAccess(other)
                except runtime.CUDARuntimeError as error:
                    if "PeerAccessAlreadyEnabled" not in str(error):
                        raise
