"""Copies of the memory of arrays: on the host, at another place, and as DLPack's capsules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..runtime.memory.allocate import copied
from .place import Place
from .recording import RECORDING

if TYPE_CHECKING:
    from .array import Array

NEWER = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # knows the options of DLPack 1.0
HOST = (1, 0)  # DLPack's number of the memory of the host


def read(x: Array, sort: type | None = None) -> np.ndarray[Any, Any]:
    """A copy of the elements. It is taken by a workload: in the order of the others that touch the array. `sort` says
    as what sort of number the only one is wanted."""
    if RECORDING.trace is not None:
        RECORDING.trace.read(x, sort)
    one = x._var._engine
    if one.only_calls() and x._var._failure is None:
        taken: np.ndarray[Any, Any] = fetched(x._look(x._var._value))
        return taken
    copies: list[np.ndarray[Any, Any]] = []
    one.push(_take, (x._var,), name="asnumpy", args=(x, copies)).wait()
    return copies[0]


def _take(x: Array, copies: list[Any]) -> None:
    copies.append(fetched(value_of(x)))


def value_of(x: Any) -> Any:
    """The memory of an operand inside of a workload: of an array its part of the buffer, of a scalar itself."""
    return x if x.__class__ is np.ndarray else x._look(x._var.value)


def copied_to(value: Any, place: Place) -> Any:
    """A copy of the memory of an array, of this device or another one, at a place."""
    if place.name == "cpu":
        return fetched(value)
    from ..runtime.backends.cuda.arrays import put  # with the first array there

    return put(value, place.index)


def fetched(value: Any) -> Any:
    """A copy on the host, row after row."""
    if isinstance(value, np.ndarray):
        return copied(value, "copy")
    from ..runtime.backends.cuda.arrays import fetched as from_gpu

    return from_gpu(value)


def dlpack(
    x: Array,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A capsule over the memory of an array, once it is computed, or over a copy on the host.

    Raises BufferError where a copy is needed and `copy` forbids it, for other devices, and for a stream on the host.
    """
    own = x.__dlpack_device__()
    wanted = own if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if wanted not in (own, HOST):
        raise BufferError(f"{x.where}: DLPack hands it over there, or on the host, not on device {wanted}")
    if wanted != own and copy is False:
        raise BufferError(f"{x.where}: its memory is not the host's, and copy=False forbids a copy")
    if wanted == HOST and stream is not None:
        raise BufferError(f"stream={stream!r} of memory on the host, which has none: leave it out")
    if RECORDING.trace is not None:
        RECORDING.trace.read(x)
    x.wait_to_read()
    memory = x._look(x._var._value)
    if wanted != own or (copy and not NEWER):
        memory, copy = fetched(memory), None
    options = {"stream": stream, "max_version": max_version if NEWER else None, "copy": copy if NEWER else None}
    return memory.__dlpack__(**{name: value for name, value in options.items() if value is not None})
