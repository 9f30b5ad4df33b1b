"""The group of workers on a host, as seen by one of them: executes the instructions of the machine of level 1."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...ops.errors import InputError, MezzoError, PeerError, ShapeError
from ...ops.types import Array
from ..protocol.host import (
    Complete,
    Event,
    Final,
    Hopeless,
    Host,
    HostDone,
    HostFail,
    HostLeft,
    HostReduce,
    HostTell,
    Instruction,
    Lift,
    Ready,
)
from ..protocol.keys import element
from ..protocol.messages import SEE
from ..updater import UpdateRule
from . import memory
from .memory import Segment, SharedPlaces
from .mesh import ABOVE, GONE, NOTE, Mesh, Tag
from .private import PrivateOperand, Probe, Unreadable, answer
from .upper_tier import UpperTier
from .values import WORDS, HostValue, Slot, ValueOperation, aligned
from .waiting import BARRIER, MOST_REASON, Waiting, reason

READY, DONE, FINAL, HOPELESS, LEAVE, DROP, MOVED = range(BARRIER + 1, BARRIER + 8)  # kinds of tags
KINDS: dict[type, int] = {Ready: READY, HostDone: DONE, Final: FINAL, Hopeless: HOPELESS}
IN_PLACE = 1 << 31  # beside the number of a segment: the value is to be written there
PRIVATE = 1 << 30  # in place of it: what follows is an address of the member's own memory
URGENT = 1 << 62  # priorities beyond are as good
FAREWELL = 5.0  # seconds for last words
LAST_WORD = 0.3  # seconds for that of a member whose memory cannot be read any more
STILL = 0.3  # seconds in which whoever waits for servers looks for their answer
COUNTED = "counted"  # what the agent says when it is asked


def resign(mesh: Mesh, why: str) -> None:
    """Leave a mesh before there is a group; the others hear why."""
    mesh.note(mesh.members, {"is": "failed", "reason": why[:MOST_REASON]})
    mesh.flush(FAREWELL)
    mesh.close()


class Group(Waiting):
    """One member of the workers of a host. Methods that begin with `_` are called under the lock."""

    def __init__(
        self,
        mesh: Mesh,
        ranks: Sequence[int],
        deadline: float,
        where: str = "level 1",
        above: UpperTier | None = None,
    ) -> None:
        super().__init__(mesh, ranks, deadline, where, above)
        self.places = SharedPlaces()
        self.rule: UpdateRule | None = None
        self.moved = 0  # bytes that were read and written for sums
        self._machine = Host(self.me, self.members)
        self._by_name: dict[str, HostValue] = {}
        self._early: dict[int, list[Tag]] = {}  # about keys that are not declared here yet
        self._soon: dict[str, list[Tag]] = {}  # notes about them
        self._foreign: dict[tuple[int, int], Segment] = {}
        self._segments = 0
        self.probe = Probe(self._others())
        self._unreadable: tuple[Unreadable, float] | None = None  # and when this member has waited for its last word
        self.mesh.note(self._others(), self.probe.question())

    # -- memory

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A shared array of zeros, which the others may read."""
        count = int(np.prod(shape, dtype=np.int64))
        segment = self._share(count * dtype.itemsize)
        self.places.add(segment)
        return segment.array(0, shape, dtype)

    def _share(self, nbytes: int) -> Segment:
        """New memory that all have who read operands: the members, or the agent of a single one."""
        readers = self._others() if self.members > 1 else self.mesh.members
        for number in self.places.dropped():
            self.mesh.tell(readers, DROP, 0, 0, number)
        fd = memory.create(nbytes)
        try:
            self._segments += 1
            segment = memory.attach(self._segments, fd)
            self.mesh.note(readers, {"is": "segment", "number": segment.number}, fd)
        finally:
            os.close(fd)
        return segment

    # -- keys

    def declare(self, name: str, value: Array, packing: str = "") -> HostValue:
        """Declare a key; every member does. The value of member 0 counts, and the others wait for that member alone.
        `packing` is the scheme of the level above.

        Raises ShapeError where this member's shape or element type differs from member 0's.
        """
        said = {"is": "declare", "name": name, "dtype": value.dtype.name, "shape": list(value.shape)}
        said["packing"] = packing
        with self._lock:
            self._check()
            if self.me == 0:
                fd = memory.create(self._size(value.nbytes))
                try:
                    segment = memory.attach(0, fd)
                    segment.array(0, value.shape, value.dtype)[...] = value
                    said["number"] = len(self._values)
                    self.mesh.note(self.mesh.members, said, fd)
                finally:
                    os.close(fd)
                self._announce(said, segment)
            else:
                self._until(lambda: name in self._by_name, lambda: (f"key {name!r} to be declared", (0,)))
            made = self._by_name[name]
            if (made.dtype, made.shape) != (value.dtype, value.shape):
                error = ShapeError(
                    f"key {name!r} is {value.dtype}{list(value.shape)} on rank {self.ranks[self.me]}, and "
                    f"{made.dtype}{list(made.shape)} on rank {self.ranks[0]}",
                    where=self.where,
                    hint="call init with the same shape and element type on every worker",
                )
                self.mesh.note(self.mesh.members, {"is": "refused", "name": name, "reason": error.message})
                raise error
            if self._above is not None:
                self._until(lambda: made.ready or made.error is not None, lambda: (f"key {name!r}", ()))
                self._check(made)
        return made

    def _announce(self, said: dict[str, Any], segment: Segment) -> None:
        """Member 0 has declared a key."""
        shape, dtype = tuple(said["shape"]), element(said["dtype"]).numpy
        array, above = segment.array(0, shape, dtype), self._above
        leader = -1 if above is None else above.leader(said["number"], array.nbytes)
        made = self._make(said["number"], said["name"], array, segment, leader)
        made.packing = said["packing"]
        self._machine.declare(made.number, made.reducers, leader)
        self._values[made.number] = self._by_name[made.name] = made
        if above is not None and leader == self.me:
            above.declare(made, partial(self._declared, made))
        for tag in self._soon.pop(made.name, ()):
            self._note(tag)
        for tag in self._early.pop(made.number, ()):
            self._hear(tag)

    def _size(self, nbytes: int) -> int:
        """The bytes of the segment of a value."""
        return aligned(nbytes) + WORDS * 8 * self.members

    def _make(self, number: int, name: str, array: Array, segment: Segment, leader: int) -> HostValue:
        return HostValue(number, name, array, segment, self.me, self.members, leader)

    # -- the level above

    def count(self) -> tuple[int, int]:
        """Return the numbers of bytes of values that the agent of the host has sent and received."""
        with self._lock:
            self._check()
            said = self._said.setdefault(COUNTED, {})
            self.mesh.note((self.members,), {"is": "count"})
            self._until(lambda: bool(said.get(self.members)), lambda: ("the agent's counts", ()))
            sent, received = said[self.members].popleft()
        return sent, received

    def drop_losses(self, collect: bool = False) -> None:
        """Forget what was lost on the way to the level above, or have it sent, where no operation is under way: every
        member does."""
        with self._lock:
            self._check()
            if self._above is not None:
                self._above.drop_losses(collect)
                if self.me == 0:
                    agent = (self.members,)  # if there is one
                    self.mesh.note(agent, {"is": "drop losses", "collect": collect})

    def _declared(self, value: HostValue, error: MezzoError | None) -> None:
        """The level above knows a key of which this member speaks."""
        why, hint = ("", "") if error is None else (reason(error), error.hint)
        self.mesh.note(self.mesh.members, {"is": "ready", "name": value.name, "reason": why, "hint": hint})
        value.ready, value.error = error is None, error

    def _lifted(self, value: HostValue, pushed: bool, error: MezzoError | None) -> None:
        """The level above has answered."""
        if error is not None:
            self.fail(error)
            return
        if pushed and self.me < self.members:
            value.over[self.me] = value.step
        if pushed and not value.lone:
            self._execute(self._machine.handle(Final(self.me, value.number, value.step)), value)
        else:
            value.step += pushed
            value.busy = False
        if value.queue and not value.busy:
            self._advance(value)

    # -- operations

    def start(self, operation: ValueOperation) -> ValueOperation:
        """Begin an operation, now or when those before it on its key allow."""
        value = operation.value
        with self._lock:
            if self.failure is not None or value.error is not None or self._closed:
                self._check(value)
            value.queue.append(operation)
            if len(value.queue) == 1:
                self._advance(value)
        if self._calls:
            self._make_calls()
        return operation

    def _advance(self, value: HostValue) -> None:
        """Go on with the operations of a key, as far as its rounds allow."""
        queue = value.queue
        while queue and (not value.busy or queue[0].begun):
            operation = queue[0]
            if operation.values and not operation.begun:
                operation.begun = True
                self._begin(value, operation)
                if value.error is not None or self.failure is not None:
                    return
            if operation.pull and not operation.begun and self._above is not None and self._above.newest:
                operation.begun = True
                if operation.rows is None:
                    value.busy = True
                    self._above.lift(value, None, True, operation.priority, partial(self._lifted, value, False))
                elif operation.outs and operation.outs[0].size:
                    value.busy = True
                    self._fetch(value, operation, operation.rows)
            if operation.pull:
                if value.busy:
                    operation.step = value.step
                    return
                operation.deliver()
            queue.popleft()
            self._end(operation, None)

    def settle(self, value: HostValue) -> None:
        """Wait until every operation that this member has begun on a key has ended."""
        with self._lock:
            self._check(value)
            self._until(lambda: not (value.busy or value.queue) or value.error is not None, self._unfinished)
            self._check(value)
        self._make_calls()

    def _fetch(self, value: HostValue, operation: ValueOperation, rows: Array) -> None:
        """Fetch only these rows from the level above, into their targets."""
        assert self._above is not None
        outs, operation.outs = operation.outs, ()
        found = np.empty_like(outs[0], order="C", subok=False)

        def ended(error: MezzoError | None) -> None:
            for out in outs if error is None else ():
                out[...] = found
            self._lifted(value, False, error)

        self._above.fetch(value, rows, found.reshape(len(rows), -1).view(np.uint8), ended)

    def _begin(self, value: HostValue, operation: ValueOperation) -> None:
        """Bring this member's operand of the next round to its place, and say so."""
        values, step = operation.values, value.step
        if value.lone:
            self._lift_alone(value, operation)
            return
        place = None
        if not value.alone and len(values) == 1:
            place = self.places.find(values[0])
        if place is None and self._may_stay(value, operation):
            operation.private, flat = True, values[0].reshape(-1)
            place = (PRIVATE, flat.ctypes.data)
            if len(operation.outs) == 1 and operation.outs[0].flags.c_contiguous and self._above is None:
                out = operation.outs[0].reshape(-1)
                apart = out.ctypes.data == flat.ctypes.data or not np.may_share_memory(out, flat)
                value.out = out if apart else None  # others still read what it would overwrite
        elif place is None:
            slot = self._slot(value, step & 1 if value.alone else 0)
            slot.array[...] = values[0]
            for more in values[1:]:
                np.add(slot.array, more, out=slot.array)
            place, flat = (slot.segment.number, 0), slot.flat
        else:
            flat = values[0].reshape(-1)
            outs = operation.outs
            if len(outs) == 1 and outs[0] is values[0] and self._above is None:
                operation.in_place = True
                value.in_place[step & 1].add(self.me)
                place = (place[0] | IN_PLACE, place[1])
        value.operands[step & 1][self.me] = flat
        value.lifted = place[0] if value.single and not operation.private and not place[1] else 0
        value.began[step & 1][self.me] = int(time.monotonic() * 1e9)
        value.clocks[self.me] = step
        value.busy, value.priority = True, operation.priority
        self._execute(self._machine.handle(Ready(self.me, value.number, step)), value, place)

    def _may_stay(self, value: HostValue, operation: ValueOperation) -> bool:
        """True if an operand may be read where it lies: somebody waits until all have read it, and all can."""
        (first, *more), large = operation.values, not value.alone
        return large and not more and operation.pull and first.flags.c_contiguous and self.probe.may

    def _withdraw(self, operation: ValueOperation) -> None:
        """Nobody waits for an operation any more, whose array is the caller's again: move it to shared memory."""
        value = operation.value
        if not operation.private or operation.ended or not value.busy or self.failure is not None:
            return
        operation.private, value.out = False, None
        (given,) = operation.values
        slot = self._slot(value, 0)
        slot.array[...] = given
        value.operands[value.step & 1][self.me] = slot.flat
        self.mesh.tell(self._others(), MOVED, value.number, value.step, slot.segment.number)
        value.moved[self.me] = value.step

    def _lift_alone(self, value: HostValue, operation: ValueOperation) -> None:
        """Lift a value without a sum, since there is no other member. A pushpull's only operand is sent from its own
        memory: it belongs to the store until the pull has ended, which is later."""
        assert self._above is not None
        given, *others = operation.values
        if others or not operation.pull or not given.flags.c_contiguous:
            value.stored[...] = given
            for more in others:
                np.add(value.stored, more, out=value.stored)
            given = value.stored
        value.busy = True
        value.clocks[0] = value.done[0] = value.step
        wanted = operation.pull or not self._above.newest
        self._above.lift(value, given, wanted, operation.priority, partial(self._lifted, value, True))

    def _slot(self, value: HostValue, which: int) -> Slot:
        while len(value.slots) <= which:
            value.slots.append(Slot(self._share(value.nbytes), value.shape, value.dtype))
        return value.slots[which]

    def _execute(self, instructions: Sequence[Instruction], value: HostValue, place: tuple[int, int] = (0, 0)) -> None:
        for instruction in instructions:
            kind = instruction.__class__
            if kind is HostTell:
                self._tell(instruction, place)  # type: ignore[arg-type]
            elif kind is HostReduce:
                self._reduce(value)
            elif kind is Complete:
                if self.me < self.members:
                    value.operands[value.step & 1][self.me] = value.out = None  # it may be the user's
                value.step += 1
                value.busy = False
            elif kind is Lift:
                assert self._above is not None
                lifted = self._view(value, 0, value.lifted, 0) if value.lifted else value.stored
                assert not isinstance(lifted, PrivateOperand)
                self._above.lift(value, lifted, True, value.priority, partial(self._lifted, value, True))
            elif kind is HostFail:
                self._fail(value, instruction.members)  # type: ignore[union-attr]

    def _reduce(self, value: HostValue) -> None:
        """Sum this member's part, once no operand is on its way to another place."""
        value.deferred = value.moving
        if value.deferred:
            return
        try:
            self.moved += value.reduce(None if value.own else self.rule)
        except Unreadable as error:
            if self._unreadable is None:  # its last word, of why it has ended, may be here and not be handled yet
                self._unreadable = error, time.monotonic() + LAST_WORD
            return
        if self.me < self.members:
            value.done[self.me] = value.step
        self._execute(self._machine.handle(HostDone(self.me, value.number, value.step)), value)

    def _dead(self, member: int, how: str) -> PeerError:
        why = f"{self._names([member])} has died: {how}"
        return PeerError(why, where=self.where, hint=SEE)

    def _tell(self, instruction: HostTell, place: tuple[int, int]) -> None:
        event = instruction.event
        if isinstance(event, Ready):
            self.mesh.tell(instruction.to, READY, event.key, event.step, *place)
            return
        more = number = 0
        if isinstance(event, Hopeless):
            more = event.gone
        elif isinstance(event, HostDone) and self._above is not None:
            value = self._values[event.key]
            more, number = max(-URGENT, min(URGENT, value.priority)) + URGENT, value.lifted
        self.mesh.tell(instruction.to, KINDS[event.__class__], event.key, event.step, number, more)

    def _fail(self, value: HostValue, members: Sequence[int]) -> None:
        """No further round of this key will be complete."""
        value.error = PeerError(
            f"{self._names(members)} left before round {value.step} of key {value.name!r}, which this worker has begun",
            where=self.where,
            hint="every worker must push equally often: drop or pad what remains of uneven data",
        )
        while value.queue:
            self._end(value.queue.popleft(), value.error)

    # -- what others say

    def _handle(self, tags: Sequence[Tag]) -> None:
        for tag in tags:
            kind = tag.kind
            if kind <= DONE and kind >= READY:
                self._hear(tag)
            elif kind == NOTE:
                self._note(tag)
            elif kind == GONE:
                if tag.member not in self._left:
                    self._die(self._dead(tag.member, "its connection was closed"))
            elif kind == LEAVE:
                self._left.add(tag.member)
                for instruction in self._machine.handle(HostLeft(tag.member)):
                    about = instruction.event if isinstance(instruction, HostTell) else instruction
                    self._execute((instruction,), self._values[about.key])
            elif kind == ABOVE:
                assert self._above is not None
                self._above.ready(tag.a, tag.b)
            elif kind == BARRIER:
                self._barriers[tag.member] = tag.a
            elif kind == DROP:
                self._forget(tag.member, tag.c)
            else:
                self._hear(tag)
        if self._unreadable is not None and time.monotonic() > self._unreadable[1]:
            error = self._unreadable[0]
            self._die(self._dead(error.member, f"its memory cannot be read ({error})"))

    def _hear(self, tag: Tag) -> None:
        """Another member tells of a round."""
        member, kind, key, step, number, more, _, _ = tag
        value = self._values.get(key)
        if value is None:
            self._early.setdefault(key, []).append(tag)
            return
        event: Event | None
        if kind == READY:
            if number & IN_PLACE:
                value.in_place[step & 1].add(member)
                number ^= IN_PLACE
            view = value.views.get((member, number, more))
            value.operands[step & 1][member] = self._view(value, member, number, more) if view is None else view
            event = Ready(member, key, step)
        elif kind == DONE:
            if self._above is not None:
                value.priority, value.lifted = more - URGENT, number
            event = HostDone(member, key, step)
        elif kind == FINAL:
            event = Final(member, key, step)
        elif kind == MOVED:
            value.operands[step & 1][member] = self._view(value, member, number, 0)
            event = None
            if value.deferred:
                self._reduce(value)
        else:
            event = Hopeless(member, key, step, more)
        if event is not None:
            self._execute(self._machine.handle(event), value)
        if value.queue and not value.busy:
            self._advance(value)

    def _view(self, value: HostValue, member: int, number: int, offset: int) -> Array | PrivateOperand:
        """The operand of another member."""
        if number == PRIVATE:
            return PrivateOperand(member, self.mesh.pid(member), offset, value.dtype.itemsize)
        view = self._foreign[member, number].array(offset, (value.flat.size,), value.dtype)
        value.views[member, number, offset] = view
        return view

    def _note(self, tag: Tag) -> None:
        said, member = tag.body, tag.member
        what = said["is"]
        if what in ("refused", "ready") and said["name"] not in self._by_name:
            self._soon.setdefault(said["name"], []).append(tag)  # what member 0 says comes by another way
        elif what == "refused":
            self._by_name[said["name"]].error = ShapeError(said["reason"], where=self.where)
        elif what == "count":
            assert self._above is not None
            counted = {"is": "together", "name": COUNTED, "body": self._above.counts()}
            self.mesh.note((member,), counted)
        elif what == "drop losses":
            assert self._above is not None
            self._above.drop_losses(said["collect"])
        elif what == "ready":
            value = self._by_name[said["name"]]
            value.ready = not said["reason"]
            value.error = PeerError(said["reason"], hint=said["hint"]) if said["reason"] else value.error
        elif what == "readable?":
            self.mesh.note((member,), answer(said, self.mesh.pid(member)))
        elif what == "readable":
            self.probe.answered(member, said["able"])
        elif what == "failed":
            who = "" if said.get("passed") else f"{self._names([member])} failed: "
            self._die(PeerError(f"{who}{said['reason']}", where=self.where, hint=SEE))
        elif what == "together":
            self._said.setdefault(said["name"], {}).setdefault(member, deque()).append(said["body"])
        else:
            try:
                segment = memory.attach(said["number"], tag.fd)
                if self._above is not None:
                    self._above.lend(member if what == "segment" else -1, segment.number, tag.fd, segment.size)
            finally:
                os.close(tag.fd)
            if what == "segment":
                self._foreign[member, segment.number] = segment
            else:
                self._announce(said, segment)

    def _forget(self, member: int, number: int) -> None:
        """Drop the views of a segment of another member that is no longer in use."""
        self._foreign.pop((member, number), None)
        if self._above is not None:
            self._above.forget(member, number)
        for value in self._values.values():
            for known in [k for k in value.views if k[:2] == (member, number)]:
                del value.views[known]

    def follow(self) -> None:
        """Drive until every member has left. Raises what the group failed with."""
        with self._lock:
            while len(self._left) < self.members:
                self._check()
                self._step(self._patience)

    def asked(self, name: str) -> bool:
        """Tell the level above, whose deadline for a round ends, who of this host keeps it, or (True) that a round of
        another key waits for other hosts; called by the thread that drives."""
        value, busy = self._by_name[name], self._under_way()
        if value in busy and all(self._late_here(at) for at in busy):
            value = self._surest(value, busy)
            self._blame(value, self._late_here(value))
        return any(at is not value and not self._late_here(at) for at in busy)

    def _under_way(self) -> list[HostValue]:
        if self.me < self.members:
            return super()._under_way()
        # the agent begins no rounds: members of the host have, of which the last is not over
        over = {v: v.step - 1 if v.leader == self.me else v.over[v.leader] for v in self._values.values()}
        return [v for v, step in over.items() if v.error is None and (not v.ready or v.clocks.max() > step)]

    def fail(self, error: MezzoError) -> None:
        """The level above has failed; called by the thread that drives, or before anybody does."""
        error.at(self.where)
        self._die(error)

    # -- the end

    def close(self, error: BaseException | None = None) -> None:
        """Leave: after the rounds that this member has begun, unless there was an error."""
        with self._lock:
            if self._closed:
                return
            late: MezzoError | None = None
            try:
                if error is None and self.failure is None:
                    self._until(lambda: not self._busy(), self._unfinished)
            except MezzoError as problem:
                late = problem
            self._closed = True
            if self.failure is None:  # else all have heard why
                if error is not None:
                    self.mesh.note(self.mesh.members, {"is": "failed", "reason": reason(error)[:MOST_REASON]})
                else:
                    self.mesh.tell(self.mesh.members, LEAVE)
            self.mesh.flush(FAREWELL)
            self.mesh.close()
            self._die(InputError("the store is closed", where=self.where))
        self._make_calls()
        if late is not None and error is None:
            raise late

    def _missing(self, value: HostValue) -> Sequence[int]:
        if not value.ready:
            return self._late_here(value)
        return (value.busy and self._late_here(value)) or self._machine.missing(value.number)

    def _late_here(self, value: HostValue) -> Sequence[int]:
        here = [m for m in self._others() if m not in self._left]
        sums = value.reducers or ()  # None: every member for itself
        knows = self.me < self.members or value.leader == self.me  # the agent hears of rounds that it lifts alone
        step = (value.step if knows else value.clocks.max()) if value.ready else 0
        late = [m for m in here if value.clocks[m] < step]
        late = late or [m for m in here if m in sums and value.done[m] < step]
        if not late and value.leader in here and value.asked[value.leader] < (time.monotonic() - STILL) * 1e9:
            return [value.leader]  # who waits for servers would look for their answer
        return late
