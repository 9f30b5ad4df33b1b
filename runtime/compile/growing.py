"""Arrays with room: the caches of a conversation, whose next rows are written behind those that count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from ...ops.dataclasses import dataclass
from ...ops.types import Array
from .program import Program


class GrowingArray(np.ndarray[Any, Any]):
    """The elements that count of a larger array, `room`, which begins with them along each axis. What lies behind them
    may hold anything; a run may write there if it is `writable`: nobody else reads it."""

    room: Array | None = None
    writable = False

    @classmethod
    def of(cls, room: Array, heads: tuple[slice, ...], *, writable: bool) -> Self:
        """Return the view of these first elements along each axis."""
        view: Self = room[heads].view(cls)
        view.room, view.writable = room, writable
        return view


def plain(value: Any) -> Any:
    """The value as kernels take it: one with room as a contiguous array of the elements that count."""
    return np.array(value) if isinstance(value, GrowingArray) else value


@dataclass(frozen=True, slots=True)
class Growing:
    """The inputs of a program that may have room: nothing reads what lies behind their elements that count. `appended`
    tells, by the name of an output, of which it is the elements with more behind them, and may lie in its place."""

    inputs: frozenset[str]
    appended: Mapping[str, str]

    @classmethod
    def of(cls, program: Program) -> Self:
        """Look for them among the steps."""
        heads = Counter(s.node.inputs[i] for s in program.steps for i, _ in s.node.record.appends)
        reads = Counter(n for step in program.all_steps() for n in step.reads())
        inputs = frozenset(n for n in program.given if n in heads and reads[n] == heads[n])
        names, staged = dict(zip(program.results, program.outputs, strict=True)), {*program.staged}
        appended = dict[str, str]()
        for step in program.steps:
            for at, to in step.node.record.appends:
                past, present = step.node.inputs[at], step.node.outputs[to]
                alone = past in inputs and reads[past] == program.results.count(present) == 1
                if alone and program.types[past] == program.types[present] and not {past, present} & staged:
                    appended[names[present].name] = past
        return cls(inputs, appended)
