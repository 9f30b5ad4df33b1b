"""Trainings over communicators: the bits of one process that computes the shares in turn and adds them in rank order,
with flat buckets, ZeRO and gathered gradients; checkpoints in parts; ranks that die."""

from __future__ import annotations

import itertools
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.kvstore.collective.checked import checked
from mezzo.kvstore.collective.communicator import Communicator
from mezzo.kvstore.collective.threads import team
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import DType
from mezzo.ops.errors import InputError, ModelError, PeerError
from mezzo.runtime.optimizer import LAMB, SGD, SGLD, Adam
from mezzo.tools.explain_training import training_table
from mezzo.tools.launch import launch, members
from mezzo.train.buckets import Bucket, buckets_of
from mezzo.train.collective import Collective
from mezzo.train.parts import is_part

from .collective_job import course_of
from .collective_lessons import Course, by_threads, in_turn, learned, network, together

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[1]
GRID = {
    "optimizer": ("sgd", "adam", "adamw"), "ranks": (4, 3, 5), "zero": (0, 1, 2), "gather": (1, 2),
    "buckets": (200, True, 1), "wire": (None, "bf16"), "dtype": (DType.DOUBLE, DType.FLOAT),
}  # fmt: skip


def pairwise(grid: dict[str, tuple[Any, ...]]) -> list[Course]:
    """Courses in which each two values of each two settings meet, chosen greedily."""
    names = list(grid)
    every: list[dict[str, Any]] = [
        dict(zip(names, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    pairs = [frozenset(itertools.combinations(sorted((n, repr(v)) for n, v in one.items()), 2)) for one in every]
    left, chosen = set().union(*pairs), []
    while left:
        best = max(range(len(every)), key=lambda i: len(pairs[i] & left))
        chosen.append(Course(**every[best]))
        left -= pairs[best]
    return chosen


def has_the_bits(course: Course) -> None:
    found, expected = by_threads(course), in_turn(course)
    for name, array in expected.items():
        for rank in found:
            np.testing.assert_array_equal(rank[name], array, f"{course}: {name}")


@pytest.mark.parametrize("course", pairwise(GRID), ids=str)
def test_ranks_learn_the_bits_of_one_process_that_adds_in_turn(course: Course) -> None:
    has_the_bits(course)


@pytest.mark.soak
def test_the_whole_grid() -> None:
    for values in itertools.product(*GRID.values()):
        how: dict[str, Any] = dict(zip(GRID, values, strict=True))
        has_the_bits(Course(**how))


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_ranks_learn_what_the_whole_batch_teaches(zero: int, clip_norm: float | None) -> None:
    """Within 1e-6, in float64, uneven batches included; so does clipping by the norm of all gradients."""
    course = Course("adam", 4, zero, 2, clip_norm=clip_norm, buckets=200)
    found = by_threads(course)
    alone = course.trainer()
    whole = [{n: np.concatenate([share[n] for share in batch]) for n in batch[0]} for batch in course.batches()]
    expected = learned(alone, whole)
    for name in alone.trained:
        gap = np.abs(found[0][name] - expected[name]).max()
        assert gap <= 1e-6 * np.abs(expected[name]).max(), name
        assert gap <= 1e-6 * np.abs(expected[name] - alone.source.initializers[name]).max(), "of what was learned"


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_the_norm_is_that_of_clipped_values(zero: int) -> None:
    """With both bounds values are clipped first, as one process does; zero=2 took the norm of what was not clipped."""
    course, bounds = Course("sgd", 2, zero, clip_norm=0.02), {"clip_value": 0.01}
    shares = course.batches()[:1]
    found = together(team(2, 60), lambda c: learned(course.trainer(c, **bounds), [b[c.rank] for b in shares]))[0]
    alone = course.trainer(**bounds)
    expected = learned(alone, [{n: np.concatenate([s[n] for s in b]) for n in b[0]} for b in shares])
    for name in alone.trained:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12, atol=1e-14, err_msg=name)


def test_a_snapshot_does_not_bring_the_share_of_its_batch_back() -> None:
    """Taken behind an uneven batch, and gone back to behind even ones: the next even batch counts as it should."""
    course = Course("sgd", 2, 0)
    even, _, uneven = course.batches()[:3]
    assert len(uneven[0]["x"]) != len(uneven[1]["x"])

    def go(communicator: Communicator) -> tuple[dict[str, Array], dict[str, Array]]:
        trainer, rank = course.trainer(communicator), communicator.rank
        trainer.step(uneven[rank])
        kept = trainer.snapshot()
        first = learned(trainer, [even[rank]])
        trainer.restore(kept)
        return first, learned(trainer, [even[rank]])

    for first, second in together(team(2, 60), go):
        for name, array in first.items():
            np.testing.assert_array_equal(second[name], array, name)


@pytest.mark.parametrize("ranks", [3, 2, 0])
def test_snapshots_of_callbacks_are_those_of_each_rank(ranks: int, tmp_path: Path) -> None:
    """Checkpoints have what EarlyStopping keeps by the names of one rank: each got rank 0's part of the optimizer's
    states, and another number of ranks could not take them."""
    course = Course("adam", 3, 2)
    even = course.batches()[0]

    def save(communicator: Communicator) -> None:
        trainer = course.trainer(communicator)
        trainer.fit([even[communicator.rank]], callbacks=[stop := mz.callbacks.EarlyStopping("loss")])
        stop._kept = trainer.snapshot()  # as it would be amid a fit
        trainer.save(tmp_path)

    def after(communicator: Communicator | None) -> dict[str, Array]:
        trainer = course.trainer(communicator)
        trainer.resume(tmp_path)
        kept = trainer._resumed["EarlyStopping of loss"]["kept"]
        names = [n for n in trainer.states if n.startswith("optimizer/") or n in trainer.trained]
        assert {*names} <= {*kept}
        for name in names:
            np.testing.assert_array_equal(kept[name], trainer.states[name], name)
        trainer.restore(kept)
        return {n: np.array(trainer.states[n]) for n in trainer.trained}

    def again(communicator: Communicator) -> None:
        """A checkpoint of a training that was resumed and has not gone on has the whole of them, too."""
        trainer = course.trainer(communicator)
        trainer.resume(tmp_path)
        trainer.save(tmp_path)

    together(team(3, 60), save)
    if ranks != 3:
        together(team(3, 60), again)
    for found in together(team(ranks, 60), after) if ranks else [after(None)]:
        assert found.keys() == {*course.trainer().trained}


def test_a_job_of_four_processes_has_the_bits_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    courses = ("adamw/0/1/200", "adam/1/2/0", "adamw/2/1/300")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = (sys.executable, "-m", "tests.collective_job", str(tmp_path), *courses)
    assert launch(members(command, 4, 0)) == 0
    one_process = {text: in_turn(course_of(text, 4)) for text in courses}
    for rank in range(4):
        with np.load(tmp_path / f"{rank}.npz") as found:
            for text, expected in one_process.items():
                for name, array in expected.items():
                    np.testing.assert_array_equal(found[f"{text}:{name}"], array, f"{text}: {name}")


def test_calls_of_all_ranks_have_one_order_and_begin_before_the_backward_part_ends() -> None:
    """A checking communicator finds nothing; the first bucket leaves before the last gradient is made."""
    course, ranks = Course("adamw", 4, 2, buckets=200), checked(4, 60)
    together(list(ranks), lambda c: learned(course.trainer(c), [b[c.rank] for b in course.batches()]))
    first, *others = [[str(call) for call in rank.log] for rank in ranks]
    assert all(log == first for log in others)
    step = first[first.index("all_reduce of float64[1] 'norm'") - 6 :][:13]
    assert [call.partition(" ")[0] for call in step] == ["reduce_scatter"] * 6 + ["all_reduce"] + ["all_gather"] * 6
    assert [call.partition("'")[2] for call in step[:6]] == [f"bucket {n}'" for n in range(6)]
    (alone,) = team(1)
    nodes = [n.op for n in Course("adamw", 1, 0, buckets=200).trainer(alone).graph_of_step.nodes]
    backward = [i for i, op in enumerate(nodes) if op in ("MatMul", "Gemm")]
    assert nodes.index("Emit") < backward[-1], "a bucket travels while gradients are made"


# -- what the ranks keep


def test_states_are_shared_out() -> None:
    def sizes(communicator: Communicator) -> int:
        trainer = Course("adam", 4, 2).trainer(communicator)
        learned(trainer, [Course("adam", 4, 2).batches()[0][communicator.rank]])
        return sum(a.size for n, a in trainer.states.items() if is_part(n))

    count = 15 + 5 + 35 + 7 + 21 + 3
    assert together(team(4, 60), sizes) == [2 * -(-count // 4)] * 4


def test_buckets_are_filled_in_order_and_hold_what_is_alike() -> None:
    arrays = {n: np.zeros(s, t) for n, s, t in [("a", 10, "f4"), ("b", 20, "f4"), ("c", 3, "f8"), ("d", 90, "f8")]}
    found = buckets_of(arrays, ["b", "a", "d", "c"], lambda n: n == "c", 4, 120)
    assert [bucket.names for bucket in found] == [("b", "a"), ("d",), ("c",)]
    rng = np.random.default_rng(0)
    for bucket in found:
        values = {n: rng.standard_normal(arrays[n].shape) for n in bucket.names}
        back = bucket.whole([bucket.flat(values, r) for r in range(4)])
        assert all(np.array_equal(back[n], values[n]) for n in values)


def test_many_random_buckets_come_back() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        shapes = tuple(tuple(rng.integers(0, 4, rng.integers(0, 3)).tolist()) for _ in range(rng.integers(1, 6)))
        bucket = Bucket("k", tuple(map(str, range(len(shapes)))), shapes, DType.FLOAT, int(rng.integers(1, 8)))
        values = {n: rng.standard_normal(s).astype(np.float32) for n, s in zip(bucket.names, shapes, strict=True)}
        assert sum(p.end - p.begin for r in range(bucket.workers) for p in bucket.pieces(r)) == bucket.count
        back = bucket.whole([bucket.flat(values, r) for r in range(bucket.workers)])
        assert all(np.array_equal(back[n], values[n]) and back[n].shape == values[n].shape for n in values)


# -- checkpoints


def resumed(course: Course, ranks: int, folder: Path, steps: slice) -> dict[str, Array]:
    """What so many ranks learn that go on from a checkpoint; 0: one process without a communicator."""
    course = Course(course.optimizer, ranks or 4, course.zero, buckets=course.buckets)
    shares = course.batches()[steps]

    def go_on(communicator: Communicator | None) -> dict[str, Array]:
        trainer = course.trainer(communicator)
        assert trainer.resume(folder) == {"at": 2}
        if communicator is None:
            return learned(trainer, [{n: np.concatenate([s[n] for s in b]) for n in b[0]} for b in shares])
        return learned(trainer, [b[communicator.rank] for b in shares])

    return go_on(None) if not ranks else together(team(ranks, 60), go_on)[0]


@pytest.mark.parametrize("zero", [1, 2])
def test_a_checkpoint_in_parts_is_read_by_any_number_of_ranks(zero: int, tmp_path: Path) -> None:
    course = Course("adamw", 4, zero, buckets=200)

    def begin(communicator: Communicator) -> dict[str, Array]:
        trainer = course.trainer(communicator)
        shares = [b[communicator.rank] for b in course.batches()]
        learned(trainer, shares[:2])
        trainer.notes = {"at": 2}
        trainer.save(tmp_path, keep=2)
        return learned(trainer, shares[2:])

    went_on = together(team(4, 60), begin)[0]
    assert len([*tmp_path.glob("*.safetensors")]) == 5, "one of each rank, and what all have"
    back = resumed(course, 4, tmp_path, slice(2, None))
    for name, array in went_on.items():
        np.testing.assert_array_equal(back[name], array, name)
    once, again = resumed(course, 3, tmp_path, slice(2, 3)), resumed(course, 3, tmp_path, slice(2, 3))
    for name, array in once.items():
        np.testing.assert_array_equal(again[name], array, name)
    same_data = [resumed(course, 4, tmp_path, slice(2, 3)), resumed(course, 0, tmp_path, slice(2, 3))]
    for name in course.trainer().trained:
        np.testing.assert_allclose(same_data[0][name], same_data[1][name], rtol=1e-12, atol=1e-14)


def test_a_part_that_is_damaged_is_no_checkpoint(tmp_path: Path) -> None:
    def save(communicator: Communicator) -> set[str]:
        trainer = Course("adam", 3, 2).trainer(communicator)
        learned(trainer, [Course("adam", 3, 2).batches()[0][communicator.rank]])
        trainer.save(tmp_path)
        return {n for n in trainer.states if is_part(n)}

    states = together(team(3, 60), save)[0]
    assert states
    smallest = min(tmp_path.glob("*.safetensors"), key=os.path.getsize)
    data = bytearray(smallest.read_bytes())
    data[-3] ^= 1
    smallest.write_bytes(data)
    with pytest.raises(ModelError, match="another digest"):
        Course("adam").trainer().resume(tmp_path)


def test_gathered_gradients_are_no_checkpoint(tmp_path: Path) -> None:
    def save(communicator: Communicator) -> str:
        trainer = Course("adam", 2, 2, 2).trainer(communicator)
        learned(trainer, [Course("adam", 2, 2, 2).batches()[0][communicator.rank]])
        with pytest.raises(InputError, match="1 more calls of step make it"):
            trainer.save(tmp_path)
        return "refused"

    assert together(team(2, 60), save) == ["refused"] * 2


# -- what goes wrong


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_rank_that_dies_is_named_and_the_others_go_on_without_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is whole; two ranks go on from it to the bits of any other two that do."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = (sys.executable, "-m", "tests.collective_job", str(tmp_path), how)
    assert launch(members(command, 3, 0), grace=20.0) != 0
    for rank in (0, 2):
        seconds, _, message = (tmp_path / f"{rank}.heard").read_text().partition("\n")
        assert re.search("(^|: )rank 1 (has died|did not) ", message), message
        assert float(seconds) < 20
    for rank in range(3):
        assert not Path(f"/proc/{(tmp_path / f'{rank}.pid').read_text()}").exists(), "an orphan"
    course = Course("adamw", 2, 2)

    def go_on(communicator: Communicator) -> dict[str, Array]:
        trainer = course.trainer(communicator)
        trainer.resume(tmp_path / "kept")
        return learned(trainer, [b[communicator.rank] for b in course.batches()])

    first, second = (together(team(2, 60), go_on)[0] for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array, name)


def test_ranks_that_would_make_other_steps_are_told() -> None:
    def begin(communicator: Communicator) -> str:
        course = Course("adam", 3, 2 if communicator.rank == 1 else 1)
        try:
            learned(course.trainer(communicator), [course.batches()[0][communicator.rank]])
        except InputError as error:
            return error.message
        return ""

    for message in together(team(3, 60), begin):
        assert "what is shared out is zero=2, buckets=0, wire=None on rank 1" in message or "on ranks 0, 2" in message


def test_a_bit_that_differs_is_told() -> None:
    def begin(communicator: Communicator) -> str:
        course = Course("adam", 3, 0)
        trainer = course.trainer(communicator, compare_every=2)
        shares = [b[communicator.rank] for b in course.batches()]
        trainer.step(shares[0])
        if communicator.rank == 2:
            trainer.states["1.weight"].reshape(-1).view(np.uint8)[3] ^= 1
        with pytest.raises(PeerError) as error:
            trainer.step(shares[1])
        return error.value.message

    said = "parameter '1.weight' is not the same everywhere after step 2: it differs on rank 2"
    for message in together(team(3, 60), begin):
        assert message == said or "it differs on rank" in message


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"zero": 1, "optimizer": LAMB()}, "LAMB measures whole tensors"),
        ({"zero": 2, "optimizer": SGLD()}, "SGLD draws numbers for whole tensors"),
        ({"buckets": True, "optimizer": Adam(lazy_update=True)}, "Adam steps rows of tables alone"),
        ({"zero": 3}, "zero=3"),
        ({"wire": "int8"}, "wire='int8'"),
        ({"buckets": -1}, "buckets=-1"),
        ({"update_on_kvstore": True}, "a communicator keeps no parameters"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(how: dict[str, Any], said: str) -> None:
    (communicator,) = team(1)
    with pytest.raises(InputError, match=said):
        mz.Trainer(digits_model(), **{"optimizer": SGD(), "kvstore": communicator, **how})


def test_ranks_are_asked_for_where_there_are_none() -> None:
    with pytest.raises(InputError, match="zero=1 is about several ranks"):
        mz.Trainer(digits_model(), zero=1)


# -- one rank


def test_one_rank_learns_what_a_trainer_alone_does(tmp_path: Path) -> None:
    digits = held_out()
    feeds = {"image": digits.inputs[:64], "target": digits.labels[:64]}
    (communicator,) = team(1)
    one = mz.Trainer(digits_model(), optimizer=Adam(), kvstore=communicator, zero=2)
    alone = mz.Trainer(digits_model(), optimizer=Adam())
    for _ in range(3):
        assert one.step(feeds) == alone.step(feeds)
    one.export_step(tmp_path / "step.onnx")  # Emit and Await are standard operators there
    one.save(tmp_path / "kept")
    alone.resume(tmp_path / "kept")
    for name in alone.trained:
        np.testing.assert_array_equal(one.states[name], alone.states[name], name)


@pytest.mark.parametrize("zero", [0, 2])
def test_half_precision_has_one_scale_on_all_ranks(zero: int) -> None:
    """A gradient that overflows on one rank is a skipped update on all, and their scales stay the same."""
    digits = held_out()

    def begin(communicator: Communicator) -> tuple[float, int, Array]:
        trainer = mz.Trainer(digits_model(), optimizer=SGD(rate=0.01), kvstore=communicator, zero=zero,
                             buckets=True, amp="fp16", threads=1)  # fmt: skip
        for number in range(3):
            rows = slice(8 * communicator.rank, 8 * communicator.rank + 8)
            images = digits.inputs[rows] * (1e5 if number == 1 and communicator.rank == 1 else 1)
            trainer.step({"image": images, "target": digits.labels[rows]})
        return trainer.loss_scale or 0, trainer.updates, next(iter(trainer.parameters.values())).copy()

    first, second = together(team(2, 60), begin)
    assert first[:2] == second[:2]
    assert first[0] < 65536
    assert first[1] < 3, "an update was skipped"
    np.testing.assert_array_equal(first[2], second[2])
    assert np.isfinite(first[2]).all()


# -- predicted, and refused


def test_memory_is_predicted_before_a_rank_begins() -> None:
    course = Course("adam", 4)
    table = training_table(network(), 4, "adam", {})
    assert [row[0] for row in table.rows] == [0, 1, 2]
    for zero, *_ in table.rows:

        def measured(communicator: Communicator, level: int = int(zero)) -> tuple[int, int]:
            trainer = Course("adam", 4, level).trainer(communicator)
            learned(trainer, [course.batches()[0][communicator.rank]])
            kept = [a.nbytes for n, a in trainer.states.items() if n.startswith("optimizer/") and n.count("/") > 1]
            exchange = trainer.exchange
            assert isinstance(exchange, Collective)
            return sum(kept), sum(a.nbytes for a in (*exchange._buffers.values(), *exchange._answers.values()))

        row = dict(zip(table.columns, table.rows[int(zero)], strict=True))
        assert together(team(4, 60), measured)[0] == (row["optimizer states"], row["buckets"]), zero
    assert len(training_table(network(), 4, "lamb", {}).rows) == 1, "whole tensors are not shared out"


# -- hosts

TWO = {4: (2, 2), 3: (2, 1)}  # ranks on each of two hosts


def job(folder: Path, ranks: int, *what: str) -> int:
    """Run a job of workers on two hosts, which take each other for other machines, with a server on each."""
    command = (sys.executable, "-m", "tests.collective_job", str(folder), *what)
    return launch(members(command, ranks, 2, 2), grace=20.0)


@pytest.mark.parametrize("ranks", [4, 3])
def test_ranks_of_two_hosts_learn_the_bits_of_one_process(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums of each host are added in the order of hosts; a checkpoint in parts is read by one process."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    courses = ["sgd/0/1/200", "adam/1/2/200", "adamw/2/1/1"]
    assert job(tmp_path, ranks, *courses) == 0
    found = [np.load(tmp_path / f"{r}.npz") for r in range(ranks)]
    for text in courses:
        course = replace(course_of(text, ranks), hosts=TWO[ranks])
        for name, array in in_turn(course).items():
            for rank in found:
                np.testing.assert_array_equal(rank[f"{text}:{name}"], array, f"{text}: {name}")
        alone = course.trainer()
        alone.resume(tmp_path / text.replace("/", "-"))
        for name in alone.trained:
            np.testing.assert_array_equal(alone.states[name], found[0][f"{text}:{name}"], f"{text}: {name}")


def test_one_array_travels_for_all_ranks_of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what two ranks would send each by itself."""
    monkeypatch.chdir(ROOT)
    for ranks in (2, 4):
        (folder := tmp_path / str(ranks)).mkdir()
        assert job(folder, ranks, "bytes") == 0
        moved = sum(int((folder / f"{r}.bytes").read_text()) for r in range(ranks))
        assert moved == pytest.approx(2 * 2 * 4 * 1_000_000, rel=0.05), "four sums: each host pushes one, and pulls one"


def test_every_verb_between_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert job(tmp_path, 3, "verbs") == 0


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_rank_of_another_host_is_named(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MEZZO_KV_DEADLINE", "3")
    assert job(tmp_path, 3, how) != 0
    for rank in (0, 2):
        seconds, _, message = (tmp_path / f"{rank}.heard").read_text().partition("\n")
        assert re.search(r"(rank|worker) 1\b", message), message
        assert float(seconds) < 40
