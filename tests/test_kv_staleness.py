"""Rates that follow the staleness (`by_staleness=True`): every push of a job beside NumPy, with and without servers."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.kvstore import rule
from mezzo.kvstore.create import create
from mezzo.kvstore.levels import Levels
from mezzo.kvstore.protocol.consistency import Bounded, Eventual, parse
from mezzo.kvstore.store import KVStore
from mezzo.ops.errors import InputError
from mezzo.ops.types import Array
from mezzo.runtime.optimizer import SGD, Adam
from mezzo.tools.launch import launch, members

WORKERS, TURNS, RATE, MOMENTUM = 3, 24, 0.25, 0.5
SIZES = {"small": 6, "large": 150_000}  # the large one is split over two servers
VERBS = ("push", "pull", "pushpull", "load")


def turns() -> list[tuple[int, str]]:
    """Who does what, one after the other; `load` is of all."""
    draw = random.Random(7)
    made = [(draw.randrange(WORKERS), draw.choice(VERBS[:3])) for _ in range(TURNS)]
    made[TURNS // 2] = (0, "load")
    return made


def gradient(key: str, turn: int) -> Array:
    return np.sin(np.arange(SIZES[key]) + turn)


def expected() -> tuple[dict[str, Array], list[int]]:
    """The values after all turns, and the staleness of each push."""
    values = {key: np.zeros(size) for key, size in SIZES.items()}
    speeds = {key: np.zeros(size) for key, size in SIZES.items()}
    version, seen, told = 0, dict.fromkeys(range(WORKERS), 0), list[int]()
    for turn, (rank, verb) in enumerate(turns()):
        if verb == "load":
            seen = dict.fromkeys(range(WORKERS), version)
        if verb in ("push", "pushpull"):
            told.append(version - seen[rank])
            version += 1
            for key, value in values.items():
                speeds[key] = MOMENTUM * speeds[key] + gradient(key, turn)
                value -= RATE / (1 + told[-1]) * speeds[key]
        if verb in ("pull", "pushpull"):
            seen[rank] = version
    return values, told


def refusal(kv: KVStore) -> str:
    @rule
    def halved(e: Any, stored: Any, received: Any) -> Any:
        return (stored + received) / 2

    with pytest.raises(InputError) as caught:
        kv.set_updater(halved)
    return str(caught.value)


def work(folder: Path, staleness: int | None) -> None:
    """A worker: does what is its own in the turns of all."""
    with create("dist_async", staleness=staleness, by_staleness=True) as kv:
        said = refusal(kv)
        for key, size in SIZES.items():
            kv.init(key, np.zeros(size))
        kv.set_optimizer(SGD(rate=RATE, momentum=MOMENTUM))
        for turn, (rank, verb) in enumerate(turns()):
            kv.barrier()
            if verb == "load":
                kv.save_optimizer_states(folder / "states")
                kv.set_optimizer(Adam())
                kv.load_optimizer_states(folder / "states")
            elif rank == kv.rank:
                for key in SIZES:
                    given = () if verb == "pull" else (gradient(key, turn),)
                    getattr(kv, verb)(key, *given)
        kv.barrier()
        found: dict[str, Any] = {key: np.array(kv.pull(key)) for key in SIZES}
        np.savez(folder / f"{kv.rank}.npz", **found)
        (folder / f"{kv.rank}.json").write_text(json.dumps([said, *kv.consistency]))


@pytest.mark.parametrize(("servers", "staleness"), [(0, None), (2, None), (1, 100)], ids=["none", "two", "bounded"])
def test_each_update_is_divided_by_its_staleness(servers: int, staleness: int | None, tmp_path: Path) -> None:
    values, told = expected()
    assert max(told) > 3 and 0 in told[-6:], "a test of nothing"  # noqa: PT018
    command = (sys.executable, "-m", "tests.test_kv_staleness", str(tmp_path), str(staleness or 0))
    assert launch(members(command, WORKERS, servers, 1)) == 0
    for rank in range(WORKERS):
        for key, found in np.load(tmp_path / f"{rank}.npz").items():
            np.testing.assert_allclose(found, values[key], rtol=0, atol=1e-12, err_msg=f"{key} on rank {rank}")
        said, *levels = json.loads((tmp_path / f"{rank}.json").read_text())
        assert "'rule halved' has no rate" in said
        assert levels == [f"{'eventual' if staleness is None else f'bounded {staleness}'} by staleness"] * 2


def test_it_is_part_of_the_consistency() -> None:
    for made in (Eventual(by_staleness=True), Bounded(3, by_staleness=True), Eventual(), Bounded(0)):
        assert parse(str(made)) == made
    levels = Levels(Eventual(by_staleness=True), Bounded(2, True))
    assert Levels.parse(str(levels)) == levels
    with pytest.raises(InputError):
        parse("sequential by staleness")


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]) or None)
