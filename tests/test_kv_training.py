"""Training by several processes: the same numbers as one process with the whole batch, wherever the optimizer runs."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.kvstore.create import create
from mezzo.kvstore.local import Local
from mezzo.kvstore.store import KVStore
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import Tensor
from mezzo.ops.errors import InputError, PlanError
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.memory.liveness import Space
from mezzo.runtime.optimizer import SGD, Adam
from mezzo.tools.cli import cli
from mezzo.tools.launch import launch, members
from mezzo.tools.load import load
from mezzo.tools.trace_picture import draw
from mezzo.train import checkpoint
from mezzo.train.agree import differences
from mezzo.train.shares import Share
from mezzo.train.trace import traced
from mezzo.train.trainer import Trainer

from .kv_lessons import LESSONS, OTHERWISE, SIZE, Lesson, blocks
from .networks import batch_for, lenet, mlp, resnet18

Array = np.ndarray[Any, Any]
Results = list[dict[str, dict[str, Array]]]  # of each rank, by lesson
ROOT = Path(__file__).parents[1]
# workers, servers, hosts: shared memory alone, and both levels
JOBS = {"one-host": (2, 0, 1), "two-levels": (4, 2, 2)}


def run(folder: Path, job: str, *lessons: str) -> Results:
    workers, servers, hosts = JOBS[job]
    command = (sys.executable, "-m", "tests.kv_lessons", str(folder), *lessons)
    assert launch(members(command, workers, servers, hosts)) == 0
    found: Results = []
    for rank in range(workers):
        by_lesson: dict[str, dict[str, Array]] = {}
        with np.load(folder / f"{rank}.npz") as arrays:
            for key in arrays:
                lesson, _, name = key.partition(":")
                by_lesson.setdefault(lesson, {})[name] = arrays[key]
        found.append(by_lesson)
    return found


def alone(lesson: Lesson, workers: int) -> dict[str, Array]:
    """One process with the whole batch."""
    return lesson.learn(lesson.trainer(threads=1), Share(), workers)


def assert_close(found: dict[str, Array], expected: dict[str, Array], tolerance: float) -> None:
    names = [n for n in expected if expected[n].dtype.kind == "f" and not n.startswith(("metrics/", "losses"))]
    assert names
    for name in names:
        if name in found:
            gap, size = np.abs(found[name] - expected[name]).max(), np.abs(expected[name]).max()
            assert gap <= tolerance * size, name


TOLERANCES = {"float32": 1e-5, "float64": 1e-9, "adam": 1e-5, "clipped": 1e-5}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_learns_what_one_process_learns(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """All lessons over one store, since starting a job takes seconds."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    learned = run(tmp_path, job, "blocks", *LESSONS)
    with subtests.test("blocks"):
        one = blocks(Share(0, 1), len(learned))
        for rank in learned:
            for n in one.keys() - {"losses"}:
                np.testing.assert_allclose(rank["blocks"][n], one[n], rtol=1e-10, atol=1e-12)
                np.testing.assert_array_equal(rank["blocks"][n], learned[0]["blocks"][n])
        np.testing.assert_allclose(np.mean([rank["blocks"]["losses"] for rank in learned], axis=0), one["losses"])
    for name, tolerance in TOLERANCES.items():
        with subtests.test(name):
            agrees_with_one_process(learned, name, tolerance)
    for name in LESSONS:
        with subtests.test("the same bits", lesson=name):
            all_workers_have_the_same_bits(learned, name)
    with subtests.test("the same bits once more"):
        first, second = learned[0]["float32"], learned[0]["again"]
        assert first.keys() == {*second, "uneven"}
        for name, array in second.items():
            np.testing.assert_array_equal(array, first[name], name)
    with subtests.test("shares that differ"):
        sizes = ", ".join(str(rank + 1) for rank in range(len(learned)))
        for rank in learned:
            assert str(rank["float32"]["uneven"]) == f"the workers' shares of this step have {sizes} samples"
    with subtests.test("the optimizer on the store"):
        the_optimizer_runs_on_the_store(learned)
    with subtests.test("random numbers"):
        each_worker_draws_its_own_random_numbers(learned)


def test_workers_that_would_make_other_steps_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sides are named on every worker, before anything is learned."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    first, second = run(tmp_path, "one-host", "otherwise")
    for name, (_, said) in OTHERWISE.items():
        what, other = said.split(" is ", 1)
        message = str(second[name]["said"])
        assert re.search(rf"{what} is .* on rank 0 and {re.escape(other)}.* on rank 1", message), message
        assert str(first[name]["said"]) == message, "both hear the same"
        assert message.count("on rank 0") == (2 if name in ("precision", "weights") else 1), message


def test_asynchronous_workers_that_would_make_other_steps_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one host, where the store has states for each of its values once it has an optimizer."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    first, second = (rank["asynchronous"] for rank in run(tmp_path, "one-host", "asynchronous"))
    assert str(first["said"]) == str(second["said"])
    assert re.search(r"SGD\(rate=0.1,.* on rank 0 and SGD\(rate=1.1,.* on rank 1", str(first["said"]))
    assert np.isfinite([first["losses"], second["losses"]]).all()


def test_ranks_are_told_by_what_they_do() -> None:
    facts = [
        {"the rate": "1", "the code": "a"},
        {"the rate": "2"},
        {"the rate": "1", "the code": "a"},
        {"the rate": "3"},
    ]
    assert differences(dict.fromkeys(range(3), facts[0])) == ""
    assert differences(dict(enumerate(facts))) == (
        "the rate is 1 on ranks 0, 2 and 2 on rank 1 and 3 on rank 3; "
        "the code is a on ranks 0, 2 and nothing on ranks 1, 3"
    )


def agrees_with_one_process(learned: Results, name: str, tolerance: float) -> None:
    lesson, workers = LESSONS[name], len(learned)
    expected = alone(lesson, workers)
    assert_close(learned[0][name], expected, tolerance)
    assert learned[0][name]["optimizer/updates"] == lesson.steps // lesson.gather
    mean = np.mean([rank[name]["losses"] for rank in learned], axis=0)
    np.testing.assert_allclose(mean, expected["losses"], rtol=1e-4)
    samples, loss = learned[0][name]["seen"]
    assert samples == lesson.steps * SIZE * workers
    np.testing.assert_allclose(loss, expected["losses"].mean(), rtol=1e-4)


def all_workers_have_the_same_bits(learned: Results, name: str) -> None:
    """But for statistics of batch normalisation and what each has seen."""
    first, *others = (rank[name] for rank in learned)
    for other in others:
        for state, array in first.items():
            if not state.startswith(("metrics/", "losses", "norm.running")):
                np.testing.assert_array_equal(array, other[state], state)


def the_optimizer_runs_on_the_store(learned: Results) -> None:
    found, there = learned[0]["on_store"], learned[0]["adam"]
    learns = [n for n in found if n in LESSONS["on_store"].network().initializers]
    assert len(learns) == 10
    for name in learns:  # the same arithmetic in the same order
        np.testing.assert_array_equal(found[name], there[name], name)
    assert not [n for n in found if n.startswith("optimizer/mean")], "its states are the store's"


@dataclass(frozen=True)
class Alone:
    """A store of nobody, for its part in random numbers."""

    part: tuple[int, ...]
    buffer = emit = wait = None


def each_worker_draws_its_own_random_numbers(learned: Results) -> None:
    """The key has the rank in it: the first step of each worker, made again in this process."""
    lesson = LESSONS["dropout"]
    graph, batch = lesson.trainer().graph_of_step, batch_for(lesson.network(), 0, SIZE * len(learned))
    for rank, found in enumerate(learned):
        share = {n: a[rank * SIZE : (rank + 1) * SIZE] for n, a in batch.items()}
        told = {}
        for part in ((), (0,), (rank,)):
            session: Any = Session(graph, exchange=cast(Any, Alone(part)))
            session.next_run = 1
            told[part] = float(session.run(share)[graph.outputs[0]])
        assert told[rank,] == found["dropout"]["losses"][0]
        assert told[()] != told[rank,]
        assert rank == 0 or told[0,] != told[rank,]


def test_two_launches_have_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    launches = []
    for number in range(2):
        (folder := tmp_path / str(number)).mkdir()
        launches.append(run(folder, "one-host", "float32"))
    have_the_same_bits(*launches)


def have_the_same_bits(first: Results, second: Results) -> None:
    for mine, other in zip(first, second, strict=True):
        for lesson, states in mine.items():
            assert states.keys() == other[lesson].keys()
            for state, array in states.items():
                np.testing.assert_array_equal(array, other[lesson][state], f"{lesson}: {state}")


@pytest.mark.soak
@pytest.mark.parametrize(("workers", "servers", "hosts"), [(2, 1, 1), (2, 2, 2), (3, 0, 1), (4, 0, 1), (4, 1, 1)])
def test_jobs_of_any_form_have_the_same_bits_each_time(
    workers: int, servers: int, hosts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(JOBS, "some", (workers, servers, hosts))
    runs = []
    for number in range(3):
        (folder := tmp_path / str(number)).mkdir()
        runs.append(run(folder, "some", *LESSONS))
    for name, tolerance in TOLERANCES.items():
        agrees_with_one_process(runs[0], name, tolerance)
    for other in runs[1:]:
        have_the_same_bits(other, runs[0])


# One process


def test_a_store_changes_nothing_for_one_worker() -> None:
    """Gradients lie in arrays of the store, and no number differs."""
    plain, there, here = (
        Trainer(lenet(), optimizer=Adam(rate=0.01), **how)
        for how in ({}, {"kvstore": "local", "update_on_kvstore": True}, {"kvstore": "local"})
    )
    for number in range(3):
        batch = batch_for(plain.source, number)
        assert plain.step(batch) == there.step(batch) == here.step(batch)
    for name in plain.trained:
        np.testing.assert_array_equal(plain.states[name], there.states[name])
        np.testing.assert_array_equal(plain.states[name], here.states[name])
    assert not [n for n in there.states if n.startswith(("optimizer/mean", "optimizer/square"))]
    assert here.metrics(everywhere=True) == here.metrics() == plain.metrics()


def steps_of(trainer: Trainer) -> list[str]:
    return [step.node.op for step in trainer._update.program.check().steps]


def test_gradients_leave_early_and_are_awaited_late() -> None:
    """Each Emit as soon as its gradient is there, each Await behind all of backward and before its own update."""
    for network in (lenet, resnet18):
        early = Trainer(network(), kvstore="local", optimizer=SGD(rate=0.1, momentum=0.9), norm=False)
        late = Trainer(network(), kvstore="local", optimizer=SGD(rate=0.1, momentum=0.9), overlap=False, norm=False)
        for trainer in (early, late):
            trainer.step(batch_for(trainer.source, 0))
        program = early._update.program
        emits = [i for i, s in enumerate(program.steps) if s.node.op == "Emit"]
        maker = {o: i for i, s in enumerate(program.steps) for o in s.writes()}
        ops = steps_of(early)
        first = ops.index("Await")
        assert len(emits) == len(early.trained)
        for i in emits:  # a step may make several gradients
            assert set(ops[maker[program.steps[i].node.inputs[0]] + 1 : i]) <= {"Emit"}
        assert emits[0] < first / 2 + len(emits) / 2
        assert ops[first : first + 4] == ["Await", "Update"] * 2
        assert all(program.space(program.steps[i].node.inputs[0]) is Space.EXTERN for i in emits), "nothing is copied"
        behind = steps_of(late)
        between = behind[behind.index("Emit") : behind.index("Await")]
        assert between == ["Emit"] * len(emits) + ["Cast"], "and the rate's"


def test_a_step_that_is_shared_leaves_as_a_step_of_one(tmp_path: Path) -> None:
    """Emit and Await are the identity elsewhere."""
    trainers = [Trainer(mlp(), optimizer=SGD(rate=0.1), kvstore=kvstore) for kvstore in (None, "local")]
    batch, results = batch_for(trainers[0].source, 0), []
    for number, trainer in enumerate(trainers):
        path = tmp_path / f"{number}.onnx"
        trainer.export_step(path)
        session = load(path)
        states = {p.name: trainer.states[p.name] for p in session.inputs if p.name in trainer.states}
        results.append(session.run({**batch, **states}))
    first, second = (list(found.values()) for found in results)  # loss, norm, then the states in their order
    assert len(first) == 2 + len(trainers[0].states)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_trace_shows_what_travels_during_backward(tmp_path: Path) -> None:
    trainer = Trainer(resnet18(), kvstore="local", optimizer=SGD(rate=0.1))
    trainer.step(batch_for(trainer.source, 0))
    for number in range(1, 51):  # on a busy machine the thread that sends may not have its turn in a step
        trace = traced(trainer, batch_for(trainer.source, number))
        trace.save(tmp_path / "trace.json")
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        spans = [e for e in events if e["ph"] == "X"]
        sent = [e for e in spans if e["cat"] == "network"]
        assert {e["name"] for e in sent} >= {f"key {name!r}" for name in trainer.trained}
        kinds = ("forward", "backward", "wait", "update")
        begin = {kind: min(e["ts"] for e in spans if e["cat"] == kind) for kind in kinds}
        assert begin["forward"] < begin["backward"] < begin["wait"] < begin["update"]
        assert begin["backward"] < min(e["ts"] for e in sent)
        during = [e for e in sent if e["ts"] + e["dur"] < begin["wait"]]
        if len(during) > len(trainer.trained) / 6:
            break
    else:
        pytest.fail("hardly any is done before anybody waits")
    draw(events, "one step", tmp_path / "trace.svg")
    text = (tmp_path / "trace.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert text.count("<title>") == len(spans)


def test_a_program_that_touches_what_the_store_has_is_refused() -> None:
    class Buffers:
        part = ()

        def __init__(self) -> None:
            self.held: dict[str, Array] = {}

        def buffer(self, key: str, type: Tensor) -> Array:
            return self.held.setdefault(key, np.zeros(type.sizes, type.dtype.numpy))

        def emit(self, key: str, verb: str = "all_reduce") -> None:
            self.held[key] += 1

        def wait(self, key: str) -> Array:
            return self.held[key]

        def sum_rows(self, key: str, ids: Array, rows: Array) -> tuple[Array, Array]:
            return ids, rows

    def session(build: Callable[[GraphBuilder, str], str]) -> Session:
        g = GraphBuilder()
        return Session(g.graph([build(g, g.input("x", f32(3)))]), exchange=Buffers())

    def emit(g: GraphBuilder, x: str, key: str = "k") -> str:
        return str(g.op("Emit", x, domain="mezzo", key=key))

    def wait(g: GraphBuilder, x: str, key: str = "k") -> str:
        return str(g.op("Await", x, domain="mezzo", key=key))

    x = np.ones(3, np.float32)
    fine = session(lambda g, x: g.Neg(wait(g, emit(g, g.Exp(x)))))
    np.testing.assert_array_equal(fine(x), -(np.exp(x) + 1))
    with pytest.raises(PlanError, match="touched while the store has it"):
        session(lambda g, x: g.Neg(emit(g, g.Exp(x))))
    with pytest.raises(PlanError, match="touched while the store has it"):
        session(lambda g, x: g.Add(e := emit(g, g.Exp(x)), g.Neg(wait(g, g.Sub(e, x)))))
    with pytest.raises(PlanError, match="awaited and was not emitted"):
        session(lambda g, x: g.Neg(wait(g, emit(g, g.Exp(x)), "other")))
    with pytest.raises(PlanError, match="emitted twice"):
        session(lambda g, x: g.op("Await", emit(g, x), emit(g, g.input("y", f32(3))), domain="mezzo", key="k"))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"clip_norm": 1.0, "update_on_kvstore": True}, "clip_norm looks at the gradients of all workers"),
        ({"clip_value": 1.0, "update_on_kvstore": True}, "clip_value looks at the gradients of all workers"),
        ({"amp": "fp16", "update_on_kvstore": True}, "loss scaling"),
        ({"kvstore": "dist_sinc"}, "dist_sinc"),
    ],
)
def test_what_is_refused(how: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Trainer(mlp(), **{"kvstore": "local", **how})


def test_gradients_are_not_summed_where_nobody_waits() -> None:
    with KVStore(Local("dist_async"), ("eventual", "eventual")) as kv:
        with pytest.raises(InputError, match="do not wait for each other"):
            Trainer(mlp(), kvstore=kv, update_on_kvstore=False)
        trainer = Trainer(mlp(), kvstore=kv)
        assert trainer.exchange is not None
        assert trainer.exchange.on_store


def test_two_trainers_share_a_store() -> None:
    with create("local") as kv:
        both = [Trainer(mlp(), kvstore=kv), Trainer(mlp(), kvstore=kv)]
        batch = batch_for(both[0].source, 0)
        assert both[0].step(batch) == both[1].step(batch)


@pytest.mark.parametrize("on_store", [False, True])
def test_a_training_with_a_store_goes_on(tmp_path: Path, on_store: bool) -> None:
    def made() -> Trainer:
        return Trainer(mlp(), kvstore="local", update_on_kvstore=on_store, optimizer=Adam(rate=0.01))

    first = made()
    batches = [batch_for(first.source, number) for number in range(4)]
    for batch in batches[:2]:
        first.step(batch)
    first.save(tmp_path)
    expected = [first.step(batch) for batch in batches[2:]]
    second = made()
    second.resume(tmp_path)
    assert [second.step(batch) for batch in batches[2:]] == expected
    second.save(tmp_path)
    assert len([*tmp_path.glob("*.states")]) == on_store
    if on_store:
        with pytest.raises(InputError, match="before the first step"):
            second.resume(tmp_path)
    alone = Trainer(mlp(), optimizer=Adam(rate=0.01))
    if on_store:  # which has the optimizer's states
        with pytest.raises(InputError, match="another graph"):
            alone.resume(tmp_path)
    else:
        alone.resume(tmp_path)
        assert alone.step(batches[0]) == second.step(batches[0])


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5), st.booleans(), st.booleans())
def test_shares_are_equal_and_together_the_batch(samples: int, size: int, count: int, pad: bool, whole: bool) -> None:
    order = np.random.default_rng(samples).permutation(samples)
    shares = [Share(rank, count, pad) for rank in range(count)]
    steps = shares[0].steps(samples, size, whole=whole)
    seen: list[int] = []
    for number in range(steps):
        rows = [share.rows(order, size, number, whole=whole) for share in shares]
        assert len({len(r) for r in rows}) == 1
        assert 0 < len(rows[0]) <= size
        assert len(rows[0]) == size or (number == steps - 1 and not whole)
        batch = np.concatenate(rows)
        known = order[number * size * count : (number + 1) * size * count]
        np.testing.assert_array_equal(batch[: len(known)], known[: len(batch)])
        seen += batch.tolist()
    more = len(seen) - samples
    told = shares[0].told(samples, size, whole=whole)
    what = "left out of" if more < 0 else "learned twice in"
    assert told == (f"{abs(more)} of {samples} samples are {what} each epoch" if more else "")
    if more >= 0:
        assert set(seen) == set(range(samples))
    assert (more <= 0) or pad
    assert (more >= 0) or not pad


def test_the_command_in_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 tells and writes; the model is the one that one process trains with batches of twice the size."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    digits = held_out()
    np.savez("data.npz", image=digits.inputs[:97], target=digits.labels[:97])
    told = {}
    for name, more in {"two": ("--batch", "12", "-n", "2"), "one": ("--batch", "24")}.items():
        given = [str(digits_model()), "data.npz", "-o", f"{name}.onnx", "--epochs", "2", "--validate", "0.25"]
        optimizer = ["--optimizer", "sgd", "--rate", "0.01", "--checkpoint", name, "--json", f"{name}.json"]
        cli.main(["train", *given, *optimizer, *more], standalone_mode=False)
        told[name] = json.loads(Path(f"{name}.json").read_text())
        out, err = capfd.readouterr()
        assert err == ""
        assert out.count("epoch 1: loss") == 1, "rank 0 alone"
    two, one = told["two"], told["one"]
    assert two["workers"] == "2, each with 12 samples of a batch of 24"
    assert two["remainder"] == "1 of 73 samples are left out of each epoch"
    assert "workers" not in one
    for mine, other in zip(two["epochs"], one["epochs"], strict=True):
        assert mine["validation_accuracy"] == other["validation_accuracy"]
        assert mine["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-2)
        assert mine["step"] == other["step"] - mine["epoch"], "one process has a last batch of one sample"
    assert "differs by" in two["loaded_again"]
    assert checkpoint.load("two").notes["data"].endswith("batch 12, seed 0, 2 workers")
