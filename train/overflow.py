"""Origin of numbers that are not finite: a training step is run again under observation to find the operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops import DType, Tensor, Type
from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.compile.program import ProgramStep
from ..runtime.execution.instance import Instance
from ..runtime.execution.session import Session
from .building import SCALE


@dataclass(frozen=True, slots=True)
class Overflow:
    """A value with elements that are not finite though all of its operands are: its counts of infinities and of NaN.
    `place` names the operator (`operators`: all that one step computes at once), the input or the state."""

    place: str
    value: str
    operators: tuple[str, ...]
    infinite: int
    undefined: int

    def __str__(self) -> str:
        return f"{self.place}: {self.value!r} has {self.infinite} infinite elements and {self.undefined} that are NaN"


def tried(states: Mapping[str, Array], loss_scale: float | None) -> dict[str, Array]:
    """Copies of the states of a step, with another loss scale if one is given. InputError where there is none."""
    copies = {n: np.array(a) for n, a in states.items()}
    if loss_scale is not None:
        if SCALE not in copies:
            raise InputError("this training has no loss scale", where="overflow", hint='it comes with amp="fp16"')
        copies[SCALE][...] = loss_scale
    return copies


def overflows(session: Session, feeds: Mapping[str, Any]) -> tuple[Overflow, ...]:
    """Run a session once and return where numbers first ceased to be finite, in the order of execution.

    What a later operator makes of such numbers is not listed. The session's states move.
    """
    overflows: list[Overflow] = []
    clean = True

    def judge(place: str, value: str, operators: Iterable[str], kind: Type | None, array: Any) -> None:
        infinite, undefined = _counts(kind, array)
        if infinite or undefined:
            overflows.append(Overflow(place, value, tuple(operators), infinite, undefined))

    def observe(phase: str, index: int, step: ProgramStep, instance: Instance) -> None:
        nonlocal clean
        node, types, arrays = step.node, instance.program.types, instance.arrays
        if phase == "before":
            clean = not any(any(_counts(types.get(n), arrays.get(n))) for n in step.reads())
        elif clean:
            for name in step.writes():
                judge(node.place, name, node.origin or (node.op,), types.get(name), arrays.get(name))

    for name, array in feeds.items():
        judge(f"the input {name!r}", name, (), None, np.asarray(array))
    for name, array in session.states.items():
        judge(f"the state {name!r}", name, (), None, np.asarray(array))
    session.run(feeds, observe=observe)
    return tuple(overflows)


def _counts(kind: Type | None, array: Array | None) -> tuple[int, int]:
    """Return the number of infinite elements and of NaN. The bytes of a layout are its elements in another order."""
    if not isinstance(array, np.ndarray):
        return 0, 0
    if isinstance(kind, Tensor) and kind.layout:
        array = array.view(kind.dtype.numpy)
    dtype = DType.of(array.dtype)
    if not dtype.floating or dtype.bits < 16 or bool(np.isfinite(array).all()):
        return 0, 0
    return int(np.count_nonzero(np.isinf(array))), int(np.count_nonzero(np.isnan(array)))
