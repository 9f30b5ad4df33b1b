"""Memory of arrays on a GPU: allocation, copies to the host and back, and runs of sessions on it.

Values are arrays of CuPy. Whatever is done here is over when the call returns, so that the engine's order is the order
on the device; copies go over one stream for each device, runs over those of their instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ....ops.errors import InputError
from ....ops.types import Array
from ...execution.session import Session
from .driver import cupy
from .memory import allocated, element

_STREAMS: dict[tuple[Any, int], Any] = {}


def _stream(index: int) -> Any:
    """The stream of copies of a device, which is the current one."""
    cp = cupy()
    key = cp, index
    if key not in _STREAMS:
        _STREAMS[key] = cp.cuda.Stream(non_blocking=True)
    return _STREAMS[key]


def empty(dtype: np.dtype[Any], shape: tuple[int, ...], index: int) -> Any:
    """Uninitialised memory. Raises DeviceFull where there is no room, InputError for types that GPUs do not hold."""
    held = element(DType.of(dtype))
    if held != dtype:
        raise InputError(f"arrays of {DType.of(dtype)} are not held by gpu:{index}", hint="keep it on mz.cpu()")
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return cupy().ndarray(shape, held, memptr=allocated(max(nbytes, 1), index).data)


def put(value: Any, index: int) -> Any:
    """A copy on a device, of an array of the host, of this device, or of another one."""
    cp = cupy()
    with cp.cuda.Device(index):
        source = cp.ascontiguousarray(value) if on_gpu(value) else np.ascontiguousarray(value).reshape(value.shape)
        copy = empty(np.dtype(source.dtype), tuple(source.shape), index)
        _copy(copy, source, index)
    return copy


def fetched(value: Any) -> Array:
    """A copy on the host."""
    cp, index = cupy(), value.device.id
    with cp.cuda.Device(index):
        source = cp.ascontiguousarray(value)
        copy = np.empty(tuple(source.shape), source.dtype)
        _copy(copy, source, index)
    return copy


def write(target: Any, value: Any) -> None:
    """Put the elements of an array of this kind, on the same device, into an array or a view of one."""
    cp, index = cupy(), target.device.id
    with cp.cuda.Device(index):
        source = cp.ascontiguousarray(value)
        if target.flags.c_contiguous:
            _copy(target, source, index)
        else:
            target[...] = source
            cp.cuda.get_current_stream().synchronize()


def on_gpu(value: Any) -> bool:
    """True if a value is an array of CuPy."""
    return hasattr(value, "__cuda_array_interface__")


def _copy(to: Any, source: Any, index: int) -> None:
    """Copy between contiguous arrays of one size, behind what the current stream does, and wait for it."""
    if not source.nbytes:
        return
    runtime, stream = cupy().cuda.runtime, _stream(index)
    kinds = {
        (True, False): runtime.memcpyHostToDevice,
        (False, True): runtime.memcpyDeviceToHost,
        (True, True): runtime.memcpyDeviceToDevice,
    }
    cupy().cuda.get_current_stream().synchronize()
    kind = kinds[on_gpu(to), on_gpu(source)]
    runtime.memcpyAsync(_address(to), _address(source), source.nbytes, kind, stream.ptr)
    stream.synchronize()


def _address(array: Any) -> int:
    return int(array.data.ptr if on_gpu(array) else array.ctypes.data)


def shared(value: Any, index: int | None = None) -> Any:
    """The array of CuPy over the memory of whoever speaks DLPack, once it is ready."""
    cp = cupy()
    with cp.cuda.Device(value.__dlpack_device__()[1] if index is None else index):
        array = value if isinstance(value, cp.ndarray) else cp.from_dlpack(value)
        cp.cuda.get_current_stream().synchronize()
    return array


def ran(session: Session, feeds: Mapping[str, Any], index: int, draw: tuple[int, ...] | None = None) -> list[Any]:
    """The results of a run, on the device; inputs are arrays of the device or of the host."""
    cp = cupy()
    with cp.cuda.Device(index):
        inputs = {n: cp.ascontiguousarray(x) if on_gpu(x) else x for n, x in feeds.items()}
        cp.cuda.get_current_stream().synchronize()
        ports = [(p.name, p.type) for p in session.program.outputs]
        buffers = {
            n: empty(np.dtype(t.dtype.numpy), t.sizes, index) for n, t in ports if isinstance(t, Tensor) and t.static
        }
        results = session.run(inputs, outputs=buffers, draw=draw)
        return [v if on_gpu(v) else put(v, index) for v in results.values()]


def ran_apart(session: Session, feeds: Mapping[str, Any], draw: tuple[int, ...] | None = None) -> list[Any]:
    """The results of a run over several devices, each on the device that makes it. What goes in and out is brought
    over the host."""
    results = session.run({n: fetched(x) if on_gpu(x) else x for n, x in feeds.items()}, draw=draw)
    at = {p.name: int(d.partition(":")[2]) for d, part in session.program.parts.items() for p in part.outputs}
    return [put(np.asarray(v), at[n]) for n, v in results.items()]
