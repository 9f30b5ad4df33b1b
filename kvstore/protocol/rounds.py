"""A server's state machine: where bytes go, what is summed, and when a value is final and may be sent.

`Rounds.handle(event)` takes what happened and returns what to do now, in this order. The machine holds no bytes. Its
driver has, per key, the *value* and the *sum* of the round that is open, and per (rank, key) *staging* memory while a
push is kept that cannot be added yet.

**Sequential.** A round is open from the first push of its step until it is applied; it is the set of the ranks that
took part in the job when it opened, less those that leave in good order. The first rank's bytes are received into the
sum. Every other rank's go to staging and are added, range by range, as soon as all ranks before it have got there;
hence the sum is that of rank order, whatever arrives first. What has all ranks in it is applied and answered at once,
except by optimizers that need the whole tensor. Nobody may push step n + 1 before its step n is answered, so that
nobody can still be reading the value that a round overwrites.

**Bounded and eventual.** A push goes to staging and is applied by itself, whole, when it is complete.

**Exactly once.** A connection that is lost and opened again repeats what was not answered. A push is known by (rank,
key, step): bytes that have been counted are received into nothing, the rest continues, the answer is given again. The
same step twice on one connection is refused. A server that is started again with what it had committed knows of each
key the last push of every rank that counts, and up to where the open round is applied: those bytes may have been
answered, and their operands be gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .consistency import Consistency, Sequential
from .keys import OWN
from .messages import named
from .one_key import KeyRule, OneKey, Refusal
from .serving import (
    Arrived,
    Ask,
    Asked,
    Configured,
    Event,
    Excused,
    Instruction,
    Joined,
    KeyDeclared,
    Left,
    Opened,
    Pushed,
    Refuse,
    ServerFail,
    ServerReceive,
    ServerTicked,
)

ELSE = "another key: does every worker push to all keys, and wait for them in one order?"
EXCUSED = 2.5  # times as long as for answers, a round goes on of which all ranks that are missing are kept by others


@dataclass(slots=True)
class _Session:
    """A connection of one (rank, lane)."""

    number: int
    incarnation: int
    open: bool = True
    lost: str = ""  # why it is closed, if not in good order
    since: float | None = None  # when the first tick saw that


class Rounds:
    """State machine of one server. `ranks` take part from the start, whether they have joined yet or not.

    `deadline`: seconds without progress after which a wait is a failure that names the missing ranks; before that these
    are asked, and have `answers` seconds to say who it is. `grace`: seconds for which a lost rank may come back; with 0
    a lost connection is a failure at once. `names` of ranks are for errors.

    >>> server = Rounds(ranks=[0, 1])
    >>> for event in (KeyDeclared(key=1, nbytes=4, step=0), Joined(0), Joined(1)):
    ...     assert server.handle(event) == ()
    >>> server.handle(Opened(rank=1, key=1, step=1, lo=0, hi=4, pull=False))
    (ServerReceive(rank=1, key=1, step=1, lo=0, hi=4, into='staging', keep=0, early=True),)
    >>> server.handle(Arrived(rank=1, key=1, step=1, upto=4))
    ()
    >>> server.handle(Opened(rank=0, key=1, step=1, lo=0, hi=4))
    (ServerReceive(rank=0, key=1, step=1, lo=0, hi=4, into='sum', keep=0, early=False),)
    >>> for instruction in server.handle(Arrived(rank=0, key=1, step=1, upto=4)):
    ...     print(instruction)
    Add(key=1, step=1, rank=1, lo=0, hi=4, first=False)
    Apply(key=1, step=1, lo=0, hi=4, how='assign', rank=None)
    Send(rank=0, key=1, step=1, lo=0, hi=4, lane=0)
    Acknowledge(rank=1, key=1, step=1, lane=0)
    """

    def __init__(
        self,
        ranks: Iterable[int],
        consistency: Consistency = Sequential(),  # noqa: B008 (frozen)
        deadline: float = 120.0,
        grace: float = 0.0,
        names: Sequence[str] = (),
        left: Iterable[int] = (),
        answers: float = 0.0,
    ) -> None:
        self._names = tuple(names)
        self._known = frozenset(ranks)
        self._ranks = {*self._known} - {*left}
        self._rule = self._sums = KeyRule(consistency)  # `_sums` is that of the store's own keys
        self.deadline, self._grace, self._answers = deadline, grace, answers
        self._keys: dict[int, OneKey] = {}
        self._sessions: dict[tuple[int, int], _Session] = {}
        self._opened = 0  # sessions so far
        self._counts: Counter[str] = Counter()
        self._failure: ServerFail | None = None
        self._handlers: dict[type, Callable[[Any], Iterable[Instruction]]] = {
            KeyDeclared: self._on_declared,
            Configured: self._on_configured,
            Joined: self._on_joined,
            Left: self._on_left,
            Pushed: self._on_pushed,
            Opened: self._on_opened,
            Arrived: self._on_arrived,
            Asked: self._on_asked,
            Excused: self._on_excused,
            ServerTicked: self._on_ticked,
        }

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """Return the instructions for an event."""
        if self._failure:
            return ()
        made = tuple(self._handlers[event.__class__](event))
        if made and made[-1].__class__ is ServerFail:
            self._failure = made[-1]
        return made

    @property
    def failure(self) -> ServerFail | None:
        """Why no event changes anything any more; who comes now is to be told."""
        return self._failure

    def counted(self, rank: int, key: int) -> int:
        """The last step of this rank that has been counted, for the answer to its `Init`."""
        return self._keys[key].clocks.get(rank, 0)

    def takes_part(self, rank: int) -> bool:
        """True unless this rank has left."""
        return rank in self._ranks

    def stats(self) -> dict[str, int]:
        """Counts since the start: "pushes", "rounds", "repeats", "refused", and "staleness N" for each N seen."""
        return dict(self._counts)

    # ---------------------------------------------------------------------------------------------------- the data

    def _on_pushed(self, e: Pushed) -> Iterable[Instruction]:
        try:
            key = self._key(e.key)
            return key.pushed(e, self._session(e.rank, e.lane).number, self._sums if key.own else self._rule)
        except Refusal as refusal:
            return self._dropped(e, 0, refusal)

    def _on_opened(self, e: Opened) -> Iterable[Instruction]:
        try:
            key = self._key(e.key)
            return key.opened(e, self._session(e.rank, e.lane).number, self._sums if key.own else self._rule)
        except Refusal as refusal:
            return self._dropped(e, e.lo, refusal)

    def _dropped(self, e: Opened | Pushed, lo: int, refusal: Refusal) -> list[Instruction]:
        """A push that is refused, whose payload comes all the same."""
        dropped = ServerReceive(e.rank, e.key, e.step, lo, e.hi, "nothing", keep=e.hi)
        return [dropped, self._refused(e, e.key, e.step, refusal)]

    def _on_arrived(self, e: Arrived) -> Iterable[Instruction]:
        return self._keys[e.key].arrived(e, self._rule) if e.rank in self._ranks else ()

    def _on_asked(self, e: Asked) -> Iterable[Instruction]:
        try:
            self._session(e.rank, e.lane)
            return self._key(e.key).asked(e, self._rule)
        except Refusal as refusal:
            return [self._refused(e, e.key, e.step, refusal)]

    def _key(self, number: int) -> OneKey:
        found = self._keys.get(number)
        if found is None:
            raise Refusal(f"key number {number} was never declared")
        return found

    def _session(self, rank: int, lane: int) -> _Session:
        found = self._sessions.get((rank, lane))
        if found is None or not found.open or rank not in self._ranks:
            raise Refusal(f"rank {rank} takes no part")
        return found

    def _refused(
        self, e: Opened | Pushed | Asked | KeyDeclared | Configured | Joined, key: int, step: int, refusal: Refusal
    ) -> Refuse:
        self._counts["refused"] += 1
        return Refuse(e.rank, key, step, refusal.reason, refusal.hint, e.lane)

    # --------------------------------------------------------------------------------------------------- the rules

    def _on_declared(self, e: KeyDeclared) -> Iterable[Instruction]:
        if e.key in self._keys:
            return ()
        if not (e.whole or self._rule.elementwise or e.name.startswith(OWN)):
            return [self._refused(e, e.key, 0, _needs_whole(e.name))]
        clocks = dict(e.counts) if e.counts else dict.fromkeys(sorted(self._ranks), max(e.step, 0))
        self._keys[e.key] = key = OneKey(e, e.step, clocks, self._counts)
        if e.applied:
            key.go_on(e.applied, self._sums if key.own else self._rule)
        return ()

    def _on_configured(self, e: Configured) -> Iterable[Instruction]:
        open_rounds = [key for key in self._keys.values() if key.round]
        parts = [] if e.elementwise else [key for key in self._keys.values() if not (key.declared.whole or key.own)]
        if parts:
            return [self._refused(e, 0, 0, _needs_whole(parts[0].declared.name))]
        if open_rounds:
            reason = f"a round of key {open_rounds[0].declared.name!r} is open"
            return [self._refused(e, 0, 0, Refusal(reason, "wait for every push before another optimizer is set"))]
        self._rule = KeyRule(self._rule.consistency, True, e.elementwise)
        return ()

    # -------------------------------------------------------------------------------------------------- membership

    def _on_joined(self, e: Joined) -> Iterable[Instruction]:
        known = self._sessions.get((e.rank, e.lane))
        if e.rank not in self._known:
            reason = f"rank {e.rank} is none of the {len(self._known)} ranks of this job"
            return [self._refused(e, 0, 0, Refusal(reason))]
        if known and e.incarnation < known.incarnation:
            reason = f"rank {e.rank} was started again; this is the process that it replaces"
            return [self._refused(e, 0, 0, Refusal(reason))]
        self._opened += 1
        self._sessions[e.rank, e.lane] = _Session(self._opened, e.incarnation)
        for key in self._keys.values():
            key.forget(e.rank, e.lane)
            if e.rank not in self._ranks:
                key.joined(e.rank, self._rule.consistency)
        self._ranks.add(e.rank)
        return ()

    def _on_left(self, e: Left) -> Iterable[Instruction]:
        session = self._sessions.get((e.rank, e.lane))
        if session is None or not session.open:
            return ()
        session.open = False
        for key in self._keys.values():
            key.forget(e.rank, e.lane)
        others = any(s.open for (rank, _), s in self._sessions.items() if rank == e.rank)
        who = e.who or self._named((e.rank,))
        if not e.orderly:
            return self._lost(e.rank, session, f"{who} {e.reason}")
        if others:
            return ()
        half = [key.declared.name for key in self._keys.values() if key.unfinished(e.rank)]
        if half:
            return self._lost(e.rank, session, f"{who} left in the middle of a push of key {half[0]!r}")
        self._ranks.discard(e.rank)
        return [made for key in self._keys.values() for made in key.left(e.rank, self._rule)]

    def _lost(self, rank: int, session: _Session, reason: str) -> Iterable[Instruction]:
        session.lost = reason
        return () if self._grace > 0 else [ServerFail((rank,), reason)]

    def _on_ticked(self, e: ServerTicked) -> Iterable[Instruction]:
        for (rank, _), session in self._sessions.items():
            if session.lost:
                session.since = e.now if session.since is None else session.since
                if e.now - session.since >= self._grace:
                    return [
                        ServerFail(
                            (rank,), f"{self._named((rank,))} did not come back in {self._grace:g} s: {session.lost}"
                        )
                    ]
        made = list[Instruction]()
        for key in self._keys.values():
            if key.stirred or not key.waits or key.since is None:
                key.since, key.stirred, key.asks = e.now if key.waits else None, False, False
                key.excused.clear()
            elif e.now - key.since > self.deadline + self._answers * (1 if self._late_ranks(key) else EXCUSED):
                return [self._late(key)]
            elif e.now - key.since > self.deadline and not key.asks:
                key.asks, number, step = True, key.declared.key, _waiting(key)
                made += [Ask(rank, number, step) for rank in sorted({*key.missing(), *key.waits})]
        return made

    def _named(self, ranks: Sequence[int]) -> str:
        return " and ".join(self._names[rank] for rank in ranks) if self._names else named(ranks)

    def _on_excused(self, e: Excused) -> Iterable[Instruction]:
        key = self._keys.get(e.key)
        if key is not None and key.asks and key.waits and e.step == _waiting(key):
            key.excused.add(e.rank)
        return ()

    def _late_ranks(self, key: OneKey) -> tuple[int, ...]:
        """The ranks that a round waits for and that others do not keep, as far as these have said so."""
        return tuple(rank for rank in key.missing() if rank not in key.excused)

    def _late(self, key: OneKey) -> ServerFail:
        late = self._late_ranks(key)
        ranks = late or tuple(key.missing())
        waiting = _waiting(key)
        what = f"step {waiting}" if waiting else "the initial value"
        which = f"of key {key.declared.name!r}"
        why = f"{what} {which} waits for {self._named(ranks)}; nothing came for {self.deadline:g} s"
        return ServerFail(ranks, why if late else f"{why}, and there others are waited for, in a round of {ELSE}")


def _waiting(key: OneKey) -> int:
    """The first step that somebody waits for."""
    return min(wait.step for wait in key.waits.values())


def _needs_whole(name: str) -> Refusal:
    return Refusal(
        f"this optimizer needs whole arrays, and key {name!r} is split over servers",
        "update on the workers, or use one server",
    )
