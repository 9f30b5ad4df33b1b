"""Staging of inputs and outputs of a GPU: pinned memory that mirrors the staged ports, a copy stream, events.

The staged ports of a program lie side by side behind its plan (Program.staged), and the mirror has them in the same
order: what is small goes over in one copy. What is large goes in pieces on the stream of copies, each as soon as the
processor has written it, so that the two ways of a byte overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....ops import Tensor
from ....ops.types import Array
from ...compile.program import Program
from ...memory.liveness import aligned
from .driver import cupy
from .memory import pinned

PIECE = 4 << 20  # bytes: pinned memory is written at some 10 GB/s and read by the device at several times that


class Staging:
    """Pinned mirrors of the staged ports, and pinned copies of `beside`: values that steps on the host touch.

    `arrays` has them by name. `begin` is where the staged ports begin in the arena at `base`.
    """

    def __init__(self, program: Program, base: int, beside: Sequence[str]) -> None:
        cp = cupy()
        self._runtime = cp.cuda.runtime
        self._begin = base + aligned(program.plan.size)
        self.copies = cp.cuda.Stream(non_blocking=True)
        self._arrived = cp.cuda.Event(disable_timing=True)
        types: dict[str, Tensor] = {}
        self._places: dict[str, tuple[int, int]] = {}
        at = 0
        for name in (*program.staged, *beside):
            known = program.types[name]
            assert isinstance(known, Tensor)
            types[name], self._places[name] = known, (at, known.nbytes)
            at += aligned(known.nbytes)
        self._memory = pinned(at)
        self.arrays = {n: _array(self._memory, self._places[n][0], t) for n, t in types.items()}

    def bring(self, feeds: Mapping[str, Array], wanted: Sequence[str], stream: Any, came: Any = None) -> None:
        """Write what is fed into the mirror, and let `stream` begin with it where the device wants it. The stream of
        copies waits for the event `came`: others may still use the memory that they go to."""
        large = [n for n in wanted if n in feeds and feeds[n].nbytes > PIECE]
        small = [n for n in wanted if n in feeds and n not in large]
        for name, array in feeds.items():
            if name not in large:
                np.copyto(self.arrays[name], array)
        if small:
            places = sorted(self._places[n] for n in small)  # as they lie
            begin, end = places[0][0], sum(places[-1])
            together = len(small) == len(wanted) and end - begin <= PIECE
            spans = [(begin, end - begin)] if together else [self._places[n] for n in small]
            for at, nbytes in spans:
                self._up(at, nbytes, stream)
        if large and came is not None:
            self.copies.wait_event(came)
        for name in large:
            self._in_pieces(name, feeds[name])
        if large:
            self._arrived.record(self.copies)
            stream.wait_event(self._arrived)

    def settle(self) -> None:
        """Wait for copies that no other stream has been told to wait for: a run has ended early."""
        self.copies.synchronize()

    def fetch(self, names: Sequence[str], stream: Any) -> None:
        """Copy results into the mirror behind what `stream` does; they are there when it is done."""
        spans = sorted(self._places[n] for n in names)  # as they lie
        extent = spans[-1][0] + spans[-1][1] - spans[0][0] if spans else 0
        if extent and extent <= sum(aligned(nbytes) for _, nbytes in spans):  # nothing else lies between them
            spans = [(spans[0][0], extent)]
        for at, nbytes in spans:
            if nbytes:
                host = self._memory.ctypes.data + at
                self._copy(host, self._begin + at, nbytes, self._runtime.memcpyDeviceToHost, stream)

    def down(self, name: str, value: Any, stream: Any) -> None:
        """Copy a value of the device to its place on the host."""
        at, nbytes = self._places[name]
        if nbytes:
            kind = self._runtime.memcpyDeviceToHost
            self._copy(self._memory.ctypes.data + at, value.data.ptr, nbytes, kind, stream)

    def up(self, name: str, value: Any, stream: Any) -> None:
        """Copy a value from its place on the host to the device."""
        at, nbytes = self._places[name]
        if nbytes:
            kind = self._runtime.memcpyHostToDevice
            self._copy(value.data.ptr, self._memory.ctypes.data + at, nbytes, kind, stream)

    def across(self, to: Any, source: Any, stream: Any) -> None:
        """Copy between arrays of one size that lie on devices."""
        if source.nbytes:
            self._copy(to.data.ptr, source.data.ptr, source.nbytes, self._runtime.memcpyDeviceToDevice, stream)

    def _in_pieces(self, name: str, array: Array) -> None:
        at, nbytes = self._places[name]
        target = self._memory[at : at + nbytes]
        source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for first in range(0, nbytes, PIECE):
            last = min(first + PIECE, nbytes)
            np.copyto(target[first:last], source[first:last])
            self._up(at + first, last - first, self.copies)

    def _up(self, at: int, nbytes: int, stream: Any) -> None:
        if nbytes:
            kind = self._runtime.memcpyHostToDevice
            self._copy(self._begin + at, self._memory.ctypes.data + at, nbytes, kind, stream)

    def _copy(self, to: int, source: int, nbytes: int, kind: int, stream: Any) -> None:
        self._runtime.memcpyAsync(to, source, nbytes, kind, stream.ptr)


def _array(memory: Array, at: int, type: Tensor) -> Array:
    return memory[at : at + type.nbytes].view(type.dtype.numpy).reshape(type.sizes)
