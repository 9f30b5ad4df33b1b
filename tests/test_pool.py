"""Memory pools: live blocks never overlap, sums are right, limits hold, and a block returns when nobody sees it."""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import mezzo as mz
from mezzo import nd
from mezzo.ops.errors import BudgetError, InputError
from mezzo.runtime.memory import usage as memory
from mezzo.runtime.memory.ledger import Rounding
from mezzo.runtime.memory.liveness import ALIGN
from mezzo.runtime.memory.pool import Pool
from mezzo.runtime.memory.trace import HEAD, Event, read, record, replay, text
from mezzo.tools.cli import cli

from .array_modes import Using

BYTES = np.dtype(np.uint8)
ROUNDINGS = [Rounding("naive"), Rounding("round", 14), Rounding("round", 24), Rounding("unpooled")]


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    memory.set_pool()
    yield
    memory.set_pool()


def span(array: Any) -> tuple[int, int]:
    """Where an array's bytes begin and end."""
    return np.lib.array_utils.byte_bounds(array)


# -- rules -------------------------------------------------------------------------------------------------------------


@given(nbytes=st.integers(0, 1 << 36), cutoff=st.integers(13, 34))
def test_sizes_are_those_of_mxnet(nbytes: int, cutoff: int) -> None:
    """The documentation of MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF: 2**0, 2**1, ..., 2**X, 2 * 2**X, 3 * 2**X, ..."""
    page = 4096
    assert Rounding("naive").size(nbytes) == max(nbytes, page)
    assert Rounding("unpooled").size(nbytes) == nbytes
    found = Rounding("round", cutoff).size(nbytes)
    powers = [1 << i for i in range(12, cutoff + 1)]
    if nbytes <= powers[-1]:
        assert found == next(p for p in powers if p >= nbytes)
    else:
        assert found % powers[-1] == 0
        assert found - powers[-1] < nbytes <= found


@pytest.mark.parametrize("text", ["", "sometimes", "round:", "round:x", "round:99", "naive:20", "round:2", "round:-1"])
def test_roundings_that_there_are_not(text: str) -> None:
    if text == "round:":
        assert Rounding.parse(text) == Rounding("round")
        return
    with pytest.raises(InputError):
        Rounding.parse(text)


for_rules = [str(r) for r in ROUNDINGS]


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=for_rules)
@given(data=st.data())
@settings(max_examples=25)
def test_any_sequence(rounding: Rounding, data: st.DataObject) -> None:
    limit, keep = data.draw(st.sampled_from([(None, 1 << 18), (1 << 17, 1 << 16), (1 << 20, 0)]))
    pool = Pool(limit, rounding, keep, "this test")
    live: list[tuple[Any, int, int]] = []  # an array or a view of it, the bytes that it was asked with, its first byte

    def checked() -> None:
        found = pool.stats()
        sizes = [rounding.size(n) for _, n, _ in live]
        assert found.in_use == sum(sizes) == sum(found.owners.values())
        assert found.asked == sum(n for _, n, _ in live)
        assert found.in_use <= found.reserved <= found.peak_reserved
        assert limit is None or found.peak_reserved <= limit
        assert found.idle <= (0 if rounding.kind == "unpooled" else keep)
        assert found.largest_free_block <= found.idle
        ends = sorted(span(a) for a, _, _ in live if a.nbytes)
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
        for a, _, mark in live:
            assert (a == mark).all()

    sizes = st.one_of(st.integers(0, 1 << 12), st.sampled_from([4096, 5000, 65536, 131072, 140000, 300000]))
    steps = data.draw(st.lists(st.one_of(sizes, st.sampled_from(["free", "view", "trim"])), max_size=30))
    for i, step in enumerate(steps):
        if isinstance(step, int):
            used = pool.stats().in_use
            if limit is not None and used + rounding.size(step) > limit:
                with pytest.raises(BudgetError, match=f"limit of {limit}"):
                    pool.empty((step,), BYTES, f"owner {i % 3}")
                continue
            made = pool.empty((step,), BYTES, f"owner {i % 3}")
            assert span(made)[0] % ALIGN == 0
            made[:] = i
            live.append((made, step, i))
            del made
        elif step == "trim":
            idle = pool.stats().idle
            assert pool.trim() == idle
            assert pool.stats().idle == 0
        elif live:
            at = data.draw(st.integers(0, len(live) - 1))
            array, nbytes, mark = live.pop(at)
            if step == "view":
                live.append((array[nbytes // 2 :][::-1], nbytes, mark))
            del array
        checked()
    live.clear()
    assert pool.stats().in_use == pool.stats().asked == 0
    assert not pool.stats().owners


# -- lifetimes ---------------------------------------------------------------------------------------------------------

WAYS: dict[str, Any] = {
    "a slice": lambda a: a[5:], "a number": lambda a: a[7, 3, ...], "turned": lambda a: a.T[1:],
    "another type": lambda a: a.view(np.int32), "reshaped": lambda a: a.reshape(-1)[::2],
    "a memoryview": memoryview, "dlpack": np.from_dlpack, "dlpack of a view": lambda a: np.from_dlpack(a[3]),
    "a view of a view of a view": lambda a: a[1:][1:][1:], "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "an iterator": lambda a: a.flat, "a frombuffer": lambda a: np.frombuffer(a, np.uint8),
    "a subclass": lambda a: a.view(np.ndarray).view(np.recarray), "a field": lambda a: a.view("i2,i2")["f0"],
}  # fmt: skip


@pytest.mark.parametrize("nbytes", [1 << 12, 1 << 18, 1 << 23], ids=["small", "mapped", "large pages"])
@pytest.mark.parametrize("way", WAYS)
def test_a_block_returns_when_nobody_sees_it(way: str, nbytes: int) -> None:
    pool = Pool(None, Rounding("naive"), 1 << 30, "this test")
    shape = (nbytes // 64, 16)
    array = pool.empty(shape, np.dtype(np.float32))
    begin = span(array)[0]
    seen = WAYS[way](array)
    del array
    assert pool.stats().in_use == nbytes
    other = pool.empty(shape, np.dtype(np.float32))
    assert span(other)[0] != begin
    del seen
    assert pool.stats().in_use == nbytes
    again = pool.empty(shape, np.dtype(np.float32))
    assert span(again)[0] == begin
    assert pool.stats().hits == 1


def test_what_others_made_counts_while_it_lives() -> None:
    pool = Pool(1 << 20)
    made = np.zeros(1000, np.uint8)
    view = made[10:]
    assert pool.adopt(view) is view
    pool.adopt(made)  # once
    assert pool.stats().in_use == view.nbytes
    del made
    assert pool.stats().in_use == view.nbytes
    del view
    assert pool.stats().in_use == pool.stats().reserved == 0
    ours = pool.empty((5000,), BYTES)
    assert pool.adopt(ours[3:]) is not None
    assert pool.stats().in_use == 8192
    with pytest.raises(BudgetError):
        pool.adopt(np.zeros(1 << 20, np.uint8))
    assert pool.stats().in_use == 8192


def test_circles_that_are_found_at_any_moment() -> None:
    """Python looks for circles while a pool is at work, and what it finds gives blocks back."""
    pool = Pool(None, Rounding("naive"), 1 << 16, "this test")
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for i in range(2000):
            array = pool.empty((1 + i % 5000,), BYTES, f"owner {i % 7}")
            circle: list[Any] = [array]
            circle.append(circle)
            del array, circle
    finally:
        gc.set_threshold(*before)
    gc.collect()
    found = pool.stats()
    assert found.in_use == found.asked == 0
    assert found.hits + found.misses == 2000
    assert found.idle <= 1 << 16


def test_threads_share_a_pool() -> None:
    pool = Pool(None, Rounding("round", 16), 1 << 18, "this test")
    wrong: list[Any] = []

    def work(mark: int) -> None:
        rng, held = random.Random(mark), list[Any]()
        for _ in range(1500):
            if rng.random() < 0.5 and held:
                array = held.pop(rng.randrange(len(held)))
                if not (array == mark).all():
                    wrong.append(mark)
            else:
                held.append(pool.empty((rng.randrange(1, 20000),), BYTES, str(mark)))
                held[-1][:] = mark
        if any(not (a == mark).all() for a in held):
            wrong.append(mark)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(switch)
    assert not wrong
    found = pool.stats()
    assert found.in_use == found.asked == 0
    assert not found.owners
    assert found.hits > found.misses


# -- arrays ------------------------------------------------------------------------------------------------------------

SHAPE = (512, 1024)
NBYTES = 4 * 512 * 1024


def used() -> int:
    return memory.stats().in_use


@pytest.mark.parametrize("mode", ["threaded", "naive", "in place", "checked", "fused"])
def test_arrays_lie_in_the_pool(mode: str) -> None:
    with Using(mode) as engine:
        start = used()
        x = nd.asarray(np.ones(SHAPE, np.float32))
        y = x * 2 + 1
        z = nd.tanh(y) @ nd.ones((1024, 512))
        view = z[3:]
        assert (y.asnumpy() == 3).all()
        engine.wait_all()
        view.wait_to_read()
        owners = memory.stats().owners
        assert {"asarray", "MatMul"} <= set(owners)
        del x, y, z
        assert used() - start <= 512 * 512 * 4 + NBYTES * 2
        shared = np.from_dlpack(view)
        expected = float(view[0, 0])
        del view
        engine.wait_all()
        assert used() - start >= 512 * 512 * 4
        assert shared[0, 0] == pytest.approx(expected)
        del shared
        gc.collect()
        assert used() == start


def test_a_workload_under_way_keeps_what_it_reads() -> None:
    with Using("threaded") as engine:
        start, go = used(), threading.Event()
        x = nd.ones(SHAPE).wait_to_read()
        engine.push(go.wait, (), (x._var,))
        y = x + 1
        del x
        others = [nd.ones(SHAPE).wait_to_read() for _ in range(3)]
        assert used() - start == 4 * NBYTES
        go.set()
        assert (y.asnumpy() == 2).all()
        assert all((o.asnumpy() == 1).all() for o in others)


def test_results_of_sessions_lie_in_the_pool() -> None:
    from mezzo.ops.types import f32
    from mezzo.runtime.ir.graph import GraphBuilder

    g = GraphBuilder("doubled")
    x = g.input("x", f32(*SHAPE))
    session = mz.Session(g.graph([g.Add(x, x)]))
    start, feeds = used(), {"x": np.ones(SHAPE, np.float32)}
    for _ in range(3):
        (found,) = session.run(feeds).values()
        assert (found == 2).all()
        assert used() - start == NBYTES
        assert memory.stats().owners["doubled"] == NBYTES
        del found
    assert used() == start


@pytest.mark.parametrize("mode", ["threaded", "naive", "in place"])
def test_a_limit_holds_and_is_told_where_it_is_read(mode: str) -> None:
    with Using(mode) as engine:
        gc.collect()  # an error that was caught before holds arrays in a circle
        memory.set_pool(limit=used() + 4 * NBYTES)
        a, b, other = [nd.ones(SHAPE).wait_to_read() for _ in range(3)]
        c = a + b
        d = c + c
        with pytest.raises(BudgetError, match="for arrays") as caught:
            d.wait_to_read()
        assert "set_pool" in caught.value.hint
        del a, d, other
        assert ((b + c).asnumpy() == 3).all()  # read into a fourth
        assert memory.stats().peak_reserved <= (memory.stats().limit or 0)
        with pytest.raises(InputError, match="keep=-1"):
            memory.set_pool(keep=-1)
        engine.close() if mode == "threaded" else None


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell what a process holds")
def test_trim_gives_memory_back() -> None:
    memory.set_pool(keep=1 << 30)
    held = [nd.ones((4 << 20,)).wait_to_read() for _ in range(4)]  # 64 MiB
    high = resident()
    del held
    assert resident() > high - (8 << 20)
    assert memory.stats().largest_free_block == 16 << 20
    assert memory.trim() >= 64 << 20
    assert resident() < high - (48 << 20)
    assert memory.stats().idle == 0


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_is_kept_is_bounded() -> None:
    memory.set_pool("naive", keep=5 * NBYTES)
    held = [nd.ones((n, 1024)).wait_to_read() for n in range(400, 420)]
    del held
    assert NBYTES < memory.stats().idle <= 5 * NBYTES
    assert 400 * 4096 <= memory.stats().largest_free_block < 420 * 4096


# -- traces ------------------------------------------------------------------------------------------------------------


def a_run() -> None:
    x = nd.ones((300, 1024))
    for i in range(12):
        x = (x[: 300 - 8 * i] * 0.5 + 1) if i % 3 else x * 2
    x.wait_to_read()


def test_a_replay_is_what_the_pool_did(tmp_path: Path) -> None:
    with Using("in place"):
        a_run()
        memory.set_pool("round:20", keep=1 << 22)
        before = memory.stats()
        with record(tmp_path / "run.jsonl"):
            a_run()
        after = memory.stats()
        a_run()
    events = read(tmp_path / "run.jsonl")
    made = replay(events, Rounding("round", 20), keep=1 << 22)
    assert (made.hits, made.misses) == (after.hits - before.hits, after.misses - before.misses)
    assert made.peak_reserved == after.peak_reserved - before.in_use
    assert made.peak_asked == after.peak_asked - before.asked
    assert {e.owner for e in events if e.owner} >= {"Add", "Mul"}
    assert len({e.number for e in events}) == sum(e.nbytes is not None for e in events)
    naive = replay(events, Rounding("naive"))
    assert naive.misses > made.misses
    assert made.peak > naive.peak == naive.peak_asked
    assert replay(events, Rounding("unpooled")).waste == 0
    with pytest.raises(BudgetError, match="the replay"):
        replay(events, Rounding("naive"), limit=1 << 20)


GOOD = [Event(0.5, 1, 300000, "Add"), Event(1.0, 2, 70, "Mül"), Event(2.25, 1), Event(3.0, 3, 0, "")]
BAD = {
    "nothing": "", "a head alone": json.dumps(HEAD) + "\n", "no head": text(GOOD).partition("\n")[2],
    "another version": text(GOOD).replace('"version": 1', '"version": 2'), "cut": text(GOOD)[:-20],
    "twice out": text([*GOOD, Event(4, 3, 5, "x")]), "never out": text([Event(0, 7), *GOOD]),
    "twice back": text([*GOOD, Event(4, 1)]), "no size": text(GOOD).replace("300000", "-1"),
    "a huge size": text(GOOD).replace("300000", str(1 << 60)), "no whole size": text(GOOD).replace("300000", "true"),
    "a text as time": text(GOOD).replace("0.5", '"0.5"'), "no number": text(GOOD).replace("2.25", "NaN"),
    "a list": text(GOOD) + "[1]\n", "another key": text(GOOD).replace('"owner"', '"oner"'),
    "a long line": text([*GOOD, Event(4, 9, 5, "x" * 5000)]), "deep": text(GOOD) + "[" * 4000 + "\n",
    "no text": "\udc80", "a long number": text(GOOD).replace("300000", "9" * 4000),
}  # fmt: skip


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(text(GOOD), "utf8")
    assert read(tmp_path / "t.jsonl") == GOOD


@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_no_traces(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(BAD[kind].encode("utf8", "surrogateescape"))
    with pytest.raises(InputError, match="memory trace"):
        read(path)
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "none.jsonl")


@given(at=st.integers(0, 300), byte=st.binary(min_size=1, max_size=3))
def test_damaged_files_are_read_or_refused(at: int, byte: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    whole = bytearray(text(GOOD).encode())
    whole[at : at + len(byte)] = byte
    path.write_bytes(whole)
    try:
        events = read(path)
    except InputError:
        return
    for rounding in ROUNDINGS:
        replay(events, rounding)


def test_the_command_compares_pools(tmp_path: Path) -> None:
    """A step whose length changes: exact sizes keep them all, rounded ones serve again."""
    with Using("in place"), record(tmp_path / "run.jsonl"):
        for n in range(400, 420):
            (nd.ones((n, 1024)) + 1).wait_to_read()
    runner = CliRunner()
    done = runner.invoke(cli, ["memory", str(tmp_path / "run.jsonl"), "--json"])
    assert done.exit_code == 0, done.output
    rows = {row["rounding"]: row for row in json.loads(done.output)["pools"]}
    assert list(rows) == ["unpooled", "naive", "round:16", "round:20", "round:24"]
    assert {row["asked bytes"] for row in rows.values()} == {2 * 419 * 4096}
    assert (rows["unpooled"]["waste %"], rows["unpooled"]["made"], rows["unpooled"]["ready"]) == ("0.0", 40, 0)
    assert rows["round:20"]["made"] == 2
    assert rows["naive"]["made"] >= 20
    assert float(rows["naive"]["waste %"]) > 80 > float(rows["round:20"]["waste %"])
    args = ["memory", str(tmp_path / "run.jsonl"), "--json", "--rounding", "naive", "--limit", "1MiB"]
    assert "passes the limit" in runner.invoke(cli, args).output
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert isinstance(runner.invoke(cli, ["memory", str(tmp_path / "bad.jsonl")]).exception, InputError)
    assert isinstance(runner.invoke(cli, [*args[:2], "--rounding", "often"]).exception, InputError)
