"""`mezzo serve`: bodies of the protocol, the line before a model, the application without a server, and processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32
from mezzo.runtime.compile.program import Port
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.tools.serve.app import App, Limits
from mezzo.tools.serve.line import Job, Line
from mezzo.tools.serve.metrics import Metrics
from mezzo.tools.serve.protocol import NAMES, read, written
from mezzo.tools.serve.repository import sources
from mezzo.tools.serve.served import Served, Serving, sizes

IMAGES = held_out().inputs[:32]

# -- bodies ----------------------------------------------------------------------------------------------------------


def body(arrays: dict[str, Any], binary: bool = True, **more: Any) -> tuple[bytes, int]:
    """A request with these arrays, and how much of it is JSON; written apart from what is tested."""
    entries, tail = [], b""
    for name, array in arrays.items():
        kind = NAMES[DType.of(array.dtype)]
        entry: dict[str, Any] = {"name": name, "datatype": kind, "shape": list(array.shape)}
        if binary:
            texts = [str(t).encode() for t in array.ravel()] if kind == "BYTES" else []
            part = b"".join(len(t).to_bytes(4, "little") + t for t in texts) if kind == "BYTES" else array.tobytes()
            entry["parameters"] = {"binary_data_size": len(part)}
            tail += part
        else:
            entry["data"] = (array.astype(np.float32) if kind in ("BF16", "FP16") else array).tolist()
        entries.append(entry)
    head = json.dumps({"inputs": entries, **more}).encode()
    return head + tail, len(head)


def sample(kind: DType) -> Any:
    if kind is DType.STRING:
        return np.array([["a", "ä€", ""], ["x" * 300, "\0", "7"]], object)
    values = np.arange(6).reshape(2, 3) % (2 if kind is DType.BOOL else 7)
    return values.astype(ml_dtypes.bfloat16 if kind is DType.BFLOAT16 else kind.numpy)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: NAMES[kind])
def test_tensors_go_in_and_out(kind: DType, binary: bool) -> None:
    array, port = sample(kind), Port("x", Tensor(kind, ("n", 3)))
    text, head = body({"x": array}, binary, id="7", parameters={"binary_data_output": binary, "timeout": 2_000_000})
    asked = read(text, head if binary else None, [port], [port])
    assert (asked.identity, asked.seconds, asked.wanted) == ("7", 2.0, None)
    assert asked.feeds["x"].dtype == array.dtype
    assert (asked.feeds["x"] == array).all()
    parts, length = written(asked, {"x": asked.feeds["x"]}, "model", "1")
    assert (length is None) != binary
    again = b"".join(parts)
    about = json.loads(again[:length])
    response = json.dumps({"inputs": about["outputs"]}).encode() + again[len(parts[0]) :]
    head = len(json.dumps({"inputs": about["outputs"]}))
    assert (read(response, head, [port], [port]).feeds["x"] == array).all()


X = [Port("x", Tensor(DType.INT8, ("n", 3)))]
WRONG = {
    "no JSON": b"[[",
    "deep": b"[" * 100_000,
    "no object": b"[]",
    "no inputs": b"{}",
    "inputs": b'{"inputs": 3}',
    "unknown": b'{"inputs": [{"name": "y", "shape": [1], "datatype": "INT8", "data": [1]}]}',
    "type": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}',
    "shape": b'{"inputs": [{"name": "x", "shape": [-1, 3], "datatype": "INT8", "data": [1, 2, 3]}]}',
    "huge": b'{"inputs": [{"name": "x", "shape": [999999999999, 3], "datatype": "INT8", "data": [1, 2, 3]}]}',
    "few": b'{"inputs": [{"name": "x", "shape": [2, 3], "datatype": "INT8", "data": [1, 2, 3]}]}',
    "none": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "INT8"}]}',
    "fraction": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "INT8", "data": [1, 2, 3.5]}]}',
    "large": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "INT8", "data": [1, 2, 300]}]}',
    "text": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "INT8", "data": [1, 2, "3"]}]}',
    "bytes": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "INT8", "parameters": {"binary_data_size": 3}}]}',
    "output": b'{"inputs": [], "outputs": [{"name": "z"}]}',
    "ignored": b'{"inputs": [], "parameters": {"sequence_id": 3}}',
    "timeout": b'{"inputs": [], "parameters": {"timeout": -1}}',
    "timeout of ages": b'{"inputs": [], "parameters": {"timeout": 1%s}}' % (b"0" * 400),
    "name": b'{"inputs": [{"name": ["x"], "shape": [1, 3], "datatype": "INT8", "data": [1, 2, 3]}]}',
    "name of an output": b'{"inputs": [], "outputs": [{"name": {"x": 1}}]}',
    "empty and huge": b'{"inputs": [{"name": "x", "shape": [1%s, 0], "datatype": "INT8", "data": []}]}' % (b"0" * 30),
    "nested otherwise": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "INT8", "data": [[1], [2], [3]]}]}',
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_what_is_malformed_is_an_input_error(text: bytes) -> None:
    with pytest.raises(InputError):
        read(text, None, X, X)


def test_half_a_pair_of_surrogates_is_no_text() -> None:
    text = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["\\ud800"]}]}'
    with pytest.raises(InputError, match="surrogates"):
        read(text, None, [Port("x", Tensor(DType.STRING, ("n",)))], X)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bodies_raise_nothing_else(data: st.DataObject) -> None:
    ports = [Port("x", Tensor(DType.STRING, ("n", 3))), Port("y", Tensor(DType.FLOAT, (2,)))]
    whole, head = body({"x": sample(DType.STRING), "y": np.ones(2, np.float32)})
    text = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(text)))
    with contextlib.suppress(InputError):
        read(text[:cut], min(head, cut), ports, ports)


# -- the line --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from("ab"), st.floats(0.01, 3)), max_size=15),
    st.integers(1, 8),
    st.floats(0, 0.5),
)
def test_each_job_leaves_the_line_once(arriving: list[tuple[int, str, float]], rows: int, wait: float) -> None:
    """In order within its kind, with its like, in time or as one that is late."""
    line, now, ran, late = Line(rows, wait), 0.0, list[Job](), list[Job]()
    jobs = [Job({"x": np.zeros((n, 2 if k == "a" else 3))}, None, i * 0.1, i * 0.1 + u)
            for i, (n, k, u) in enumerate(arriving)]  # fmt: skip
    coming = list(jobs)
    for _ in range(2000):
        while coming and coming[0].came <= now:
            line.add(coming.pop(0))
        following = line.take(now)
        late += following.late
        ran += following.jobs
        assert len({job.kind for job in following.jobs}) <= 1
        assert len(following.jobs) <= 1 or sum(job.rows for job in following.jobs) <= rows
        assert all(now < job.until for job in following.jobs)
        if not following.jobs:
            if not coming and not len(line):
                break
            after = now + max(following.after, 1e-6)
            now = min(after, coming[0].came) if coming else after
    assert len(ran) + len(late) == len(jobs)
    assert {*map(id, ran), *map(id, late)} == {*map(id, jobs)}
    for kind in {job.kind for job in ran}:
        came = [job.came for job in ran if job.kind == kind]
        assert came == sorted(came)


def test_rows_that_are_planned() -> None:
    assert [sizes(n) for n in (2, 8, 12)] == [(1, 2), (1, 2, 4, 8), (1, 2, 4, 8, 12)]


# -- the application -------------------------------------------------------------------------------------------------

Scenario = Callable[["Client"], Awaitable[None]]


class Client:
    """Calls of an application as a server makes them."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.events: list[dict[str, Any]] = []

    async def call(
        self, method: str, path: str, text: bytes = b"", head: int | None = None, *, pace: float = 0.0,
        gone: asyncio.Event | None = None, headers: dict[str, str] | None = None, pieces: int = 1,
        parts: list[int] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
        sent: list[dict[str, Any]] = []
        step = max(1, math.ceil(len(text) / pieces))
        chunks = [text[i : i + step] for i in range(0, len(text), step)] or [b""]
        away = gone or asyncio.Event()

        async def receive() -> dict[str, Any]:
            if chunks:
                await asyncio.sleep(pace)
                return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}
            await away.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        said = {"content-length": str(len(text)), **(headers or {})}
        if head is not None:
            said["inference-header-content-length"] = str(head)
        raw = [(n.encode(), v.encode()) for n, v in said.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": raw}
        await self.app(scope, receive, send)
        if not sent:
            return 0, {}, b""
        answered = {n.decode(): v.decode() for n, v in sent[0]["headers"]}
        if parts is not None:
            parts += (len(m["body"]) for m in sent[1:])
        return sent[0]["status"], answered, b"".join(m["body"] for m in sent[1:])

    async def infer(self, arrays: dict[str, Any], path: str = "/v2/models/digits/infer", **more: Any) -> Any:
        """An array, or the status where there is none."""
        parameters = {"binary_data_output": True, **more.pop("parameters", {})}
        text, head = body(arrays, parameters=parameters)
        code, headers, answer = await self.call("POST", path, text, head, **more)
        if code != 200:
            return code
        length = int(headers["inference-header-content-length"])
        about = json.loads(answer[:length])["outputs"][0]
        return np.frombuffer(answer[length:], np.float32).reshape(about["shape"])


def within(scenario: Scenario, *models: str, limits: Limits | None = None, warm: bool = True, **how: Any) -> None:
    """Run a scenario against an application with these models (digits by default)."""

    async def run() -> None:
        events: list[dict[str, Any]] = []
        app = App(
            sources(models or (f"digits={digits_model()}",)),
            Serving(**how),
            limits or Limits(),
            lambda event, **fields: events.append({"event": event, **fields}),
            every=True,
        )
        client = Client(app)
        client.events = events
        if warm:
            await app.models.load_all()
        await scenario(client)
        assert app.held == 0, "what requests held is given back"

    asyncio.run(asyncio.wait_for(run(), 120))


ANSWERS = mz.load(digits_model()).run({"image": IMAGES})["logits"]


def near(one: Any, other: Any) -> bool:
    return bool(np.abs(one - other).max() <= 1e-5 * np.abs(other).max())


def test_an_application_answers() -> None:
    async def scenario(client: Client) -> None:
        assert (await client.call("GET", "/v2/health/live"))[0] == 200
        code, headers, _ = await client.call("POST", "/v2/models/digits/infer", b"{}")
        assert (code, headers["retry-after"]) == (503, "1")
        assert (await client.call("GET", "/v2/health/ready"))[0] == 503
        await client.app.models.load_all()
        assert (await client.call("GET", "/v2/health/ready"))[0] == 200
        about = json.loads((await client.call("GET", "/v2/models/digits"))[2])
        assert about["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
        assert near(await client.infer({"image": IMAGES}), ANSWERS)
        assert near(await client.infer({"image": IMAGES}, "/v2/models/digits/versions/1/infer"), ANSWERS)
        for path in ("/v2/models/other/infer", "/v2/models/digits/versions/9/infer", "/v2/models/digits/fly", "/v3"):
            assert (await client.call("POST", path, b"{}"))[0] == 404
        assert await client.infer({"image": IMAGES[:, :, :4]}) == 400
        text = (await client.call("GET", "/metrics"))[2].decode()
        assert 'mezzo_requests_total{code="200",model="digits",version="1"} 2' in text
        assert 'mezzo_requests_total{code="400",model="digits",version="1"} 1' in text
        assert [e["code"] for e in client.events if e["event"] == "request"] == [200, 200, 400]

    within(scenario, warm=False)


def test_requests_run_together() -> None:
    async def scenario(client: Client) -> None:
        served = client.app.models.find("digits")
        rows = [IMAGES[i : i + 1 + i % 3] for i in range(24)]
        answers = await asyncio.gather(*(client.infer({"image": x}) for x in rows))
        for i, (x, answer) in enumerate(zip(rows, answers, strict=True)):
            assert near(answer, ANSWERS[i : i + len(x)])
        (counts,) = client.app.metrics.rows.counts.values()
        assert sum(counts) < len(rows)
        assert served.session.stats().programs <= len(sizes(8)), "no size but those that were planned"

    within(scenario, rows=8, wait=0.02)


def test_one_bad_request_spoils_no_other() -> None:
    async def scenario(client: Client) -> None:
        session = client.app.models.find("digits").session
        run = session.run

        def failing(feeds: Any, **how: Any) -> Any:
            if (feeds["image"] == 99).any():
                raise InputError("99", where="test")
            return run(feeds, **how)

        session.run = failing  # type: ignore[method-assign]
        feeds = [IMAGES[:1], np.full((1, 1, 8, 8), 99, np.float32), IMAGES[1:2]]
        good, bad, also = await asyncio.gather(*(client.infer({"image": x}) for x in feeds))
        assert near(good, ANSWERS[:1])
        assert near(also, ANSWERS[1:2])
        assert bad == 400

    within(scenario, rows=4, wait=0.05)


class Held:
    """A session whose runs wait until they are let go."""

    def __init__(self, served: Served) -> None:
        self.go, self.begun, self.ended = threading.Event(), threading.Semaphore(0), 0
        self.run = served.session.run
        served.session.run = self  # type: ignore[method-assign]

    def __call__(self, feeds: Any, *, cancel: threading.Event | None = None, **how: Any) -> Any:
        self.begun.release()
        while not self.go.wait(0.01):
            if cancel is not None and cancel.is_set():
                self.ended += 1
                raise mz.Cancelled("ended", where="test")
        how.pop("deadline", None)
        return self.run(feeds, **how)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=30)


def test_a_full_line_is_told() -> None:
    async def scenario(client: Client) -> None:
        held = Held(client.app.models.find("digits"))
        first = asyncio.create_task(client.infer({"image": IMAGES}))
        await held.wait()
        others = [asyncio.create_task(client.infer({"image": IMAGES})) for _ in range(2)]
        await asyncio.sleep(0.05)
        text, head = body({"image": IMAGES})
        code, headers, _ = await client.call("POST", "/v2/models/digits/infer", text, head)
        assert code == 503
        assert 1 <= int(headers["retry-after"]) <= 60
        held.go.set()
        for answer in await asyncio.gather(first, *others):
            assert near(answer, ANSWERS)

    within(scenario, line=2)


def test_memory_is_bounded() -> None:
    """Requests that are held together, one that says how large it is, one that does not, and one of JSON."""

    async def scenario(client: Client) -> None:
        held = Held(client.app.models.find("digits"))
        first = asyncio.create_task(client.infer({"image": IMAGES}))
        await held.wait()
        code, headers, _ = await client.call("POST", "/v2/models/digits/infer", *body({"image": IMAGES}))
        assert (code, "retry-after" in headers) == (503, True)
        held.go.set()
        assert near(await first, ANSWERS)
        assert near(await client.infer({"image": IMAGES}), ANSWERS), "what was held is given back"
        large = {"content-length": str(1 << 40)}
        assert (await client.call("POST", "/v2/models/digits/infer", headers=large))[0] == 413
        unsaid = await client.call(
            "POST", "/v2/models/digits/infer", b"x" * 20000, headers={"content-length": "9"}, pieces=9
        )
        assert unsaid[0] == 413
        assert (await client.call("POST", "/v2/models/digits/infer", b" " * 3000))[0] == 413
        packed = {"content-encoding": "gzip"}
        assert (await client.call("POST", "/v2/models/digits/infer", b"x", headers=packed))[0] == 415

    within(scenario, limits=Limits(request=16000, json=2000, held=17500))


def test_slow_and_late_requests() -> None:
    async def scenario(client: Client) -> None:
        text, head = body({"image": IMAGES})
        code, headers, _ = await client.call("POST", "/v2/models/digits/infer", text, head, pace=0.2, pieces=20)
        assert (code, headers["connection"]) == (408, "close")
        held = Held(client.app.models.find("digits"))
        first = asyncio.create_task(client.infer({"image": IMAGES}))
        await held.wait()
        began = time.monotonic()
        assert await client.infer({"image": IMAGES}, parameters={"timeout": 50_000}) == 504
        assert time.monotonic() - began < 10
        held.go.set()
        assert near(await first, ANSWERS)

    within(scenario, limits=Limits(arrive=0.5))


def test_a_request_keeps_its_deadline_in_a_batch() -> None:
    async def scenario(client: Client) -> None:
        held = Held(client.app.models.find("digits"))
        short = asyncio.create_task(client.infer({"image": IMAGES[:1]}, parameters={"timeout": 200_000}))
        long = asyncio.create_task(client.infer({"image": IMAGES[1:2]}))
        await held.wait()
        assert await asyncio.wait_for(short, 10) == 504
        held.go.set()
        assert near(await long, ANSWERS[1:2])

    within(scenario, rows=2, wait=5.0)


def test_whoever_goes_is_not_answered_and_frees_the_line() -> None:
    async def scenario(client: Client) -> None:
        served = client.app.models.find("digits")
        served.seconds = 1.0  # long runs can be ended
        held = Held(served)
        gone = [asyncio.Event() for _ in range(2)]
        leaving = [asyncio.create_task(client.infer({"image": IMAGES}, gone=each)) for each in gone]
        await held.wait()
        staying = asyncio.create_task(client.infer({"image": IMAGES}))
        await asyncio.sleep(0.05)
        for each in gone:
            each.set()
        assert await asyncio.gather(*leaving) == [0, 0]
        await held.wait()
        assert held.ended == 1, "the run that nobody waits for ends; the other of them never began"
        held.go.set()
        assert near(await staying, ANSWERS)
        codes = [e["code"] for e in client.events if e["event"] == "request"]
        assert sorted(codes) == [200, 499, 499]

    within(scenario)


def test_a_reload_loses_no_request(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        served, done = client.app.models.find("digits"), False

        async def ask() -> int:
            count = 0
            while not done:
                assert near(await client.infer({"image": IMAGES[:3]}, pieces=2), ANSWERS[:3])
                count += 1
            return count

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        for _ in range(3):
            assert (await client.call("POST", "/v2/repository/models/digits/load", b"{}"))[0] == 200
        assert client.app.models.find("digits") is not served
        (tmp_path / "digits.onnx").write_bytes(b"damaged")
        code, _, answer = await client.call("POST", "/v2/repository/models/digits/load", b"{}")
        assert code == 400
        assert "digits.onnx" in json.loads(answer)["error"]
        assert near(await client.infer({"image": IMAGES}), ANSWERS), "the former one stays"
        done = True
        assert min(await asyncio.gather(*asking)) > 0
        assert (await client.call("POST", "/v2/repository/models/digits/unload", b"{}"))[0] == 200
        assert await client.infer({"image": IMAGES}) == 503
        (row,) = json.loads((await client.call("POST", "/v2/repository/index"))[2])
        assert row == {"name": "digits", "state": "UNAVAILABLE", "reason": "unloaded"}

    shutil.copy(digits_model(), tmp_path / "digits.onnx")
    within(scenario, str(tmp_path / "digits.onnx"))


def adding(path: Path, number: float, over: int | None = None) -> None:
    """A model that adds a number, or subtracts the mean over an axis first."""
    g = GraphBuilder()
    x = g.input("x", f32("n", 3))
    y = g.op("Add", x, g.const(number, DType.FLOAT))
    if over is not None:
        y = g.op("Sub", y, g.op("ReduceMean", x, g.const([over], DType.INT64)))
    path.parent.mkdir(parents=True, exist_ok=True)
    mz.onnx.save(g.graph([y]), path)


def test_versions_of_folders(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        for version, number in (("", 10), ("/versions/9", 9), ("/versions/10", 10)):
            answer = await client.infer({"x": np.zeros((1, 3), np.float32)}, f"/v2/models/adder{version}/infer")
            assert answer.tolist() == [[number] * 3], "the highest number, not the last word, is the usual one"

    for version in (9, 10):
        adding(tmp_path / f"models/adder/{version}/model.onnx", version)
    within(scenario, str(tmp_path / "models"))


def test_rows_that_depend_on_each_other_do_not_run_together(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        index = json.loads((await client.call("POST", "/v2/repository/index"))[2])
        why = {row["name"]: row["reason"] for row in index}
        assert "depends on the rows beside it" in why["mixed"]
        assert why["apart"] == ""

    adding(tmp_path / "mixed.onnx", 1, over=0)
    adding(tmp_path / "apart.onnx", 1, over=1)
    within(scenario, str(tmp_path), rows=4)


def column(op: Callable[[GraphBuilder, Any], Any], *shape: Any, dtype: DType = DType.FLOAT) -> Any:
    g = GraphBuilder()
    return g.graph([op(g, g.input("x", Tensor(dtype, ("n", *shape))))])


MIXING = {
    "numbers less their mean": column(lambda g, x: g.Sub(x, g.ReduceMean(x, g.const([0], DType.INT64))), 1),
    "numbers in reverse": column(
        lambda g, x: g.Slice(x, *(g.const([i], DType.INT64) for i in (-1, -99, 0, -1))), 1
    ),
    "attention whose trial looks at itself": column(
        lambda g, x: g.MatMul(g.Softmax(g.MatMul(x, g.Transpose(x))), x), 768
    ),
    "a bound that no trial passes": column(
        lambda g, x: g.Where(g.Greater(g.ReduceMax(x), g.const(20.0, DType.FLOAT)), x, g.Neg(x)), 3
    ),
    "whole numbers": column(lambda g, x: g.Sub(x, g.ReduceMax(x)), 3, dtype=DType.INT64),
    "truth": column(
        lambda g, x: g.Or(x, g.Cast(g.ReduceMax(g.Cast(x, to=6)), to=9)), 3, dtype=DType.BOOL
    ),
    "four rows for one": column(lambda g, x: g.Reshape(x, g.const([-1, 3], DType.INT64)), 12),
    "as many as are positive": column(
        lambda g, x: g.Compress(x, g.Greater(x, g.const(-1.0, DType.FLOAT)), axis=0)
    ),
}  # fmt: skip
APART = {
    "a convolution of pictures": column(
        lambda g, x: g.Flatten(g.MaxPool(g.Conv(x, g.const(np.ones((2, 1, 3, 3)), DType.FLOAT)), kernel_shape=[2, 2])),
        1, 8, 8,
    ),
    "attention within": column(
        lambda g, x: g.MatMul(g.Softmax(g.MatMul(x, g.Transpose(x, perm=[0, 2, 1]))), x), 4, 5
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", [*MIXING, *APART])
def test_what_mixes_rows_is_found(what: str, tmp_path: Path) -> None:
    mz.onnx.save((MIXING | APART)[what], tmp_path / "m.onnx")
    with contextlib.nullcontext() if what in APART else pytest.raises(InputError, match=r"rows? .* row"):
        Served("m", "1", tmp_path / "m.onnx", Serving(rows=2), Metrics())


def test_models_that_are_not_there(tmp_path: Path) -> None:
    for text in ("nothing.onnx", str(tmp_path)):
        with pytest.raises(InputError):
            sources([text])
    with pytest.raises(InputError, match="two models"):
        sources([f"a={digits_model()}", f"a={digits_model()}"])


@pytest.mark.parametrize("option", [("--wait", "-1"), ("--deadline", "0"), ("--deadline", "nan"), ("--arrive", "inf")])
def test_times_that_are_none(option: tuple[str, str]) -> None:
    from click.testing import CliRunner

    from mezzo.tools.cli_serve import serve

    result = CliRunner().invoke(serve, [*option, "nothing.onnx"])
    assert (result.exit_code, option[0] in result.output) == (2, True)


def test_without_uvicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    from mezzo.tools.serve.run import serve

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(mz.MissingPackage, match="not installed") as caught:
        serve([str(digits_model())], Serving(), Limits(), "127.0.0.1", 0, 1, False)
    assert "mezzo[serve]" in caught.value.hint
