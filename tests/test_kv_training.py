"""Training by several processes: the same numbers as one process with the whole batch, wherever the optimizer runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from mezzo.runtime.session import Session
from mezzo.tools.launch import launch, members
from mezzo.train.shares import Share

from .kv_lessons import LESSONS, SIZE, Lesson
from .networks import batch_for

Array = np.ndarray[Any, Any]
Results = list[dict[str, dict[str, Array]]]  # of each rank, by lesson
ROOT = Path(__file__).parents[1]
# workers, servers, hosts: shared memory alone; servers alone; both levels
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


@pytest.fixture(scope="module", params=[*JOBS])
def learned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All lessons over one job of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("OMP_NUM_THREADS", "1")
        return run(tmp_path_factory.mktemp(request.param), request.param, *LESSONS)


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


@pytest.mark.parametrize(
    ("name", "tolerance"), [("float32", 1e-5), ("float64", 1e-9), ("adam", 1e-4), ("clipped", 1e-5)]
)
def test_workers_learn_what_one_process_learns(learned: Results, name: str, tolerance: float) -> None:
    lesson, workers = LESSONS[name], len(learned)
    expected = alone(lesson, workers)
    assert_close(learned[0][name], expected, tolerance)
    assert learned[0][name]["optimizer/updates"] == lesson.steps // lesson.gather
    mean = np.mean([rank[name]["losses"] for rank in learned], axis=0)
    np.testing.assert_allclose(mean, expected["losses"], rtol=1e-4)
    samples, loss = learned[0][name]["seen"]
    assert samples == lesson.steps * SIZE * workers
    np.testing.assert_allclose(loss, expected["losses"].mean(), rtol=1e-4)


@pytest.mark.parametrize("name", [n for n in LESSONS if n != "dropout"])
def test_all_workers_have_the_same_bits(learned: Results, name: str) -> None:
    first, *others = (rank[name] for rank in learned)
    for other in others:
        for state, array in first.items():
            if not state.startswith(("metrics/", "losses")):
                np.testing.assert_array_equal(array, other[state], state)


def test_a_second_run_has_the_same_bits(learned: Results) -> None:
    first, second = learned[0]["float32"], learned[0]["again"]
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], name)


def test_the_optimizer_may_run_on_the_store(learned: Results) -> None:
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


def test_each_worker_draws_its_own_random_numbers(learned: Results) -> None:
    """The key has the rank in it: the first step of each worker, made again in this process."""
    lesson = LESSONS["dropout"]
    graph, batch = lesson.trainer().graph_of_step, batch_for(lesson.network(), 0, SIZE * len(learned))
    for rank, found in enumerate(learned):
        share = {n: a[rank * SIZE : (rank + 1) * SIZE] for n, a in batch.items()}
        told = {}
        for part in ((), (0,), (rank,)):
            session: Any = Session(graph, exchange=cast(Any, Alone(part)))
            session.next_run = 1
            (told[part],) = (float(loss) for loss in session.run(share).values())
        assert told[rank,] == found["dropout"]["losses"][0]
        assert told[()] != told[rank,]
        assert rank == 0 or told[0,] != told[rank,]
