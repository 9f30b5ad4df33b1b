"""A value of level 1: the places of a round's operands, the parts that each member sums, and the fate of the sum."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.errors import MezzoError, PeerError
from ...ops.types import Array
from ..protocol.keys import OWN, cut
from ..updater import UpdateRule
from .memory import ALIGN, Segment
from .private import READ, PrivateOperand

if TYPE_CHECKING:
    from .group import Group

WHOLE = 64 << 10  # bytes: up to here every member sums all of a value for itself, which saves half of the messages
WORDS = 7  # numbers that each member has behind a value
BLOCK = 256 << 10  # bytes that stay in a cache while several operands are added


def aligned(nbytes: int) -> int:
    """The place behind so many bytes of a value."""
    return -(-nbytes // ALIGN) * ALIGN


class HostValue:
    """One key as a member of a host sees it.

    `stored` is the value: of a small one (`alone`) every member has its own, a large one lies in shared memory once,
    and `part` is what this member sums and updates of it. `clocks` lie in shared memory behind it: the rounds that each
    member has begun, so that everybody knows who has not come, whatever messages it was to get. So do `done`, the
    rounds whose part each member has summed, `moved`, the last round whose operand each has moved from its own memory
    to a segment, `asked`, when whoever speaks for the host has last looked for an answer, `over`, the last round
    that is answered, and `began`, when each member has begun the last round of an even number, and of an odd one (times
    in nanoseconds of the machine's clock).
    """

    def __init__(
        self, number: int, name: str, stored: Array, segment: Segment, me: int, members: int, leader: int = -1
    ) -> None:
        self.number, self.name, self.shape, self.dtype, self.nbytes = (
            *(number, name, stored.shape, stored.dtype),
            stored.nbytes,
        )
        small = stored.nbytes <= WHOLE
        self.alone = small and leader < 0
        self.reducers = None if self.alone else (leader,) if small and leader < members else tuple(range(members))
        self.ready = leader < 0  # the level above knows it
        self.leader = leader
        self.segment = segment
        words = segment.array(aligned(stored.nbytes), (WORDS, members), np.dtype(np.int64))
        self.clocks, self.done, self.moved, self.asked, self.over, *self.began = words
        self.stored = stored.copy() if self.alone else stored
        self.flat = self.stored.reshape(-1)
        self.data: memoryview = self.flat.view(np.uint8).data
        self.lone = members == 1 and leader == me == 0  # nobody to sum with, and its operands go up by themselves
        self.single = members == 1 and leader == members  # its only operand is its sum
        self.lifted = 0  # the segment from whose beginning the agent takes such a sum; 0: from the value's
        self.priority = 0  # of the round under way
        self.shown = self.stored.view()
        self.shown.flags.writeable = False
        low, high = self._range(me)
        self.part = slice(low // max(1, stored.itemsize), high // max(1, stored.itemsize))
        self.whole_part = self.part == slice(0, self.flat.size)
        self.operands: tuple[list[Any], list[Any]] = ([None] * members, [None] * members)  # by round, even or odd
        self.in_place: tuple[set[int], set[int]] = (set(), set())  # members whose operand takes the value
        self.deferred = False  # this member's sum waits for an operand that moves
        self.out: Array | None = None  # where this member wants its own part of the value
        self.slots: list[Slot] = []  # where this member copies operands to
        self.views: dict[tuple[int, int, int], Array] = {}  # operands of others, by member, segment and byte
        self.step = 1  # the round under way or, if not busy, the next
        self.busy = False  # this member's operand is in a round that is not complete
        self.queue: deque[ValueOperation] = deque()
        self.error: MezzoError | None = None
        self.states: dict[str, Array] = {}  # of the part
        self.updates = 0
        self.packing = ""  # the scheme by which it travels at the level above
        self.own = name.startswith(OWN)  # of the store: its rounds are sums, and no optimizer steps it

    def _range(self, me: int) -> tuple[int, int]:
        """The bytes that a member sums."""
        if self.reducers is None:
            return 0, self.nbytes
        if me not in self.reducers:
            return 0, 0
        return cut(self.nbytes, len(self.reducers), ALIGN)[self.reducers.index(me)]

    def step_rows(self, rule: UpdateRule, rows: tuple[Array, Array]) -> None:
        """Step what lies in this member's part of some rows."""
        part = self.flat[self.part]
        if not self.states:
            self.states = rule.states(self.name, part)
        tables = {"": part, **self.states}
        rule.step_rows(self.name, self.updates, tables, rows, self.part.start).write(tables)
        self.updates += 1

    @property
    def moving(self) -> bool:
        """True if a member has moved its operand of this round, and its word of where to has not come yet."""
        operands = self.operands[self.step & 1]
        return any(isinstance(o, PrivateOperand) and self.moved[o.member] >= self.step for o in operands)

    def reduce(self, rule: UpdateRule | None) -> int:
        """Sum this member's part of the operands in the order of members, and store it or step by it; the bytes that
        were read and written. What is summed already stays where it is."""
        if self.lifted:
            return 0
        operands, out, lo = self.operands[self.step & 1], self.flat[self.part], self.part.start
        private = any(isinstance(o, PrivateOperand) for o in operands)
        targets = [operands[m][self.part] for m in sorted(self.in_place[self.step & 1])]
        if self.out is not None:
            targets.append(self.out[self.part])
        parts: list[Any] = [o if isinstance(o, PrivateOperand) else o[self.part] for o in operands]
        if rule is None and not targets and not private:
            add(parts, out)
            return int(out.nbytes) * (len(operands) + 1)
        block = max(1, (READ if private else BLOCK) // max(1, out.itemsize))
        room = np.empty(min(block, out.size), out.dtype)
        fetched = np.empty_like(room) if private else room
        if rule is not None and not self.states:
            self.states = rule.states(self.name, out)
        for low in range(0, out.size, block):
            at = slice(low, min(low + block, out.size))
            total = out[at] if rule is None else room[: at.stop - low]
            if private:
                add_private(parts, at, lo, total, fetched[: at.stop - low])
            else:
                add([part[at] for part in parts], total)
            if rule is not None:
                states = {name: state[at] for name, state in self.states.items()}
                rule.step(self.name, self.updates, out[at], total, states, lo + low)
            for target in targets:  # while it is in the cache
                target[at] = out[at]
        if self.moving:  # since the look before
            raise PeerError(
                f"a worker stopped waiting for round {self.step} of key {self.name!r} while its array was read",
                where="level 1",
                hint="a longer wait is deadline=",
            )
        self.updates += rule is not None
        self.in_place[self.step & 1].clear()
        return int(out.nbytes) * (len(operands) + 1 + len(targets))


def add(operands: Sequence[Array], out: Array) -> None:
    """The sum of flat arrays of one length in their order, into `out`, which is none of them."""
    if len(operands) == 2:
        np.add(operands[0], operands[1], out=out)
    elif len(operands) == 1:
        out[...] = operands[0]
    else:
        block = max(1, BLOCK // max(1, out.itemsize))
        for low in range(0, out.size, block):
            at = slice(low, low + block)
            total = np.add(operands[0][at], operands[1][at], out=out[at])
            for operand in operands[2:]:
                np.add(total, operand[at], out=total)


def add_private(parts: Sequence[Any], at: slice, lo: int, out: Array, room: Array) -> None:
    """The same of a block of operands some of which are in other processes, where the part begins at element `lo`."""

    def block(part: Any, into: Array) -> Array:
        if not isinstance(part, PrivateOperand):
            found: Array = part[at]
            return found
        part.read(lo + at.start, into)
        return into

    first = block(parts[0], out)
    if len(parts) == 1:
        if first is not out:
            out[...] = first
        return
    total = np.add(first, block(parts[1], room), out=out)
    for part in parts[2:]:
        np.add(total, block(part, room), out=total)


class Slot:
    """Shared memory that a member copies its operand to."""

    __slots__ = ("array", "flat", "segment")

    def __init__(self, segment: Segment, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.segment = segment
        self.array = segment.array(0, shape, dtype)
        self.flat = self.array.reshape(-1)


class ValueOperation:
    """A push, a pull or both, of one member: the ticket of a backend."""

    __slots__ = (
        "begun", "calls", "ended", "error", "group", "in_place", "outs", "priority", "private", "pull", "rows",
        "step", "until", "value", "values"
    )  # fmt: skip

    def __init__(
        self,
        group: Group,
        value: HostValue,
        values: Sequence[Array],
        outs: Sequence[Array],
        pull: bool,
        priority: int = 0,
        rows: Array | None = None,
    ) -> None:
        self.group, self.value, self.values, self.outs, self.pull, self.rows = group, value, values, outs, pull, rows
        self.priority = priority
        self.begun = self.ended = self.in_place = False
        self.step = 0  # the round that it has waited for
        self.private = False  # its operand is in this process's own memory
        self.error: BaseException | None = None
        self.calls: list[Callable[[BaseException | None], None]] | None = None
        self.until = math.inf  # of the clock: when those that want to be told are told of the deadline

    def wait(self) -> Array:
        if not self.ended:
            self.group.drive(self)
        if self.error is not None:
            raise self.error
        return self.value.shown

    @property
    def late(self) -> float:
        return max(self.value.began[self.step & 1].tolist()) * 1e-9 if self.step else 0.0

    def then(self, call: Callable[[BaseException | None], None]) -> None:
        self.group.call_at_end(self, call)

    def deliver(self) -> None:
        """Copy the value to where it is wanted."""
        stored = self.value.stored
        if self.in_place:
            return  # every reducer has put its part there
        if self.rows is not None:
            for out in self.outs:
                np.take(stored, self.rows, 0, out=out, mode="clip")  # they were checked
        elif self.value.out is not None and self.private:  # its own part is there already
            (out,), part = self.outs, self.value.part
            flat = out.reshape(-1)
            flat[: part.start], flat[part.stop :] = self.value.flat[: part.start], self.value.flat[part.stop :]
        else:
            for out in self.outs:
                out[...] = stored
