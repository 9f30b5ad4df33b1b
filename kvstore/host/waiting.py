"""Waiting for other members: any waiting thread drives the communication.

A thread that waits for one operation handles what the others say about all of them. One thread receives at a time;
others that wait sleep until it has ended or goes. Where nobody waits and somebody wants to be told, a workload of the
engine's network resource drives in slices.
"""

from __future__ import annotations

import time
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any

from ...ops.errors import DeadlineError, ExecutionError, InputError, MezzoError, PeerError
from ...runtime.engine import engine
from ..environment import TICK
from ..protocol.waits import BEHIND_SPEAKERS, beyond
from .mesh import FIRST, Mesh, Tag
from .upper_tier import UpperTier
from .values import HostValue, ValueOperation

BARRIER = FIRST  # a kind of tag
MOST_REASON = 1000  # characters of why a member has failed
PATIENCE = 1.0  # seconds between looks at the clock
SLICE = 0.02  # seconds that a workload of the engine drives before it lets others run
LOOK = 0.1  # seconds between its looks at the deadlines of operations


def reason(error: BaseException) -> str:
    """The message about an error of this worker as others are told it, without the hint, which is for this one. The key
    that a server refuses is named."""
    if not isinstance(error, MezzoError):
        return f"{type(error).__name__}: {error}"
    return f"{error.where}: {error.message}" if error.where.startswith("key ") else error.message


class Waiting:
    """Waiting of a group's threads. Methods that begin with `_` are called under the lock."""

    def __init__(self, mesh: Mesh, ranks: Sequence[int], deadline: float, where: str, above: UpperTier | None) -> None:
        self.me, self.members = mesh.me, len(ranks)
        self.ranks, self.deadline, self.where = tuple(ranks), deadline, where
        self._beyond = beyond(deadline, BEHIND_SPEAKERS)
        self.mesh = mesh
        self.failure: MezzoError | None = None
        self._above = above
        self._patience = PATIENCE if above is None else TICK  # the level above has deadlines of its own
        if above is not None:
            mesh.share(above.loop)
        self._lock = allocate_lock()
        self._values: dict[int, HostValue] = {}
        self._driver = 0  # the thread that receives
        self._sleepers: list[LockType] = []
        self._calls: list[Callable[[], None]] = []  # to be made when the lock is free
        self._told = 0  # operations that somebody wants to be told of
        self._serving = False
        self._looked = 0.0  # when this member has last looked for answers of the level above
        self._look = 0.0  # when the deadlines of operations are looked at next
        self._closed = False
        self._left: set[int] = set()
        self._barriers = [0] * self.members
        self._said: dict[str, dict[int, deque[Any]]] = {}  # what members say all together, by its name

    def _others(self) -> tuple[int, ...]:
        return tuple(m for m in range(self.members) if m != self.me)

    def _handle(self, tags: Sequence[Tag]) -> None:
        """Handle the tags received from other members."""
        raise NotImplementedError

    def _withdraw(self, operation: ValueOperation) -> None:
        """Give the caller of an operation, for which nobody waits any more, its arrays back."""
        raise NotImplementedError

    def _missing(self, value: HostValue) -> Sequence[int]:
        """Whom the operations of a key wait for."""
        raise NotImplementedError

    def _late_here(self, value: HostValue) -> Sequence[int]:
        """Members of this host that have not begun the round under way of a key or, if all have, not summed it; who
        speaks for it, where that one does not look for what servers answer."""
        raise NotImplementedError

    def _names(self, members: Sequence[int]) -> str:
        if self.members in members:
            return "the agent of this host"
        ranks = [str(self.ranks[m]) for m in members]
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"

    def _check(self, value: HostValue | None = None) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise InputError("the store is closed", where=self.where)
        if value is not None and value.error is not None:
            raise value.error

    def _die(self, error: MezzoError) -> None:
        """The group cannot go on. All others hear why at once (the error says whose fault it is), before they see this
        member leave because of it."""
        if self.failure is not None:
            return
        self.failure = error
        self.mesh.note(self.mesh.members, {"is": "failed", "reason": error.message[:MOST_REASON], "passed": True})
        for value in self._values.values():
            while value.queue:
                self._end(value.queue.popleft(), error)
        self._wake()

    # -- waiting

    def drive(self, operation: ValueOperation) -> None:
        """Receive and handle messages until an operation has ended. Raises DeadlineError that names the missing
        members."""
        with self._lock:
            patience, end = min(self._patience, self.deadline), 0.0
            try:
                while not operation.ended:
                    if not self._step(patience):  # the clock is not looked at while there is something to do
                        now = time.monotonic()
                        end = end or now + self.deadline - patience
                        left = end - now
                        if left <= 0 and not self._behind_here(operation.value):
                            left += self._beyond
                        if left <= 0:
                            raise self._late(operation.value)
                        patience = min(self._patience, left)
            except BaseException:
                self._withdraw(operation)
                raise
            if self._sleepers:
                self._wake()
        if self._calls:
            self._make_calls()

    def _until(self, ready: Callable[[], bool], what: Callable[[], tuple[str, Sequence[int]]]) -> None:
        """Wait until a condition holds. Raises DeadlineError that says what is missing, and of which members."""
        end = time.monotonic() + self.deadline
        while not ready():
            self._check()
            left = end - time.monotonic()
            if not self._step(min(self._patience, left if left > 0 else LOOK)) and time.monotonic() >= end:
                described, members = what()
                if not members and self._above is not None and time.monotonic() < end + self._beyond:
                    continue
                missing = f"; missing {self._names(members)}" if members else ""
                raise DeadlineError(
                    f"waited {self.deadline:g} s for {described}{missing}",
                    where=self.where,
                    hint="did they fail, or do they call other verbs? A longer wait is deadline=",
                )
        if self._sleepers:
            self._wake()

    def wait(self, ready: Callable[[], bool], what: str, begin: Callable[[], None] = lambda: None) -> None:
        """Call `begin` and drive until something holds that is not about members of this host."""
        with self._lock:
            self._check()
            begin()
            self._until(ready, lambda: (what, ()))
        self._make_calls()

    def rest(self) -> None:
        """After a failure, wait until no other thread drives."""
        with self._lock:
            while self._driver:
                self.mesh.ring()
                self._step(SLICE)

    def _behind_here(self, value: HostValue) -> bool:
        """True unless the level above may tell who is missing: of this key, or of one that keeps those who are."""
        return self._above is None or all(self._late_here(at) for at in (value, *self._under_way()))

    def _late(self, value: HostValue) -> DeadlineError:
        kept = None
        if self._above is not None:  # who is late here may wait for another key, and nobody here for that one
            kept = next((at for at in (value, *self._under_way()) if not self._late_here(at)), None)
        value = kept or self._surest(value, [at for at in self._busy() if at.busy])
        why, hint = self._blame(value, self._missing(value))
        return DeadlineError(why, where=self.where, hint=f"every worker must push to the key{hint}")

    def _surest(self, value: HostValue, under_way: Sequence[HostValue]) -> HostValue:
        """A key that all here have begun and somebody has not summed, for which no other key can be the reason; or this
        one: who has not begun it may wait for that."""
        begun = [at for at in under_way if min(at.clocks.tolist()) >= at.step]
        return next((at for at in begun if self._late_here(at)), value)

    def _blame(self, value: HostValue, missing: Sequence[int]) -> tuple[str, str]:
        """Return what has not ended, and how to prevent it; other hosts, which cannot know, are told."""
        why, hint = self._why_late(value, self._names(missing) if missing else "what the servers answer")
        absent = [self.ranks[m] for m in missing if m < self.members]
        if self._above is not None and absent:
            self._above.blame(absent, why)
        return why, hint

    def _why_late(self, value: HostValue, missing: str) -> tuple[str, str]:
        """Return what has not ended, and how to prevent it, for an error message."""
        what = f"round {value.step}" if value.ready else "the initial value"
        why = f"{what} of key {value.name!r} is not complete after {self.deadline:g} s; missing {missing}"
        return why, " equally often, and all wait for their keys in one order; a longer wait is deadline="

    def _step(self, seconds: float) -> bool:
        """Receive and handle, or sleep while another thread does; whether anything has happened."""
        if self._driver:
            sleeper = allocate_lock()
            sleeper.acquire()
            self._sleepers.append(sleeper)
            self._lock.release()
            try:
                return sleeper.acquire(timeout=max(0.0, seconds))
            finally:
                self._lock.acquire()
                if sleeper in self._sleepers:
                    self._sleepers.remove(sleeper)
        self._driver = get_ident()
        if self._above is not None:
            self._look_up()
        self._lock.release()
        try:
            tags = self.mesh.receive(seconds)
        finally:
            self._lock.acquire()
            self._driver = 0
        try:
            self._handle(tags)
            if self._above is not None:
                self._above.tick()
        except MezzoError as error:
            self._die(error)
        except Exception as error:
            self._die(ExecutionError(f"{type(error).__name__}: {error}", where=self.where))
            raise
        return bool(tags)

    def _look_up(self) -> None:
        """Show the others that this member, which speaks for the host, looks for answers."""
        now = time.monotonic()
        if now >= self._looked + TICK and self.me < self.members:  # the agent's heartbeats tell that it looks
            self._looked = now
            for value in self._values.values():
                if value.leader == self.me and (value.busy or not value.ready):
                    value.asked[self.me] = int(now * 1e9)

    def _wake(self) -> None:
        """Have threads that sleep look again."""
        for sleeper in self._sleepers:
            sleeper.release()
        self._sleepers.clear()

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.pop(0)()

    def _end(self, operation: ValueOperation, error: BaseException | None) -> None:
        operation.ended, operation.error = True, error
        operation.values = operation.outs = ()  # a handle that somebody keeps does not keep the arrays
        calls, operation.calls = operation.calls, None
        if calls is not None:
            self._told -= 1
            self._calls += [partial(call, error) for call in calls]
        if self._sleepers:
            self._wake()
        if self._driver not in (0, get_ident()):
            self.mesh.ring()

    # -- telling others of this process

    def call_at_end(self, operation: ValueOperation, call: Callable[[BaseException | None], None]) -> None:
        with self._lock:
            if not operation.ended:
                if operation.calls is None:
                    operation.calls, operation.until = [], time.monotonic() + self.deadline
                    self._told += 1
                operation.calls.append(call)
                if not self._serving:
                    self._serving = True
                    engine().push(self._serve, resource="network", priority=-1, name="level 1")
                return
        call(operation.error)

    def _serve(self) -> None:
        """A workload: drive while somebody wants to be told, for a while; then once more."""
        end = time.monotonic() + SLICE
        with self._lock:
            while self._told and not self.failure and (left := end - time.monotonic()) > 0:
                self._step(left)
            if not self.failure and end > self._look:
                self._look = end + LOOK
                self._expire(end)
            if self._sleepers:
                self._wake()
            self._serving = again = self._told > 0
        self._make_calls()
        if again:
            engine().push(self._serve, resource="network", priority=-1, name="level 1")

    def _expire(self, now: float) -> None:
        """End what somebody wants to be told of, and has waited for too long: nobody drives it, and sees the clock."""
        for value in self._values.values():
            if value.queue and value.queue[0].until + (0 if self._behind_here(value) else self._beyond) < now:
                value.error = self._late(value)
                self._withdraw(value.queue[0])
                while value.queue:
                    self._end(value.queue.popleft(), value.error)

    # -- all together

    def barrier(self) -> None:
        """Wait until every member has called this as often as this one."""
        with self._lock:
            self._check()
            self._barriers[self.me] = count = self._barriers[self.me] + 1
            self.mesh.tell(self._others(), BARRIER, count)
            self._all_say("a barrier", partial(self._behind, count))
        self._make_calls()

    def _behind(self, count: int) -> list[int]:
        return [m for m, passed in enumerate(self._barriers) if passed < count]

    def _all_say(self, name: str, absent: Callable[[], list[int]]) -> None:
        """Wait until no member is absent. Raises PeerError if one of them has left."""

        def gone() -> list[int]:
            return [m for m in absent() if m in self._left]

        self._until(lambda: not absent() or bool(gone()), lambda: (name, absent()))
        if absent():
            raise PeerError(f"{self._names(gone())} left before {name}", where=self.where)

    def together(self, name: str, body: Any) -> dict[int, Any]:
        """Exchange a body with every member that calls this with the same name; return the bodies of the others."""
        with self._lock:
            self._check()
            self.mesh.note(self._others(), {"is": "together", "name": name, "body": body})
            said = self._said.setdefault(name, {})

            def absent() -> list[int]:
                return [m for m in self._others() if not said.get(m)]

            self._all_say(name, absent)
            return {m: said[m].popleft() for m in self._others()}

    # -- what has not ended

    def _busy(self) -> list[HostValue]:
        return [v for v in self._values.values() if v.error is None and (v.busy or v.queue)]

    def _under_way(self) -> list[HostValue]:
        """Keys of which this member knows that something is under way: rounds, and declarations."""
        return [v for v in self._values.values() if v.error is None and (v.busy or v.queue or not v.ready)]

    def _unfinished(self) -> tuple[str, Sequence[int]]:
        value = self._busy()[0]
        return f"round {value.step} of key {value.name!r}", self._missing(value)
