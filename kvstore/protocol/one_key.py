"""One key on its server: data received from each rank, the sum, the applied part, and the ranks that wait for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from . import serving as s
from .consistency import Consistency
from .keys import ALIGNMENT, OWN
from .serving import Acknowledge, Add, Apply, Arrived, Asked, Due, Instruction, KeyDeclared, Opened, Send, ServerReceive

Into = Literal["sum", "staging", "value"]


@cache
def _staleness(steps: int) -> str:
    """Under which name an answer is counted."""
    return f"staleness {max(0, steps)}"


class Refusal(Exception):
    """A request that cannot be served; nothing has changed."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


@dataclass(slots=True)
class KeyStream:
    """State of the push that a rank is sending, be it new or a repetition."""

    step: int
    session: int  # the connection
    expect: int = 0  # where the next frame begins


@dataclass(slots=True)
class KeyPushed:
    """The newest push of one rank, over any number of connections."""

    step: int
    into: Into
    arrived: int = 0  # bytes in memory
    added: int = 0  # bytes in the sum
    early: int = 0  # end of a frame that waits for ranks before it, or 0


@dataclass(slots=True)
class Wait:
    """A rank that waits for an answer."""

    step: int
    lane: int
    value: bool  # or only to know that the push counts
    pushed: bool  # or only asked
    sent: int = 0


@dataclass(slots=True)
class Round:
    """The open round."""

    step: int
    ranks: list[int]
    how: Literal["assign", "update"]
    whole: bool  # applied when complete, not range by range
    applied: int = 0


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The rule of rounds that open now."""

    consistency: Consistency
    update: bool = False
    elementwise: bool = True


@dataclass(slots=True)
class OneKey:
    """The state of one key; `clocks` has the last counted push of every rank that takes part."""

    declared: KeyDeclared
    version: int  # the last round (or, where pushes count one by one, how many of them) applied; -1: no value yet
    clocks: dict[int, int]
    counts: Counter[str]  # of the server
    streams: dict[int, KeyStream] = field(default_factory=dict[int, KeyStream])
    pushes: dict[int, KeyPushed] = field(default_factory=dict[int, KeyPushed])
    waits: dict[int, Wait] = field(default_factory=dict[int, Wait])
    round: Round | None = None
    stirred: bool = False  # since the last tick
    since: float | None = None  # when somebody began to wait
    asks: bool = False  # those who are missing, since then
    excused: set[int] = field(default_factory=set[int])  # those of them who wait for others in another round
    nbytes: int = field(init=False)
    own: bool = field(init=False)  # of the store: its rounds are sums, and no optimizer steps it

    def __post_init__(self) -> None:
        self.nbytes = self.declared.nbytes
        self.own = self.declared.name.startswith(OWN)

    def go_on(self, applied: int, rule: KeyRule) -> None:
        """A round was open when an earlier server ended: so many bytes of it are applied, and in the sum of nobody."""
        ranks = sorted(self.clocks)
        how: Literal["assign", "update"] = "update" if rule.update else "assign"
        self.round = Round(self.version + 1, ranks, how, False, applied)
        for rank in ranks:
            into: Into = "sum" if rank == ranks[0] else "staging"
            self.pushes[rank] = KeyPushed(self.round.step, into, applied, applied)

    # ---------------------------------------------------------------------------------------------------- requests

    def opened(self, e: Opened, session: int, rule: KeyRule) -> list[Instruction]:
        """A frame of a push. Raises Refusal."""
        if not 0 <= e.lo <= e.hi <= self.nbytes:
            raise Refusal(f"bytes {e.lo} to {e.hi} do not lie in {self.nbytes}")
        stream = self.streams.get(e.rank)
        if e.lo and (stream is None or (stream.session, stream.step, stream.expect) != (session, e.step, e.lo)):
            raise Refusal(f"bytes {e.lo} to {e.hi} of step {e.step} do not follow what came before")
        if stream is None or not e.lo:
            self._check(e, stream, session)
            stream = self._begun(e, session, rule)
        stream.expect = e.hi
        made: list[Instruction] = [self._received(e)]
        push = self.pushes.get(e.rank)
        newest = push is not None and push.step == e.step
        if newest and not self.nbytes:
            return made + self.progress(e.rank, rule) + self.answers(rule)
        repeated = not e.lo and (push is None or not newest or push.arrived > 0)
        return made + self.answers(rule) if repeated else made

    def pushed(self, e: s.Pushed, session: int, rule: KeyRule) -> list[Instruction]:
        """A push with its payload, in one frame if it ends where the key does. Raises Refusal."""
        rank, step, hi = e.rank, e.step, e.hi
        stream, push = self.streams.get(rank), self.pushes.get(rank)
        if (
            stream is None
            or push is None
            or not stream.step == push.step == self.clocks[rank] == step - 1
            or stream.session != session
            or hi != self.nbytes
            or rank in self.waits
        ):
            made = self.opened(Opened(rank, e.key, step, 0, hi, e.pull, e.lane), session, rule)
            return made + self.arrived(Arrived(rank, e.key, step, hi), rule)
        # the next push of one whose last push was answered, on the same connection: as nearly always
        push.into = into = self._target(e, rule)
        push.step = stream.step = step
        push.arrived = stream.expect = hi
        push.added = push.early = 0
        self.waits[rank] = Wait(step, e.lane, e.pull, True)
        return [ServerReceive(rank, e.key, step, 0, hi, into), *self.progress(rank, rule)]

    def _check(self, e: Opened, stream: KeyStream | None, session: int) -> None:
        """Check that a push may begin, be it new or a repetition. Raises Refusal."""
        if stream and stream.session == session and e.step <= stream.step:
            raise Refusal(f"rank {e.rank} pushed step {stream.step} already, and now step {e.step}")
        if e.rank in self.waits:
            raise Refusal(f"rank {e.rank} pushed step {e.step} before it was answered on an earlier one")
        if e.step < 0 or (e.step == 0 and e.rank != min(self.clocks)):
            raise Refusal(f"rank {e.rank} pushed step {e.step}: only the first rank gives the initial value")

    def _begun(self, e: Opened, session: int, rule: KeyRule) -> KeyStream:
        """A new push, or one that a lost connection had cut off, or an old one whose answer was lost."""
        push, clock = self.pushes.get(e.rank), self.clocks[e.rank]
        if push and push.step == e.step:
            push.early = 0
            self.counts["repeats"] += 1
        elif e.step <= clock and (e.step or self.version >= 0):
            self.counts["repeats"] += 1
        else:
            self.pushes[e.rank] = KeyPushed(e.step, self._target(e, rule))
        self.waits[e.rank] = Wait(max(e.step, clock), e.lane, e.pull, True)
        self.streams[e.rank] = KeyStream(e.step, session)
        return self.streams[e.rank]

    def _target(self, e: Opened | s.Pushed, rule: KeyRule) -> Into:
        """Return the target of a new push; open a round if need be. Raises Refusal for a wrong step."""
        if self.version < 0:
            if e.step or e.rank != min(self.clocks):
                raise Refusal(f"rank {e.rank} pushed step {e.step}, but there is no initial value yet")
            return "value"
        if not rule.consistency.sums:
            expected = self.clocks[e.rank] + 1
        elif self.round and e.rank not in self.round.ranks:
            raise Refusal(f"rank {e.rank} joined while step {self.round.step} was open, and pushed before it ended")
        else:
            expected = self.version + 1
        if e.step != expected:
            raise Refusal(f"rank {e.rank} pushed step {e.step}, its next one is {expected}")
        if not rule.consistency.sums:
            return "staging"
        if self.round is None:
            how: Literal["assign", "update"] = "update" if rule.update else "assign"
            self.round = Round(e.step, sorted(self.clocks), how, not rule.elementwise)
        return "sum" if e.rank == self.round.ranks[0] else "staging"

    def _received(self, e: Opened) -> ServerReceive:
        """Return the instruction for the payload of a frame."""
        push, at = self.pushes.get(e.rank), self.round
        if push is None or push.step != e.step or e.hi <= push.arrived:
            return ServerReceive(e.rank, e.key, e.step, e.lo, e.hi, "nothing", keep=e.hi)
        keep = max(e.lo, push.arrived)
        if push.into == "staging" and at and push.step == at.step and max(0, self._reach(e.rank)) < e.hi:
            push.early = e.hi
        return ServerReceive(e.rank, e.key, e.step, e.lo, e.hi, push.into, keep, early=push.early > 0)

    def asked(self, e: Asked, rule: KeyRule) -> list[Instruction]:
        """A pull. Raises Refusal."""
        if e.rank in self.waits:
            raise Refusal(f"rank {e.rank} asked again before it was answered")
        clock = self.clocks[e.rank]
        push = self.pushes.get(e.rank)
        step = max(clock, push.step) if push else clock  # older values are not kept
        if e.step > step:
            raise Refusal(f"rank {e.rank} asked for step {e.step}, and has pushed {step}")
        self.waits[e.rank] = Wait(step, e.lane, True, False)
        return self.answers(rule)

    # ---------------------------------------------------------------------------------------------------- progress

    def arrived(self, e: Arrived, rule: KeyRule) -> list[Instruction]:
        """Bytes of a push are in memory."""
        push, stream = self.pushes.get(e.rank), self.streams.get(e.rank)
        if push is None or stream is None or not push.step == stream.step == e.step or e.upto > stream.expect:
            return []
        upto = e.upto if e.upto == stream.expect else e.upto // ALIGNMENT * ALIGNMENT
        if upto <= push.arrived:
            return []
        push.arrived = upto
        if push.early <= upto:
            push.early = 0
        return self.progress(e.rank, rule)

    def progress(self, rank: int, rule: KeyRule) -> list[Instruction]:
        """Return the instructions that new bytes of this rank make possible."""
        self.stirred = True
        push, made = self.pushes[rank], list[Instruction]()
        complete = push.arrived == self.nbytes
        if push.into == "value":
            if complete and self.version < 0:
                self.version = 0
        elif rule.consistency.sums:
            at = self.round
            applied = at.applied if at else 0
            made = self._summed()
            if at is not None and at is self.round and at.applied == applied:
                return made  # there is nothing new to tell
        elif complete and push.step > self.clocks[rank]:
            self.version += 1
            self.clocks[rank] = push.step
            self.counts["pushes"] += 1
            made.append(
                Apply(self.declared.key, self.version, 0, self.nbytes, "update" if rule.update else "add", rank)
            )
        return made + self.answers(rule)

    def _reach(self, before: int) -> int:
        """Up to where the ranks before this one are in the sum."""
        assert self.round is not None
        reach = self.nbytes
        for rank in self.round.ranks:
            if rank == before:
                break
            push = self.pushes.get(rank)
            if push is None or push.step != self.round.step:
                return -1
            reach = push.arrived if push.into == "sum" else push.added
        return reach

    def _summed(self) -> list[Instruction]:
        """Add what can be added in rank order, apply what all have given."""
        at, made, key = self.round, list[Instruction](), self.declared.key
        if at is None:
            return []
        if not at.ranks:
            self.round = None
            return []
        pushes, step, reach = self.pushes, at.step, self.nbytes
        for rank in at.ranks:
            push = pushes.get(rank)
            if push is None or push.step != step:
                return made
            arrived = push.arrived
            if push.into == "sum":
                reach = arrived
                continue
            if push.early and push.early <= reach:
                made.append(Due(rank, key, step))
                push.early = 0
            if arrived < reach:
                reach = arrived
            if reach > push.added:
                made.append(Add(key, step, rank, push.added, reach, rank == at.ranks[0]))
                push.added = reach
        complete = reach == self.nbytes
        if reach > at.applied and (complete or not at.whole):
            made.append(Apply(key, at.step, at.applied, reach, at.how))
            at.applied = reach
        if complete:
            self.version, self.round = at.step, None
            for rank in at.ranks:
                if rank in self.clocks:
                    self.clocks[rank] = at.step
            self.counts["rounds"] += 1
            self.counts["pushes"] += len(at.ranks)
        return made

    # ----------------------------------------------------------------------------------------------------- answers

    def answers(self, rule: KeyRule) -> list[Instruction]:
        """Return the answers that can be sent now, by rank."""
        made, key = list[Instruction](), self.declared.key
        slowest = min(self.clocks.values(), default=0)
        for rank in sorted(self.waits):
            wait = self.waits[rank]
            upto, step = self._ready(rank, wait, slowest, rule), wait.step
            if wait.value and (upto > wait.sent or upto == self.nbytes):
                if rule.consistency.sums and self.version > step:
                    step = self.version
                made.append(Send(rank, key, step, wait.sent, upto, wait.lane))
                wait.sent = upto
            if upto == self.nbytes:
                del self.waits[rank]
                self.stirred = True
                if wait.pushed and wait.step:
                    self.counts[_staleness(wait.step - slowest)] += 1
                if not wait.value:
                    made.append(Acknowledge(rank, key, wait.step, wait.lane))
        return made

    def _ready(self, rank: int, wait: Wait, slowest: int, rule: KeyRule) -> int:
        """Return the number of bytes of the value that may be sent to a waiting rank; -1 if it may not be answered at
        all."""
        if self.version < 0:
            push = self.pushes.get(min(self.clocks))
            return (push.arrived if push else 0) or -1
        if not rule.consistency.sums:
            counted = self.clocks[rank] >= wait.step
            return self.nbytes if counted and rule.consistency.may_go(wait.step, slowest) else -1
        if self.version >= wait.step:
            return self.nbytes
        return (self.round.applied if self.round and self.round.step == wait.step else 0) or -1

    # -------------------------------------------------------------------------------------------------- membership

    def joined(self, rank: int, consistency: Consistency) -> None:
        """A rank takes part again: in rounds that open from now on, as if it had pushed to all before."""
        if consistency.sums:
            self.clocks[rank] = self.round.step if self.round else max(self.version, 0)
        else:
            push = self.pushes.get(rank)
            self.clocks[rank] = max(min(self.clocks.values(), default=0), push.step if push else 0)

    def forget(self, rank: int, lane: int) -> None:
        """A connection is gone: nobody waits there any more, and no payload is due."""
        wait = self.waits.get(rank)
        if wait and wait.lane == lane:
            del self.waits[rank]
            if rank in self.pushes:
                self.pushes[rank].early = 0

    def unfinished(self, rank: int) -> bool:
        """True if a push of this rank has arrived in part."""
        push = self.pushes.get(rank)
        return push is not None and push.arrived < self.nbytes

    def left(self, rank: int, rule: KeyRule) -> list[Instruction]:
        """A rank takes part no more. What it pushed counts; what it did not is not waited for."""
        del self.clocks[rank]
        self.waits.pop(rank, None)
        at = self.round
        push = self.pushes.get(rank)
        if at and rank in at.ranks and (push is None or push.step != at.step):
            at.ranks.remove(rank)
        made = self._summed() if rule.consistency.sums else []
        return made + self.answers(rule)

    def missing(self) -> list[int]:
        """Ranks that the oldest wait waits for."""
        if self.version < 0:
            return [min(self.clocks)]
        at = self.round
        if at:
            found = [self.pushes.get(rank) for rank in at.ranks]
            late = [p is None or p.step != at.step or p.arrived < self.nbytes for p in found]
            return [rank for rank, missing in zip(at.ranks, late, strict=True) if missing]
        unfinished = [rank for rank in self.waits if self.unfinished(rank)]
        slowest = min(self.clocks.values())
        return unfinished or [rank for rank, clock in sorted(self.clocks.items()) if clock == slowest]
