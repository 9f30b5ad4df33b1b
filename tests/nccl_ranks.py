"""A stand-in for NCCL on the stand-in for CuPy, for ranks that are threads with a device each.

A call is work on its stream: part of a graph where that is captured, done when the stream must, and only together with
the same call of all other ranks, whose streams it drives as far as that; where one has not ordered its call yet, the
thread waits for who does. Sums are taken in the order of the ranks.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mezzo.kvstore.collective.sums import sum_in_order

from .cupy_standin import Standin, Stream
from .nccl_standin import BY_NUMBER, view

Ends = tuple[int, int, int, int]  # addresses of operand and result, elements of each


@dataclass
class Meeting:
    """A call of all ranks: where on which stream each has it, who is there, and whether it is done."""

    ordered: dict[int, tuple[Stream, int]] = field(default_factory=dict)
    arrived: dict[int, Any] = field(default_factory=dict)
    done: bool = False


class World:
    """The ranks of one communicator."""

    def __init__(self, standin: Standin, size: int) -> None:
        self.standin, self.size = standin, size
        self.meetings: dict[int, Meeting] = {}
        self.log: list[tuple[int, str]] = []  # rank and call, as they are done

    def order(self, rank: int, number: int, stream: Stream, what: str, given: Any, do: Callable[[Any], None]) -> None:
        """A rank's call becomes work on a stream."""
        meeting = self.meetings.setdefault(number, Meeting())
        self.standin.later(stream, partial(self._arrive, meeting, rank, what, given, do))
        meeting.ordered[rank] = stream, stream.issued
        self.standin._changed.notify_all()

    def _arrive(self, meeting: Meeting, rank: int, what: str, given: Any, do: Callable[[Any], None]) -> None:
        meeting.arrived[rank] = what, given
        self.log.append((rank, what))
        if len(meeting.arrived) == self.size:
            assert len({w for w, _ in meeting.arrived.values()}) == 1, f"the ranks differ: {meeting.arrived}"
            do({r: g for r, (_, g) in sorted(meeting.arrived.items())})
            meeting.done = True
            self.standin._changed.notify_all()
            return
        while not meeting.done:
            absent = [pair for r, pair in meeting.ordered.items() if r not in meeting.arrived]
            free = [(s, until) for s, until in absent if s.runner in (0, threading.get_ident())]
            if free:
                self.standin.flush(*free[0])
            else:
                self.standin.wait_for_others()


class Comm:
    """NcclCommunicator."""

    def __init__(self, library: FakeRanks, size: int, number: bytes, rank: int) -> None:
        self.world = library.world(size, bytes(number))
        self.library, self.rank, self.calls = library, rank, 0
        self.device = library.standin.device

    def _order(self, what: str, spans: tuple[list[Any], list[Any]], given: Any, stream: int, do: Any) -> None:
        standin = self.library.standin
        on = standin.stream_at(stream)
        standin.belongs(self.device, "a communicator")
        for ends in spans:
            for begin, _ in ends:
                assert standin._owners[standin.block_of(begin).ctypes.data] == self.device, "memory of another device"

        def launch() -> None:
            standin.touch(on, *spans)
            standin.say("nccl", what, 0, on)
            number, self.calls = self.calls, self.calls + 1
            if standin.computes:
                self.world.order(self.rank, number, on, what, given, do)

        standin.submit(on, launch, f"nccl {what}")

    def _whole(self, verb: str, source: int, to: int, few: int, many: int, kind: int, stream: int, do: Any) -> None:
        """A call of all ranks, with so many elements of operand and result."""
        size = np.dtype(view(source, 1, kind).dtype).itemsize
        spans = [(source, source + few * size)], [(to, to + many * size)]
        given = view(source, few, kind), view(to, many, kind)
        self._order(f"{verb} of {BY_NUMBER[kind]}[{few}]", spans, given, stream, do)

    def allReduce(self, source: int, to: int, count: int, kind: int, op: int, stream: int) -> None:  # noqa: N802
        self._whole("all_reduce", source, to, count, count, kind, stream, _reduced)

    def reduceScatter(self, source: int, to: int, count: int, kind: int, op: int, stream: int) -> None:  # noqa: N802
        self._whole("reduce_scatter", source, to, count * self.world.size, count, kind, stream, _scattered)

    def allGather(self, source: int, to: int, count: int, kind: int, stream: int) -> None:  # noqa: N802
        self._whole("all_gather", source, to, count, count * self.world.size, kind, stream, _gathered)

    def broadcast(self, source: int, to: int, count: int, kind: int, root: int, stream: int) -> None:
        self._whole(f"broadcast from {root}", source, to, count, count, kind, stream, partial(_cast, root))

    def send(self, source: int, count: int, kind: int, peer: int, stream: int) -> None:
        self.library.group.append((self, "send", source, count, kind, peer, stream))

    def recv(self, to: int, count: int, kind: int, peer: int, stream: int) -> None:
        self.library.group.append((self, "recv", to, count, kind, peer, stream))

    def exchange(self, calls: list[Any]) -> None:
        """Sends and receives that begin together, of all ranks."""
        spans: dict[str, list[Any]] = {"send": [], "recv": []}
        given = []
        stream = calls[0][-1]
        for _, verb, address, count, kind, peer, _ in calls:
            array = view(address, count, kind)
            spans[verb].append((address, address + array.nbytes))
            given.append((verb, peer, array))
        self._order("sends and receives", (spans["send"], spans["recv"]), given, stream, _exchanged)

    def check_async_error(self) -> None: ...
    def abort(self) -> None: ...
    def destroy(self) -> None: ...


def _reduced(ranks: dict[int, Any]) -> None:
    total = ranks[0][0].copy()
    sum_in_order([x for x, _ in ranks.values()], total)
    for _, out in ranks.values():
        out[...] = total


def _scattered(ranks: dict[int, Any]) -> None:
    total = ranks[0][0].copy()
    sum_in_order([x for x, _ in ranks.values()], total)
    for (_, out), part in zip(ranks.values(), np.split(total, len(ranks)), strict=True):
        out[...] = part


def _gathered(ranks: dict[int, Any]) -> None:
    whole = np.concatenate([x for x, _ in ranks.values()])
    for _, out in ranks.values():
        out[...] = whole


def _cast(root: int, ranks: dict[int, Any]) -> None:
    for _, out in ranks.values():
        out[...] = ranks[root][0]


def _exchanged(ranks: dict[int, Any]) -> None:
    sent = {(r, peer): array.copy() for r, calls in ranks.items() for verb, peer, array in calls if verb == "send"}
    for r, calls in ranks.items():
        for verb, peer, array in calls:
            if verb == "recv":
                array[...] = sent.pop((peer, r))
    assert not sent, "somebody sends what nobody receives"


class FakeRanks:
    """`cupy.cuda.nccl` for a stand-in, which has it from then on."""

    def __init__(self, standin: Standin) -> None:
        self.standin = standin
        self.worlds: dict[bytes, World] = {}
        self._here, self._lock, self._numbers = threading.local(), threading.Lock(), iter(range(256))
        module = types.ModuleType("cupy.cuda.nccl")
        module.NcclCommunicator = partial(Comm, self)  # type: ignore[attr-defined]
        module.get_unique_id = lambda: bytes([next(self._numbers)] * 128)  # type: ignore[attr-defined]
        module.groupStart, module.groupEnd = self._start, self._end  # type: ignore[attr-defined]
        standin.library["cupy.cuda.nccl"] = module

    def world(self, size: int, number: bytes) -> World:
        with self._lock:
            return self.worlds.setdefault(number, World(self.standin, size))

    @property
    def group(self) -> list[Any]:
        found: list[Any] = self._here.group
        return found

    def _start(self) -> None:
        self._here.group = []

    def _end(self) -> None:
        calls, self._here.group = self.group, None
        calls[0][0].exchange(calls)
