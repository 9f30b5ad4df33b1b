"""Workers of one host that do not wait for sums: bounded staleness and eventual consistency, without servers.

The value lies in shared memory, and so do the states of an optimizer. Who pushes takes the lock of the key, adds or
steps, counts, and lets go: nobody else has to do anything, and every push counts once. The lock is the kernel's (a
range of a file without a name), which frees it when its holder dies. In a bounded store an operation ends when its
worker is not too far ahead of the slowest one (`protocol/consistency.py`); workers that have left count no more.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...ops.errors import DeadlineError
from ...ops.types import Array
from ..protocol.consistency import Consistency
from ..protocol.keys import element
from ..protocol.pace import Counts
from ..rows import Rows, Sum
from ..states import Saved
from ..stats import Stats
from ..ticket import Ticket
from ..updater import UpdateRule
from . import memory
from .backend import HostStore
from .group import DROP, Group
from .memory import Segment
from .mesh import Mesh, Tag
from .values import WORDS, HostValue, ValueOperation, aligned

CLOCK = DROP + 1  # a kind of tag: a member has pushed
SHORTEST, LONGEST = 20e-6, 1e-3  # seconds between tries to get a lock


class SharedValue(HostValue):
    """A value that all members change; behind it and the clocks, which are numbers of pushes, is that of the steps."""

    steps: Array
    read = 0  # steps of the value when this member read it last

    def share(self, array: Array, members: int) -> None:
        self.alone = False
        self.stored, self.flat, self.shown = array, array.reshape(-1), array
        self.steps = self.segment.array(aligned(self.nbytes) + WORDS * 8 * members, (1,), np.dtype(np.int64))


class RelaxedOperation(ValueOperation):
    """An operation on a value that changes at any time; a pull without a target gets a copy."""

    __slots__ = ("answer",)
    answer: Array

    def deliver(self) -> None:
        super().deliver()
        assert isinstance(self.value, SharedValue)
        self.value.read = int(self.value.steps[0])
        if self.outs:
            self.answer = self.outs[0]
            return
        self.answer = self.value.stored.copy()
        self.answer.flags.writeable = False

    @property
    def late(self) -> float:
        return math.inf  # nobody moves anything: it waits for the slowest alone

    def wait(self) -> Array:
        found = super().wait()
        return self.answer if self.pull else found


class RelaxedGroup(Group):
    """A member of workers that change values one after the other."""

    def __init__(self, mesh: Mesh, ranks: Sequence[int], deadline: float, where: str, consistency: Consistency) -> None:
        super().__init__(mesh, ranks, deadline, where)
        self.consistency = consistency
        self.staleness: Counter[int] = Counter()
        self._bounded = not consistency.may_go(1 << 60, 0)
        self._fresh: dict[int, dict[str, Array]] = {}  # states of keys that are not declared here yet
        self._locks = -1
        if self.me == 0:
            self._locks = memory.create(1)
            mesh.note(self._others(), {"is": "locks"}, self._locks)

    # -- keys

    def _size(self, nbytes: int) -> int:
        return super()._size(nbytes) + 8

    def _make(self, number: int, name: str, array: Array, segment: Segment, leader: int) -> HostValue:
        made = SharedValue(number, name, array, segment, self.me, self.members, leader)
        made.share(array, self.members)
        if self.rule is not None and self.me == 0:
            self._give_states(made, self.rule, None)
        made.states = self._fresh.pop(number, made.states)
        return made

    def _note(self, tag: Tag) -> None:
        said = tag.body
        if said["is"] == "locks":
            self._locks = tag.fd
        elif said["is"] == "states":
            try:
                segment = memory.attach(0, tag.fd)
            finally:
                os.close(tag.fd)
            states = self._states_in(segment, said["names"], tuple(said["shape"]), element(said["dtype"]).numpy)
            value = self._values.get(said["number"])
            if value is None:
                self._fresh[said["number"]] = states
            else:
                value.states = states
        else:
            super()._note(tag)

    def _hear(self, tag: Tag) -> None:
        if tag.kind != CLOCK:
            super()._hear(tag)
        elif tag.a in self._values:
            self._advance(self._values[tag.a])

    def _handle(self, tags: Sequence[Tag]) -> None:
        left = len(self._left)
        super()._handle(tags)
        if len(self._left) > left:
            for value in self._values.values():
                self._advance(value)

    # -- operations

    def start(self, operation: ValueOperation) -> ValueOperation:
        with self._lock:
            if not self._driver and self.failure is None and not self._closed:
                self._handle(self.mesh.receive(0))  # has anybody died?
        return super().start(operation)

    def _advance(self, value: HostValue) -> None:
        assert isinstance(value, SharedValue)
        queue = value.queue
        while queue:
            operation = queue[0]
            if operation.values and not operation.begun:
                operation.begun = True
                self._apply(value, operation.values, operation.rows)
            ahead = self._ahead(value)
            if not self.consistency.may_go(ahead, 0):
                return
            if operation.pull:
                self.staleness[ahead] += 1
                with self._locked(value, fcntl.LOCK_SH):
                    operation.deliver()
            queue.popleft()
            self._end(operation, None)

    def _apply(self, value: SharedValue, values: Sequence[Array], ids: Array | None) -> None:
        """Count a push: of the whole value, or of the rows with these numbers."""
        given = values[0] if len(values) == 1 else sum(values[1:], values[0])
        flat = np.ascontiguousarray(given).reshape(-1)
        with self._locked(value, fcntl.LOCK_EX):
            steps = int(value.steps[0])
            stale = steps - value.read if self.consistency.by_staleness else 0
            if self.rule is None:
                np.add(value.flat, flat, out=value.flat)
            elif ids is not None:
                tables = {"": value.flat, **value.states}
                self.rule.step_rows(value.name, steps, tables, (ids, given), staleness=stale).write(tables)
                value.steps[0] += 1
            else:
                self.rule.step(value.name, steps, value.flat, flat, value.states, staleness=stale)
                value.steps[0] += 1
            value.clocks[self.me] += 1
        self.moved += 3 * flat.nbytes
        if self._bounded:
            self.mesh.tell(self._others(), CLOCK, value.number)

    def _ahead(self, value: SharedValue) -> int:
        """Return the number of pushes that this member is ahead of the slowest one still present."""
        slowest = min(int(clock) for member, clock in enumerate(value.clocks) if member not in self._left)
        return int(value.clocks[self.me]) - slowest

    def _missing(self, value: HostValue) -> Sequence[int]:
        assert isinstance(value, SharedValue)
        mine = int(value.clocks[self.me])
        others = [m for m in self._others() if m not in self._left]
        return [m for m in others if not self.consistency.may_go(mine, int(value.clocks[m]))]

    def _why_late(self, value: HostValue, missing: str) -> tuple[str, str]:
        assert isinstance(value, SharedValue)
        ahead = f"{self._names([self.me])} is {self._ahead(value)} pushes of key {value.name!r} ahead of {missing}"
        why = f"{ahead} for {self.deadline:g} s, and the store is {self.consistency}"
        return why, "; a longer wait is deadline=, a looser store staleness="

    @contextmanager
    def _locked(self, value: HostValue, how: int) -> Iterator[None]:
        """Hold the value, so that no other process changes it. Raises DeadlineError if another one holds it for too
        long."""
        end, pause = 0.0, SHORTEST
        while True:
            try:
                fcntl.lockf(self._locks, how | fcntl.LOCK_NB, 1, value.number)
                break
            except (BlockingIOError, PermissionError):
                now = time.monotonic()
                end = end or now + self.deadline
                if now > end:
                    raise DeadlineError(
                        f"another worker has changed key {value.name!r} for {self.deadline:g} s", where=self.where
                    ) from None
                time.sleep(pause)
                pause = min(2 * pause, LONGEST)
        try:
            yield
        finally:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, value.number)

    # -- optimizers

    def _give_states(self, value: HostValue, rule: UpdateRule, saved: Saved | None) -> None:
        """Member 0 makes the states of a key for all."""
        states = rule.states(value.name, value.stored)
        if saved is not None:
            states |= saved.states.get(value.name, {})
        said = {"is": "states", "number": value.number, "names": list(states), "shape": list(value.shape)}
        fd = memory.create(max(1, len(states)) * aligned(value.nbytes))
        try:
            shared = self._states_in(memory.attach(0, fd), list(states), value.shape, value.dtype)
            for name, state in states.items():
                shared[name][...] = state.reshape(-1)
            self.mesh.note(self._others(), {**said, "dtype": value.dtype.name}, fd)
        finally:
            os.close(fd)
        value.states = shared
        assert isinstance(value, SharedValue)
        value.steps[0] = 0 if saved is None else saved.updates.get(value.name, 0)

    @staticmethod
    def _states_in(
        segment: Segment, names: Sequence[str], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> dict[str, Array]:
        count = int(np.prod(shape, dtype=np.int64))
        size = aligned(count * dtype.itemsize)
        return {name: segment.array(i * size, (count,), dtype) for i, name in enumerate(names)}

    def take_rule(self, rule: UpdateRule, saved: Saved | None) -> None:
        """Set the update rule of the following pushes. It begins when all members have called it, and none goes on
        before member 0 has made the states."""
        with self._lock:
            self._check()
            for value in self._values.values() if self.me == 0 else ():
                self._give_states(value, rule, saved)
        self.together("states", None)
        for value in self._values.values():
            assert isinstance(value, SharedValue)
            value.read = int(value.steps[0])
        self.rule = rule

    def gather(self, rule: UpdateRule) -> Saved:
        """Return all states while there are no pushes; all members call it."""
        self.together("save_optimizer_states", None)
        values = list(self._values.values())
        states = {v.name: {n: s.reshape(v.shape).copy() for n, s in v.states.items()} for v in values}
        saved = Saved(rule.data, states, {v.name: int(v.steps[0]) for v in values if isinstance(v, SharedValue)})
        self.barrier()
        return saved

    def close(self, error: BaseException | None = None) -> None:
        try:
            super().close(error)
        finally:
            if self._locks >= 0:
                os.close(self._locks)
                self._locks = -1


class RelaxedStore(HostStore):
    """The backend of such a group."""

    group: RelaxedGroup
    operation = RelaxedOperation

    def _step_rows(self, value: HostValue, rule: UpdateRule, rows: Rows, sum: Sum) -> Ticket:
        """Step these rows, as one push."""
        ids, gradient = rows
        return self.group.start(self.operation(self.group, value, (gradient,), (), False, 0, ids))

    def _take(self, rule: UpdateRule, saved: Saved | None = None) -> None:
        by_staleness = self.group.consistency.by_staleness
        rule.check_rate(by_staleness, f"set_optimizer in {self.kind}, rank {self.rank}")
        self.group.take_rule(rule, saved)

    def _gather(self, rule: UpdateRule) -> Saved:
        return self.group.gather(rule)

    def _moved(self) -> Counts:
        told = self.group.staleness
        pulls = sum(told.values())
        behind = {"behind": sum(steps * count for steps, count in told.items()) / pulls} if pulls else {}
        return {**super()._moved(), **behind}

    def stats(self) -> Stats:
        return Stats(self._pushes, self._pulls, inside=self.group.moved, staleness=dict(self.group.staleness))
