"""GPUs of two hosts, on the stand-in: sums of each host over NCCL, and of both between hosts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mezzo.kvstore.collective.communicator import SUMMED, Communicator
from mezzo.kvstore.collective.nccl import Nccl
from mezzo.kvstore.collective.threads import team
from mezzo.kvstore.collective.two_levels import TwoLevels
from mezzo.ops import DType
from mezzo.ops.errors import InputError, MezzoError, PeerError
from mezzo.runtime.execution.functions import FUNCTIONS

from .collective_lessons import Course, in_turn, learned, together
from .collective_ranks import operand
from .cupy_standin import Standin
from .nccl_ranks import FakeRanks

HOSTS = ((0, 1), (2,))


@pytest.fixture
def three(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    standin.devices, standin.quick = 3, True
    FakeRanks(standin)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", standin.library["cupy.cuda.nccl"])
    FUNCTIONS.clear()
    yield standin
    FUNCTIONS.clear()


def on_hosts(do: Callable[[TwoLevels], Any], deadline: float = 60) -> list[Any]:
    """What each of three ranks returns, of which the first two are of one host."""
    ranks = team(3, deadline)
    inside = [one for own in HOSTS for one in team(len(own), deadline)]

    def begin(between: Communicator) -> Any:
        own = next(members for members in HOSTS if between.rank in members)
        nccl = Nccl(inside[between.rank], between.rank, deadline, deterministic=True)
        return do(TwoLevels(nccl, between, own))

    return together(ranks, begin)


def test_every_verb(three: Standin) -> None:
    cp = three.modules()["cupy"]

    def verbs(c: TwoLevels) -> None:
        with cp.cuda.Device(c.device), cp.cuda.Stream(non_blocking=True) as stream:
            for dtype in (np.float32, np.float64, np.int32, np.int64, np.uint8):
                every = [operand(r, 12, dtype) for r in range(3)]
                found: dict[Any, Any] = {}
                if str(np.dtype(dtype)) in SUMMED:
                    total = (every[0] + every[1]) + every[2]
                    for count in (12, 7, 1):
                        found[count] = c.all_reduce(cp.asarray(every[c.rank][:count])), total[:count]
                    given = cp.asarray(every[c.rank])
                    part = c.reduce_scatter(given, cp.empty((4,), dtype))
                    found["part"] = part, total[4 * c.rank : 4 * c.rank + 4]
                found["whole"] = c.all_gather(cp.asarray(every[c.rank]), cp.empty((36,), dtype)), np.concatenate(every)
                found["root"] = c.broadcast(cp.asarray(every[c.rank]), 2), every[2]
                for what, (work, expected) in found.items():
                    got = work.wait()
                    assert got.host.tobytes() == expected.astype(dtype).tobytes(), (what, dtype)
                if str(np.dtype(dtype)) in SUMMED:
                    assert given.get().tobytes() == every[c.rank].tobytes(), "the operand stays"
            again = [c.all_reduce(cp.asarray(np.full(3, float(i)))) for i in range(4)]  # one key, four times
            assert [float(work.wait().host[0]) for work in again] == [0.0, 3.0, 6.0, 9.0]
            stream.synchronize()
            if c.rank == 0:
                with pytest.raises(InputError, match="on another host"):
                    c.send(cp.asarray(np.ones(2)), 2)
        c.barrier()
        c.close()

    on_hosts(verbs)
    assert not three.races


@pytest.mark.parametrize(
    "course", [Course("sgd", 3, buckets=200), Course("adam", 3, 1, 2, 200), Course("adamw", 3, 2, buckets=200)], ids=str
)
def test_ranks_learn_the_bits_of_one_process(three: Standin, course: Course) -> None:
    """The sums of each host are added; the steps of the GPU are captured up to what waits for other hosts."""
    course = replace(course, dtype=DType.FLOAT)
    shares = course.batches(1)
    found = on_hosts(
        lambda c: learned(course.trainer(c, device=f"gpu:{c.device}", norm=False), [b[c.rank] for b in shares])
    )
    expected = in_turn(replace(course, hosts=(2, 1)), device="gpu:0", epochs=1)
    for name, array in expected.items():
        for rank in found:
            np.testing.assert_array_equal(rank[name], array, f"{course}: {name}")
    assert not three.races


def test_a_rank_of_another_host_that_does_not_come_ends_all(three: Standin) -> None:
    cp = three.modules()["cupy"]

    def wait(c: TwoLevels) -> str:
        with cp.cuda.Device(c.device), cp.cuda.Stream(non_blocking=True):
            c.all_reduce(cp.asarray(np.ones(4))).wait()
            if c.rank == 2:
                time.sleep(2.0)
                c.abort("it was told to")
                return ""
            with pytest.raises(MezzoError) as error:
                c.all_reduce(cp.asarray(np.ones(4)), name="bucket 1").wait()
            with pytest.raises(PeerError, match="after the communicator has ended"):
                c.all_reduce(cp.asarray(np.ones(4)))
            return error.value.message

    said = on_hosts(wait)[:2]
    assert all("rank 2 has ended it: it was told to" in message for message in said), said
