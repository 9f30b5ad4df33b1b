"""DataLoader: order, draws and batches are the same however they are made; places, deaths, bad samples, accounts."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from mezzo.data.batchify import AsList, Group, Pad, Stack
from mezzo.data.dataset import ArrayDataset, SimpleDataset
from mezzo.data.loader import DataLoader
from mezzo.data.making import BadSample
from mezzo.data.samplers import (
    Batches,
    BatchSampler,
    BucketSampler,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    Remainder,
    Sampler,
    SequentialSampler,
    ShardSampler,
    WeightedSampler,
)
from mezzo.ops.errors import DeadlineError, ExecutionError, InputError, MezzoError

from .data_sets import Bad, Growing, KillsOnce, Numbers, Once, Strings, Unequal, joined, times_ten

WAYS: list[dict[str, Any]] = [{}, {"workers": 1, "threads": True}, {"workers": 3, "threads": True}, {"workers": 2}]
NAMES = ["here", "a-thread", "threads", "processes"]


def numbers_of(loader: DataLoader) -> list[list[int]]:
    return [batch[1].tolist() for batch in loader]


@pytest.fixture(scope="module", autouse=True)
def found_by_workers() -> Iterator[None]:
    """Worker processes find the modules of tests where this process says."""
    sys.path.append(root := str(Path(__file__).parents[1]))
    yield
    sys.path.remove(root)


@pytest.fixture(scope="module")
def processes(found_by_workers: None) -> Iterator[DataLoader]:
    """Two worker processes that several tests share."""
    with DataLoader(Numbers(23), 4, shuffle=True, seed=5, workers=2) as loader:
        yield loader


def test_every_way_makes_the_same_batches(processes: DataLoader) -> None:
    """Sample for sample, with what each draws, in two epochs that differ."""
    loaders = [DataLoader(Numbers(23), 4, shuffle=True, seed=5, **way) for way in WAYS[:3]] + [processes]
    epochs = [[list(loader) for _ in range(2)] for loader in loaders]
    for other in epochs[1:]:
        for ours, theirs in zip(epochs[0], other, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                for x, y in zip(a[:3], b[:3], strict=True):
                    assert x.dtype == y.dtype
                    assert np.array_equal(x, y)
    first, second = ([n for batch in epoch for n in batch[1].tolist()] for epoch in epochs[0])
    assert sorted(first) == sorted(second) == list(range(23))
    assert first != second
    pids = {int(p) for batch in epochs[3][0] for p in batch[3]}
    assert pids <= {*processes.pids}
    assert os.getpid() not in pids


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_batches_of_every_structure(way: dict[str, Any]) -> None:
    with DataLoader(Strings().transform_first(dict), 1, **way) as loader:
        batches = list(loader)
    assert [b["text"] for b in batches] == [["ab" * i] for i in range(7)]
    assert [b["tokens"].shape for b in batches] == [(1, i + 1) for i in range(7)]
    assert batches[3]["pair"][0].tolist() == [3]
    assert batches[3]["pair"][1].dtype == np.float32
    assert batches[0]["none"] == [None]


@pytest.mark.parametrize("way", [WAYS[0], WAYS[3]], ids=[NAMES[0], NAMES[3]])
def test_batchify_rules_and_growing_batches(way: dict[str, Any]) -> None:
    with DataLoader(Numbers(7), 3, batchify_fn=joined, **way) as loader:
        assert [b["numbers"] for b in loader] == [[0, 1, 2], [3, 4, 5], [6]]
    with DataLoader(Growing(), 3, batchify_fn=Group(Pad(lengths=True), Stack()), **way) as loader:
        for _ in range(3):
            for i, ((arrays, lengths), nothing) in enumerate(loader):
                assert arrays.shape == (3, (3 * i + 2) * 1000 + 1)
                assert lengths.tolist() == [(3 * i + k) * 1000 + 1 for k in range(3)]
                assert (arrays[0, : 3000 * i + 1] == 3 * i).all()
                assert nothing.shape == (3, 0, 3)


def test_arrays_are_taken_at_once() -> None:
    X, y = np.arange(20.0).reshape(10, 2), np.arange(10)
    loader = DataLoader(ArrayDataset(X, y), 4, shuffle=True, seed=1)
    for x, labels in loader:
        assert np.array_equal(x, X[labels])
    assert np.concatenate(list(DataLoader(X, 3))).tolist() == X.tolist()


def test_datasets_of_datasets() -> None:
    data = SimpleDataset(list(range(10)))
    assert [*data.shard(3, 0)] == [0, 1, 2, 3]
    assert [*data.shard(3, 2)] == [7, 8, 9]
    assert [*data.take(3)] == [0, 1, 2]
    assert [*data.filter(lambda x: x % 3 == 0)] == [0, 3, 6, 9]
    assert [*data.sample([3, 1]).transform(lambda x: -x)] == [-3, -1]
    pairs = ArrayDataset([1, 2], [3, 4])
    assert [*pairs.transform_first(lambda x: x * 10)] == [(10, 3), (20, 4)]
    assert [*pairs.transform(times_ten, lazy=False)] == [(10, 3), (20, 4)]
    with pytest.raises(InputError, match="unequal"):
        ArrayDataset([1], [1, 2])
    with pytest.raises(InputError, match="no dataset"):
        DataLoader(3, 1)


# -- the place ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["keep", "discard", "rollover"])
@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_a_place_is_gone_on_from_by_any_number_of_workers(last: Any, stop: int, processes: DataLoader) -> None:
    def loader(**way: Any) -> DataLoader:
        return DataLoader(Numbers(23), 4, sampler=RandomSampler(23, 9), last_batch=last, seed=2, **way)

    whole, broken = loader(), loader(workers=2, threads=True)
    expected = [[(b[1].tolist(), b[2].tolist()) for b in whole] for _ in range(3)]
    seen = [[(b[1].tolist(), b[2].tolist()) for b in broken]]
    second = iter(broken)
    seen.append([(b[1].tolist(), b[2].tolist()) for b, _ in zip(second, range(stop), strict=False)])
    state = broken.state_dict()
    resumed = loader(workers=1, threads=True)
    resumed.load_state(state)
    seen[1] += [(b[1].tolist(), b[2].tolist()) for b in resumed]
    seen.append([(b[1].tolist(), b[2].tolist()) for b in resumed])
    # zip takes one batch more than it gives
    assert [n for epoch in seen for n in epoch] == [
        n for i, epoch in enumerate(expected) for j, n in enumerate(epoch) if (i, j) != (1, stop)
    ]


@pytest.mark.parametrize("rule", ["pad", "drop", "uneven"])
def test_a_place_is_gone_on_from_by_any_number_of_ranks(rule: Remainder) -> None:
    """The batch of all ranks has one size; samples and draws are those of one rank alone, in its order."""
    count, size = 50, 12

    def ranks(number: int) -> list[DataLoader]:
        shards = [ShardSampler(RandomSampler(count, 1), rank, number, remainder=rule) for rank in range(number)]
        return [DataLoader(Numbers(count), size // number, sampler=s, seed=4) for s in shards]

    def steps(loaders: list[DataLoader], many: int) -> list[tuple[int, float]]:
        epochs = [iter(loader) for loader in loaders]
        found = []
        for _ in range(many):
            for epoch in epochs:
                batch = next(epoch, None)
                found += [] if batch is None else list(zip(batch[1].tolist(), batch[2].tolist(), strict=True))
        return found

    alone = steps(ranks(1), 5)
    for before, after in ((3, 2), (2, 4), (1, 3), (4, 1)):
        first = ranks(before)
        seen = steps(first, 2)
        assert len({str(loader.state_dict()) for loader in first}) == 1
        others = ranks(after)
        for loader in others:
            loader.load_state(first[0].state_dict())
        seen += steps(others, 3)
        if rule == "pad":
            assert seen[:50] == alone[:50]
            assert len(seen) == -(-50 // after) * after
        elif rule == "drop":
            assert seen == alone[: 48 + 2 // after * after]
        else:
            assert seen == alone


def test_shards_are_equal_unless_they_are_asked_not_to_be() -> None:
    for length in (7, 12, 13):
        for count in (1, 2, 3, 5):
            for size in (1, 2, 4):
                for rule in ("pad", "drop", "uneven"):
                    shards = [ShardSampler(length, rank, count, remainder=rule) for rank in range(count)]
                    taken = [BatchSampler(s, size).lists(0) for s in shards]
                    every = sorted(n for lists in taken for batch in lists for n in batch)
                    sizes = [[len(b) for b in lists] for lists in taken]
                    assert [len(lists) for lists in taken] == [len(BatchSampler(s, size)) for s in shards]
                    if rule != "uneven":
                        assert all(s == sizes[0] for s in sizes)
                    if rule == "drop":
                        assert len({*every}) == len(every) == length // count * count
                    elif rule == "pad":
                        assert {*every} == {*range(length)}
                        assert len(every) == -(-length // count) * count
                    else:
                        assert every == [*range(length)]
    with pytest.raises(TypeError, match="remainder"):
        ShardSampler(3, 0, 1)  # type: ignore[call-arg]


def test_a_place_in_another_order_is_refused() -> None:
    loader = DataLoader(Numbers(10), 3, shuffle=True, seed=1)
    next(iter(loader))
    state = loader.state_dict()
    for other in (
        DataLoader(Numbers(10), 3, shuffle=True, seed=2),
        DataLoader(Numbers(11), 3, shuffle=True, seed=1),
        DataLoader(Numbers(10), 3, seed=1),
    ):
        with pytest.raises(InputError, match="another order"):
            other.load_state(state)
    with pytest.raises(InputError, match="no place"):
        loader.load_state({"epoch": 1})


# -- samplers ----------------------------------------------------------------------------------------------------------


def test_samplers() -> None:
    assert [*SequentialSampler(3, 2)] == [2, 3, 4]
    random = RandomSampler(9, 1)
    first, second = [*random], [*random]
    assert sorted(first) == sorted(second) == [*range(9)]
    assert first != second
    assert [*IntervalSampler(7, 3)] == [0, 3, 6, 1, 4, 2, 5]
    assert [*IntervalSampler(7, 3, rollover=False)] == [0, 3, 6]
    assert [*FilterSampler(lambda x: x > 2, [1, 5, 2, 3])] == [1, 3]
    drawn = np.array([*WeightedSampler([1, 0, 3], 4000)])
    assert 1 not in drawn
    assert abs((drawn == 2).mean() - 0.75) < 0.04
    assert BatchSampler(SequentialSampler(7), 3, "discard").lists(0) == [[0, 1, 2], [3, 4, 5]]
    rolling = BatchSampler(SequentialSampler(7), 3, "rollover")
    assert [*rolling] == [[0, 1, 2], [3, 4, 5]]
    assert [*rolling] == [[6, 0, 1], [2, 3, 4]]
    assert [*rolling] == [[5, 6, 0], [1, 2, 3], [4, 5, 6]]
    assert [b for e in range(5) for b in BatchSampler(SequentialSampler(2), 5, "rollover").lists(e)] == [
        [0, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]
    for weights in ([-1.0], [0.0], [float("nan")]):
        with pytest.raises(InputError):
            WeightedSampler(weights, 1)


def test_samplers_of_the_users() -> None:
    class Twice(Sampler):
        def order(self, epoch: int) -> Any:
            return np.array([epoch, epoch])

    loader = DataLoader(Numbers(5), 2, sampler=Twice())
    assert [numbers_of(loader) for _ in range(2)] == [[[0, 0]], [[1, 1]]]
    assert numbers_of(DataLoader(Numbers(5), 2, sampler=[4, 1, 2])) == [[4, 1], [2]]
    assert numbers_of(DataLoader(Numbers(5), batch_sampler=[[4], [1, 2]])) == [[4], [1, 2]]

    class Rule(Batches):
        def steps(self, epoch: int) -> Any:
            return [np.array([0, 1]), np.array([epoch])]

    assert numbers_of(DataLoader(Numbers(5), batch_sampler=Rule())) == [[0, 1], [0]]
    for wrong in ({"batch_size": 2}, {"shuffle": True}, {"sampler": [1]}):
        with pytest.raises(InputError, match="batch_sampler"):
            DataLoader(Numbers(5), batch_sampler=[[1]], **wrong)


@pytest.mark.parametrize("shuffle", [False, True])
def test_buckets_have_like_lengths(shuffle: bool) -> None:
    rng = Random(0)
    lengths = [rng.randrange(1, 60) for _ in range(203)]
    sampler = BucketSampler(lengths, 8, 6, shuffle=shuffle, seed=3)
    loader = DataLoader(Unequal(lengths), batch_sampler=sampler, batchify_fn=Pad(value=-1), seed=3)
    epochs = [[batch.copy() for batch in loader] for _ in range(2)]
    for epoch in epochs:
        assert sorted(int(row.max()) for batch in epoch for row in batch) == [*range(203)]
        full = sum(b.size for b in epoch)
        assert full < 1.25 * sum(lengths)  # in order it is twice as many
    assert len(loader) == len(epochs[0])
    again = BucketSampler(lengths, 8, 6, shuffle=shuffle, seed=3).steps(1)
    assert [[int(r.max()) for r in b] for b in epochs[1]] == [b.tolist() for b in again]
    ranks = [
        BucketSampler(lengths, 4, 6, shuffle=shuffle, seed=3, rank=r, count=2, remainder="uneven") for r in range(2)
    ]
    both = [n for r in ranks for rows in r.rows(0, 0) for n in rows.numbers.tolist()]
    assert sorted(both) == [*range(203)]
    with pytest.raises(InputError, match="buckets up to"):
        BucketSampler([3, 9], 2, [4, 8])


# -- bad samples and deaths --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_a_bad_sample_is_named_or_skipped_and_counted(way: dict[str, Any]) -> None:
    data = Bad(11, 5, "raise")
    with (
        DataLoader(data, 3, **way) as loader,
        pytest.raises(BadSample, match="number 5: the sample cannot be made: ZeroDivisionError: by nothing") as info,
    ):
        list(loader)
    assert info.value.name == "number 5"
    if way.get("workers") and not way.get("threads"):
        assert "data_sets.py" in info.value.__notes__[0]
    with DataLoader(data, 3, **way, bad="skip") as loader:
        assert numbers_of(loader) == [[0, 1, 2], [3, 4], [6, 7, 8], [9, 10]]
        stats = loader.stats()
        assert (stats.skipped, stats.skipped_samples[0][0], stats.samples) == (1, "number 5", 10)
    with DataLoader(data, 1, **way, bad="skip") as loader:  # a batch of which nothing is left
        assert numbers_of(loader) == [[i] for i in range(11) if i != 5]


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_sample_that_kills_workers_is_named_or_skipped(how: str) -> None:
    data = Bad(11, 5, how)
    with DataLoader(data, 3, workers=2) as loader:
        with pytest.raises(BadSample, match=r"number 5: .*3 workers died in it \((SIGKILL|exit code 7)\)"):
            list(loader)
        assert loader.stats().died == 3
    with DataLoader(data, 3, workers=1, bad="skip") as loader:
        assert numbers_of(loader) == [[0, 1, 2], [3, 4], [6, 7, 8], [9, 10]]
        assert loader.stats().skipped_samples == [("number 5", "workers died in it")]


def test_deaths_in_a_sample_that_came_since_do_not_count(tmp_path: Path) -> None:
    """Over many epochs machines take workers away now and then: that is no fault of a sample."""
    once = tmp_path / "once"
    with DataLoader(KillsOnce(8, 5, str(once)), 2, workers=1) as loader:
        for epoch in range(4):
            once.touch()
            assert numbers_of(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]
            assert loader.stats().died == epoch + 1


def test_a_sample_that_hangs_is_named() -> None:
    with (
        DataLoader(Bad(6, 2, "hang"), 2, workers=1, timeout=1.0) as loader,
        pytest.raises(DeadlineError, match="busy with number 2"),
    ):
        list(loader)


AHEAD = 8  # batches, at least as many as a loader with two workers has others make before they are asked for


def killed(kills: int, length: int, epochs: int, seed: int) -> None:
    """Kill workers at random while epochs go on: nothing is lost, doubled or left."""
    rng = Random(seed)
    descriptors = len(os.listdir("/proc/self/fd"))
    loader = DataLoader(Numbers(length, seconds=0.002, width=2000), 4, shuffle=True, seed=seed, workers=2)
    expected = DataLoader(Numbers(length, width=2000), 4, shuffle=True, seed=seed)
    done = threading.Event()
    came, count, pids = 0, 0, set[int]()
    killed_at = [-99, -99]  # how many batches had come: a sample that comes after two deaths is none that kills

    def kill() -> None:
        nonlocal count
        while not done.is_set() and count < kills:
            time.sleep(rng.uniform(0.005, 0.12))
            if came < killed_at[-2] + AHEAD:
                continue
            living = loader.pids
            pids.update(living)
            with suppress(ProcessLookupError, IndexError):  # it has just died, and its successor is not there yet
                os.kill(rng.choice(living), signal.SIGKILL)
                count += 1
                killed_at.append(came)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        epoch = 0
        while killer.is_alive() or epoch < epochs:
            for batch, right in zip(loader, expected, strict=True):
                assert batch[1].tolist() == right[1].tolist()
                assert batch[2].tolist() == right[2].tolist()
                assert (batch[0] == batch[1][:, None]).all()
                came += 1
            epoch += 1
    finally:
        done.set()
        killer.join()
    assert count == kills
    pids.update(loader.pids)
    loader.close()
    del batch
    gc.collect()
    assert loader.stats().died >= kills // 2  # some kills hit a process that had just died
    assert not [p for p in pids if Path(f"/proc/{p}").exists() and "Z" not in state_of(p)]
    # what stays open is multiprocessing's own
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 4


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_ten_kills_lose_nothing() -> None:
    killed(10, 60, 2, 0)


@pytest.mark.soak
def test_two_hundred_kills_lose_nothing() -> None:
    for seed in range(10):
        killed(20, 120, 3, seed)


def test_batches_are_left_and_loaders_closed() -> None:
    """Who leaves an epoch, or holds batches of a loader that is gone, neither waits nor loses them."""
    loader = DataLoader(Numbers(40), 2, workers=2)
    batch = next(iter(loader))
    assert batch[1].tolist() == [0, 1]
    both = [(a[1].tolist(), b[1].tolist()) for a, b in zip(loader, loader, strict=True)]  # two epochs at once
    assert all(a == b for a, b in both)
    assert len(both) == 20
    held = [b[0] for b in loader]
    pids = loader.pids
    del loader, batch
    gc.collect()
    assert [h[0, 0] for h in held] == [float(2 * i) for i in range(20)]
    assert not [p for p in pids if Path(f"/proc/{p}").exists() and "Z" not in state_of(p)]
    held[0][...] = -1  # they are the caller's


def test_memory_is_given_back_and_used_again() -> None:
    """However many epochs there are, there are only so many segments."""
    with DataLoader(Numbers(64, width=1 << 14), 4, workers=1) as loader:
        for _ in range(2):
            list(zip(loader, range(99), strict=False))
        source: Any = loader._source
        before = {*source._members[0].borrowed.segments}
        for _ in range(8):
            for _batch in loader:
                pass
        after = {*source._members[0].borrowed.segments}
        assert len(after) <= len(before)
        assert after <= before


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_no_orphans(how: str, tmp_path: Path) -> None:
    """Workers end with the process that they work for, however that ends."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from mezzo.data.loader import DataLoader\n"
        "from tests.data_sets import Numbers\n"
        "if __name__ == '__main__':\n"
        "    loader = DataLoader(Numbers(40, 0.01), 2, workers=2, start='spawn')\n"
        "    next(iter(loader))\n"
        "    print(*loader.pids, flush=True)\n"
        f"    os.kill(os.getpid(), signal.SIGKILL) if {how == 'kill'} else sys.exit(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=120)
    pids = [int(p) for p in ended.stdout.split()]
    assert len(pids) == 2, ended.stderr
    until = time.monotonic() + 30
    while any(Path(f"/proc/{p}").exists() and state_of(p) != "Z" for p in pids):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_what_cannot_be_sent_is_told() -> None:
    with pytest.raises(InputError, match="cannot be sent to another process"):
        iter(DataLoader(Numbers(4).transform(lambda *x: x), 2, workers=1))
    assert [b[1].tolist() for b in DataLoader(Numbers(4).transform(lambda *x: x), 2, workers=1, threads=True)] == [
        [0, 1],
        [2, 3],
    ]
    with DataLoader([{1, 2}], 1, batchify_fn=AsList(), workers=1) as loader, pytest.raises(ExecutionError, match="set"):
        list(loader)
    with pytest.raises(InputError, match="fork"):
        iter(DataLoader(Numbers(4), 2, workers=1, start="fork"))


def test_each_sample_is_made_once(tmp_path: Path) -> None:
    with DataLoader(Once(tmp_path, 30), 4, shuffle=True, workers=2) as loader:
        assert sorted(n for b in loader for n in b.tolist()) == [*range(30)]
    assert sorted(int(p.name.partition("-")[0]) for p in tmp_path.iterdir()) == [*range(30)]


# -- accounts ----------------------------------------------------------------------------------------------------------


def test_stats_tell_who_waits_and_for_what() -> None:
    slow = DataLoader(Numbers(40, seconds=0.02), 4)
    for _ in slow:
        time.sleep(0.02)
    stats = slow.stats()
    assert stats.batches == 10
    assert stats.waited > 0.7
    assert stats.used > 0.15
    assert stats.utilisation < 0.4
    assert stats.stages["read"] > 0.7
    assert max(stats.stages, key=lambda s: stats.stages[s]) == "read"
    assert "the trainer waited" in str(stats)
    slow._stats.waited = 9.0
    assert "workers=" in slow.advice()
    slow.reset_stats()
    assert slow.stats().batches == 0
    assert slow.advice() == ""


def test_bad_arguments() -> None:
    every: list[dict[str, Any]] = [
        {"batch_size": 0},
        {"batch_size": None},
        {"bad": "ignore"},
        {"workers": -1},
        {"timeout": 0},
        {"last_batch": "drop"},
        {"sampler": [1], "shuffle": True},
    ]
    for wrong in every:
        with pytest.raises(MezzoError):
            DataLoader(Numbers(4), **{"batch_size": 2, **wrong})


def test_batchify_errors_say_what_to_do() -> None:
    with pytest.raises(InputError, match=r"Pad\(\) joins"):
        list(DataLoader(Unequal([1, 2]), 2))
    with pytest.raises(InputError, match="sizes differ on axis 1"):
        Pad(0)([np.ones((1, 2)), np.ones((1, 3))])
    assert Pad(0, multiple=4, length=6)([np.ones((1, 2))]).shape == (1, 8, 2)
    with pytest.raises(InputError, match="fields"):
        Group(Stack(), Stack())([(1, 2, 3)])
