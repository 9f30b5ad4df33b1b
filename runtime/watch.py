"""Looks at the processor's flag for invalid operations, between the calls of a program."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from .onednn.invalid import Look, LookAtAll, LowerAll, lowered
from .onednn.postops import loses, noisy
from .program import Program, Step

Numbered = tuple[int, Callable[[], Any]]  # a call, and the number of its step


class Watch:
    """Where a program looks at the flag: behind `losing`, the steps that may have made another number of a NaN.

    NumPy takes the flag of its thread down before it computes, and leaves it up after a NaN: so it is taken down before
    each stretch of the library's calls with such a step, and looked at behind it. NumPy computes in no other thread:
    the workers of OpenMP are asked once, at the end, if such a step was shared among them. Stretches end before steps
    that may raise the flag for no reason (`noisy`); those that workers share are asked before, and lowered after.
    """

    def __init__(self, program: Program) -> None:
        target = program.target
        watches = target.onednn and not target.sm and target.nan == "watched"
        steps = enumerate(program.steps)
        self.losing = frozenset(i for i, step in steps if watches and _loses(program, step))
        self._noisy = [
            i for i, s in enumerate(program.steps) if i not in self.losing and self._may_be_noisy(program, s)
        ]
        self._stretches = _stretches(program, self.losing, self._noisy)
        self._ends: tuple[LookAtAll, LowerAll] | None = None

    def _may_be_noisy(self, program: Program, step: Step) -> bool:
        results = [program.types.get(o) for o in step.node.outputs]
        return bool(self.losing and step.choice.implementation) and noisy(step.node, results)

    def between(self, calls: list[Numbered]) -> list[Numbered]:
        """The calls with the looks in between."""
        if not self.losing:
            return calls
        events = [(begin, 3, lowered) for begin, _, _ in self._stretches]
        events += [(end, 1, look) for _, end, look in self._stretches]
        shared = {i for i, call in calls if getattr(call, "threads", 1) > 1}
        final = calls[-1][0]
        if not shared.isdisjoint(self.losing):
            last, down = self._all(calls)
            for i in shared.intersection(self._noisy):
                events += [(i + 1, 0, down), (i, 2, last), (i, 2, lowered)]
            events += [(final + 1, 2, last), (final + 1, 2, lowered)]
        for at, _, call in sorted(events, key=itemgetter(0, 1), reverse=True):
            calls.insert(bisect_left(calls, at, key=itemgetter(0)), (min(at, final), call))
        return calls

    def _all(self, calls: list[Numbered]) -> tuple[LookAtAll, LowerAll]:
        """A look at the flags of all threads that the calls use, and what takes them down."""
        if self._ends is None:
            threads = max(getattr(call, "threads", 1) for _, call in calls)
            self._ends = LookAtAll(threads), LowerAll(threads)
        return self._ends

    def around(self, i: int, calls: list[Numbered]) -> Callable[[], Any]:
        """The call of step `i` with looks around it, for runs that are observed: others compute between the steps."""
        call = calls[i][1]
        if i not in self.losing:
            return call
        look, down = self._all(calls)

        def looked() -> Any:
            down()
            status = call()
            look()
            return status

        return looked


def _loses(program: Program, step: Step) -> bool:
    return bool(step.choice.implementation) and loses(step.node, [program.types.get(o) for o in step.node.outputs])


def _stretches(program: Program, losing: frozenset[int], noise: list[int]) -> list[tuple[int, int, Look]]:
    """Where the stretches begin and end, by the numbers of steps."""
    found: list[tuple[int, int, Look]] = []
    begin = 0
    for i, step in enumerate([*program.steps, None]):
        if step is None or i in noise or not (step.choice.implementation or _view(step)):
            if not losing.isdisjoint(range(begin, i)):
                found.append((begin, i, Look()))
            begin = i + 1
    return found


def _view(step: Step) -> bool:
    """Whether a step computes nothing: its result is where it belongs already."""
    return any(a.kind == "view" for a in step.choice.aliases)
