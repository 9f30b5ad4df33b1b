"""Events and instructions of a server, the vocabulary of the machine in `rounds.py`.

Named tuples rather than frozen dataclasses, since a small push is a dozen of them and a third of a microsecond each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from .messages import NOBODY

# ---------------------------------------------------------------------------------------------------- what happened


class KeyDeclared(NamedTuple):
    """A key has been admitted (perhaps again, by a further rank). `step` is the round of its value if that was
    restored, and -1 if the first rank will push the value as step 0. Of what was restored `counts` has by rank the last
    push that counts, and `applied` tells how many bytes of the next round are final."""

    key: int
    nbytes: int
    name: str = ""
    whole: bool = True  # all of the array, not a part of it
    step: int = -1
    rank: int = NOBODY
    lane: int = 0
    counts: Mapping[int, int] | None = None
    applied: int = 0


class Configured(NamedTuple):
    """Rounds that open from now on run another optimizer than before; it may or may not work element by element.

    Not for a `SetOptimizer` that equals the present one, which every rank but the first one sends.
    """

    elementwise: bool = True
    rank: int = NOBODY
    lane: int = 0


class Joined(NamedTuple):
    """A connection of this rank is open, for the first time or again; no `Left` follows for the one it replaces."""

    rank: int
    incarnation: int = 0
    lane: int = 0


class Left(NamedTuple):
    """A connection is closed; `orderly` after Bye. Otherwise `reason` says what became of its other end, which errors
    call `who`."""

    rank: int
    reason: str = "is lost: its connection was closed"
    orderly: bool = False
    lane: int = 0
    who: str = ""


class Opened(NamedTuple):
    """The header of a `Push` has arrived, whose payload is the bytes [lo, hi)."""

    rank: int
    key: int
    step: int
    lo: int
    hi: int
    pull: bool = True
    lane: int = 0


class Arrived(NamedTuple):
    """All bytes of this push below `upto` are in memory (in the place that `Receive` gave)."""

    rank: int
    key: int
    step: int
    upto: int


class Pushed(NamedTuple):
    """A `Push` of the bytes [0, hi) has arrived with its payload: `Opened` and `Arrived` at once. The payload is copied
    to the place that `Receive` gives before any later instruction is carried out."""

    rank: int
    key: int
    step: int
    hi: int
    pull: bool = True
    lane: int = 0


class Asked(NamedTuple):
    """A `Pull` has arrived."""

    rank: int
    key: int
    step: int
    lane: int = 0


class Excused(NamedTuple):
    """This rank, which was asked (`Ask`), waits for others in a round of another key."""

    rank: int
    key: int
    step: int


class ServerTicked(NamedTuple):
    """Time has passed; seconds of a clock that only this event tells."""

    now: float


Event = KeyDeclared | Configured | Joined | Left | Opened | Arrived | Pushed | Asked | Excused | ServerTicked

# ------------------------------------------------------------------------------------------------------- what to do


class ServerReceive(NamedTuple):
    """Read the payload [lo, hi) that `Opened` announced, and report it with `Arrived` (chunk by chunk, or at its end).

    Bytes below `keep` are in memory already: read and drop them. `early`: nothing can be done with the bytes before
    ranks that come first have sent theirs; they may stay in the kernel's buffers until `Due`, or until there is nothing
    else to do (never longer: another key may be behind them).
    """

    rank: int
    key: int
    step: int
    lo: int
    hi: int
    into: Literal["sum", "staging", "value", "nothing"]
    keep: int = 0
    early: bool = False


class Due(NamedTuple):
    """The early payload of this rank can be used as soon as it is read."""

    rank: int
    key: int
    step: int


class Add(NamedTuple):
    """Add the staged bytes [lo, hi) of this rank to the sum; the `first` ones replace it. The staging memory of these
    bytes is free afterwards."""

    key: int
    step: int
    rank: int
    lo: int
    hi: int
    first: bool = False


class Apply(NamedTuple):
    """Update the bytes [lo, hi) of the value to `step`.

    What is applied is the sum, or the staged push of `rank` (free afterwards). `assign`: it becomes the value; `add`:
    it is added to it; `update`: it is the gradient of one step of the optimizer, the `step`-th of this key. With
    `assign` nobody reads the old value any more: the sum's memory may become the value's.
    """

    key: int
    step: int
    lo: int
    hi: int
    how: Literal["assign", "add", "update"]
    rank: int | None = None


class Send(NamedTuple):
    """Send the bytes [lo, hi) of the value, as a `Value` of this step. They follow those sent before without a gap.

    They stay as they are until they have left, unless the consistency is bounded or eventual: then they may be newer.
    """

    rank: int
    key: int
    step: int
    lo: int
    hi: int
    lane: int = 0


class Acknowledge(NamedTuple):
    """Send `Done`."""

    rank: int
    key: int
    step: int
    lane: int = 0


class Refuse(NamedTuple):
    """Send `Refused`. The connection goes on; an announced payload is read and discarded."""

    rank: int
    key: int
    step: int
    reason: str
    hint: str = ""
    lane: int = 0


class Ask(NamedTuple):
    """Send `Late`: only the rank itself knows for whom of its host the round waits, or it waits too."""

    rank: int
    key: int
    step: int


class ServerFail(NamedTuple):
    """The job cannot go on: send `Failed` to everyone. No further event changes anything."""

    ranks: tuple[int, ...]
    reason: str


Instruction = ServerReceive | Due | Add | Apply | Send | Acknowledge | Refuse | Ask | ServerFail
