"""Those who look on while an engine works: checks of what is touched, the differential mode, traces."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.runtime.engine import Difference, Engine, first_difference

from .test_engine import LONG, fail

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

    found = first_difference(racing, rounds=20)
    assert found is not None
    assert found.where == "the program's result"
    assert first_difference(failing) is None
    drawing = np.random.default_rng()
    with pytest.raises(mz.InputError, match="two runs in order differ"):
        first_difference(lambda e: e.push(drawing.random, writes=(e.variable("drawn", drawing),)).wait())


# Traces


def test_a_trace_shows_what_ran_where(tmp_path: Path) -> None:
    threaded = Engine(threads={"compute": 2})
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
    threaded.close(LONG)
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
    assert links(events) >= {("make", "send"), ("make", "send too"), ("send", "read")}
    assert ("make", "read") not in links(events), "it waited for those that read what was made"


def well_formed(events: list[dict[str, Any]]) -> None:
    """What the Trace Event Format asks of each kind of event."""
    rows = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
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
