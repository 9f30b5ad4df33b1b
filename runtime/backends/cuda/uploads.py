"""Upload of constants and states to a GPU, all in one pass."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from ....ops import DType
from ....ops.types import Array
from ...memory.shared_constants import derived, known
from .driver import cupy
from .memory import Resident, allocated, behind, element, pinned

STAGED = 64 << 20  # bytes of pinned memory at most
_UPLOADING = threading.Lock()


class Uploads:
    """A context that uploads arrays to a GPU through pinned memory on a stream of its own, which is waited for once, at
    the end of the `with`. Beyond `STAGED` bytes, the pinned memory is reused after the copies out of it.

        with Uploads(index, sum(a.nbytes for a in arrays)) as way:
            there = [way.send(a) for a in arrays]
    """

    def __init__(self, index: int, nbytes: int) -> None:
        cp = cupy()
        self._index, self._runtime = index, cp.cuda.runtime
        with cp.cuda.Device(index):
            self._stream = cp.cuda.Stream(non_blocking=True)
            halves = 2 if nbytes > STAGED else 1
            self._halves = [pinned(min(nbytes, STAGED // halves)) for _ in range(halves)]
            self._free = [cp.cuda.Event(disable_timing=True) for _ in self._halves]
        self._half, self._at = 0, 0
        self._used = [False] * halves

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.synchronize()

    def send(self, array: Array) -> Any:
        """A copy of the array on the device, which is complete when the `with` has ended."""
        cp = cupy()
        memory = allocated(max(array.nbytes, 1), self._index)
        source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        with cp.cuda.Device(self._index):
            behind(self._stream)
            first = 0
            while first < source.size:
                first += self._piece(memory.data.ptr + first, source[first:])
            return cp.ndarray(array.shape, element(DType.of(array.dtype)), memptr=memory.data)

    def _piece(self, to: int, source: Array) -> int:
        """Send as much as the pinned memory has room for; how many bytes that is."""
        if self._at >= self._halves[self._half].size:
            self._free[self._half].record(self._stream)
            self._used[self._half] = True
            self._half, self._at = (self._half + 1) % len(self._halves), 0
            if self._used[self._half]:
                self._free[self._half].synchronize()
        staged = self._halves[self._half][self._at :][: source.size]
        np.copyto(staged, source[: staged.size])
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(to, staged.ctypes.data, staged.size, kind, self._stream.ptr)
        self._at += staged.size
        return int(staged.size)


def uploaded(arrays: Mapping[str, Array], index: int) -> dict[str, Any]:
    """Constants in the device's memory, each uploaded once for as long as anybody uses it: in one pass, which is waited
    for once."""
    with _UPLOADING:  # another thread finds none that is still on its way
        way = f"on gpu:{index}"
        on_device = {n: known(a, way) for n, a in arrays.items()}
        lacking = {id(a): a for n, a in arrays.items() if on_device[n] is None}
        if lacking:
            with Uploads(index, sum(a.nbytes for a in lacking.values())) as uploads:
                sent = {key: derived(a, way, lambda a=a: uploads.send(a)) for key, a in lacking.items()}  # type: ignore[misc]
            on_device = {n: sent[id(a)] if on_device[n] is None else on_device[n] for n, a in arrays.items()}
        return on_device


def residents(states: Mapping[str, Array], index: int) -> dict[str, Any]:
    """States in the device's memory; those that lie there already, also as arrays of CuPy, stay where they are."""
    states = {n: Resident.over(s) if hasattr(s, "__cuda_array_interface__") else s for n, s in states.items()}
    host_states = {n: np.asarray(s) for n, s in states.items() if not isinstance(s, Resident)}
    if not host_states:
        return states
    with Uploads(index, sum(a.nbytes for a in host_states.values())) as uploads:
        sent = {n: Resident(uploads.send(a), a.dtype, index) for n, a in host_states.items()}
    return {**states, **sent}
