"""Several devices under one program: each runs its part in a thread of its own, with memory of its own, and they hand
each other what is read elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Condition, Lock
from typing import Any, cast

import numpy as np

from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import ExecutionError, InputError
from ...ops.types import Array
from ..compile.parts import receives
from ..compile.program import Program, ProgramStep
from ..ir.graph import Node
from ..memory.liveness import aligned
from .alarm import is_muted, muted
from .executor import Executor
from .instance import ExecutionContext, Observer

LOOK = 0.01  # seconds between looks at the deadline of a run


class Passage:
    """Meeting place of the devices of one run: what one has made lies here, by key, until the run ends."""

    part: tuple[int, ...] = ()
    direct = True  # from device to device, and not over a store

    def __init__(self, check: Callable[[], bool]) -> None:
        self._check, self._there, self._changed = check, dict[str, Any](), Condition(Lock())
        self.failed = False

    def begin(self) -> None:
        """Forget what an earlier run has left."""
        self._there.clear()
        self.failed = False

    def put(self, key: str, value: Any) -> None:
        """Say that a value is there."""
        with self._changed:
            self._there[key] = value
            self._changed.notify_all()

    def take(self, key: str) -> Any:
        """Wait for a value. Raises ExecutionError where another device has failed, and what ends the run."""
        with self._changed:
            while key not in self._there:
                if self.failed:
                    raise ExecutionError("another device of this run has failed", where=f"the copy of {key!r}")
                self._changed.wait(LOOK if self._check() else None)
            return self._there[key]

    def end(self) -> None:
        """Let nobody wait any more: a device has failed."""
        with self._changed:
            self.failed = True
            self._changed.notify_all()


class Turns:
    """The observer of the steps of one device: those of all are told one at a time, each from its begin to its end. A
    step that waits for another device has its turn when there is nothing to wait for."""

    def __init__(self, observe: Observer, passage: Passage, turn: Lock, begin: int) -> None:
        self._observe, self._passage, self._turn, self._begin = observe, passage, turn, begin
        self._mine = False

    def __call__(self, phase: str, index: int, step: ProgramStep, instance: Any) -> None:
        if phase == "before":
            if receives(step.node):
                self._passage.take(str(step.node.attrs["key"]))
            self._mine = self._turn.acquire()
        self._observe(phase, index + self._begin, step, instance)
        if phase == "after":
            self.leave()

    def leave(self) -> None:
        """Let others have their turns."""
        if self._mine:
            self._mine = False
            self._turn.release()


class Arenas:
    """The arenas of a run's devices, each made when a program asks for it."""

    def __init__(self, nbytes: int, members: Mapping[str, Executor]) -> None:
        self.nbytes, self._members, self._made = nbytes, members, dict[str, Any]()

    def of(self, device: str, nbytes: int) -> Any:
        """An arena of a device with so many bytes at least."""
        known = self._made.get(device)
        if known is None or known.nbytes < nbytes:
            known = self._made[device] = self._members[device].allocate(nbytes)
        return known


@dataclass(frozen=True, slots=True)
class Together(Executor):
    """Several devices of one kind, as one to sessions."""

    members: Mapping[str, Executor] = field(default_factory=dict[str, Executor])
    places: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def place(self) -> Mapping[str, str]:
        return self.places

    @property
    def first(self) -> Executor:
        return next(iter(self.members.values()))

    @property
    def name(self) -> str:
        return ",".join(self.members)

    @property
    def runs(self) -> bool:
        return all(m.runs for m in self.members.values())

    def check_precision(self, precision: str, onednn: bool) -> str:
        return self.first.check_precision(precision, onednn)

    def held(self, program: Program) -> Mapping[Any, int]:
        return self.first.held(program)

    def may_lose_nan(self, node: Node) -> bool:
        return self.first.may_lose_nan(node)

    def keep(self, states: Mapping[str, Array]) -> Mapping[str, Array]:
        kept: dict[str, Array] = {}
        for name, array in states.items():
            kept |= self.members[self.places[name]].keep({name: array})
        return kept

    def report(self, program: Program) -> bool:
        told = [self.members[d].report(p) for d, p in program.parts.items()]  # each warns of its own
        return any(told)

    def instantiate(
        self, program: Program, arena: Any, context: ExecutionContext, states: Mapping[str, Array] | None = None
    ) -> Any:
        return PartedInstance(program, arena, context, self, states)


def together(place: Mapping[str, str], members: Mapping[str, Executor]) -> Together:
    """Several devices as one. Raises InputError for devices of several kinds."""
    kinds = {(d.partition(":")[0], m.sm) for d, m in members.items()}
    if len(kinds) > 1:
        shown = ", ".join(f"{d} (sm_{m.sm})" if m.sm else d for d, m in members.items())
        raise InputError(
            f"{shown} are devices of several kinds", where="place=", hint="a program has one kind: its kernels differ"
        )
    one = next(iter(members.values()))
    return Together(one.target, lambda nbytes: Arenas(nbytes, members), one.host, members, place)


class PartedInstance:
    """The instances of a program's parts, which run at the same time."""

    fixed = None  # no replay without a choice
    staged: Mapping[str, Array] = {}

    def __init__(
        self,
        program: Program,
        arenas: Arenas,
        around: ExecutionContext,
        executor: Together,
        states: Mapping[str, Array] | None,
    ) -> None:
        self.program, self.around = program, around
        self._passage = Passage(self._watched)
        around.exchange = cast(Any, self._passage)  # steps of copies alone speak to it
        self._parts = []
        for device, part in program.parts.items():
            member = executor.members[device]
            arena = arenas.of(device, aligned(part.arena_bytes))
            self._parts.append(member.instantiate(part, arena, around, states))
        self._threads = ThreadPoolExecutor(max(1, len(self._parts) - 1), "mezzo device")
        self._turn = Lock()  # of the steps of an observed run

    @property
    def refused(self) -> tuple[Any, ...]:
        """The steps that could not be captured, by their numbers in the whole program."""
        found, begin = list[Any](), 0
        for part in self._parts:
            found += [replace(r, index=r.index + begin) for r in part.refused]
            begin += len(part.program.steps)
        return tuple(found)

    def _watched(self) -> bool:
        self.around.check()
        return bool(self.around.meter.watches)

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any], *, observe: Observer | None = None) -> list[Any]:
        """Replay, as Instance.run does: every part at once. The first error is raised, and ends the others."""
        program, errors, quiet = self.program, list[BaseException](), is_muted()
        given = dict(zip(program.given, inputs, strict=True))
        wanted = dict(zip(program.results, outputs, strict=True))
        self._passage.begin()

        def one(part: Any, begin: int) -> list[Any]:
            names, seen = part.program, None if observe is None else Turns(observe, self._passage, self._turn, begin)
            try:
                with np.errstate(all="ignore"), muted() if quiet else nullcontext():
                    ins, outs = [given[n] for n in names.given], [wanted[n] for n in names.results]
                    return list(part.run(ins, outs, observe=seen))
            except BaseException as error:
                errors.append(error)
                self._passage.end()
                if seen is not None:
                    seen.leave()
                return []

        begins, at = [], 0
        for part in self._parts:
            begins.append(at)
            at += len(part.program.steps)
        pairs = list(zip(self._parts, begins, strict=True))
        others = [self._threads.submit(one, *pair) for pair in pairs[1:]]
        found = [one(*pairs[0]), *(other.result() for other in others)]
        if errors:
            raise errors[0]
        answers: dict[str, Any] = {}
        for part, results in zip(self._parts, found, strict=True):
            answers |= zip(part.program.results, results, strict=True)
        return [answers[n] for n in program.results]
