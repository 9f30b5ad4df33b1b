"""State machine of level 1: when the members of one host may reduce a value, and when it is final.

Every member has an operand of each round of a key; the reducers of a key each sum their part over all members. A member
tells the reducers when its operand is ready, and a reducer tells when its part is done: to everybody or, with a level
above, to the leader, which takes the sum further and tells everybody when the value that came back is in its place.
Keys do not wait for each other, and members may begin their rounds in different orders.

A member's operand may be one round ahead of what another member knows, never two: for the one after it every reducer
must have done its part of the round between. Nothing else is ever ahead.

Events and instructions are named tuples rather than frozen dataclasses: a round of 4 KB has ten of them, and 20 us.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ...ops.errors import MezzoError

# ---------------------------------------------------------------------------------------------------- what happened


class Ready(NamedTuple):
    """This member's operand is in its place (and stays there until the round is complete)."""

    member: int
    key: int
    step: int


class HostDone(NamedTuple):
    """This member has reduced its part."""

    member: int
    key: int
    step: int


class Final(NamedTuple):
    """The leader has replaced the sum by the value of all hosts."""

    member: int
    key: int
    step: int


class Hopeless(NamedTuple):
    """A reducer knows that this round will never complete, since `gone` (members as bits) have left."""

    member: int
    key: int
    step: int
    gone: int


class HostLeft(NamedTuple):
    """This member has closed its store in good order, after all its rounds; it takes part in no further one."""

    member: int


Telling = Ready | HostDone | Final | Hopeless
Event = Telling | HostLeft

# -------------------------------------------------------------------------------------------------- what to do then


class HostTell(NamedTuple):
    """Pass this event of ours on to these members."""

    event: Telling
    to: tuple[int, ...]


class HostReduce(NamedTuple):
    """Sum this member's part of the operands, then report HostDone."""

    key: int
    step: int


class Lift(NamedTuple):
    """Take the sum to the level above, then report Final."""

    key: int
    step: int


class Complete(NamedTuple):
    """The value of the round is in its place; the operands may change."""

    key: int
    step: int


class HostFail(NamedTuple):
    """The round that this member has begun will never complete, since these members have left."""

    key: int
    step: int
    members: tuple[int, ...]


Instruction = HostTell | HostReduce | Lift | Complete | HostFail


# ------------------------------------------------------------------------------------------------------ the machine


@dataclass(slots=True)
class _HostKey:
    """The round in progress (from 1), and which members have reported what; sets of members are bits."""

    reducers: int
    leader: int  # -1: none
    before: tuple[int, ...]  # whom to tell Ready
    after: tuple[int, ...]  # whom to tell Done
    step: int = 1
    ready: int = 0
    ahead: int = 0  # ready for the next round
    done: int = 0
    begun: bool = False  # this member's operand is ready
    doomed: int = 0  # the round that will never be complete; 0: none
    gone: int = 0  # because of these members

    @property
    def hopeless(self) -> bool:
        return 0 < self.doomed <= self.step


class Host:
    """State of one member. Members 0 to `members` - 1 have operands; `me` may be one more, which only lifts.

    >>> host = Host(0, 2)
    >>> host.declare(7, reducers=[0, 1])
    >>> host.handle(Ready(0, 7, 1))
    (HostTell(event=Ready(member=0, key=7, step=1), to=(1,)),)
    >>> host.handle(Ready(1, 7, 1))
    (HostReduce(key=7, step=1),)
    >>> host.handle(HostDone(1, 7, 1)), host.handle(HostDone(0, 7, 1))
    ((), (HostTell(event=HostDone(member=0, key=7, step=1), to=(1,)), Complete(key=7, step=1)))
    """

    def __init__(self, me: int, members: int) -> None:
        self.me, self.members = me, members
        self._mine, self._all = 1 << me, (1 << members) - 1
        self._left = 0
        self._keys: dict[int, _HostKey] = {}

    def declare(self, key: int, reducers: Iterable[int] | None = None, leader: int = -1) -> None:
        """A key is reduced by these members, each its part; by None, every member reduces all of it for itself."""
        others = self._others()
        if reducers is None:
            self._keys[key] = _HostKey(self._mine, -1, others, ())
            return
        some = sorted(set(reducers))
        after = others if leader < 0 else (leader,) if leader != self.me else ()
        self._keys[key] = _HostKey(sum(1 << m for m in some), leader, tuple(m for m in some if m != self.me), after)

    def step(self, key: int) -> int:
        """The round under way."""
        return self._keys[key].step

    def missing(self, key: int) -> tuple[int, ...]:
        """Whom this member waits for in the round under way, as far as it knows."""
        at = self._keys[key]
        needed = self._needed(at)
        return _numbers(needed & ~at.ready & self._all or needed)

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """Return the instructions for an event. Raises MezzoError, with the state unchanged, for an event that breaks
        the protocol."""
        if isinstance(event, HostLeft):
            self._left |= 1 << event.member
            return tuple(made for key, at in self._keys.items() for made in self._doubt(at, key))
        member, key = event.member, event.key
        at = self._keys.get(key)
        if at is None:
            raise MezzoError(f"{event} is about a key that was not declared", where="level 1")
        if event.__class__ is Ready:
            return self._begin(at, event) if member == self.me else self._join(at, event)
        bit, mine = 1 << member, member == self.me
        if isinstance(event, Hopeless):
            return self._give_up(at, key, event.step, event.gone)
        if event.step != at.step:
            raise self._unexpected(at, event)
        if isinstance(event, HostDone):
            if not at.reducers & bit or at.done & bit or (mine and at.ready != self._all):
                raise self._unexpected(at, event)
            at.done |= bit
            told = (HostTell(event, at.after),) if mine and at.after else ()
            return told + self._reduced(at, key) if at.done == at.reducers else told
        if member != at.leader or (mine and at.done != at.reducers):
            raise self._unexpected(at, event)
        told = (HostTell(event, self._others()),) if mine else ()
        return told + self._complete(at, key)

    def _begin(self, at: _HostKey, event: Ready) -> tuple[Instruction, ...]:
        """Begin the round with this member's operand."""
        if event.step != at.step or at.begun:
            raise self._unexpected(at, event)
        at.begun = True
        at.ready |= self._mine
        told = (HostTell(event, at.before),) if at.before else ()
        if at.ready == self._all and at.reducers & self._mine:
            return (*told, HostReduce(event.key, event.step))
        if self._left or at.doomed:
            return told + self._doubt(at, event.key)
        return told

    def _join(self, at: _HostKey, event: Ready) -> tuple[Instruction, ...]:
        """Another member's operand is ready."""
        _, key, step = event
        bit = 1 << event.member
        if step == at.step + 1 and not at.ahead & bit and at.reducers & self._mine:
            at.ahead |= bit
            return ()
        if step != at.step or at.ready & bit or not at.reducers & self._mine:
            raise self._unexpected(at, event)
        at.ready |= bit
        if at.ready == self._all:
            return (HostReduce(key, step),)
        return self._doubt(at, key) if self._left else ()

    def _reduced(self, at: _HostKey, key: int) -> tuple[Instruction, ...]:
        """Return the instructions once every part of the sum is in place."""
        if at.leader < 0:
            return self._complete(at, key)
        return (Lift(key, at.step),) if at.leader == self.me else ()

    def _complete(self, at: _HostKey, key: int) -> tuple[Instruction, ...]:
        made = Complete(key, at.step)
        at.step += 1
        at.ready, at.ahead, at.done, at.begun = at.ahead, 0, 0, False
        return (made, *self._doubt(at, key)) if self._left or at.doomed else (made,)

    def _needed(self, at: _HostKey) -> int:
        """Return the members that must still report, as bits."""
        needed = self._all & ~at.ready if at.reducers & self._mine else 0
        if at.leader in (-1, self.me):
            needed |= at.reducers & ~at.done
        elif at.leader >= 0:
            needed |= 1 << at.leader
        return needed & ~self._mine

    def _doubt(self, at: _HostKey, key: int) -> tuple[Instruction, ...]:
        """Give a round up that somebody has begun, where it needs one who has left."""
        if at.hopeless:
            return (HostFail(key, at.step, _numbers(at.gone)),) if at.begun else ()
        gone = self._needed(at) & self._left
        return self._give_up(at, key, at.step, gone) if gone and at.ready else ()

    def _give_up(self, at: _HostKey, key: int, step: int, gone: int) -> tuple[Instruction, ...]:
        """The round `step`, which is the one under way or the next, will never be complete."""
        if at.doomed:
            return ()
        at.doomed, at.gone = step, gone
        told = (HostTell(Hopeless(self.me, key, step, gone), self._others()),) if at.reducers & self._mine else ()
        return (*told, HostFail(key, step, _numbers(gone))) if at.begun and at.hopeless else told

    def _others(self) -> tuple[int, ...]:
        return tuple(m for m in range(self.members) if m != self.me)

    def _unexpected(self, at: _HostKey, event: Event) -> MezzoError:
        return MezzoError(
            f"{event} does not follow what was said before: round {at.step} is under way, ready are "
            f"{list(_numbers(at.ready))}, done {list(_numbers(at.done))}",
            where="level 1",
            hint="this is a fault of Mezzo, or of a process that only says it is a worker",
        )


def _numbers(bits: int) -> tuple[int, ...]:
    """The members of a set."""
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)
