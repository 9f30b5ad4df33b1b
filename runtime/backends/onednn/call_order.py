"""Insertion of checks of the processor's flag, and of changes of OpenMP's thread count, between a program's calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...compile.program import Program
from ...execution.call_order import CallOrder, StepCall
from .flag_watch import FlagWatch
from .teams import Order, Team, alone, placed


class OneDnnCallOrder(CallOrder):
    """The order of a program's calls, found when the first run has bound them all."""

    def __init__(self, program: Program, arrays: Mapping[str, Any], careful: bool) -> None:
        super().__init__(program, arrays)
        self._flags, self._team = FlagWatch(program, arrays, careful), Team()
        self._order: Order | None = None

    def working(self, calls: Sequence[StepCall]) -> list[tuple[int, StepCall]]:
        if self._order is None:
            single = list(map(alone, self.program.steps, calls))
            self._order = placed(self._flags.order(calls, single), single.__getitem__, self._team)
        return [(i, between or calls[i]) for i, between in self._order]

    def observed(self, i: int, calls: Sequence[StepCall]) -> StepCall:
        return self._flags.around(i, calls)

    def abandon(self) -> None:
        self._team.together()
