"""Runs that `mezzo serve` makes on the thread of the event loop, and requests that run together there."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.exporters import save_onnx
from mezzo.models.digits import digits_model
from mezzo.ops import Body, DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32, i64
from mezzo.runtime import idle
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.tools.serve.threads import Threads

from .test_serve import ANSWERS, IMAGES, Client, adding, body, near, within


def test_what_comes_at_the_same_time_runs_together() -> None:
    """Without waiting for others, and though no run is going on."""

    async def scenario(client: Client) -> None:
        for _ in range(2):  # on a thread, then where it is known to be brief
            answers = await asyncio.gather(*(client.infer({"image": IMAGES[i : i + 1]}) for i in range(8)))
            assert near(np.concatenate(answers), ANSWERS[:8])
        (counts,) = client.app.metrics.rows.counts.values()
        assert (sum(counts), counts[3]) == (2, 2), f"{counts}, two runs, of eight rows each"

    within(scenario, rows=8)


@pytest.mark.parametrize("rows", [1, 4])
def test_brief_runs_are_made_on_the_thread_of_the_loop(rows: int) -> None:
    """But for the first of each shape; one that turns out to be long is handed to a thread again."""

    async def scenario(client: Client) -> None:
        served = client.app.models.find("digits")
        run, here, ran, pause = served.session.run, threading.get_ident(), list[bool](), 0.0

        def watched(feeds: Any, **how: Any) -> Any:
            ran.append(threading.get_ident() == here)
            time.sleep(pause)
            return run(feeds, **how)

        async def ask(count: int, lines: int = 1) -> list[bool]:
            ran.clear()
            for _ in range(count):
                assert near(await client.infer({"image": IMAGES[:lines]}), ANSWERS[:lines])
            return ran

        served.session.run = watched  # type: ignore[method-assign]
        assert (await ask(1))[0] is False
        for _ in range(100):  # a busy machine may take long for any of them
            if (await ask(1))[0]:
                break
        else:
            raise AssertionError([*served.took.values()])
        assert (await ask(1, 2))[0] is False, "of another shape"
        pause = 0.01
        assert False in await ask(30)
        served.took = dict.fromkeys(served.took, 1.0)
        pause = 0.0
        for _ in range(100):
            if (await ask(1))[0]:
                break
        else:
            raise AssertionError("a short time counts again at once")

    within(scenario, rows=rows)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_brief_run_that_fails_is_told(rows: int) -> None:
    async def scenario(client: Client) -> None:
        session = client.app.models.find("digits").session
        run, errors = session.run, [RuntimeError("ours"), InputError("theirs", where="test")]

        def failing(feeds: Any, **how: Any) -> Any:
            if (feeds["image"] == 99).any():
                raise errors.pop(0)
            return run(feeds, **how)

        for _ in range(3):
            assert near(await client.infer({"image": IMAGES[:1]}), ANSWERS[:1])
        took = client.app.models.find("digits").took
        took.update(dict.fromkeys(took, 0.0))  # brief, whatever the machine does
        session.run = failing  # type: ignore[method-assign]
        bad = np.full((1, 1, 8, 8), 99, np.float32)
        for code in (500, 400):
            assert await asyncio.wait_for(client.infer({"image": bad}), 30) == code
        assert near(await client.infer({"image": IMAGES[:1]}), ANSWERS[:1])

    within(scenario, rows=rows)


def test_kinds_of_runs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: Client) -> None:
        for i in range(1, 9):
            assert near(await client.infer({"image": IMAGES[:i]}), ANSWERS[:i])
        assert len(client.app.models.find("digits").took) <= 3

    monkeypatch.setattr("mezzo.tools.serve.served.KINDS", 3)
    within(scenario)


def test_parts_of_an_answer_are_one_where_they_are_small(tmp_path: Path) -> None:
    """Each part is a call of the system."""

    async def scenario(client: Client) -> None:
        for rows, count in ((1, 1), (20000, 2)):
            array, parts = np.zeros((rows, 3), np.float32), list[int]()
            text, head = body({"x": array}, parameters={"binary_data_output": True})
            code, _, answer = await client.call("POST", "/v2/models/adder/infer", text, head, parts=parts)
            assert (code, len(parts)) == (200, count)
            assert answer.endswith(np.ones((rows, 3), np.float32).tobytes())

    adding(tmp_path / "adder.onnx", 1)
    within(scenario, str(tmp_path / "adder.onnx"))


def test_threads_let_go_what_libraries_keep_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a model is loaded, and when nothing was to do for a while: teams of OpenMP that nobody uses would slow down
    those that somebody does."""
    let_go: list[str] = []
    monkeypatch.setattr(idle, "CALLS", [*idle.CALLS, lambda: let_go.append(threading.current_thread().name)])

    async def scenario(client: Client) -> None:
        assert [name for name in let_go if name.startswith("asyncio")], "by the thread that has loaded"
        for _ in range(2):
            let_go.clear()
            client.app.models.find("alone").took.clear()  # so that a thread makes it
            assert near(await client.infer({"image": IMAGES}, "/v2/models/alone/infer"), ANSWERS)
            for _ in range(1000):
                if "mezzo alone 1" in let_go:
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError(let_go)

    within(scenario, f"alone={digits_model()}")


def test_threads_are_as_many_as_are_needed_and_end() -> None:
    threads, go = Threads(2, "of a test"), threading.Event()
    assert threads.submit(int, "7").result(30) == 7
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(30)
    named = {t.name for t in threading.enumerate()}
    assert {n for n in named if n.startswith("of a test")} == {"of a test 1"}, "one after the other"
    waiting = [threads.submit(go.wait, 30) for _ in range(3)]
    both = [t for t in threading.enumerate() if t.name.startswith("of a test")]
    assert len(both) == 2
    go.set()
    assert all(future.result(30) for future in waiting)
    del threads
    for thread in both:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("first", [False, True])
def test_one_of_several_workers_takes_connections_when_it_has_loaded(first: bool) -> None:
    """Until then the others answer; one alone says that it is not ready."""

    async def scenario(client: Client) -> None:
        app, ready, end = client.app, list[bool](), asyncio.Event()
        app.first = first
        messages = ["lifespan.startup", "lifespan.shutdown"]

        async def receive() -> dict[str, str]:
            if len(messages) == 1:
                await end.wait()
            return {"type": messages.pop(0)}

        async def send(message: Any) -> None:
            ready.append(app.models.ready)

        serving = asyncio.create_task(app({"type": "lifespan"}, receive, send))
        while not (app.models.ready and ready):
            await asyncio.sleep(0.01)
        assert ready == [first]
        end.set()
        await serving

    within(scenario, warm=False)


def counting(path: Path) -> None:
    """A model that adds 1 to x as often as its input `times` says."""
    g = GraphBuilder()
    x, times = g.input("x", f32(1)), g.input("times", i64())
    kinds = i64(), Tensor(DType.BOOL, ()), f32(1)
    body = Body(kinds, lambda g, i, go, held: (g.Identity(go), g.Add(held, g.const(np.float32(1)))))
    save_onnx(g.graph([g.Loop(times, g.const(True), x, body=body)]), path)


def test_a_run_whose_time_is_told_by_values_does_not_hold_the_loop(tmp_path: Path) -> None:
    """Requests of one shape, brief ones first, then one of hours: it ends by its deadline, and others are answered."""
    counting(tmp_path / "counting.onnx")

    async def scenario(client: Client) -> None:
        def ask(times: int, **more: Any) -> Any:
            feeds = {"x": np.zeros(1, np.float32), "times": np.array(times)}
            return client.infer(feeds, "/v2/models/counting/infer", **more)

        for _ in range(3):
            assert await ask(1) == 1
        served = client.app.models.find("counting")
        served.took = dict.fromkeys(served.took, 0.0)
        long = asyncio.ensure_future(ask(2_000_000, parameters={"timeout": 200_000}))
        await asyncio.sleep(0)
        assert near(await client.infer({"image": IMAGES[:1]}), ANSWERS[:1])
        assert not long.done(), "the other was answered while it ran"
        assert await long in (408, 504)

    within(scenario, f"counting={tmp_path / 'counting.onnx'}", f"digits={digits_model()}")
