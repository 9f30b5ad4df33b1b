"""Memory that is lent to a server: only the segment that is meant, and only what lies in it."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mezzo.kvstore import lent
from mezzo.kvstore.lent import Place
from mezzo.kvstore.protocol import messages as m
from mezzo.kvstore.protocol.keys import Keys
from mezzo.kvstore.shards import Budget, Shards

SIZE = 10_000


@pytest.fixture
def segment() -> Iterator[tuple[Place, int]]:
    fd = os.memfd_create("mezzo", os.MFD_ALLOW_SEALING)
    os.truncate(fd, SIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    place = lent.keep(fd, SIZE)
    yield place, fd
    lent.release(place)
    os.close(fd)


@pytest.mark.parametrize(("name", "seals"), [("mezzo", 0), ("mezzo server", fcntl.F_SEAL_SHRINK)])
def test_what_may_shrink_or_is_no_segment_is_out_of_reach(name: str, seals: int) -> None:
    """A server's kept state is none, and a file that its owner may cut short would end whoever reads it."""
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.truncate(fd, SIZE)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    place = lent.keep(fd, SIZE)
    assert lent.reach(place) is None
    lent.release(place)
    os.close(fd)


def test_both_see_the_same_bytes(segment: tuple[Place, int]) -> None:
    place, fd = segment
    memory = lent.reach(place)
    assert memory is not None
    assert len(memory) == SIZE
    os.pwrite(fd, b"here", 100)
    assert bytes(memory[100:104]) == b"here"
    memory[:5] = b"there"
    assert os.pread(fd, 5, 0) == b"there"


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "another machine"},
        {"kernel": ""},
        {"node": 1},
        {"size": SIZE + 1},
        {"size": 0},
        {"file": 9999},
        {"process": 1 << 40},
    ],
)
def test_what_is_not_the_segment_is_out_of_reach(segment: tuple[Place, int], change: dict[str, Any]) -> None:
    assert lent.reach(segment[0]._replace(**change)) is None


def test_no_other_file_is_opened(tmp_path: object) -> None:
    with open(f"{tmp_path}/secret", "wb+") as file:
        file.write(bytes(SIZE))
        file.flush()
        place = lent.keep(file.fileno(), SIZE)
    assert lent.reach(place) is None
    lent.release(place)


def shards(size: int) -> tuple[Shards, int]:
    keys = Keys(1 << 20)
    key = keys.admit(m.Init("w", "float32", (size,), 0, 4 * size))
    made = Shards(keys, Budget(1 << 20))
    made.declare(key)
    return made, key


@pytest.mark.parametrize("seed", range(40))
def test_sums_of_lent_pushes_are_those_of_others(seed: int) -> None:
    """Pushes come in pieces, lent or not, in any order; the sum has the bits of rank order."""
    rng = np.random.default_rng(seed)
    size, ranks = int(rng.integers(1, 60)), int(rng.integers(1, 4))
    made, key = shards(size)
    for step in range(1, 4):
        pushes = [rng.standard_normal(size).astype(np.float32) for _ in range(ranks)]
        is_lent = rng.random(ranks) < 0.6
        arrived, added = [0] * ranks, [0] * ranks
        applied, want = 0, deque([pushes[0].copy()])
        for push in pushes[1:]:
            want.append(want.pop() + push)
        while applied < 4 * size:
            rank = int(rng.integers(ranks))
            lo = arrived[rank]
            hi = min(4 * size, lo + 4 * int(rng.integers(1, 30)))
            if lo < hi:
                into = "staging" if rank else "sum"
                flat = pushes[rank].view(np.uint8).data
                if is_lent[rank]:
                    made.lend(key, rank, lo, hi, into, lo, flat)  # type: ignore[arg-type]
                else:
                    made.place(key, rank, lo, hi, into)[:] = flat[lo:hi]  # type: ignore[arg-type]
                arrived[rank] = hi
            reach = arrived[0]
            for other in range(1, ranks):
                reach = min(reach, arrived[other])
                if reach > added[other]:
                    made.add(key, other, added[other], reach, False)
                    added[other] = reach
            if reach > applied:
                made.apply(key, step, applied, reach, "assign", None)
                assert bytes(made.view(key, step, applied, reach)) == want[0].tobytes()[applied:reach]
                applied = reach
        assert made[key].value.array.tobytes() == want[0].tobytes()
