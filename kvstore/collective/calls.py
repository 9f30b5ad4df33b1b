"""Calls of collective operations as data, and the comparison of what the ranks have called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all_reduce", "reduce_scatter", "all_gather"
BROADCAST, BARRIER, SEND, RECEIVE = "broadcast", "barrier", "send", "receive"
VERBS = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, BARRIER, SEND, RECEIVE)


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what is done, with how many elements of what type, and under which name. `root` is the rank that a
    broadcast comes from, or the other end of a send and a receive; -1 elsewhere.

    >>> print(Call(ALL_REDUCE, "float32", 100, name="bucket 1"))
    all_reduce of float32[100] 'bucket 1'
    >>> print(Call(BROADCAST, "int64", 1, 2))
    broadcast of int64[1] from rank 2
    """

    verb: str
    dtype: str = ""
    count: int = 0
    root: int = -1
    name: str = ""

    def __str__(self) -> str:
        what = f"{self.verb} of {self.dtype}[{self.count}]" if self.dtype else self.verb
        at = "" if self.root < 0 else f" {'to' if self.verb == SEND else 'from'} rank {self.root}"
        return f"{what}{at}" + (f" {self.name!r}" if self.name else "")


def named(ranks: list[int]) -> str:
    """Ranks in a sentence.

    >>> named([1]), named([0, 2, 3])
    ('rank 1', 'ranks 0, 2, 3')
    """
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def differences(number: int, calls: Mapping[int, Call]) -> str:
    """The text of how the ranks' calls of one number differ; empty if they are the same.

    >>> same = Call(ALL_REDUCE, "float32", 8)
    >>> differences(3, {0: same, 1: Call(ALL_REDUCE, "float32", 9), 2: same})
    'call 3 is all_reduce of float32[9] on rank 1, and all_reduce of float32[8] on ranks 0, 2'
    >>> differences(3, {0: same, 1: same})
    ''
    """
    sides: dict[Call, list[int]] = {}
    for rank, call in sorted(calls.items()):
        sides.setdefault(call, []).append(rank)
    if len(sides) < 2:
        return ""
    fewest_first = sorted(sides.items(), key=lambda side: len(side[1]))  # who differs from most is told first
    return f"call {number} is " + ", and ".join(f"{call} on {named(ranks)}" for call, ranks in fewest_first)
