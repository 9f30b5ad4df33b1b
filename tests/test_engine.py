"""The dependency engine: order, errors, waiting, what it refuses, futures."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.runtime import idle
from mezzo.runtime.engine import RESOURCES, Engine, process
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
        engine.wait_all(LONG)  # with a deadline, so that nothing runs in this thread beside the engine's one
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


def test_an_error_that_a_workload_waited_for_keeps_the_line_that_it_had(eng: Engine) -> None:
    a = eng.variable("a")
    first = eng.push(fail, writes=(a,), name="first")
    for _ in range(3):
        with pytest.raises(ValueError, match="no good") as caught:
            eng.push(eng.wait, args=(a,), name="other").wait()
        assert caught.value.__notes__ == [f"in {first.where}"]


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


def test_what_is_brief_runs_in_the_thread_that_pushes_unless_it_has_to_wait(threaded: Engine) -> None:
    var, gate, ran = threaded.variable(), threading.Event(), list[str]()
    threaded.push(lambda: ran.append(threading.current_thread().name), writes=(var,), brief=True)
    assert ran == [threading.current_thread().name]
    threaded.push(gate.wait, reads=(var,), args=(LONG,))
    threaded.push(ran.append, writes=(var,), args=("late",), brief=True)  # after the reader
    assert len(ran) == 1
    work = threaded.push(raising_error, reads=(threaded.variable(),), brief=True)  # others pass
    with pytest.raises(ValueError, match="brief"):
        work.wait()
    gate.set()
    threaded.wait(var)
    assert ran[1:] == ["late"]


def test_threads_that_have_nothing_to_do_give_back_what_libraries_keep_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(idle, "CALLS", [lambda: calls.put(threading.current_thread().name)])
    monkeypatch.setattr(idle, "AFTER", 0.01)
    with Engine(threads={"compute": 1}) as engine:
        for _ in range(2):  # and work again
            ran = threading.Event()
            engine.push(ran.set)
            assert ran.wait(LONG)
            assert calls.get(timeout=LONG) == "mezzo compute 0"


def raising_error() -> None:
    raise ValueError("brief")


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
    while not kept:
        time.sleep(0.001)
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


def test_what_a_start_raises_after_it_has_ended_is_not_lost(eng: Engine) -> None:
    def start(done: Any) -> None:
        done()
        fail()

    a = eng.variable()
    eng.push_async(start, writes=(a,))
    eng.wait(a)
    while eng.mode == "threaded" and not eng._failures:
        time.sleep(0.001)
    with pytest.raises(ValueError, match="no good"):
        eng.wait_all()


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
    thread.join(LONG)
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


def python(code: str, argument: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Code in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEZZO_")}
    command = [sys.executable, "-c", code, argument]
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
        ("MEZZO_ENGINE", "fast", "'threaded', or 'naive' to run"),
        ("MEZZO_ENGINE_THREADS", "none", "a number above 0"),
        ("MEZZO_ENGINE_CHECK", "yes", "it is 1 to catch"),
        ("MEZZO_ENGNE", "naive", "did you mean MEZZO_ENGINE?"),
        ("MEZZO_X", "1", "there are MEZZO_CACHE, "),
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
            some(20_000)
            first = some(20_000)
            # tables keep the room of the longest queue; a leak would keep an object of 32 bytes or more for each push
            assert some(20_000) - first < 16 * 20_000
        finally:
            tracemalloc.stop()


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


def test_a_future_that_is_cancelled_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, gate, called = Engine(), threading.Event(), list[int]()
    monkeypatch.setattr(process, "_engine", mine)  # not the one of all tests, which may have errors of theirs
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
    end = threading.Event()
    with pytest.raises(TimeoutError):
        submit(end.wait, LONG).result(0.001)
    end.set()
    mine.close(LONG)  # errors of futures are no errors of the engine
