"""The order of a program's calls: with checks of the processor's flag and changes of OpenMP's thread count between
them, and native calls that follow each other as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...compile.program import Program
from ...execution.call_order import CallOrder, StepCall
from .batches import Batch, batched, is_native
from .flag_watch import FlagWatch
from .spinning import watch
from .teams import Order, Team, alone, placed


class OneDnnCallOrder(CallOrder):
    """The order of a program's calls, found when the first run has bound them all."""

    def __init__(self, program: Program, arrays: Mapping[str, Any], careful: bool) -> None:
        super().__init__(program, arrays)
        self._names = [step.node.place for step in program.steps]
        self._flags, self._team = FlagWatch(program, arrays, careful), Team()
        if program.target.threads > 1 and any(step.choice.implementation for step in program.steps):
            self.watch = watch()
        self._order: Order | None = None
        self._batched: Order | None = None
        self._inside: list[tuple[int, StepCall]] = []  # the calls that batches are made of, by the numbers of steps

    def separate(self, calls: Sequence[StepCall]) -> list[tuple[int, StepCall]]:
        return [(i, inserted or calls[i]) for i, inserted in self._ordered(calls)]

    def _ordered(self, calls: Sequence[StepCall]) -> Order:
        if self._order is None:
            single = list(map(alone, self.program.steps, calls))
            self._order = placed(self._flags.order(calls, single), single.__getitem__, self._team)
        return self._order

    def working(self, calls: Sequence[StepCall]) -> list[tuple[int, StepCall]]:
        # calls of large operands are rebound and stay; those of NumPy are made anew, and are in no batch
        if self._batched is not None:
            for i, call in self._inside:
                if calls[i] is not call:
                    break
            else:
                return [(i, inserted or calls[i]) for i, inserted in self._batched]
        self._batched = batched(self._ordered(calls), calls, self._names)
        some = any(isinstance(call, Batch) for _, call in self._batched)
        self._inside = [(i, call) for i, call in enumerate(calls) if some and is_native(call)]
        return [(i, inserted or calls[i]) for i, inserted in self._batched]

    def observed(self, i: int, calls: Sequence[StepCall]) -> StepCall:
        call = self._flags.around(i, calls)
        return partial(self._alone, call) if alone(self.program.steps[i], calls[i]) else call

    def _alone(self, call: StepCall) -> Any:
        self._team.alone()
        status = call()
        self._team.together()  # `abandon` does, after an error
        return status

    def abandon(self) -> None:
        self._team.together()
