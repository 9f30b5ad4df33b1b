"""Memory of a GPU: device and pinned allocations, clear errors, states read like host arrays, figures."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ....ops.dataclasses import dataclass
from ....ops.errors import BudgetError, InputError, PlanError
from ....ops.types import Array
from .copies import ALIGNED
from .driver import cupy


def check_operand(array: Any, nbytes: int, alignment: int, place: tuple[str, int]) -> None:
    """Raise PlanError where a launch would touch bytes behind the end of an array, or expects it to begin elsewhere."""
    address = int(array.data.ptr)
    if nbytes > array.nbytes or not array.flags.c_contiguous:
        raise PlanError(f"{place[0]} {place[1]} has {array.nbytes} bytes, and a launch would touch {nbytes}")
    if address % alignment:
        raise PlanError(f"{place[0]} {place[1]} begins at {address:#x}, which is no multiple of {alignment}")


def pinned(nbytes: int) -> Array:
    """Return pinned host memory of `nbytes`, which a GPU copies from and to by itself."""
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer(cupy().cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


def behind(stream: Any) -> None:
    """Let a stream begin behind what the current one has to do: with arrays of others, and with memory that CuPy's pool
    gives out again while it is still in use there."""
    cuda = cupy().cuda
    here = cuda.Event(disable_timing=True)
    here.record(cuda.get_current_stream())
    stream.wait_event(here)


def allocated(nbytes: int, index: int) -> Any:
    """Return `nbytes` of uninitialised, contiguous memory, as an array of CuPy. Raises DeviceFull if there is not
    enough."""
    cp = cupy()
    with cp.cuda.Device(index):
        try:
            return cp.ndarray((nbytes,), np.uint8, memptr=cp.cuda.alloc(nbytes))
        except cp.cuda.memory.OutOfMemoryError as error:
            raise DeviceFull(nbytes, gpu_memory_info(index)) from error


class DeviceFull(BudgetError):
    """A GPU has too little memory for a plan."""

    def __init__(self, nbytes: int, info: MemoryInfo) -> None:
        self.nbytes, self.info = nbytes, info
        super().__init__(
            f"{nbytes} bytes are asked of gpu:{info.index}, which has {info.free} of {info.total} free; {info.in_use} "
            f"are in use by this process, and {info.reserved - info.in_use} kept for reuse",
            hint="run smaller inputs, or fewer at once (instances=); a lower precision= takes less",
        )


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of a device: in total, free, reserved by this process from the driver, and in use of those.

    `largest_free_block` is the largest piece that can be had without asking the driver: the pool tells it only while
    it keeps one free block, and it is None otherwise. `utilisation` is the part of the last moments in which the GPU
    computed, in percent, by the driver's management library; None without it.
    """

    index: int
    total: int
    free: int
    reserved: int
    in_use: int
    largest_free_block: int | None
    utilisation: int | None

    def __str__(self) -> str:
        busy = "" if self.utilisation is None else f", {self.utilisation} % busy"
        mib = 1 << 20
        return (
            f"gpu:{self.index}: {self.free // mib} of {self.total // mib} MiB free, "
            f"{self.reserved // mib} MiB reserved here, {self.in_use // mib} MiB in use{busy}"
        )


def gpu_memory_info(index: int = 0) -> MemoryInfo:
    """Return the memory of GPU `index`, and the part that this process holds through CuPy's pool.

    Raises MissingPackage where CuPy or the device is missing.
    """
    cp = cupy()
    with cp.cuda.Device(index):
        free, total = cp.cuda.runtime.memGetInfo()
        pool = cp.get_default_memory_pool()
        blocks, spare = pool.n_free_blocks(), pool.free_bytes()
        largest = spare if blocks <= 1 else None
        return MemoryInfo(index, total, free, pool.total_bytes(), pool.used_bytes(), largest, utilisation(index))


def utilisation(index: int) -> int | None:
    """Percent of the last moments in which the GPU computed; None without nvidia-ml-py or the driver's part of it."""
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            bus = cupy().cuda.runtime.deviceGetPCIBusId(index)  # CUDA may count devices otherwise than the driver does
            return int(pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())).gpu)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def view(memory: Any, offset: int, type: Tensor) -> Any:
    """A value's bytes as an array of CuPy: of its own shape if it is row-major, else as the bytes that they are."""
    if type.layout:
        return cupy().ndarray((type.nbytes,), np.uint8, memptr=memory.data + offset)
    return cupy().ndarray(type.sizes, element(type.dtype), memptr=memory.data + offset)


def element(dtype: DType) -> Any:
    """The element type that CuPy has for ours; for those that it lacks, integers of that width."""
    known = dtype.numpy
    return known if known.isbuiltin == 1 or dtype is DType.BFLOAT16 else np.dtype(f"u{known.itemsize}")


class Resident:
    """A state in device memory that is read and written like an array of the host, with a copy each time.

    `array` is CuPy's array: what programs read and write.
    """

    def __init__(self, array: Any, dtype: Any, index: int) -> None:
        self._index, self._dtype, self.array = index, dtype, array

    @classmethod
    def over(cls, array: Any) -> Resident:
        """A state over the memory of an array of CuPy. Raises InputError for a part that is not contiguous, or begins
        where kernels cannot read 16 bytes at once."""
        if not array.flags.c_contiguous or array.data.ptr % ALIGNED:
            raise InputError("a state is a part of another array", hint="give a copy of its own: array.copy()")
        resident = cls.__new__(cls)
        resident._index, resident._dtype, resident.array = array.device.id, array.dtype, array
        return resident

    @property
    def dtype(self) -> Any:
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def size(self) -> int:
        return int(self.array.size)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        host = np.empty(self.shape, self._dtype)
        _copied(host, self.array, self._index, up=False)
        return host if dtype is None else host.astype(dtype)

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        changed = np.asarray(self)
        changed[key] = value
        _copied(changed, self.array, self._index, up=True)

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))


def _copied(host: Array, device: Any, index: int, *, up: bool) -> None:
    """Copy between contiguous arrays of one size, behind what the current stream does, and wait for it."""
    cp = cupy()
    if not host.nbytes:
        return
    with cp.cuda.Device(index):
        runtime, stream = cp.cuda.runtime, cp.cuda.Stream(non_blocking=True)
        behind(stream)
        ends = (device.data.ptr, host.ctypes.data) if up else (host.ctypes.data, device.data.ptr)
        kind = runtime.memcpyHostToDevice if up else runtime.memcpyDeviceToHost
        runtime.memcpyAsync(*ends, host.nbytes, kind, stream.ptr)
        stream.synchronize()
