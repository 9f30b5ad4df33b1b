"""The dependency engine: random programs against plain execution, errors, waiting, and what it says of itself."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mezzo as mz
from mezzo.runtime.engine import RESOURCES, Difference, Engine, Variable, Work, first_difference
from mezzo.runtime.engine import engine as mz_engine
from mezzo.runtime.engine.future import ahead, submit
from mezzo.runtime.engine.process import from_environment

LONG = 60.0  # seconds after which a test takes it that something hangs
MODES = ("threaded", "naive")


@pytest.fixture(params=MODES)
def eng(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine of each mode."""
    engine = Engine(request.param, threads={"compute": 2})
    yield engine
    engine.close(LONG)


@pytest.fixture
def threaded() -> Iterator[Engine]:
    """An engine with two threads that compute."""
    engine = Engine(threads={"compute": 2})
    yield engine
    engine.close(LONG)


# Random programs

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
        self.works: list[Work] = []
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


def test_two_draws_from_one_generator_are_ordered_by_declaring_them_as_writes(eng: Engine) -> None:
    generator, expected = np.random.default_rng(5), np.random.default_rng(5)
    state, drawn = eng.variable("generator"), [0.0] * 50
    for i in range(50):
        eng.push(lambda i=i: drawn.__setitem__(i, generator.random()), writes=(state,), resource=RESOURCES[i % 4])
    eng.wait(state)
    assert drawn == expected.random(50).tolist()


def test_priorities_and_the_order_among_equals() -> None:
    with Engine(threads={"compute": 1}) as engine:
        gate, order = threading.Event(), list[int]()
        engine.push(gate.wait, args=(LONG,))
        for i, priority in enumerate((0, 5, 0, -1, 5)):
            engine.push(order.append, args=(i,), priority=priority)
        gate.set()
    assert order == [1, 4, 0, 2, 3]


def test_each_resource_has_threads_of_its_own(threaded: Engine) -> None:
    names, gate = dict[str, str](), threading.Barrier(len(RESOURCES) + 1)

    def note(resource: str) -> None:
        gate.wait(LONG)
        names[resource] = threading.current_thread().name

    for resource in RESOURCES:
        threaded.push(note, resource=resource, args=(resource,))
    gate.wait(LONG)  # all of them run at once
    threaded.wait_all(LONG)
    assert names == {resource: f"mezzo {resource} 0" for resource in RESOURCES}


# Errors


def fail() -> None:
    raise ValueError("no good")


def refuse() -> None:
    raise mz.ExecutionError("no good")


@pytest.mark.parametrize("raising", [fail, refuse])
def test_an_error_surfaces_where_it_is_waited_for_with_the_line_that_pushed(eng: Engine, raising: Any) -> None:
    a, b, c = (eng.variable(name) for name in "abc")
    line = sys._getframe().f_lineno + 1
    work = eng.push(raising, writes=(a,), name="sum")
    copy = eng.push(lambda: None, reads=(a,), writes=(b,))
    eng.push(lambda: None, writes=(c,))
    eng.wait(c)
    lengths = set()
    for waiting in (partial(eng.wait, b), partial(eng.wait, a), work.wait, copy.wait, work.wait):
        with pytest.raises((ValueError, mz.ExecutionError), match="no good") as caught:
            waiting()
        told = f"workload 'sum', pushed at {__file__}:{line} in {sys._getframe().f_code.co_name}"
        assert caught.value.__notes__ == [f"in {told}"]
        if isinstance(caught.value, mz.MezzoError):
            assert caught.value.where == told
        lengths.add(len(caught.traceback) - (waiting in (work.wait, copy.wait)))
    assert work.error is copy.error is caught.value
    assert copy.where.startswith(f"workload '<lambda>', pushed at {__file__}:{line + 1} ")
    assert max(lengths) < 12, "the traceback grows with every wait"
    assert (a.version, b.version, c.version) == (0, 0, 1)
    eng.wait_all()  # all were told of it
    eng.push(lambda: None, reads=(a,), writes=(a,))
    with pytest.raises((ValueError, mz.ExecutionError)):
        eng.wait(a)
    eng.push(lambda: None, writes=(a,))  # only writes: whatever was wrong with it is gone
    eng.wait(a)
    assert a.version == 1


def test_the_line_is_that_of_the_user_not_of_this_package(eng: Engine) -> None:
    code = compile("def inner(engine): return engine.push(int)", f"{Path(mz.__file__).parent}/tools/x.py", "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    line = sys._getframe().f_lineno + 1
    assert f"{__file__}:{line} in " in space["inner"](eng).where


def test_wait_all_raises_the_first_error_that_nobody_has_seen(eng: Engine) -> None:
    seen = eng.push(fail, writes=(eng.variable(),))
    with pytest.raises(ValueError, match="no good"):
        seen.wait()
    for i in range(100):
        eng.push({}.__getitem__, args=(i,))
    with pytest.raises(KeyError):
        eng.wait_all()
    eng.wait_all()


def test_an_interrupt_goes_through_and_cancels_what_depends_on_it(eng: Engine) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    gate, a, b = threading.Event(), eng.variable(), eng.variable()
    if eng.mode == "threaded":
        for _ in range(2):  # its threads are kept busy
            eng.push(gate.wait, args=(LONG,))

    def program() -> None:
        eng.push(interrupt, writes=(a,))  # naive: here
        eng.push(lambda: None, reads=(a,), writes=(b,))
        eng.wait(b)

    with pytest.raises(KeyboardInterrupt):
        program()
    gate.set()
    with pytest.raises(KeyboardInterrupt):
        eng.wait(a)


def test_cancelling(threaded: Engine) -> None:
    gate, a, ran = threading.Event(), threaded.variable("a"), list[int]()
    first = threaded.push(gate.wait, writes=(a,), args=(LONG,))
    second = threaded.push(ran.append, writes=(a,), args=(2,))
    third = threaded.push(ran.append, reads=(a,), args=(3,))
    while "runs" not in repr(first):
        time.sleep(0.001)
    assert (first.cancel(), second.cancel(), second.cancel()) == (False, True, True)
    assert not second.done
    assert second.error is None
    gate.set()
    with pytest.raises(mz.Cancelled, match="before it ran") as caught:
        threaded.wait(a)
    assert second.where in str(caught.value)
    assert ran == []
    assert third.error is second.error
    assert not third.cancel()


# Waiting


def test_what_is_ready_and_waited_for_runs_in_the_thread_that_waits(threaded: Engine) -> None:
    gate, a, where = threading.Event(), threaded.variable(), list[threading.Thread]()
    for _ in range(2):
        threaded.push(gate.wait, args=(LONG,))  # keeps the threads of the engine busy
    for _ in range(3):
        threaded.push(lambda: where.append(threading.current_thread()), writes=(a,))
    threaded.wait(a)
    assert where == [threading.current_thread()] * 3
    gate.set()


def test_entries_of_what_a_waiting_thread_took_do_not_pile_up(threaded: Engine) -> None:
    gate, a = threading.Event(), threaded.variable()
    for _ in range(2):
        threaded.push(gate.wait, args=(LONG,))
    for _ in range(10):
        threaded.push(int, priority=-1)
    for i in range(1000):
        threaded.push(int, writes=(a,), priority=-(i % 3))
        threaded.wait(a)
    assert len(threaded._lanes["compute"].heap) < 200
    gate.set()


def test_deadlines(threaded: Engine) -> None:
    gate, a = threading.Event(), threaded.variable()
    work = threaded.push(gate.wait, writes=(a,), args=(LONG,), name="slow")
    for waiting in (partial(threaded.wait, a), work.wait, threaded.wait_all):
        with pytest.raises(mz.DeadlineError, match="had not ended before the deadline") as caught:
            waiting(0.01)
    assert "Engine.wait_all" in str(caught.value)
    gate.set()
    threaded.wait(a, LONG)


def test_nothing_hangs_when_the_queue_is_full() -> None:
    with Engine(threads=dict.fromkeys(RESOURCES, 1), bound=2) as engine:
        a, ran = engine.variable("a"), list[int]()

        def more(depth: int) -> None:
            ran.append(depth)
            if depth:
                for _ in range(3):
                    engine.push(more, writes=(engine.variable(),), args=(depth - 1,))

        def pushing() -> None:
            for _ in range(20):
                engine.push(more, writes=(a,), args=(2,))

        threads = [threading.Thread(target=pushing) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        engine.wait_all(LONG)
        assert len(ran) == 80 * 13
        assert a.version == 80


def test_workloads_that_wait_need_no_thread_more(eng: Engine) -> None:
    """More of them than there are threads, each waiting for several that it pushes, three deep."""

    def sum_of(depth: int, into: list[int]) -> None:
        if not depth:
            into.append(1)
            return
        parts = [(eng.variable(), list[int]()) for _ in range(4)]
        for var, part in parts:
            eng.push(sum_of, writes=(var,), args=(depth - 1, part))
        for var, part in parts:
            eng.wait(var)
            into.extend(part)

    results = [list[int]() for _ in range(5)]
    for result in results:
        eng.push(sum_of, args=(3, result))
    eng.wait_all(LONG)
    assert [len(r) for r in results] == [64] * 5


def test_a_workload_that_would_wait_for_itself_is_told_so(eng: Engine) -> None:
    a, b = eng.variable("a"), eng.variable("b")

    def own() -> None:
        eng.wait(a)

    def what_follows() -> None:
        eng.push(int, reads=(a,), writes=(b,))
        eng.wait(b)

    for circular in (own, what_follows, eng.wait_all, eng.close):
        with pytest.raises(mz.InputError, match="waits for"):
            eng.push(circular, writes=(a,)).wait()


def test_two_workloads_that_wait_for_each_other_are_told_so(threaded: Engine) -> None:
    gate = threading.Barrier(2)
    pair = [threaded.variable("a"), threaded.variable("b")]

    def cross(mine: int) -> None:
        gate.wait(LONG)
        threaded.wait(pair[1 - mine])

    works = [threaded.push(cross, writes=(pair[i],), args=(i,)) for i in range(2)]
    while not all(work.done for work in works):
        time.sleep(0.001)
    errors = [work.error for work in works]
    assert any(isinstance(e, mz.InputError) for e in errors)


# Asynchronous workloads


def test_an_asynchronous_workload_ends_when_it_is_said_to(threaded: Engine) -> None:
    a, kept = threaded.variable("a"), list[Any]()
    threaded.push_async(kept.append, writes=(a,))
    with pytest.raises(mz.DeadlineError):
        threaded.wait(a, 0.01)
    kept[0]()
    threaded.wait(a, LONG)
    with pytest.raises(mz.InputError, match=r"done\(\) was called before"):
        kept[0]()
    threaded.push_async(lambda done: done(OSError("gone")), writes=(a,))
    with pytest.raises(OSError, match="gone"):
        threaded.wait(a)
    threaded.push_async(lambda done: fail(), writes=(a,))
    with pytest.raises(ValueError, match="no good"):
        threaded.wait(a)


def test_a_thread_that_ends_asynchronous_workloads_may_push_when_the_queue_is_full() -> None:
    engine, kept = Engine(bound=2), list[Any]()
    a = engine.variable("a")
    for _ in range(2):
        engine.push_async(kept.append, writes=(a,))

    def deliver() -> None:
        for number in range(7):
            while len(kept) <= number:
                time.sleep(0.001)
            kept[number]()
            for _ in range(max(0, 3 - number) if number < 2 else 0):
                engine.push_async(kept.append, writes=(a,))

    thread = threading.Thread(target=deliver, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    engine.close(LONG)
    assert a.version == 7


# What it refuses


def test_bad_calls(eng: Engine) -> None:
    bad: dict[str, Any]
    for bad in ({"resource": "gpu"}, {"reads": ("a",)}, {"reads": 5}, {"writes": (Engine("naive").variable("z"),)}):
        with pytest.raises(mz.InputError):
            eng.push(int, **bad)
    wrong: list[dict[str, Any]] = [{"mode": "fast"}, {"threads": {"gpu": 1}}, {"threads": {"io": 0}}, {"bound": 0}]
    for how in wrong:
        with pytest.raises(mz.InputError):
            Engine(**how)
    eng.wait_all()
    closed = Engine(eng.mode)
    a = closed.variable()
    closed.close()
    closed.close()
    for call in (partial(closed.push, int), partial(closed.wait, a), closed.wait_all):
        with pytest.raises(mz.InputError, match="the engine is closed"):
            call()


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Code in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEZZO_")}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=False, timeout=LONG)


PROCESS = """
import time
from mezzo.runtime.engine import engine
def late():
    time.sleep(0.2)
    print(engine().mode, flush=True)
def fail():
    raise ValueError("unseen")
engine().push(late)
engine().push(fail)
"""


@pytest.mark.parametrize("environment", [{}, {"MEZZO_ENGINE": "naive"}, {"MEZZO_ENGINE_CHECK": "1"}])
def test_a_process_ends_with_all_work_done_and_all_errors_told(environment: dict[str, str]) -> None:
    done = python(PROCESS, **environment)
    assert done.stdout.strip() == ("naive" if environment else "threaded")
    assert "ValueError: unseen" in done.stderr
    assert "in workload 'fail', pushed at <string>:10" in done.stderr
    assert done.returncode == 0


STUCK = """
import threading
from mezzo.runtime.engine import engine, process
process.PATIENCE = 0.2
engine().push(threading.Event().wait, name="stuck")
"""


def test_a_process_ends_although_a_workload_does_not() -> None:
    done = python(STUCK)
    assert "DeadlineError: Engine.wait_all: 1 workloads had not ended before the deadline" in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MEZZO_ENGINE", "fast", "'threaded' or 'naive'"),
        ("MEZZO_ENGINE_THREADS", "none", "a number above 0"),
        ("MEZZO_ENGINE_CHECK", "yes", "give 1"),
        ("MEZZO_ENGNE", "naive", "did you mean MEZZO_ENGINE?"),
        ("MEZZO_X", "1", "there are MEZZO_ENGINE, "),
    ],
)
def test_switches_that_are_wrong_or_unknown(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(mz.InputError) as caught:
        from_environment()
    assert said in str(caught.value)


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEZZO_ENGINE_THREADS", "3")
    with from_environment() as engine:
        gate = threading.Barrier(4)
        for _ in range(3):
            engine.push(gate.wait, args=(LONG,))
        gate.wait(LONG)
    monkeypatch.setenv("MEZZO_ENGINE", "naive")
    assert from_environment().mode == "naive"


FORKED = """
import os, warnings
warnings.simplefilter("ignore")
from mezzo.runtime.engine import engine
from mezzo.ops.errors import ForkedProcess
a = engine().variable("a")
work = engine().push(int, writes=(a,))
if os.fork() == 0:
    for call in (lambda: engine().push(int), lambda: engine().wait(a), lambda: engine().wait_all(), work.wait):
        try:
            call()
        except ForkedProcess as error:
            print(error.hint, flush=True)
    os._exit(0)
os.wait()
engine().wait(a)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_refused() -> None:
    done = python(FORKED)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["start workers with multiprocessing's 'spawn' or 'forkserver'"] * 4


def test_memory_is_flat() -> None:
    with Engine(threads={"compute": 1}) as engine:
        variables = [engine.variable() for _ in range(8)]

        def some(count: int) -> int:
            for i in range(count):
                engine.push(int, (variables[i % 8], variables[7]), (variables[i % 7],) if i % 3 else ())
            engine.wait_all(LONG)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            some(2000)
            first = some(2000)
            assert some(20000) - first < 50_000
        finally:
            tracemalloc.stop()


# Checking


@pytest.fixture
def checked() -> Iterator[Engine]:
    """An engine that checks what is touched."""
    engine = Engine(check=True)
    yield engine
    engine.close()


def test_an_undeclared_write_is_caught_where_it_is_pushed(checked: Engine) -> None:
    x, y = np.zeros(3), np.zeros(3)
    view = x[1:]  # has a flag of its own, so that only its bytes tell
    a, b = checked.variable("a", x), checked.variable("b", y)

    def direct() -> None:
        x[0] = 1

    def through_a_view() -> None:
        view[0] = 1

    def by_name() -> None:
        a.value = np.ones(3)

    def of_what_it_reads() -> None:
        a.value[0] = 1

    for touching, reads, said in (
        (direct, (), "was about to write 'a'"),
        (direct, (a,), "was about to write 'a'"),
        (through_a_view, (), "wrote 'a'"),
        (by_name, (a,), "sets 'a'"),
        (of_what_it_reads, (a,), "was about to write 'a'"),
    ):
        line = sys._getframe().f_lineno + 1
        work = checked.push(touching, reads=reads, writes=(b,))
        with pytest.raises(mz.ExecutionError, match=said) as caught:
            work.wait()
        assert f"{__file__}:{line}" in caught.value.where
        assert "writes 'b'" in caught.value.message
        x[:] = 0
        assert x.flags.writeable
    for touching in (direct, through_a_view, by_name):
        checked.push(touching, writes=(a,)).wait()
    assert x.tolist() == [1, 1, 0]
    assert a.value.tolist() == [1, 1, 1]


def test_an_undeclared_read_through_the_variable_is_caught(checked: Engine) -> None:
    a, b = checked.variable("a", 1), checked.variable("b", 2)

    def add() -> None:
        b.value = a.value + 1

    with pytest.raises(mz.ExecutionError, match=r"reads 'a', which it did not declare: reads nothing, writes 'b'"):
        checked.push(add, writes=(b,)).wait()
    checked.push(add, reads=(a,), writes=(b,)).wait()
    assert b.value == 2


def test_what_a_workload_has_run_inside_is_not_blamed_on_it(checked: Engine) -> None:
    x = np.zeros(3)
    a = checked.variable("a", x)

    def inner() -> None:
        x[:] = 1

    def outer() -> None:
        checked.push(inner, writes=(a,))
        checked.wait(a)

    checked.push(outer).wait()
    assert a.value.tolist() == [1, 1, 1]


def test_values_are_waited_for_and_set_in_turn(eng: Engine) -> None:
    a = eng.variable("a", 1)

    def double() -> None:
        time.sleep(0.001)
        a.value *= 2

    for _ in range(3):
        eng.push(double, reads=(a,), writes=(a,))
    assert a.value == 8
    eng.push(double, reads=(a,), writes=(a,))
    a.value = 5
    assert a.value == 5


def test_the_differential_mode_names_the_first_difference() -> None:
    line = sys._getframe().f_lineno + 8

    def program(engine: Engine, declared: bool) -> None:
        box = engine.variable("box", np.zeros(2))
        others = [engine.variable(f"other{i}", np.zeros(2)) for i in range(40)]
        for i, other in enumerate(others):
            engine.push(lambda i=i: box.value.__setitem__(0, i), (), (box,), name="set")
            reads = (box,) if declared else ()
            engine.push(lambda o=other: o.value.__setitem__(1, box.value[0]), reads, (other,), name="copy")

    assert first_difference(partial(program, declared=True)) is None
    found = first_difference(partial(program, declared=False), rounds=20)
    assert isinstance(found, Difference)
    assert f"workload 'copy', pushed at {__file__}:{line} in program" in str(found)
    assert found.what.startswith("variable 'other")
    assert found.serial != found.threaded


def test_the_differential_mode_compares_errors_and_results() -> None:
    def racing(engine: Engine) -> list[int]:
        seen = list[int]()
        for i in range(50):
            engine.push(seen.append, args=(i,))
        engine.wait_all()
        return seen

    def failing(engine: Engine) -> None:
        engine.push(fail, writes=(engine.variable(),))

    found = first_difference(racing)
    assert found is not None
    assert found.where == "the program's result"
    assert first_difference(failing) is None
    drawing = np.random.default_rng()
    with pytest.raises(mz.InputError, match="two runs in order differ"):
        first_difference(lambda e: e.push(drawing.random, writes=(e.variable("drawn", drawing),)).wait())


# Traces


def test_a_trace_shows_what_ran_where(threaded: Engine, tmp_path: Path) -> None:
    a, b = threaded.variable("a"), threaded.variable("b")
    kept = list[Any]()
    with threaded.trace() as trace:
        threaded.push(time.sleep, (), (a,), args=(0.001,), name="make")
        threaded.push_async(kept.append, (a,), (b,), name="send")
        threaded.push_async(kept.append, (a,), (), name="send too")
        while len(kept) < 2:
            time.sleep(0.001)
        kept[0]()
        kept[1](OSError("gone"))
        with trace.span("wait"):
            threaded.push(int, (b,), (a,), resource="io", name="read").wait()
        threaded.push(int, (b,), (a,), name="cancelled").cancel()
        with pytest.raises(OSError, match="gone"):
            threaded.wait_all()
    threaded.push(int, name="after").wait()
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    well_formed(events)
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    spans = {e["name"]: e for e in events if e["ph"] == "X"}
    assert set(spans) >= {"make", "send", "send too", "wait", "read"}
    assert "after" not in spans
    assert rows[spans["make"]["tid"]].startswith("mezzo compute")
    assert {rows[spans[name]["tid"]] for name in ("send", "send too")} == {f"network, under way {i}" for i in (0, 1)}
    assert spans["make"]["dur"] >= 1000
    assert spans["send too"]["args"]["error"] == "OSError: gone"
    assert spans["send"]["args"]["reads"] == ["a"]
    assert f"{__file__}:" in spans["send"]["args"]["pushed at"]
    arrows = {(source(events, e), e["name"]) for e in events if e["ph"] == "s"}
    assert {(s, t) for s, t in links(events)} >= {("make", "send"), ("make", "send too"), ("send", "read")}
    assert ("make", "read") not in links(events), "it waited for those that read what was made"
    assert arrows


def well_formed(events: list[dict[str, Any]]) -> None:
    """What the Trace Event Format asks of each kind of event."""
    rows = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    ends: dict[tuple[int, int], float] = {}
    for e in events:
        assert e["ph"] in "MXsf"
        assert isinstance(e["name"], str)
        assert isinstance(e["pid"], int)
        assert isinstance(e["tid"], int)
        if e["ph"] == "M":
            assert isinstance(e["args"]["name"], str)
            continue
        assert (e["pid"], e["tid"]) in rows
        assert e["ts"] >= 0
        if e["ph"] == "X":
            assert e["dur"] >= 0
        else:
            assert isinstance(e["id"], int)
            assert source(events, e), "an arrow begins and ends in a span"
            assert e["ph"] == "s" or e["bp"] == "e"
    starts, finishes = ([e["id"] for e in events if e["ph"] == ph] for ph in "sf")
    assert sorted(starts) == sorted(finishes) == list(range(1, len(starts) + 1))
    del ends


def source(events: list[dict[str, Any]], arrow: dict[str, Any]) -> str:
    """The span that an end of an arrow lies in."""
    inside = [
        e["name"]
        for e in events
        if e["ph"] == "X" and e["tid"] == arrow["tid"] and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"]
    ]
    return inside[-1] if inside else ""


def links(events: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """From which span to which there are arrows."""
    ends = {e["id"]: source(events, e) for e in events if e["ph"] == "f"}
    return {(source(events, e), ends[e["id"]]) for e in events if e["ph"] == "s"}


# Futures


def test_reading_ahead_keeps_the_order_and_raises_in_its_place() -> None:
    begun, threads = list[int](), set[str]()

    def call(i: int) -> int:
        begun.append(i)
        threads.add(threading.current_thread().name)
        if i == 7:
            raise ValueError("no good")
        return i

    found = []

    def use(one: int) -> None:
        found.append(one)
        while max(begun) < min(one + 2, 9):  # two more are read while this one is used
            time.sleep(0.001)
        assert max(begun) <= one + 2

    with pytest.raises(ValueError, match="no good"):
        any(map(use, ahead((partial(call, i) for i in range(20)), 2)))
    assert found == list(range(7))
    assert max(begun) <= 9, "what follows an error is not read"
    assert any(name.startswith("mezzo io") for name in threads)
    threads.clear()
    assert list(ahead([partial(call, 1), partial(call, 2)], 0)) == [1, 2]
    assert threads == {threading.current_thread().name}


def test_a_future_that_is_cancelled_is_not_called() -> None:
    mine, gate, called = mz_engine(), threading.Event(), list[int]()
    turn = mine.variable()
    mine.push(gate.wait, writes=(turn,), args=(LONG,))
    waiting = submit(called.append, 1, reads=(turn,))
    assert waiting.cancel()
    gate.set()
    mine.wait(turn)
    waiting.work.wait()
    assert called == []
    assert waiting.cancelled()
    assert submit(fail).exception() is not None
    with pytest.raises(TimeoutError):
        submit(time.sleep, 0.2).result(0.001)
    mine.wait_all(LONG)  # errors of futures are no errors of the engine
