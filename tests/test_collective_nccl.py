"""Communicators over NCCL, with a stand-in for the library: what is called, with which sizes and types; and nothing
hangs when a rank does."""

from __future__ import annotations

import sys
import time
import types
from typing import Any, ClassVar

import numpy as np
import pytest

import mezzo as mz
from mezzo.kvstore.collective.communicator import Communicator
from mezzo.kvstore.collective.nccl import TYPES, Nccl
from mezzo.kvstore.collective.threads import team
from mezzo.ops import DType
from mezzo.ops.errors import DeadlineError, ExecutionError, MezzoError, MissingPackage, PeerError

from .collective_lessons import together
from .collective_ranks import operand
from .cupy_standin import Standin
from .nccl_standin import Array, FakeNccl
from .networks import batch_for, mlp


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    made = FakeNccl()
    for name, module in made.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_every_verb(fake: FakeNccl) -> None:
    """With sums in NCCL's own order; those in the order of ranks are kernels (test_several_devices.py)."""

    def verbs(beside: Communicator) -> None:
        c = Nccl(beside)
        for dtype in (np.float32, np.float64, np.float16, np.int32, np.int64, DType.BFLOAT16.numpy):
            every = [operand(r, 12, dtype) for r in range(3)]
            total = every[0] + every[1] + every[2]
            loose = np.dtype(dtype).itemsize == 2  # the stand-in adds these in float32, as NCCL does not promise
            mine = Array(every[c.rank].copy())
            found = c.all_reduce(mine).wait().host.astype(np.float64)
            np.testing.assert_allclose(found, total.astype(np.float64), rtol=2e-2 if loose else 0, atol=2 * loose)
            part = c.reduce_scatter(Array(every[c.rank].copy()), Array(np.empty(4, dtype))).wait()
            expected = total[4 * c.rank : 4 * c.rank + 4].astype(np.float64)
            np.testing.assert_allclose(part.host.astype(np.float64), expected, rtol=2e-2 * loose, atol=2 * loose)
            whole = c.all_gather(Array(every[c.rank]), Array(np.empty(36, dtype))).wait()
            assert whole.host.tobytes() == np.concatenate(every).tobytes()
            assert c.broadcast(Array(every[c.rank].copy()), 2).wait().host.tobytes() == every[2].tobytes()
            c.send(Array(every[c.rank]), (c.rank + 1) % 3).wait()
            before = (c.rank + 2) % 3
            got = c.receive(Array(np.empty(12, dtype)), before).wait()
            assert got.host.tobytes() == every[before].tobytes()
        c.barrier()
        c.close()

    together(team(3, 20), verbs)
    assert all(comm.destroyed and not comm.aborted for comm in fake.comms)


def refused(call: Any) -> tuple[MezzoError, float]:
    began = time.monotonic()
    with pytest.raises(MezzoError) as error:
        call()
    return error.value, time.monotonic() - began


def test_a_rank_that_does_not_come_is_an_abort_at_the_deadline(fake: FakeNccl) -> None:
    def wait(beside: Communicator) -> Any:
        c = Nccl(beside, deadline=0.5)
        if c.rank == 1:
            time.sleep(1.5)
            return refused(lambda: c.all_reduce(Array(np.ones(4))))
        error, seconds = refused(lambda: c.all_reduce(Array(np.ones(4)), name="bucket 3").wait())
        assert seconds < 10
        return error, seconds

    (first, _), (late, _) = together(team(2, 20), wait)
    assert isinstance(first, DeadlineError)
    assert first.message == "all_reduce of float64[4] 'bucket 3' did not end within 0.5 s"
    assert "bucket 3' did not end within 0.5 s" in late.message
    assert fake.comms[0].aborted or fake.comms[1].aborted


def test_an_asynchronous_error_ends_the_wait(fake: FakeNccl) -> None:
    def wait(beside: Communicator) -> Any:
        c = Nccl(beside, deadline=20)
        if c.rank == 1:
            time.sleep(0.2)
            next(iter(fake.worlds.values())).error = "remote process exited or there was a network error"
            return None
        return refused(lambda: c.all_reduce(Array(np.ones(4))).wait())

    (error, seconds), _ = together(team(2, 20), wait)
    assert isinstance(error, PeerError)
    assert error.message.startswith("NCCL failed in all_reduce of float64[4]: remote process exited")
    assert seconds < 10


def test_a_rank_that_ends_is_told_by_its_host(fake: FakeNccl) -> None:
    def wait(beside: Communicator) -> Any:
        c = Nccl(beside, deadline=20)
        if c.rank == 1:
            time.sleep(0.2)
            beside.abort("rank 1 is out of memory")
            return None

        def step() -> None:
            with c.watched("step 7"):
                beside.failure = None
                while c.failure is None:
                    c._alive("step")
                    beside._alive("step")
                    time.sleep(0.01)

        return refused(step)

    (error, seconds), _ = together(team(2, 20), wait)
    assert "rank 1 is out of memory" in error.message
    assert seconds < 10


def test_a_library_that_fails_to_begin_is_told(fake: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("NCCL_ERROR_INVALID_USAGE")

    monkeypatch.setattr(sys.modules["cupy.cuda.nccl"], "NcclCommunicator", fails)
    with pytest.raises(ExecutionError, match="NCCL does not begin: NCCL_ERROR_INVALID_USAGE"):
        Nccl(team(1)[0])
    monkeypatch.setattr(sys.modules["cupy.cuda.nccl"], "NcclCommunicator", lambda *_: time.sleep(1))
    with pytest.raises(DeadlineError, match=r"NCCL did not begin within 0\.2 s"):
        Nccl(team(1)[0], deadline=0.2)


def test_without_nccl_the_line_that_installs_it_is_told(fake: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)
    with pytest.raises(MissingPackage) as error:
        Nccl(team(1)[0])
    assert "multi-gpu" in error.value.hint


# -- a training step on the stand-in for a GPU, where a communicator of one rank copies


class OneRank:
    """NcclCommunicator of one rank: all of its calls are copies on their stream."""

    log: ClassVar[list[str]] = []

    def __init__(self, size: int, number: bytes, rank: int) -> None:
        assert (size, rank) == (1, 0)

    def _copy(self, verb: str, source: int, to: int, count: int, kind: int, stream: int) -> None:
        runtime = sys.modules["cupy"].cuda.runtime
        OneRank.log.append(verb)
        nbytes = count * (8 if kind == TYPES["float64"] else 4)
        if source != to:
            runtime.memcpyAsync(to, source, nbytes, runtime.memcpyDeviceToDevice, stream)

    def allReduce(self, source: int, to: int, count: int, kind: int, op: int, stream: int) -> None:  # noqa: N802
        self._copy("all_reduce", source, to, count, kind, stream)

    def reduceScatter(self, source: int, to: int, count: int, kind: int, op: int, stream: int) -> None:  # noqa: N802
        self._copy("reduce_scatter", source, to, count, kind, stream)

    def allGather(self, source: int, to: int, count: int, kind: int, stream: int) -> None:  # noqa: N802
        self._copy("all_gather", source, to, count, kind, stream)

    def check_async_error(self) -> None: ...
    def abort(self) -> None: ...
    def destroy(self) -> None: ...


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Standin:
    made = Standin(computes=True)
    made.install(monkeypatch)
    module = types.ModuleType("cupy.cuda.nccl")
    module.NcclCommunicator, module.get_unique_id = OneRank, lambda: bytes(128)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", module)
    return made


@pytest.mark.parametrize("zero", [0, 2])
def test_gradients_travel_inside_the_captured_step(standin: Standin, zero: int) -> None:
    """The calls are part of one CUDA graph, on a stream of their own; the numbers are those of the CPU."""
    graph = mlp()
    batches = [batch_for(graph, number) for number in range(4)]
    alone = mz.Trainer(graph, optimizer=mz.optimizer.Adam(rate=0.01))
    on_gpu = mz.Trainer(graph, optimizer=mz.optimizer.Adam(rate=0.01), device="gpu:0", kvstore=Nccl(team(1)[0]),
                        zero=zero, buckets=True)  # fmt: skip
    for batch in batches:
        np.testing.assert_allclose(on_gpu.step(batch), alone.step(batch), rtol=1e-4)
    for name in alone.trained:
        found, want = np.asarray(on_gpu.states[name]), alone.states[name]
        assert np.abs(found - want).max() <= 1e-4 * np.abs(want).max(), name
    assert on_gpu._update.uncaptured() == ()
    assert not standin.races
    before = len(OneRank.log)
    standin.log.clear()
    on_gpu.step(batches[0])
    assert len(OneRank.log) == before, "a graph was replayed"
    assert [e.detail for e in standin.log if e.what == "copy"].count("memcpyDeviceToHost") <= 2  # the loss, the norm
