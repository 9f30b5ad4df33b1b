"""Rows of tables in stores: what a push of them does, and their sums over workers, with the bits of dense sums."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo import nd
from mezzo.gluon import Trainer as Blocks
from mezzo.gluon import nn
from mezzo.kvstore.create import create
from mezzo.kvstore.local import Local
from mezzo.kvstore.rows import FIRST, room_for, union
from mezzo.kvstore.states import read_states
from mezzo.kvstore.store import KVStore
from mezzo.nd import autograd
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError, MezzoError, ShapeError
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.optimizer import SGD, SGLD, Adagrad, Adam, Optimizer
from mezzo.tools.launch import launch, members
from mezzo.train.trainer import Trainer

from .test_sparse import BATCH, SIZE, batch, network, ops_of, states_of

Array = np.ndarray[Any, Any]
TABLE, WIDTH = 4000, 8
JOBS = {"one-host": (2, 0, 1), "one-server": (2, 1, 1), "two-levels": (4, 2, 2)}  # workers, servers, hosts


def rows_of(rank: int, step: int) -> tuple[Array, Array]:
    """What a rank has: in some steps more rows than there was room for, in others none."""
    rng = np.random.default_rng([8, rank, step])
    count = [20, 3 * FIRST, 0 if rank else 7, 30][step]
    ids = np.sort(rng.permutation(3 * count + 9)[:count])
    return ids, (rng.standard_normal((count, WIDTH)) * 10.0 ** rng.integers(-3, 4, (count, 1))).astype(np.float32)


def dense(ids: Array, rows: Array) -> Array:
    whole = np.zeros((TABLE, WIDTH), np.float32)
    whole[ids] = rows
    return whole


def half(number: int, rank: int, workers: int) -> dict[str, Array]:
    """The share of a rank of a batch."""
    whole = batch(number, size=BATCH * 4)
    many = BATCH * 4 // workers
    return {n: x[rank * many : (rank + 1) * many] for n, x in whole.items()}


LAZY = Adam(rate=0.01, lazy_update=True)


def lesson(kv: KVStore | None, rank: int, workers: int) -> dict[str, Array]:
    """Trainings of graphs and of blocks, lazy and not."""
    made: dict[str, Array] = {}
    for name, optimizer, gather in (
        ("lazy", LAZY, 1),
        ("gathered", LAZY, 2),
        ("exact", SGD(rate=0.5, lazy_update=True), 1),
    ):
        trainer = Trainer(network(), optimizer=optimizer, gather=gather, kvstore=kv, clip_norm=0.5, threads=1)
        for i in range(6):
            trainer.step(half(i, rank, workers))
        made |= {f"{name}:{n}": a for n, a in states_of(trainer).items() if not n.startswith("metrics/")}
    words = nn.Embedding(SIZE, 3, dtype="float64", sparse_grad=True)
    words.initialize()
    words.weight.set_data(np.random.default_rng(1).standard_normal((SIZE, 3)))
    blocks = Blocks(words.collect_params(), Adagrad(rate=0.1), kvstore=kv)
    for i in range(6):
        share = half(i, rank, workers)
        with autograd.record():
            value = (words(nd.asarray(share["text"])) ** 2).sum()
        value.backward()
        blocks.step(len(share["text"]))
    return made | {"blocks": words.weight.data().asnumpy()}


def work(folder: Path) -> None:
    """What a worker does."""
    with create("dist_sync") as kv:
        made: dict[str, Any] = {}
        kv.init({"rows": np.zeros((TABLE, WIDTH), np.float32), "whole": np.zeros((TABLE, WIDTH), np.float32)})
        travelled: list[list[int]] = []
        for step in range(4):
            mine = rows_of(kv.rank, step)
            before = kv.stats()
            made[f"ids {step}"], found = kv.sum_rows("rows", *mine)
            made[f"sums {step}"] = np.array(found)
            after = kv.stats()
            made[f"whole {step}"] = np.array(kv.pushpull("whole", dense(*mine)))
            kv.barrier()
            last = kv.stats()
            travelled.append(
                [(b.inside + b.between) - (a.inside + a.between) for a, b in ((before, after), (after, last))]
            )
        refused = []
        for call in (
            lambda: kv.init("mezzo/sum/rows", np.zeros(1)),
            lambda: kv.sum_rows("rows", np.array([3, 3]), np.zeros((2, WIDTH), np.float32)),
        ):
            try:
                call()
            except MezzoError as error:
                refused.append(str(error))
        made |= lesson(kv, kv.rank, kv.num_workers)
        np.savez(folder / f"{kv.rank}.npz", **made)
        (folder / f"{kv.rank}.json").write_text(json.dumps({"travelled": travelled, "refused": refused}))


@pytest.mark.parametrize("job", [pytest.param(j, marks=[pytest.mark.soak] * (j == "one-server")) for j in JOBS])
def test_sums_of_rows_are_dense_sums_and_only_rows_travel(job: str, tmp_path: Path) -> None:
    workers, servers, hosts = JOBS[job]
    assert launch(members((sys.executable, "-m", "tests.test_kv_rows", str(tmp_path)), workers, servers, hosts)) == 0
    ranks = [dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(workers)]
    for found in ranks[1:]:
        for name, a in found.items():
            np.testing.assert_array_equal(a, ranks[0][name], err_msg=name)
    for step in range(4):
        ids = ranks[0][f"ids {step}"]
        np.testing.assert_array_equal(ids, np.unique(np.concatenate([rows_of(r, step)[0] for r in range(workers)])))
        np.testing.assert_array_equal(dense(ids, ranks[0][f"sums {step}"]), ranks[0][f"whole {step}"])
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(workers)]
    for step in (0, 3):  # of a few rows of 4000; the first round of a key takes what its numbers have room for
        rows, whole = (sum(s["travelled"][step][i] for s in said) for i in range(2))
        assert 0 < rows < whole / 4, (rows, whole)
    for s in said:
        assert "keys that begin with 'mezzo/sum/' are the store's own" in s["refused"][0]
        assert "rows are given twice" in s["refused"][1]
    alone = lesson(None, 0, 1)
    for name, a in alone.items():
        assert np.abs(ranks[0][name] - np.asarray(a, float)).max(initial=0) <= 1e-9 * max(
            1e-9, np.abs(a).max(initial=0)
        ), name
    assert any(n.startswith("lazy:table") for n in alone)


# -- stepped by the store

STEPPED = [
    Adam(rate=0.01, weight_decay=0.1, lazy_update=True),
    SGD(rate=0.5),  # leaves alone what has no gradient
    SGD(rate=0.1, momentum=0.9),  # steps the whole table
    SGLD(rate=0.01, lazy_update=True),  # draws numbers
]
COLUMNS = 33  # of a table that is split over servers, in the middle of rows


def wide(rank: int, step: int) -> tuple[Array, Array]:
    ids, rows = rows_of(rank, step)
    return ids, np.concatenate([np.tile(rows, (1, 4)), rows[:, :1]], 1)


def summed(step: int, workers: int, hosts: int) -> tuple[Array, Array]:
    """The rows of all, in the order in which hosts, and their workers, are summed."""
    many = workers // hosts
    return union([union([wide(host * many + i, step) for i in range(many)]) for host in range(hosts)])


def sparse(ids: Array, rows: Array) -> Any:
    return nd.row_sparse_array((rows, ids), (TABLE, rows.shape[1]))


def stepped(kv: KVStore, folder: Path, given: Callable[[int], tuple[Array, Array]]) -> dict[str, Array]:
    """What a store has after pushes of rows, beside dense ones; its states are saved on the way, and loaded."""
    made: dict[str, Array] = {}
    first = np.random.default_rng(7).standard_normal((TABLE, COLUMNS)).astype(np.float32)
    for number, optimizer in enumerate(STEPPED):
        key, file = f"words {number}", folder / f"states {number}"
        kv.init({key: first, number: np.ones(5, np.float32)})
        kv.set_optimizer(optimizer)
        for step in range(6):
            if step == 4:
                kv.save_optimizer_states(file)
            kv.push(key, sparse(*given(step % 4)))
            ids = np.array([3, 0, 9, 3])
            found = np.empty((4, COLUMNS), np.float32)
            kv.row_sparse_pull(key, found, ids)
            made[f"{key} of {step}"] = found
            kv.pushpull(number, np.full(5, 1 / kv.num_workers, np.float32))
        kv.barrier()
        kv.load_optimizer_states(file)
        out = nd.zeros((TABLE, COLUMNS))
        kv.pushpull(key, sparse(*given(0)), out)
        made[key], made[str(number)] = out.asnumpy(), np.array(kv.pull(number))
    return made


def blocks_stepped(kv: KVStore, share: Callable[[int], dict[str, Array]]) -> Array:
    """A table of words that a store with an optimizer has trained."""
    words = nn.Embedding(SIZE, 3, dtype="float64", sparse_grad=True)
    words.initialize()
    words.weight.set_data(np.random.default_rng(1).standard_normal((SIZE, 3)))
    trainer = Blocks(words.collect_params(), LAZY, kvstore=kv, update_on_kvstore=True)
    for i in range(6):
        text = share(i)["text"]
        with autograd.record():
            value = (words(nd.asarray(text)) ** 2).sum()
        value.backward()
        trainer.step(len(text))
    return words.weight.data().asnumpy()


def graphs_stepped(kv: KVStore | None, share: Callable[[int], dict[str, Array]]) -> dict[str, Array]:
    """What a store with an optimizer, or a trainer by itself, has learned of graphs."""
    made: dict[str, Array] = {}
    for gather in (1, 2):
        how: dict[str, Any] = {} if kv is None else {"kvstore": kv, "update_on_kvstore": True}
        trainer = Trainer(network(), optimizer=LAZY, gather=gather, threads=1, **how)
        assert kv is None or {"SumRows", "UpdateRows"} <= ops_of(trainer)
        for i in range(6):
            trainer.step(share(i))
        made |= {f"graph {gather}:{n}": np.array(a) for n, a in trainer.parameters.items()}
    return made


def work_stepped(folder: Path) -> None:
    with create("dist_sync") as kv:
        made: dict[str, Any] = dict(stepped(kv, folder, lambda step: wide(kv.rank, step)))
        made["blocks"] = blocks_stepped(kv, lambda i: half(i, kv.rank, kv.num_workers))
        made |= graphs_stepped(kv, lambda i: half(i, kv.rank, kv.num_workers))
        kv.set_optimizer(STEPPED[-1])
        before = kv.stats()
        for key in ("words 0", "words 2"):  # with the last optimizer, which is lazy
            kv.push(key, sparse(*wide(kv.rank, 0)))
        travelled = kv.stats()
        np.savez(folder / f"{kv.rank}.npz", **made)
        count = travelled.inside + travelled.between - before.inside - before.between
        (folder / f"{kv.rank}.json").write_text(json.dumps(count))


STEPS = {**JOBS, "two-servers": (2, 2, 1)}


@pytest.mark.parametrize("job", [pytest.param(j, marks=[pytest.mark.soak] * (j == "one-server")) for j in STEPS])
def test_an_optimizer_on_servers_steps_rows_as_a_local_one_does(job: str, tmp_path: Path) -> None:
    workers, servers, hosts = STEPS[job]
    command = (sys.executable, "-m", "tests.test_kv_rows", str(tmp_path), "stepped")
    assert launch(members(command, workers, servers, hosts)) == 0
    (tmp_path / "local").mkdir()
    with create("local") as kv:
        alone = stepped(kv, tmp_path / "local", lambda step: summed(step, workers, hosts))
        trained = {
            "blocks": blocks_stepped(kv, lambda i: half(i, 0, 1)),
            **graphs_stepped(None, lambda i: half(i, 0, 1)),
        }
    for rank in range(workers):
        learned_here = dict(np.load(tmp_path / f"{rank}.npz"))
        for name, learned in trained.items():
            assert np.abs(learned_here.pop(name) - learned).max() <= 1e-13, name
        for name, learned in learned_here.items():
            np.testing.assert_array_equal(learned, alone[name], err_msg=f"{name} on rank {rank}")
    for number, optimizer in enumerate(STEPPED):
        saved, local = (read_states(folder / f"states {number}") for folder in (tmp_path, tmp_path / "local"))
        assert saved.updates == local.updates
        assert saved.states.keys() == {f"words {n}" for n in range(number + 1)} | {f"#{n}" for n in range(number + 1)}
        for slot in optimizer.slots:
            np.testing.assert_array_equal(saved.states[f"words {number}"][slot], local.states[f"words {number}"][slot])
    travelled = sum(json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(workers))
    assert 0 < travelled < workers * TABLE * COLUMNS * 4 / 2


def work_apart(folder: Path, kind: str) -> None:
    """Nobody waits for anybody: every push of rows counts once."""
    with create("dist_async", consistency=kind, staleness=2 if kind == "bounded" else None) as kv:
        kv.init("words", np.zeros((TABLE, COLUMNS)))
        kv.set_optimizer(SGD(rate=0.5))
        for step in range(4):
            ids, rows = wide(kv.rank, step)
            kv.push("words", sparse(ids, rows.astype(np.float64)))
        kv.barrier()
        np.save(folder / f"{kv.rank}.npy", np.array(kv.pull("words")))
        kv.barrier()


def work_refused(folder: Path) -> None:
    with create("dist_async", consistency="bounded", staleness=2) as kv:
        kv.init("words", np.zeros((TABLE, COLUMNS), np.float32))
        kv.set_optimizer(LAZY)
        with pytest.raises(InputError, match="rows are stepped in sequential stores and in eventual ones") as caught:
            kv.push("words", sparse(*wide(0, 0)))
        (folder / f"{kv.rank}.txt").write_text(str(caught.value))


def test_servers_of_a_bounded_store_refuse_rows(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.test_kv_rows", str(tmp_path), "refused")
    assert launch(members(command, 2, 1, 1)) == 0
    assert "bounded 2/bounded 2" in (tmp_path / "1.txt").read_text()


@pytest.mark.parametrize(("kind", "servers"), [("eventual", 0), ("bounded", 0), ("eventual", 2)])
def test_every_push_of_rows_counts_once_where_nobody_waits(kind: str, servers: int, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.test_kv_rows", str(tmp_path), kind)
    assert launch(members(command, 2, servers, 1)) == 0
    total = np.zeros((TABLE, COLUMNS))
    for rank in range(2):
        for step in range(4):
            ids, rows = wide(rank, step)
            total[ids] -= 0.5 * rows.astype(np.float64)
    for rank in range(2):
        np.testing.assert_allclose(np.load(tmp_path / f"{rank}.npy"), total, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "optimizer", [SGD(rate=0.5), Adagrad(rate=0.1), Adam(), Adam(lazy_update=True), SGD(momentum=0.9)]
)
def test_an_optimizer_on_a_local_store_steps_rows(optimizer: Optimizer) -> None:
    """As a dense gradient where nothing else was asked for, and the rows alone where it was."""
    value = np.random.default_rng(0).standard_normal((9, 2))
    kv, other = create("local"), create("device")
    for store in (kv, other):
        store.init("w", value)
        store.set_optimizer(optimizer)
    before = value
    for step in range(3):
        ids = np.array([[1, 4], [4, 8], [0, 1]][step])
        rows = np.random.default_rng(step).standard_normal((2, 2))
        kv.push("w", nd.row_sparse_array((rows, ids), (9, 2)))
        whole = np.zeros((9, 2))
        whole[ids] = rows
        other.push("w", whole)
        now = np.array(kv.pull("w"))
        if optimizer.lazy_update:
            assert np.unique(np.nonzero(now != before)[0]).tolist() == ids.tolist()
        else:
            np.testing.assert_array_equal(now, other.pull("w"))
        before = now
    assert kv.stats().pushes == 3


def test_a_local_store_sums_devices_and_keeps_what_it_is_given() -> None:
    kv = create("local")
    kv.init({"w": np.ones((6, 2)), 3: np.ones((6, 2))})
    a = nd.row_sparse_array((np.array([[1.0, 2], [3, 4]]), [5, 1]), (6, 2))
    b = nd.row_sparse_array((np.array([[10.0, 20]]), [1]), (6, 2))
    out = nd.row_sparse_array((np.zeros((0, 2)), np.zeros(0, np.int64)), (6, 2))
    kv.pushpull("w", [a, b], out)
    assert (out.indices.tolist(), out.data.tolist()) == ([1, 5], [[13, 24], [1, 2]])
    assert (np.asarray(kv.pull("w")) == 1).all()  # a sum leaves alone what is stored
    kv.push(3, [a, b])
    np.testing.assert_array_equal(kv.pull(3), out.asnumpy())
    kv.row_sparse_pull(3, out, [5, 0, 5])
    assert (out.indices.tolist(), out.data.tolist()) == ([0, 5], [[0, 0], [1, 2]])
    kv.set_updater(lambda key, received, stored: np.add(stored, received, out=stored))
    kv.push("w", b)
    assert np.asarray(kv.pull("w"))[1].tolist() == [11, 21]


def test_what_is_refused() -> None:
    kv = create("local")
    kv.init("w", np.zeros((6, 2)))
    rows = nd.row_sparse_array((np.zeros((1, 2)), [1]), (6, 2))
    with pytest.raises(InputError, match="rows go to a RowSparse"):
        kv.pushpull("w", rows, np.zeros((6, 2)))
    with pytest.raises(ShapeError, match="is to be filled"):
        kv.pushpull("w", rows, nd.row_sparse_array((np.zeros((1, 2)), [1]), (7, 2)))
    with pytest.raises(ShapeError, match="for 1 rows of"):
        kv.push("w", nd.row_sparse_array((np.zeros((1, 3)), [1]), (6, 3)))
    with pytest.raises(InputError, match="reach from 7 to 7"):
        kv.sum_rows("w", np.array([7]), np.zeros((1, 2)))
    apart = KVStore(Local(), ("eventual", "eventual"))
    apart.init("w", np.zeros((6, 2)))
    with pytest.raises(InputError, match="does not sum over workers"):
        apart.sum_rows("w", np.array([1]), np.zeros((1, 2)))
    kv.set_optimizer(SGD())
    with pytest.raises(InputError, match="has an optimizer"):
        kv.sum_rows("w", np.array([1]), np.zeros((1, 2)))
    trainer = Trainer(network(), optimizer=LAZY, kvstore=KVStore(Local(), ("eventual",) * 2), update_on_kvstore=True)
    with pytest.raises(InputError, match="would not see the rows that only others change"):
        trainer.step(batch(0))


class More:
    """A store in which others have given these rows too."""

    part = ()

    def __init__(self, count: int) -> None:
        self.count = count

    def buffer(self, key: str, type: Tensor) -> Array:
        raise NotImplementedError

    def emit(self, key: str, verb: str = "all_reduce") -> None:
        raise NotImplementedError

    def wait(self, key: str) -> Array:
        raise NotImplementedError

    def sum_rows(self, key: str, ids: Array, rows: Array) -> tuple[Array, Array]:
        assert (key, ids.tolist()) == ("w", [2, 5])
        return np.arange(self.count), np.ones((self.count, 3), np.float32)


def test_there_is_room_for_as_many_rows_of_each_worker() -> None:
    g = GraphBuilder()
    ids, rows = g.input("ids", Tensor(DType.INT64, (3,))), g.input("rows", f32(3, 3))
    graph = g.graph([*g.op("SumRows", ids, rows, domain="mezzo", outputs=2, key="w", size=9, workers=2)])
    feeds = {"ids": np.array([2, 5, 9]), "rows": np.ones((3, 3), np.float32)}
    numbers, sums = Session(graph, exchange=More(4)).run(feeds).values()
    assert numbers.tolist() == [0, 1, 2, 3, 9, 9]
    assert sums[:, 0].tolist() == [1, 1, 1, 1, 0, 0]
    with pytest.raises(MezzoError, match="read 7 rows together, and there is room for 6"):
        Session(graph, exchange=More(7)).run(feeds)


def test_blocks_whose_optimizer_is_on_a_local_store() -> None:
    found = []
    for on_store in (False, True):
        words = nn.Embedding(50, 3, dtype="float64", sparse_grad=True)
        words.initialize()
        words.weight.set_data(np.random.default_rng(1).standard_normal((50, 3)))
        trainer = Blocks(words.collect_params(), LAZY, kvstore="local", update_on_kvstore=on_store)
        for i in range(4):
            with autograd.record():
                value = (words(nd.asarray([[i, 7, 7]])) ** 2).sum()
            value.backward()
            trainer.step(2)
        found.append(words.weight.data().asnumpy())
    assert np.abs(found[0] - found[1]).max() <= 1e-15


@given(st.integers(0, 10**7))
def test_room_is_enough_and_not_much_more(count: int) -> None:
    assert count <= room_for(count) <= max(1, count * 1.25)
    assert room_for(room_for(count)) == room_for(count)


def test_a_union_adds_in_order() -> None:
    parts = [
        (np.array([2]), np.array([1e8])),
        (np.array([0, 2]), np.array([5.0, 1])),
        (np.array([2]), np.array([-1e8])),
    ]
    ids, sums = union([(i, r.astype(np.float32)) for i, r in parts])
    assert (ids.tolist(), sums.tolist()) == ([0, 2], [5, 0])


if __name__ == "__main__":
    place, what = Path(sys.argv[1]), (sys.argv[2:] or ["summed"])[0]
    if what == "summed":
        work(place)
    elif what == "stepped":
        work_stepped(place)
    elif what == "refused":
        work_refused(place)
    else:
        work_apart(place, what)
