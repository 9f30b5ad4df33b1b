"""Communicators of GPUs on several hosts: sums within a host over NCCL, and between hosts over their memory.

The GPUs of a host add up first. Each then has a part of that sum to bring to the host's memory, where the other parts
come from the GPUs beside it; the sums of all hosts are added there, by a store (over_store.py), and go back to every
GPU. Two threads of each rank wait for copies and for the store, so that steps of the GPU go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Thread, current_thread
from typing import Any

import numpy as np

from ...ops.errors import ExecutionError, InputError, MezzoError, PeerError
from ...ops.types import Array
from ...runtime.backends.cuda.driver import cupy
from ...runtime.backends.cuda.memory import pinned
from .calls import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, RECEIVE, REDUCE_SCATTER, SEND, Call
from .communicator import Communicator, EndedWork, Work
from .nccl import Nccl
from .sums import shares


class TwoLevelWork:
    """A call under way. `begin` is the call between hosts, once the event `left` tells that what it reads is there, and
    `back` orders what goes back behind it."""

    begin: Callable[[], Work]
    back: Callable[[], None]

    def __init__(self, at: Any, stream: Any, out: Any) -> None:
        self.at, self.stream, self.out = at, stream, out
        self.over, self.left = Event(), cupy().cuda.Event(disable_timing=True)
        self.error: MezzoError | None = None
        self.between: Work | None = None

    def ordered(self) -> None:
        """Wait until the result has been ordered. Raises the error of the call."""
        self.over.wait()  # the store, and whoever looks at NCCL, keep the deadline
        if self.error is not None:
            raise type(self.error)(self.error.message, where=self.error.where, hint=self.error.hint)

    def wait(self) -> Any:
        self.ordered()
        with self.at:
            self.stream.synchronize()
        return self.out


@dataclass(slots=True)
class KeyMemory:
    """Memory of a key: pinned mirrors, in which copies end and begin, and operand and result of the call between
    hosts."""

    down: Array
    up: Array
    given: Array
    result: Array
    whole: Any = field(default=None)  # on the GPU, where an operand is not to be written into


class TwoLevels(Communicator):
    """One rank with a GPU. `inside` has the ranks of its host, whose numbers are `members`, and `between` all ranks,
    for arrays in memory of the host. Every sum is that of the hosts' sums; in a host it is NCCL's.

    Its calls wait for other threads, so that they cannot be captured. Sends are within a host.
    """

    kind = "nccl and a store"
    on_gpus, capturable, later = True, False, True

    def __init__(self, inside: Nccl, between: Communicator, members: Sequence[int]) -> None:
        super().__init__(between.rank, between.size, between.deadline)
        self._inside, self._between, self._members = inside, between, tuple(members)
        self.device = inside.device
        self._places: dict[str, KeyMemory] = {}
        self._works: dict[str, TwoLevelWork] = {}
        self._down: SimpleQueue[TwoLevelWork | None] = SimpleQueue()
        self._up: SimpleQueue[TwoLevelWork | None] = SimpleQueue()
        stages = (("down", self._down, self._begin), ("up", self._up, self._return))
        self._threads = [
            Thread(target=self._serve, args=(queue, do), name=f"mezzo two levels {what}", daemon=True)
            for what, queue, do in stages
        ]
        for thread in self._threads:
            thread.start()

    @property
    def beside(self) -> Communicator:
        return self._between

    def watched(self, what: str = "a step") -> AbstractContextManager[None]:
        return self._inside.watched(what)

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> Any:
        return self._inside.empty(shape, dtype)

    def barrier(self, name: str = "") -> None:
        """Return when every rank has called it, and what it ordered before is done."""
        self._alive(BARRIER)
        for work in self._works.values():
            work.wait()
        cupy().cuda.Device(self.device).synchronize()
        self._between.barrier(name)

    def abort(self, reason: str) -> None:
        self._end(PeerError(f"rank {self.rank} has ended it: {reason}", where=self.where))

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._down.put(None)
        for thread in self._threads:
            if thread is not current_thread():
                thread.join(self.deadline)
        self._inside.close()
        self._between.close()

    def _end(self, error: MezzoError) -> None:
        if self.failure is None:
            self.failure = error
            self._inside.abort(error.message)
            self._between.abort(error.message)

    def _alive(self, what: str) -> None:
        for one in (self._inside, self._between):
            if self.failure is None and one.failure is not None:
                self._end(one.failure)
        super()._alive(what)

    # -- calls

    def _start(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        with cupy().cuda.Device(self.device):
            stream = cupy().cuda.get_current_stream() if stream is None else stream
        if call.verb in (SEND, RECEIVE):
            return self._sent(call, x, stream)
        if not call.count:
            return EndedWork(out)
        key = f"{call.verb}/{call.name}/{call.dtype}[{call.count}]/{call.root}"
        if key in self._works:
            self._works[key].ordered()
        at = cupy().cuda.Device(self.device)
        try:
            with at:
                work = TwoLevelWork(at, stream, out)
                self._order(key, call, x, out, work)
                work.left.record(stream)
        except MezzoError as error:
            self._end(error)
            raise
        self._works[key] = work
        self._down.put(work)
        return work

    def _order(self, key: str, call: Call, x: Any, out: Any, work: TwoLevelWork) -> None:
        """Order what is done before the call between hosts, and say what follows."""
        between, name = self._between, call.name
        sums = call.verb in (ALL_REDUCE, REDUCE_SCATTER)
        place = self._place(key, x, out, call.verb)
        if sums:
            whole = x
            if call.verb == REDUCE_SCATTER:
                place.whole = whole = self.empty(x.size, x.dtype) if place.whole is None else place.whole
                _copy(whole.data.ptr, x.data.ptr, x.nbytes, "DeviceToDevice", work.stream)
            self._inside.all_reduce(whole, name=name, stream=work.stream)
            own = shares(x.size, len(self._members))[self._inside.rank]
            begins = self.rank * out.size if call.verb == REDUCE_SCATTER else 0
            mine = slice(begins, begins + out.size)
            self._bring_down(place.down[own], whole, own.start, work.stream)

            def begin() -> Work:
                place.given[...] = 0
                place.given[own] = place.down[own]
                return between.all_reduce(place.given, name=name)

            def back() -> None:
                self._bring_up(out, place.up, place.given[mine], work.stream)

        else:
            gives = call.verb == ALL_GATHER or call.root == self.rank
            if gives:
                self._bring_down(place.down, x, 0, work.stream)

            def begin() -> Work:
                if gives:
                    np.copyto(place.given, place.down)
                if call.verb == BROADCAST:
                    return between.broadcast(place.given, call.root, name=name)
                return between.all_gather(place.given, place.result, name=name)

            def back() -> None:
                self._bring_up(out, place.up, place.result, work.stream)

        work.begin, work.back = begin, back

    def _place(self, key: str, x: Any, out: Any, verb: str) -> KeyMemory:
        place = self._places.get(key)
        if place is None:
            dtype, empty = np.dtype(x.dtype), self._between.empty
            mirrors = _pinned(x.size, dtype), _pinned(out.size, dtype)
            given = empty(x.size, dtype)
            result = empty(out.size, dtype) if verb == ALL_GATHER else given  # others are in place
            place = self._places[key] = KeyMemory(*mirrors, given, result)
        return place

    def _bring_down(self, mirror: Array, x: Any, begin: int, stream: Any) -> None:
        _copy(mirror.ctypes.data, x.data.ptr + begin * mirror.itemsize, mirror.nbytes, "DeviceToHost", stream)

    def _bring_up(self, out: Any, mirror: Array, result: Array, stream: Any) -> None:
        np.copyto(mirror, result)
        _copy(out.data.ptr, mirror.ctypes.data, mirror.nbytes, "HostToDevice", stream)

    def _sent(self, call: Call, x: Any, stream: Any) -> Work:
        if call.root not in self._members:
            raise InputError(f"{call}: it is on another host", where=self.where,
                             hint="use all_gather, in which every rank takes part")  # fmt: skip
        one, other = self._inside, self._members.index(call.root)
        return (one.send if call.verb == SEND else one.receive)(x, other, name=call.name, stream=stream)

    # -- threads

    def _serve(self, queue: SimpleQueue[TwoLevelWork | None], do: Callable[[TwoLevelWork], None]) -> None:
        while (work := queue.get()) is not None:
            try:
                if self.failure is not None:
                    raise self.failure
                do(work)
            except MezzoError as error:
                self._failed(work, error)
            except Exception as error:  # whatever it was, the others are told
                self._failed(work, ExecutionError(f"{type(error).__name__}: {error}", where=self.where))
        if queue is self._down:
            self._up.put(None)

    def _failed(self, work: TwoLevelWork, error: MezzoError) -> None:
        self._end(error)
        work.error = error
        work.over.set()

    def _begin(self, work: TwoLevelWork) -> None:
        self._inside.wait_for(lambda: bool(work.left.done), "a sum of a host")
        work.between = work.begin()
        self._up.put(work)

    def _return(self, work: TwoLevelWork) -> None:
        assert work.between is not None
        work.between.wait()
        with work.at:
            work.back()
        work.over.set()


def _copy(to: int, source: int, nbytes: int, kind: str, stream: Any) -> None:
    if nbytes:
        runtime = cupy().cuda.runtime
        runtime.memcpyAsync(to, source, nbytes, getattr(runtime, f"memcpy{kind}"), stream.ptr)


def _pinned(count: int, dtype: np.dtype[Any]) -> Array:
    return pinned(max(count * dtype.itemsize, 1)).view(np.uint8)[: count * dtype.itemsize].view(dtype)
