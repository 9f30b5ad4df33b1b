"""The stand-in's own rules, and the runtime under them: streams do what is asked as late as they may, several devices
keep to themselves, and a capture refuses what CUDA refuses."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.digits import digits_model
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from .cupy_parts import CUDARuntimeError
from .cupy_standin import CAPTURE, Standin


def modules(standin: Standin) -> Any:
    return standin.modules()["cupy"]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch, standin: Standin) -> Standin:
    """Two devices."""
    standin.devices = 2
    return standin


def test_copies_happen_when_somebody_waits(standin: Standin) -> None:
    cp = modules(standin)
    stream, runtime = cp.cuda.Stream(non_blocking=True), cp.cuda.runtime
    host = np.frombuffer(cp.cuda.alloc_pinned_memory(16), np.float32)
    there = cp.ndarray((4,), np.float32)
    host[:] = 1
    runtime.memcpyAsync(there.data.ptr, host.ctypes.data, 16, runtime.memcpyHostToDevice, stream.ptr)
    host[:] = 2  # before the copy has begun
    stream.synchronize()
    assert there.host.tolist() == [2] * 4
    runtime.memcpyAsync(host.ctypes.data, there.data.ptr, 16, runtime.memcpyDeviceToHost, stream.ptr)
    host[:] = 3
    assert host.tolist() == [3] * 4  # nobody has waited
    stream.synchronize()
    assert host.tolist() == [2] * 4


def test_a_stream_that_waits_takes_another_along(standin: Standin) -> None:
    cp = modules(standin)
    first, second, runtime = cp.cuda.Stream(), cp.cuda.Stream(), cp.cuda.runtime
    host = np.frombuffer(cp.cuda.alloc_pinned_memory(16), np.float32)
    a, b = cp.ndarray((4,), np.float32), cp.ndarray((4,), np.float32)
    host[:] = 5
    runtime.memcpyAsync(a.data.ptr, host.ctypes.data, 16, runtime.memcpyHostToDevice, first.ptr)
    event = cp.cuda.Event()
    event.record(first)
    second.wait_event(event)
    runtime.memcpyAsync(b.data.ptr, a.data.ptr, 16, runtime.memcpyDeviceToDevice, second.ptr)
    second.synchronize()
    assert b.host.tolist() == [5] * 4
    assert standin.races == []
    runtime.memcpyAsync(a.data.ptr, host.ctypes.data, 16, runtime.memcpyHostToDevice, first.ptr)
    runtime.memcpyAsync(b.data.ptr, a.data.ptr, 16, runtime.memcpyDeviceToDevice, second.ptr)
    assert "has not read yet" in " ".join(standin.races) or "has not written yet" in " ".join(standin.races)
    cp.cuda.runtime.deviceSynchronize()
    standin.order._races.clear()


def test_pageable_memory_is_copied_at_once(standin: Standin) -> None:
    cp = modules(standin)
    stream, runtime, there = cp.cuda.Stream(), cp.cuda.runtime, cp.ndarray((4,), np.float32)
    host = np.ones(4, np.float32)
    runtime.memcpyAsync(there.data.ptr, host.ctypes.data, 16, runtime.memcpyHostToDevice, stream.ptr)
    assert there.host.tolist() == [1] * 4
    stream.synchronize()


@pytest.mark.parametrize("what", CAPTURE)
def test_what_a_capture_refuses(what: str, standin: Standin) -> None:
    stream = modules(standin).cuda.Stream(non_blocking=True)
    standin.refuse_in_capture(what)  # nothing is captured
    stream.begin_capture(1)
    if CAPTURE[what]:
        with pytest.raises(CUDARuntimeError, match="StreamCaptureUnsupported"):
            standin.refuse_in_capture(what)
        with pytest.raises(CUDARuntimeError, match="Invalidated"):
            stream.end_capture()
    else:
        standin.refuse_in_capture(what)
        stream.end_capture()


def small() -> Graph:
    g = GraphBuilder()
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    return g.graph([g.Softmax(g.Add(g.MatMul(g.input("x", f32(2, 3)), g.const(w)), g.const(np.ones(4, np.float32))))])


def test_two_devices_from_several_threads(two: Standin) -> None:
    """Each has kernels, constants, streams and graphs of its own; results are the CPU's."""
    graph = small()
    sessions = {d: mz.Session(graph, device=d, instances=2) for d in ("gpu:0", "gpu:1")}
    cpu, wrong = mz.Session(graph), list[str]()

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
        (want,) = cpu.run({"x": x}).values()
        for _ in range(4):
            for name, session in sessions.items():
                (y,) = session.run({"x": x}).values()
                if not np.allclose(y, want, 1e-5):
                    wrong.append(name)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert two.races == []
    assert {two._owners[p] for p in two._blocks} == {0, 1}


def test_an_array_of_another_device_is_refused(two: Standin) -> None:
    cp = modules(two)
    with cp.cuda.Device(1):
        there = cp.asarray(np.ones((2, 3), np.float32))
    assert there.device.id == 1
    with pytest.raises(mz.InputError, match="gpu"):
        mz.Session(small(), device="gpu:0").run({"x": there})


def test_what_belongs_to_another_device_is_an_error(two: Standin) -> None:
    cp = modules(two)
    with cp.cuda.Device(1):
        stream, event = cp.cuda.Stream(), cp.cuda.Event()
    with pytest.raises(CUDARuntimeError, match="two devices"):
        cp.cuda.Event().record(stream)
    event.record(stream)
    stream.begin_capture(1)
    graph = stream.end_capture()
    with pytest.raises(CUDARuntimeError, match="gpu:1 while gpu:0 is current"):
        graph.launch(stream)
    with pytest.raises(CUDARuntimeError, match="InvalidDevice"):
        cp.cuda.Device(2)


def test_training_on_the_second_device(two: Standin) -> None:
    rng = np.random.default_rng(0)
    batch = {"image": rng.random((4, 1, 8, 8), np.float32), "target": rng.integers(0, 10, 4)}
    losses = {}
    for device in ("cpu", "gpu:1"):
        trainer = mz.Trainer(digits_model(), optimizer=mz.optimizer.SGD(rate=0.1), device=device)
        losses[device] = [float(trainer.step(batch)) for _ in range(3)]
    np.testing.assert_allclose(losses["gpu:1"], losses["cpu"], 1e-4)
