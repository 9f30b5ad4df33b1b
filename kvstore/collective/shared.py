"""Communicators of the processes of one host, over shared memory.

One thread of each rank does the calls, in their order, while the program goes on. A rank tells all others each call and
where its operand lies; the others compare it with theirs. Of a sum every rank adds up one part, in the order of the
ranks, in the place of its own operand; then all copy the parts of the others. Small operands travel with the call.
Memory and sockets are those of the KVStore's level 1 (kvstore/host): they have no names, and end with their processes.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, current_thread
from typing import Any

import numpy as np

from ...ops.errors import DeadlineError, ExecutionError, InputError, MezzoError, PeerError
from ...ops.types import Array
from ..host.memory import Segment, SharedPlaces, attach, create
from ..host.mesh import FIRST, GONE, NOTE, Mesh
from .calls import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, RECEIVE, REDUCE_SCATTER, SEND, Call, differences, named
from .communicator import Communicator, Work
from .sums import shares, sum_in_order

ADDED, TAKEN, RETURNED = range(FIRST, FIRST + 3)  # tags: my part is added up; I have read all; your memory is free
SMALL = 4096  # bytes: such an operand travels with its call
LATER = 0.25  # seconds beyond the deadline after which somebody else has had time to say who is missing
FAREWELL = 2.0  # seconds for last words
LOOK = 1.0  # seconds between looks at the clock


class SharedWork:
    """A call under way."""

    __slots__ = ("call", "error", "number", "out", "over", "x")

    def __init__(self, call: Call, x: Array, out: Array) -> None:
        self.call, self.x, self.out, self.number = call, x, out, -1
        self.over = Event()
        self.error: MezzoError | None = None

    def wait(self) -> Array:
        self.over.wait()  # whoever does the calls keeps the deadline
        if self.error is not None:
            raise type(self.error)(self.error.message, where=self.error.where, hint=self.error.hint)
        return self.out


class Shared(Communicator):
    """One rank of the processes of a host that have joined a mesh, which this closes in the end."""

    kind = "shared memory"

    def __init__(self, mesh: Mesh, size: int, deadline: float, ranks: Sequence[int] = ()) -> None:
        super().__init__(mesh.me, size, deadline)
        self._ranks = tuple(ranks or range(size))  # what errors call the ranks, of a job on several hosts
        self._mesh, self._lock = mesh, Lock()  # one thread sends at a time
        self._others = tuple(r for r in range(size) if r != self.rank)
        self._places, self._own, self._foreign = SharedPlaces(), dict[int, Segment](), dict[tuple[int, int], Segment]()
        self._segments = 0
        self._calls: dict[int, dict[int, dict[str, Any]]] = {}  # messages of kind "call", by number and rank
        self._sent: dict[int, deque[dict[str, Any]]] = defaultdict(deque)  # messages of kind "sent", by rank
        self._tags: dict[tuple[int, int], set[int]] = defaultdict(set)  # (kind, number) -> ranks
        self._latest: dict[int, str] = {}
        self._gone: dict[int, str] = {}
        self._staging: Segment | None = None
        self._lent: dict[int, Segment] = {}  # of sends that have not been taken
        self._free: list[Segment] = []
        self._numbers = 0
        self._queue: SimpleQueue[SharedWork | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"mezzo collective {self.rank}", daemon=True)
        self._thread.start()

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> Array:
        sizes, element = (shape,) if isinstance(shape, int) else shape, np.dtype(dtype)
        segment = self._share(int(np.prod(sizes, dtype=np.int64)) * element.itemsize)
        self._places.add(segment)
        return segment.array(0, sizes, element)

    def abort(self, reason: str) -> None:
        why = f"{self._named([self.rank])} has ended it: {reason}"
        self._end(PeerError(why, where=self.where), why)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._queue.put(None)
        self._mesh.ring()
        if current_thread() is not self._thread:
            self._thread.join(self.deadline + FAREWELL)
        with self._lock:
            self._mesh.note(self._mesh.members, {"is": "left"})
        self._mesh.flush(FAREWELL)
        self._mesh.close()

    @property
    def lost(self) -> str:
        """A text that names the ranks known to have died; empty if all live."""
        dead = [r for r, why in self._gone.items() if why != "left"]
        return f"{self._named(dead)} has died" if dead else ""

    @property
    def where(self) -> str:
        return f"{self._named([self.rank])} of {self.size} ({self.kind})"

    def _named(self, ranks: Sequence[int]) -> str:
        return named([self._ranks[r] for r in ranks])

    # -- calls

    def _start(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        work = SharedWork(call, x, out)
        self._queue.put(work)
        self._mesh.ring()
        if self.failure is not None:  # it came meanwhile: nobody takes what stands behind it
            self._fail_all()
        return work

    def _work(self) -> None:
        while (work := self._next()) is not None:
            try:
                if self.failure is None:
                    self._do(work)
                else:
                    work.error = self.failure
            except MezzoError as error:
                self._end(error, error.message)
                work.error = self.failure
            except Exception as error:  # whatever it was, the others are told
                why = f"{type(error).__name__}: {error}"
                self._end(ExecutionError(why, where=self.where), f"{self._named([self.rank])} has ended it: {why}")
                work.error = self.failure
            work.x = work.x[:0] if work.x.ndim else work.x
            work.over.set()
        self._fail_all()

    def _next(self) -> SharedWork | None:
        """The next call, None at the end. Messages of the others are read meanwhile: they tell of deaths."""
        while True:
            try:
                return self._queue.get_nowait()
            except Empty:
                self._handle(LOOK)

    def _fail_all(self) -> None:
        while not self._queue.empty():
            work = self._queue.get()
            if work is not None:
                work.error = self.failure or InputError("the communicator is closed", where=self.where)
                work.over.set()

    def _end(self, error: MezzoError, reason: str) -> None:
        """End the communicator on all ranks with an error; the first one stays."""
        if self.failure is not None:
            return
        self.failure = error
        with self._lock:
            self._mesh.note(self._mesh.members, {"is": "ended", "reason": reason, "where": error.where,
                                                 "hint": error.hint})  # fmt: skip
        if current_thread() is not self._thread:
            self._mesh.ring()

    def _do(self, work: SharedWork) -> None:
        call = work.call
        if call.verb == SEND:
            self._send(work)
            return
        if call.verb == RECEIVE:
            self._receive(work)
            return
        work.number = number = self._numbers
        self._numbers += 1
        flat, out = work.x.reshape(-1), work.out.reshape(-1)
        small = flat.nbytes <= SMALL
        reads = call.verb != BARRIER and (call.verb != BROADCAST or call.root == self.rank)
        message: dict[str, Any] = {"is": "call", "n": number, "call": _plain(call)}
        operand = flat
        if reads and small:
            message["data"] = flat.tobytes()
        elif reads:
            message["at"], operand = self._placed(flat)
        self._say(self._others, message)
        calls = self._calls.setdefault(number, {})
        calls[self.rank] = message
        self._until(lambda: [r for r in self._others if r not in calls], work)
        if difference := differences(number, {self._ranks[r]: Call(*c["call"]) for r, c in calls.items()}):
            raise InputError(f"the ranks do not call the same: {difference}", where=self.where,
                             hint="every rank makes the same calls in the same order")  # fmt: skip
        del self._calls[number]
        if call.verb == BARRIER:
            return
        if small:
            self._combine(call, [_data(calls[r], flat.dtype) for r in range(self.size)], out)
            return
        operands = [operand if r == self.rank else self._reach(r, calls[r], call, flat.dtype) for r in range(self.size)]
        if call.verb == ALL_REDUCE:
            self._all_reduce(work, operands, out)
        else:
            self._combine(call, operands, out)
        self._together(TAKEN, work)

    def _combine(self, call: Call, operands: Sequence[Array | None], out: Array) -> None:
        """Write this rank's result into `out`, from the operands of all ranks (None where a rank has none)."""
        if call.verb == BROADCAST:
            if call.root != self.rank:
                operand = operands[call.root]
                assert operand is not None
                out[...] = operand
            return
        parts = [x for x in operands if x is not None]
        if call.verb == ALL_GATHER:
            each = len(parts[0])
            for r, part in enumerate(parts):
                out[r * each : (r + 1) * each] = part
        elif call.verb == REDUCE_SCATTER:
            mine = slice(self.rank * len(out), (self.rank + 1) * len(out))
            sum_in_order([x[mine] for x in parts], out)
        else:
            sum_in_order(parts, out)

    def _all_reduce(self, work: SharedWork, operands: Sequence[Array | None], out: Array) -> None:
        parts = [x for x in operands if x is not None]
        pieces = shares(len(out), self.size)
        sum_in_order([x[pieces[self.rank]] for x in parts], parts[self.rank][pieces[self.rank]])
        self._together(ADDED, work)
        for r, piece in enumerate(pieces):
            source, target = parts[r][piece], out[piece]
            if len(target) and source.ctypes.data != target.ctypes.data:
                target[...] = source

    def _together(self, kind: int, work: SharedWork) -> None:
        """Tell the others a tag, ADDED or TAKEN, and wait until all have told it."""
        with self._lock:
            self._mesh.tell(self._others, kind, work.number)
        done = self._tags[kind, work.number]
        self._until(lambda: [r for r in self._others if r not in done], work, "end ")
        del self._tags[kind, work.number]

    def _send(self, work: SharedWork) -> None:
        """Copy the operand into a message or shared memory, and return without waiting for the receiver."""
        flat, to = work.x.reshape(-1), work.call.root
        message: dict[str, Any] = {"is": "sent", "call": _plain(work.call)}
        if flat.nbytes <= SMALL:
            message["data"] = flat.tobytes()
        else:
            segment = next((s for s in self._free if s.size >= flat.nbytes), None)
            if segment is None:
                segment = self._share(flat.nbytes)
            else:
                self._free.remove(segment)
            segment.array(0, flat.shape, flat.dtype)[...] = flat
            message["at"], self._lent[segment.number] = [segment.number, 0], segment
        self._say((to,), message)
        self._handle(0.0)

    def _receive(self, work: SharedWork) -> None:
        source, call, out = work.call.root, work.call, work.out.reshape(-1)
        waiting = self._sent[source]
        self._until(lambda: [] if waiting else [source], work)
        message = waiting.popleft()
        sent = Call(*message["call"])
        if (sent.dtype, sent.count, sent.name) != (call.dtype, call.count, call.name):
            differ = f"{self._named([source])} calls {sent}, and {self._named([self.rank])} {call}"
            raise InputError(differ, where=self.where, hint="give both the same size, type and name")
        operand = _data(message, out.dtype) if "data" in message else self._reach(source, message, call, out.dtype)
        assert operand is not None
        out[...] = operand
        if "at" in message:
            with self._lock:
                self._mesh.tell((source,), RETURNED, message["at"][0])

    # -- memory

    def _share(self, nbytes: int) -> Segment:
        """A new segment of shared memory, which all ranks map."""
        fd = create(nbytes, self.where)
        try:
            with self._lock:
                dropped = self._places.dropped()
                self._segments += 1
                segment = attach(self._segments, fd)
                self._mesh.note(self._others, {"is": "memory", "number": segment.number, "gone": dropped}, fd)
        finally:
            os.close(fd)
        return segment

    def _placed(self, flat: Array) -> tuple[list[int], Array]:
        """The place of an operand ([segment, offset in bytes]) that the others read, and the array there: the operand
        itself where it lies in shared memory, else a copy."""
        place = self._places.find(flat)
        if place is not None:
            return list(place), flat
        if self._staging is None or self._staging.size < flat.nbytes:
            self._staging = self._share(flat.nbytes)
        copy = self._staging.array(0, flat.shape, flat.dtype)
        copy[...] = flat
        return [self._staging.number, 0], copy

    def _reach(self, rank: int, message: dict[str, Any], call: Call, dtype: np.dtype[Any]) -> Array | None:
        """A view of another rank's operand in shared memory; None if its message names no place."""
        if "at" not in message:
            return None
        number, offset = message["at"]
        return self._foreign[rank, number].array(offset, (call.count,), dtype)

    # -- the others

    def _say(self, to: tuple[int, ...], body: dict[str, Any]) -> None:
        with self._lock:
            self._mesh.note(to, body)

    def _until(self, absent: Callable[[], list[int]], work: SharedWork, what: str = "call ") -> None:
        """Read messages until no rank is absent. Raises PeerError or DeadlineError, which name the absent ranks."""
        end = time.monotonic() + self.deadline
        while missing := absent():
            if self.failure is not None:
                raise self.failure
            gone = [r for r in missing if r in self._gone]
            if gone:
                raise PeerError(f"{self._named(gone)} {self._gone[gone[0]]} before {work.call}", where=self.where,
                                hint="its own output says why")  # fmt: skip
            left = end - time.monotonic()
            if left <= 0:
                last = "; ".join(f"{self._named([r])} last called {self._latest.get(r, 'nothing')}" for r in missing)
                raise DeadlineError(
                    f"{self._named(missing)} did not {what}{work.call} within {self.deadline:g} s; {last}",
                    where=self.where,
                    hint="is it frozen, does it take another path, or has it ended? A longer wait is deadline=",
                )
            self._handle(min(left, LOOK))

    def _handle(self, seconds: float) -> None:
        for tag in self._mesh.receive(seconds):
            rank = tag.member
            if tag.kind == GONE:
                self._gone.setdefault(rank, "has died")
            elif tag.kind == RETURNED:
                segment = self._lent.pop(tag.a, None)
                if segment is not None:
                    self._free.append(segment)
            elif tag.kind == NOTE:
                self._hear(rank, tag.body, tag.fd)
            else:
                self._tags[tag.kind, tag.a].add(rank)

    def _hear(self, rank: int, body: Any, fd: int) -> None:
        match body["is"]:
            case "call":
                self._calls.setdefault(body["n"], {})[rank] = body
                self._latest[rank] = f"{Call(*body['call'])}, its call {body['n']}"
            case "sent":
                self._sent[rank].append(body)
                self._latest[rank] = str(Call(*body["call"]))
            case "memory":
                try:
                    for number in body["gone"]:
                        self._foreign.pop((rank, number), None)
                    self._foreign[rank, body["number"]] = attach(body["number"], fd)
                finally:
                    os.close(fd)
            case "left":
                self._gone[rank] = "left"
            case "ended" if self.failure is None:
                self.failure = PeerError(str(body["reason"]), where=self.where, hint=str(body["hint"]))


def _plain(call: Call) -> list[Any]:
    return [call.verb, call.dtype, call.count, call.root, call.name]


def _data(message: dict[str, Any], dtype: np.dtype[Any]) -> Array | None:
    """The operand that a message holds, a flat array; None if it holds none."""
    return np.frombuffer(message["data"], dtype) if "data" in message else None
