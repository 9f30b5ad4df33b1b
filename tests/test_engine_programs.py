"""The dependency engine: random programs against plain execution."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import mezzo as mz
from mezzo.runtime.engine import RESOURCES, Engine, Variable, Workload

LONG = 60.0  # seconds after which a test takes it that something hangs
MODES = ("threaded", "naive")

VARIABLES = 5


@dataclass
class Op:
    """One workload of a random program; `kind` says how it goes on."""

    reads: list[int]
    writes: list[int]
    kind: str  # plain, fails, pushes (another workload), waits (for one that it pushed), asynchronous
    resource: str
    priority: int
    cancel: bool  # the program tries to, right after the push


@dataclass
class Program:
    """What is run, and how."""

    ops: list[Op]
    bound: int
    threads: int
    stops: list[int] = field(default_factory=list[int])  # before these pushes the program waits for a variable


KINDS = ("plain", "plain", "plain", "fails", "pushes", "waits", "asynchronous", "fails asynchronously")
numbers = st.integers(0, VARIABLES - 1)
ops = st.builds(
    Op,
    st.lists(numbers, max_size=3),
    st.lists(numbers, max_size=2),
    st.sampled_from(KINDS),
    st.sampled_from(RESOURCES),
    st.integers(-1, 1),
    st.integers(0, 9).map(lambda n: n == 0),
)
programs = st.builds(
    Program,
    st.lists(ops, max_size=30),
    st.sampled_from((1, 3, 4096)),
    st.integers(1, 3),
    st.lists(st.integers(0, 30), max_size=3),
)


class Failed(Exception):
    """Carries the number of the workload that raised it."""


def mixed(number: int, values: list[Any]) -> int:
    """A result that depends on everything that went in."""
    return hash((number, *values)) & 0xFFFFFFFF


class Run:
    """A program on an engine; `inside` finds workloads that run together and must not."""

    def __init__(self, program: Program, engine: Engine) -> None:
        self.program, self.engine = program, engine
        self.values: list[int] = list(range(VARIABLES))
        self.variables = [engine.variable(f"v{i}") for i in range(VARIABLES)]
        self.extra = [0] * len(program.ops)  # what a workload pushed by another one leaves
        self.works: list[Workload] = []
        self.cancelled: set[int] = set()
        self.clashes: list[str] = []
        self._inside: list[tuple[int, Op]] = []
        self._lock = threading.Lock()

    def _enter(self, number: int, op: Op) -> None:
        with self._lock:
            for other, theirs in self._inside:
                both = {*op.reads, *op.writes} & {*theirs.writes} | {*op.writes} & {*theirs.reads, *theirs.writes}
                if both:
                    self.clashes.append(f"{number} and {other} over {both}")
            self._inside.append((number, op))

    def _compute(self, number: int, op: Op) -> None:
        result = mixed(number, [self.values[i] for i in op.reads])
        for i in op.writes:
            self.values[i] = result

    def _leave(self, number: int, op: Op) -> None:
        with self._lock:
            self._inside.remove((number, op))

    def _work(self, number: int, op: Op) -> None:
        self._enter(number, op)
        try:
            if op.kind == "fails":
                raise Failed(number)
            self._compute(number, op)
            if op.kind in ("pushes", "waits"):
                own = self.engine.variable("own")
                self.engine.push(self.extra.__setitem__, (), (own,), resource=op.resource, args=(number, number + 1))
                if op.kind == "waits":
                    self.engine.wait(own)
                    assert self.extra[number] == number + 1
        finally:
            self._leave(number, op)

    def _begin(self, number: int, op: Op, done: Any) -> None:
        self._enter(number, op)

        def end() -> None:
            self._compute(number, op)
            self._leave(number, op)
            done(Failed(number) if op.kind.startswith("fails") else None)

        threading.Thread(target=end).start()

    def run(self) -> None:
        for number, op in enumerate(self.program.ops):
            if number in self.program.stops:
                self.error(self.variables[number % VARIABLES])
            reads, writes = ([self.variables[i] for i in some] for some in (op.reads, op.writes))
            push, start = self.engine.push, self._work
            if op.kind.endswith(("asynchronous", "asynchronously")):
                push, start = self.engine.push_async, self._begin  # type: ignore[assignment]
            work = push(start, reads, writes, resource=op.resource, priority=op.priority, args=(number, op))
            if op.cancel and work.cancel():
                self.cancelled.add(number)
            self.works.append(work)

    def error(self, var: Variable) -> str:
        """What waiting for a variable raises."""
        try:
            self.engine.wait(var)
        except (Failed, mz.Cancelled) as error:
            return str(error.args[0])
        return ""

    def found(self) -> list[Any]:
        """Of every variable its error, or its value and version; of every workload its error."""
        state: list[Any] = []
        for var, value in zip(self.variables, self.values, strict=True):
            error = self.error(var)
            state.append(error or (value, var.version))
        ends = []
        for work in self.works:
            assert work.done
            ends.append("" if work.error is None else str(work.error.args[0]))
        return [state, ends, self.extra]


def expected(program: Program, cancelled: set[int]) -> list[Any]:
    """What `Run.found` has to be: the program in order, without an engine."""
    values: list[int] = list(range(VARIABLES))
    errors, versions = [""] * VARIABLES, [0] * VARIABLES
    ends, extra = [], [0] * len(program.ops)
    for number, op in enumerate(program.ops):
        error = next((errors[i] for i in op.reads if errors[i]), "")
        if number in cancelled:
            error = "cancelled before it ran"
        elif not error:
            error = str(number) if op.kind.startswith("fails") else ""
            if op.kind != "fails":
                result = mixed(number, [values[i] for i in op.reads])
                for i in op.writes:
                    values[i] = result
            if op.kind in ("pushes", "waits"):
                extra[number] = number + 1
        for i in op.writes:
            errors[i] = error
            versions[i] += not error
        ends.append(error)
    state = [e or (v, n) for e, v, n in zip(errors, values, versions, strict=True)]
    return [state, ends, extra]


@given(programs, st.sampled_from(MODES))
def test_random_programs_have_the_results_of_plain_execution(program: Program, mode: str) -> None:
    engine = Engine(mode, threads=dict.fromkeys(RESOURCES, program.threads), bound=program.bound)
    run = Run(program, engine)
    run.run()
    try:
        engine.wait_all(LONG)
    except (Failed, mz.Cancelled):
        engine.wait_all(LONG)  # the others are forgotten
    assert run.found() == expected(program, run.cancelled)
    assert run.clashes == []
    engine.close(LONG)
