"""Differential mode: runs one program in order and on threads, and reports the first workload with a different
effect."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from ...ops.dataclasses import dataclass
from ...ops.errors import InputError
from .check import digest
from .engine import Engine
from .work import Workload, current

JITTER = 2e-4  # seconds that a workload is delayed by, at most


@dataclass(frozen=True, slots=True)
class WorkloadDone:
    """Effect of a workload: where it was pushed, and the value of each variable that it wrote."""

    where: str
    wrote: tuple[tuple[str, str, str], ...]  # name, digest, what is shown of it
    error: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first workload, in the order of the program, whose effect on threads was different."""

    where: str
    what: str
    serial: str
    threaded: str
    seed: int

    def __str__(self) -> str:
        return f"{self.where}: {self.what} is {self.serial} in order and {self.threaded} on threads (seed {self.seed})"


class WorkloadRecorder:
    """Recorder of the effect of each workload by its place: the number of the push, after the place of the workload
    that pushed it."""

    def __init__(self, seed: int | None) -> None:
        self._lock = threading.Lock()
        self._random = None if seed is None else random.Random(seed)
        self._places: dict[Workload, tuple[int, ...]] = {}
        self._pushed: dict[tuple[int, ...], int] = {}
        self.done: dict[tuple[int, ...], WorkloadDone] = {}

    def pushed(self, work: Workload) -> None:
        """Record the place of a workload, and shuffle the ready ones."""
        parent = current()
        with self._lock:
            over = self._places.get(parent, ()) if parent is not None else ()
            number = self._pushed[over] = self._pushed.get(over, -1) + 1
            self._places[work] = (*over, number)
            self.done[*over, number] = WorkloadDone(work.where, ())
            if self._random is not None:
                work.priority = self._random.randrange(1 << 30)

    def begins(self, work: Workload) -> None:
        """Sometimes late."""
        if self._random is not None and self._random.random() < 0.25:
            time.sleep(self._random.uniform(0, JITTER))

    def ends(self, work: Workload, error: BaseException | None) -> None:
        """Record the effect of a workload that has ended."""
        wrote = tuple((v.name, digest(v._value), _shown(v._value)) for v in work.writes)
        with self._lock:
            place = self._places[work]
            self.done[place] = WorkloadDone(
                work.where, wrote, "" if error is None else f"{type(error).__name__}: {error}"
            )


def first_difference(
    program: Callable[[Engine], Any], *, rounds: int = 3, seed: int = 0, threads: int = 4
) -> Difference | None:
    """Run a program in order and then `rounds` times on threads, with other orders and delays each time.

    The program gets an engine, pushes from one thread, and returns what it wants compared; values of variables that
    workloads write are compared too (`Engine.variable(name, value)`), as `digest` tells them apart. Where a workload
    uses what it did not declare, this finds it by its result, so with some luck; `Engine(check=True)` finds writes of
    arrays for sure. Raises InputError if two runs in order differ already.

    >>> def program(engine):
    ...     total = engine.variable("total", np.zeros(1))
    ...     for i in range(9):
    ...         engine.push(lambda i=i: total.value.__imul__(2).__iadd__(i), writes=(total,))
    ...     return total.value
    >>> import numpy as np
    >>> first_difference(program)
    """
    serial, result = _run(program, Engine("naive"), None)
    again, _ = _run(program, Engine("naive"), None)
    if difference := _compare(serial, again, seed):
        raise InputError(
            f"two runs in order differ: {difference}", where="first_difference", hint="fix seeds and clocks"
        )
    for number in range(seed, seed + rounds):
        counts = dict.fromkeys(("compute", "copy", "io", "network"), threads)
        done, other = _run(program, Engine(threads=counts), number)
        if difference := _compare(serial, done, number):
            return difference
        if digest(other) != digest(result):
            return Difference("the program's result", "it", _shown(result), _shown(other), number)
    return None


def _run(
    program: Callable[[Engine], Any], engine: Engine, seed: int | None
) -> tuple[dict[tuple[int, ...], WorkloadDone], Any]:
    recorder = WorkloadRecorder(seed)
    with engine.watched(recorder):
        result = _outcome(lambda: program(engine))
        left = _outcome(engine.close)
    return recorder.done, result if left is None else left


def _outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or its error as text."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _compare(
    serial: dict[tuple[int, ...], WorkloadDone], other: dict[tuple[int, ...], WorkloadDone], seed: int
) -> Difference | None:
    for place, first in sorted(serial.items()):
        second = other.get(place)
        if second is None:
            return Difference(first.where, "the push", "there", "missing", seed)
        if first.error != second.error:
            return Difference(first.where, "the error", first.error or "none", second.error or "none", seed)
        for (name, mine, shown), (_, theirs, seen) in zip(first.wrote, second.wrote, strict=True):
            if mine != theirs:
                return Difference(first.where, f"variable {name!r}", shown, seen, seed)
    if more := sorted(other.keys() - serial.keys()):
        return Difference(other[more[0]].where, "the push", "missing", "there", seed)
    return None


def _shown(value: Any) -> str:
    text = str(value).replace("\n", " ")
    return text if len(text) <= 80 else f"{text[:77]}..."
