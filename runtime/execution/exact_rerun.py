"""Repetition of a run by kernels that keep NaN and infinities, after fast kernels may have lost one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops import Tensor, Type
from ...ops.dataclasses import replace
from .alarm import muted

if TYPE_CHECKING:
    from ..compile.program import ProgramStep
    from .executor import Executor
    from .instance import ExecutionContext, Instance, Observer
    from .session import Session


Answer = dict[str, Any]
FEW = 16  # runs made again that say nothing of the next ones


def again(session: Session, feeds: Mapping[str, Any], observe: Observer | None = None, **options: Any) -> Answer:
    """The answer to a run that found the flag up: that of the exact program, if a step that could lose a NaN or an
    infinity has met one there. Else the flag was raised for no reason (unused lanes of vectors hold anything), and the
    quick program's answer stands, so that the data alone decide which one is given. Where nearly every run meets a NaN,
    the exact program makes the next ones at once.

    The first alarm of a session makes its programs careful: they take the flag down behind steps that may raise it for
    no reason, and most sessions never need that. If it stays down then, there was none."""
    if not session._careful:
        session._careful = True
        session._arenas.forget_replays()
        return session.run(feeds, observe=observe, **options)
    met = Met(observe, session.device)
    try:
        answer = exact(session).run(feeds, observe=met, **options)
    finally:
        met.leave()
    if not met.any:
        with muted():
            return session.run(feeds, observe=observe, **options)
    session._alarms += 1
    runs = session._arenas.counts()[0]  # both runs of each alarm are counted
    session._often = session._alarms > FEW and session._alarms * 3 > runs
    return answer


class Met:
    """Observer that detects whether a step that could lose a NaN or an infinity reads or makes one."""

    def __init__(self, others: Observer | None, device: Executor) -> None:
        self.any = False
        self._others, self._device = others, device
        self._bodies: list[tuple[ExecutionContext, Observer | None]] = []  # of running steps, and who watched them

    def __call__(self, phase: str, index: int, step: ProgramStep, instance: Instance) -> None:
        if not self.any and self._device.may_lose_nan(step.node):
            for name in step.reads() if phase == "before" else step.writes():
                self.any = self.any or _odd(instance.arrays.get(name), instance.program.types.get(name))
        if self._others is not None:
            self._others(phase, index, step, instance)
        if step.bodies and phase == "before":
            self._bodies.append((instance.around, instance.around.watch))
            instance.around.watch = self
        elif step.bodies:
            self._left()

    def leave(self) -> None:
        """Watch no bodies any more, also of a step that has failed."""
        while self._bodies:
            self._left()

    def _left(self) -> None:
        around, watch = self._bodies.pop()
        around.watch = watch


def _odd(array: Any, known: Type | None) -> bool:
    if not isinstance(array, np.ndarray) or not isinstance(known, Tensor) or not known.dtype.floating:
        return False
    return not np.isfinite(array.reshape(-1).view(known.dtype.numpy)).all()


def exact(session: Session) -> Session:
    """The session with programs that keep NaN and infinities in each step, in the same arenas; made once."""
    with session.planning:
        if session._exact is None:
            rerun = session._exact = object.__new__(type(session))
            vars(rerun).update(vars(session))
            rerun._options, rerun._stored = replace(session._options, nan="exact"), None
            rerun._compiled, rerun._executables, rerun._known = {}, {}, {}
            rerun._fitting = session._fitting.afresh()
            rerun._latest, rerun._again, rerun._direct, rerun._often = None, None, None, False
        return session._exact
