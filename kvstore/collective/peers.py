"""Communicators of the GPUs that one process drives: copies from GPU to GPU, and sums in the order of the ranks.

Each rank has a thread and a GPU. A call returns when all ranks have made it: the last one orders the work of all, on
the stream of each, and nobody waits for a GPU. What is ordered so waits for other threads, and cannot be captured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...runtime.backends.cuda.driver import cupy, described, reach
from .calls import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, REDUCE_SCATTER, Call
from .communicator import Communicator, Work
from .gpu_sums import add_up
from .sums import shares
from .threads import DEADLINE, Ledger, Threads, team


class Peers(Threads):
    """One rank of those that threads of this process have, each with a GPU of its own; `peers` makes all of them."""

    kind = "peer copies"
    on_gpus, capturable = True, False

    def __init__(self, beside: Communicator, ledger: PeerLedger, deadline: float) -> None:
        super().__init__(beside.rank, ledger, deadline)
        self._beside, self._peers, self.device = beside, ledger, ledger.devices[beside.rank]

    @property
    def beside(self) -> Communicator:
        return self._beside

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> Any:
        return self._peers.zeros(self.rank, shape, dtype)

    def barrier(self, name: str = "") -> None:
        """Return when every rank has called it, and what it ordered before is done."""
        self._alive(BARRIER)
        cupy().cuda.Device(self.device).synchronize()
        self._beside.barrier(name)

    def abort(self, reason: str) -> None:
        super().abort(reason)
        self._beside.abort(reason)

    def close(self) -> None:
        super().close()
        self._beside.close()

    def _start(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        with cupy().cuda.Device(self.device):
            stream = cupy().cuda.get_current_stream() if stream is None else stream
        self._peers.streams[self.rank] = stream
        super()._start(call, x, out, stream).wait()  # until all have called it
        return PeerWork(self._peers.at(self.rank), stream, out)


class PeerWork:
    """A call that has been ordered on a stream."""

    def __init__(self, at: Any, stream: Any, out: Any) -> None:
        self._at, self._out = at, out
        with at:
            self._done = stream.record(cupy().cuda.Event(disable_timing=True))

    def wait(self) -> Any:
        with self._at:
            self._done.synchronize()
        return self._out


class PeerLedger(Ledger):
    """Record of the calls of ranks with a GPU each, by their numbers. The last rank of a call orders it for all.

    Streams wait for each other before a call, so that operands are there; between its halves; and behind it, so that
    nobody writes into an operand that another still reads.
    """

    def __init__(self, devices: Sequence[int]) -> None:
        super().__init__(len(devices))
        self.devices = tuple(devices)
        self.streams: dict[int, Any] = {}
        self._events: dict[int, Any] = {}  # one of each rank: a wait is for what it was last recorded at
        self._places: dict[tuple[int, str, int], Any] = {}
        for device in devices:
            described(device)  # it is there
            reach(device, *(other for other in devices if other != device))

    def at(self, rank: int) -> Any:
        """A context in which a rank's GPU is the current one."""
        return cupy().cuda.Device(self.devices[rank])

    def zeros(self, rank: int, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """An array of zeros on a rank's GPU."""
        with self.at(rank):
            array = cupy().empty(shape, dtype)
            array.data.memset_async(0, array.nbytes)
            cupy().cuda.get_current_stream().synchronize()  # other streams do not wait for this one
        return array

    def _do(self, number: int, call: Call, arrays: Mapping[int, tuple[Any, Any]]) -> None:
        if not call.count:
            return
        ranks = range(self.size)
        xs, outs = [arrays[r][0] for r in ranks], [arrays[r][1] for r in ranks]
        self._meet()
        if call.verb == BROADCAST:
            for r in ranks:
                if r != call.root:
                    self._copy(r, outs[r], 0, call.root, xs[call.root], slice(0, call.count))
        elif call.verb == ALL_GATHER:
            for r in ranks:
                for q in ranks:
                    self._copy(r, outs[r], q * call.count, q, xs[q], slice(0, call.count))
        elif call.verb in (ALL_REDUCE, REDUCE_SCATTER):
            parts = shares(call.count, self.size)
            for r in ranks:
                self._add_up(r, parts[r], xs, outs[r], parts[r].start if call.verb == ALL_REDUCE else 0)
            if call.verb == ALL_REDUCE:
                self._meet()
                for r in ranks:
                    for q in ranks:
                        if q != r:
                            self._copy(r, outs[r], parts[q].start, q, outs[q], parts[q])
        self._meet()

    def _meet(self) -> None:
        """Have the stream of each rank wait for those of all others."""
        for r, stream in self.streams.items():
            with self.at(r):
                if r not in self._events:
                    self._events[r] = cupy().cuda.Event(disable_timing=True)
                self._events[r].record(stream)
        for r, stream in self.streams.items():
            with self.at(r):
                for q, event in self._events.items():
                    if q != r:
                        stream.wait_event(event)

    def _copy(self, to: int, out: Any, at: int, source: int, x: Any, part: slice) -> None:
        """Write elements `part` of array `x` of rank `source` into `out` of rank `to`, from element `at` on."""
        size = np.dtype(x.dtype).itemsize
        nbytes = (part.stop - part.start) * size
        if not nbytes:
            return
        ends = out.data.ptr + at * size, x.data.ptr + part.start * size
        runtime, stream, devices = cupy().cuda.runtime, self.streams[to].ptr, self.devices
        with self.at(to):
            if devices[to] == devices[source]:
                runtime.memcpyAsync(*ends, nbytes, runtime.memcpyDeviceToDevice, stream)
            else:
                runtime.memcpyPeerAsync(ends[0], devices[to], ends[1], devices[source], nbytes, stream)

    def _add_up(self, rank: int, part: slice, xs: Sequence[Any], out: Any, at: int) -> None:
        """Write the sum of elements `part` of all ranks' arrays into `out` of rank `rank`, from element `at` on."""
        count, dtype = part.stop - part.start, np.dtype(xs[rank].dtype)
        if not count:
            return
        key = rank, str(dtype), count * self.size
        if key not in self._places:
            self._places[key] = self.zeros(rank, count * self.size, dtype)
        place = self._places[key]
        for q, x in enumerate(xs):
            self._copy(rank, place, q * count, q, x, part)
        with self.at(rank), self.streams[rank]:
            add_up(place, out.data.ptr + at * dtype.itemsize, self.size, self.devices[rank])

    # -- sends

    def _held(self, rank: int, x: Any) -> Any:
        kept = self.zeros(rank, x.size, x.dtype)
        self._copy(rank, kept, 0, rank, x, slice(0, x.size))
        with self.at(rank):
            return rank, kept, self.streams[rank].record(cupy().cuda.Event(disable_timing=True))

    def _give(self, rank: int, sent: Any, out: Any) -> None:
        source, kept, ready = sent
        with self.at(rank):
            self.streams[rank].wait_event(ready)
        self._copy(rank, out, 0, source, kept, slice(0, out.size))
        with self.at(rank):
            self.streams[rank].synchronize()  # what was sent is given back then


def peers(devices: Sequence[int], deadline: float = DEADLINE) -> list[Peers]:
    """The communicators of one rank for each of these GPUs, all in this process."""
    ledger = PeerLedger(devices)
    return [Peers(beside, ledger, deadline) for beside in team(len(devices), deadline)]
