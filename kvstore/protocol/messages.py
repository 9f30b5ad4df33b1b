"""Messages between processes of a job, as frozen dataclasses that print; `wire.py` makes bytes of them.

Two kinds of traffic. *Control* is small and has metadata: Hello, Init, Barrier... A request is answered by a message of
its own kind (an `Init` by an `Init` with the key filled in, a `Barrier` by a `Barrier`), or by `Refused`. *Data* is
`Push`, `Pull`, `Value` and `Done`: all they say fits into the header, then come raw bytes. A value of a shard travels
as frames, each with its offset, in ascending order without gaps; frames of several keys mix on one connection.

A `key` is a small integer that the server gave when it answered `Init`; each server counts its own. A `rank` is who
speaks at level 2: the index of the host where level 1 sums, the rank of the worker where it does not. A `lane` tells
the connections of one rank to one server apart: 0 is the agent's, others belong to workers that speak for themselves.
A `step` counts the pushes of one rank to one key: 0 is the initial value, 1 the first push.

`Push` and `Value` are named tuples, which take a third of the time to make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

Role = Literal["scheduler", "server", "worker", "agent"]
Scalar = bool | int | float | str
NOBODY = -1  # a rank that is not known yet
FRAME = 1 << 20  # bytes of payload in one message, at most
LENT = 16 * FRAME  # bytes that one message offers in shared memory, at most
NEWEST = -1  # a step: the value as it is now


SEE = "see what that process printed last, or whether it stands still; the others cannot go on without it"  # a hint


def named(ranks: Iterable[int]) -> str:
    """Ranks as errors name them.

    >>> named([1, 2]), named([3])
    ('ranks 1, 2', 'rank 3')
    """
    numbers = [str(rank) for rank in ranks]
    return f"rank{'s' if len(numbers) != 1 else ''} {', '.join(numbers)}"


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on every connection. To the scheduler: asks for a rank (`rank` is a hint, or NOBODY). To a server:
    identifies the sender. The `incarnation` grows when a process is restarted in another's place.

    The numbers of workers and servers are those that the sender was told of; without workers it was told of none."""

    role: Role
    host: str
    rank: int = NOBODY
    lane: int = 0
    incarnation: int = 0
    address: str = ""  # "10.0.0.7:4321", where others reach this process, if they do
    consistency: str = "sequential"  # of level 2, as `consistency.parse` reads it; all workers must agree
    deadline: float = 0.0  # seconds that the sender waits
    gathering: int = 0  # that an agent belongs to (`Gather`)
    num_workers: int = 0
    num_servers: int = 0


@dataclass(frozen=True, slots=True)
class Welcome:
    """The scheduler's answer once the job is complete; a server's answer has `rank` and `incarnation` only.

    `hosts` has (name, ranks of its workers) per host; the place of a host is its rank at level 2.
    """

    rank: int
    num_workers: int = 0
    servers: tuple[str, ...] = ()  # addresses, by rank
    hosts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    consistency: str = "sequential"
    incarnation: int = 0  # of the server: another one than before means that it lost what was not saved
    gathering: int = 0  # how often the job has gathered before (`Gather`)


@dataclass(frozen=True, slots=True)
class Init:
    """Declares the bytes [lo, hi) of an array to a server; answered with `key`, and with `step` set to the last push of
    this rank that the server has counted (0 if none). The first rank then pushes step 0, the initial value."""

    name: str  # of the key: "w", or "#7" for the integer 7
    dtype: str  # name of a numpy or ml_dtypes type
    shape: tuple[int, ...]  # of the whole array
    lo: int
    hi: int
    rank: int = NOBODY
    key: int = 0
    step: int = 0


class Push(NamedTuple):
    """The payload is bytes [offset, offset + length) of this rank's contribution to the round `step`. `pull` asks for
    the value after it; else the answer is `Done`."""

    key: int
    step: int
    rank: int
    offset: int = 0
    pull: bool = True


@dataclass(frozen=True, slots=True)
class Packed:
    """A push of the `nbytes` bytes from `offset` on, whose payload is packed by a scheme of `packing.py`. The value is
    packed likewise, if it is the sum of all pushes. In a greater `era` than before nothing is kept of what was lost."""

    key: int
    step: int
    rank: int
    offset: int
    nbytes: int
    scheme: str
    pull: bool = True
    era: int = 0


@dataclass(frozen=True, slots=True)
class PackedValue:
    """A `Value` of the `nbytes` bytes from `offset` on, whose payload is packed."""

    key: int
    step: int
    rank: int
    offset: int
    nbytes: int
    scheme: str


@dataclass(frozen=True, slots=True)
class Pull:
    """Asks for the value as of this rank's push `step` (or NEWEST)."""

    key: int
    step: int
    rank: int


class Value(NamedTuple):
    """The payload is bytes [offset, offset + length) of the value. `step` is the one asked for, or the round that the
    value ended with if that is later."""

    key: int
    step: int
    rank: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The push `step` has been counted; the answer to a push that did not ask for the value."""

    key: int
    step: int
    rank: int


@dataclass(frozen=True, slots=True)
class Late:
    """A round waits for ranks of level 2, and its deadline ends now. Whom it waits for is asked which of its host's
    workers are missing: it tells the scheduler or, where none is, answers with the same, that its host waits for others
    in another round. Who waits hears that the server is not the reason."""

    key: int
    step: int
    rank: int


@dataclass(frozen=True, slots=True)
class SetOptimizer:
    """Sets the optimizer for rounds that open from now on: its registered name, and its scalars."""

    name: str
    scalars: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    rank: int = NOBODY


@dataclass(frozen=True, slots=True)
class States:
    """Optimizer states of a shard. Without a payload: a request for them. With one: the states (an answer, or states to
    be loaded), as the bytes [offset, offset + length) of all `arrays` (name, dtype, shape) one after the other."""

    key: int
    rank: int
    offset: int = 0
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Slices:
    """Asks for parts of the current value: the payload has the start of each slice of `width` bytes (int64, bytes of
    the shard). The answer has their bytes, one slice after the other, in one frame."""

    key: int
    rank: int
    width: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The gradient of some rows, with which the optimizer steps them at once; answered, without payload, when it has.
    The payload is the bytes [offset, offset + length) of `total`: the numbers of the rows (int64, ascending), then the
    rows, whole. `first` tells how many rows of the same gradient, on other servers, come before them. `step` counts
    such gradients of this rank to this key, from 1: each is stepped once, however often it comes."""

    key: int
    rank: int
    step: int
    offset: int = 0
    total: int = 0
    first: int = 0


@dataclass(frozen=True, slots=True)
class Lend:
    """A segment of shared memory for a server beside the agent that has it (`lent.py` says what it is told by), to be
    mapped under this number; without a size, to be forgotten. Answered with the size, or 0 where it is out of reach."""

    number: int
    rank: int
    process: int = 0
    file: int = 0
    kernel: str = ""
    node: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """A push of the bytes [offset, offset + length) of a shard, which lie in lent memory.

    The shard begins there at byte `at` of segment `source`. Where the value is wanted (`pull`), it is to be written to
    segment `target`, where the shard begins at byte `to`.
    """

    key: int
    step: int
    rank: int
    offset: int
    length: int
    source: int
    at: int
    pull: bool = True
    target: int = 0
    to: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """The bytes [offset, offset + length) of the value of a shard are in the lent memory of who offered its push."""

    key: int
    step: int
    rank: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier; answered when every worker has sent one with this name, and said the same."""

    name: str
    rank: int
    said: str = ""


@dataclass(frozen=True, slots=True)
class ServerStats:
    """Asks for, or reports, the counters of a process: rounds, pushes, "staleness 2"..."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Report:
    """Tells the scheduler how a process gets on: sums by name (`pace.py`). Nothing answers."""

    rank: int
    counts: Mapping[str, float] = field(default_factory=dict[str, float])


Seen = tuple[Role, int, str, float, Mapping[str, float]]  # role, rank, host, seconds since it was heard, its counts


@dataclass(frozen=True, slots=True)
class Overview:
    """Asks the scheduler for its view of the job from the member number `first` on, by a member or by whoever has the
    job's key; answered with some of the `total` members."""

    first: int = 0
    total: int = 0
    members: tuple[Seen, ...] = ()
    workers: int = 0  # that were declared

    def behind(self, before: Overview) -> tuple[Overview, bool]:
        """This answer behind those that came before it, and whether it was the last one."""
        known = (*(before.members if self.first else ()), *self.members)
        return replace(self, first=0, members=known), len(known) >= self.total or not self.members


@dataclass(frozen=True, slots=True)
class Refused:
    """The request cannot be served; nothing has changed. `key` and `step` are 0 where it had none."""

    reason: str
    hint: str = ""
    key: int = 0
    step: int = 0
    rank: int = NOBODY


@dataclass(frozen=True, slots=True)
class Failed:
    """The job has failed, because of these ranks."""

    ranks: tuple[int, ...]
    reason: str
    role: Role = "worker"
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Gather:
    """The job gathers again, for the time of this number, since these ranks are lost and others may take their places:
    all that was shared is forgotten, and whoever goes on says Hello on a new connection."""

    number: int
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sign of life."""


@dataclass(frozen=True, slots=True)
class Bye:
    """This rank leaves, in good order if `code` is 0; none of its messages follow."""

    rank: int
    code: int = 0
    reason: str = ""


Message = (
    Hello
    | Welcome
    | Init
    | Push
    | Pull
    | Value
    | Done
    | SetOptimizer
    | States
    | Slices
    | Rows
    | Lend
    | Offer
    | Written
    | Packed
    | PackedValue
    | Barrier
    | ServerStats
    | Report
    | Overview
    | Refused
    | Failed
    | Gather
    | Late
    | Heartbeat
    | Bye
)
