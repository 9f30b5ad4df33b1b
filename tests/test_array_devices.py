"""Arrays, blocks and symbols on a GPU that is not there: through the stand-in for CuPy (cupy_standin.py), which
computes by the shim. What CuPy itself does (capsules of DLPack, copies between strided views, its pool) is the
stand-in's word alone; nothing here has run on a device."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.gluon import nn
from mezzo.gluon.hybrid import HybridBlock
from mezzo.ops import DType
from mezzo.runtime.backends.cuda.host import HostSteps
from mezzo.runtime.backends.cuda.instance import GpuInstance
from mezzo.runtime.execution.functions import FUNCTIONS
from mezzo.sym.arrays import Arrays

from .array_modes import Using, line_after
from .cuda_shim import missing
from .cupy_standin import Standin

nd: Any = mz.nd


@pytest.fixture
def engine() -> str:
    return "threaded"


either = pytest.mark.parametrize("engine", ["threaded", "in place"])


@pytest.fixture
def standin(engine: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    """A device, and an engine whose threads share it, or that computes where it stands."""
    if missing():
        pytest.skip(missing())
    made = Standin(computes=True)
    made.install(monkeypatch)
    FUNCTIONS.clear()
    mz.random.seed(0)
    with Using(engine):
        yield made
        nd.waitall()
    FUNCTIONS.clear()
    assert made.races == []


def numbers(*shape: int) -> Any:
    return np.linspace(-2, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def test_making_and_moving(standin: Standin) -> None:
    there, host = mz.gpu(0), numbers(3, 4)
    x = nd.asarray(host, device=there)
    assert (x.device, x.shape, x.dtype, str(x.ctx)) == (there, (3, 4), nd.float32, "gpu(0)")
    np.testing.assert_array_equal(x.asnumpy(), host)
    here = nd.array(host)
    assert here.as_in_context(there).device is there
    assert x.to_device("gpu:0") is x
    assert x.to_device("cpu").tolist() == host.tolist()
    into, back_again = nd.zeros((3, 4), ctx=there), nd.zeros((3, 4))
    assert here.copyto(into).device is there
    assert into.copyto(back_again) is back_again
    assert back_again.tolist() == x.copyto(mz.cpu()).tolist() == x.copyto(there).tolist() == host.tolist()
    made = [nd.full((2,), 3, ctx=there), nd.arange(4, ctx=there), nd.eye(2, device=there), nd.zeros((0, 3), ctx=there)]
    assert [m.tolist() for m in made] == [[3, 3], [0, 1, 2, 3], [[1, 0], [0, 1]], []]
    assert all(m.device is there for m in made)
    assert nd.zeros_like(x).device is there
    assert "on gpu(0)" in repr(x)
    with pytest.raises(mz.MissingPackage, match="gpu:7"):
        mz.gpu(7)


def test_operators_run_on_the_device(standin: Standin) -> None:
    host = numbers(4, 5)
    x, like = nd.asarray(host, device="gpu:0"), nd.asarray(host)
    launched = standin.count("launch")

    def everything(a: Any) -> list[Any]:
        return [
            a + a * 2 - 1, nd.sum(a, axis=1), a @ a.T, a > 0.5, nd.reshape(a, (2, 10)), nd.Softmax(a, axis=1),
        ]  # fmt: skip

    for _ in range(3):  # warm up, capture, replay
        got, want = everything(x), everything(like)
        for one, other in zip(got, want, strict=True):
            assert (one.device, one.dtype, one.shape) == (mz.gpu(0), other.dtype, other.shape)
            np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-6)
    assert standin.count("launch") > launched
    assert standin.count("graph") > 0


@either
def test_views_and_writing_in_place(standin: Standin) -> None:
    host = numbers(4, 6)
    x = nd.asarray(host, device="gpu:0")
    row, part = x[1], x[::2, 1:5:2]
    np.testing.assert_array_equal((part + 1).asnumpy(), host[::2, 1:5:2] + 1)
    row *= 3
    part[...] = 7
    x[3] = nd.arange(6, device="gpu:0")
    x[0, 0] = 2
    x += nd.ones((6,), ctx=mz.gpu(0))
    host[1] *= 3
    host[::2, 1:5:2] = 7
    host[3], host[0, 0] = np.arange(6), 2
    host += 1
    np.testing.assert_array_equal(x.asnumpy(), host)
    np.testing.assert_array_equal(row.asnumpy(), host[1])
    assert x[3, 5].item() == 6


def test_what_has_no_kernel_is_told(standin: Standin) -> None:
    x = nd.asarray([0.0, 1.0, 0.0, 2.0], device="gpu:0")
    with pytest.warns(HostSteps, match="NonZero"):
        (places,) = nd.nonzero(x)
    assert (places.device, places.tolist()) == (mz.gpu(0), [1, 3])


def test_mixing_devices_names_both(standin: Standin) -> None:
    a = nd.ones((2,), ctx=mz.gpu(0))
    b = nd.ones((2,))
    mixes: list[Callable[[], Any]] = [
        lambda: a + b,
        lambda: nd.concat([b, a]),
        lambda: a.__iadd__(b),
        lambda: b.__setitem__(slice(None), a),
    ]
    for mixed in mixes:
        with pytest.raises(mz.InputError) as told:
            mixed()
        said = str(told.value)
        assert line_after("a = nd.ones((2,), ctx=mz.gpu(0))") in said
        assert line_after("b = nd.ones((2,))") in said
        assert re.search(r"gpu\(0\).*cpu\(0\)|cpu\(0\).*gpu\(0\)", said)
        assert "to_device(mz." in said


def test_dlpack_both_ways(standin: Standin) -> None:
    cupy: Any = import_module("cupy")
    x = nd.asarray(numbers(2, 3), device="gpu:0")
    assert x.__dlpack_device__() == (2, 0)
    shared = cupy.from_dlpack(x)
    np.testing.assert_array_equal(shared.host, numbers(2, 3))
    again, copied = nd.from_dlpack(shared), nd.asarray(shared)
    assert again.device is copied.device is mz.gpu(0)
    again += 1
    again.wait_to_read()
    np.testing.assert_array_equal(x.asnumpy(), numbers(2, 3) + 1)
    np.testing.assert_array_equal(copied.asnumpy(), numbers(2, 3))
    assert nd.from_dlpack(shared, device="cpu").device is mz.cpu()
    with pytest.raises(mz.InputError, match="without a copy"):
        nd.asarray(shared, copy=False, device="cpu")


@either
def test_no_room_is_an_error_that_can_be_caught(standin: Standin) -> None:
    x = nd.ones((8,), ctx=mz.gpu(0)).wait_to_read()
    standin.memory = standin.used + 2048
    with pytest.raises(mz.BudgetError, match="bytes are asked of gpu:0") as told:
        nd.ones((1000, 1000), ctx=mz.gpu(0)).wait_to_read()
    assert "test_array_devices.py" in str(told.value)
    with pytest.raises(mz.BudgetError):
        nd.asarray(np.ones(10_000), device="gpu:0")
    standin.memory = 1 << 30
    assert (x * 2).tolist() == [2] * 8
    with pytest.raises(mz.InputError, match="are not held by gpu:0"):
        nd.asarray(np.zeros(2, DType.FLOAT8E4M3FN.numpy), device="gpu:0")


def test_a_seed_gives_the_same_numbers_on_every_device(standin: Standin) -> None:
    def drawn(ctx: Any) -> list[Any]:
        mz.random.seed(7)
        r = mz.random
        found = [r.normal((9,), 1.0, 2.0, ctx=ctx), r.uniform(-1, 1, (2, 3), ctx=ctx), r.randint(-3, 9, (7,), ctx=ctx),
                 r.bernoulli(nd.full((20,), 0.4, ctx=ctx)), r.permutation(6, ctx=ctx)]  # fmt: skip
        assert all(x.device is ctx for x in found)
        return [x.tolist() for x in found]

    assert drawn(mz.gpu(0)) == drawn(mz.cpu())


def trained(ctx: Any, hybrid: bool) -> list[Any]:
    """A few steps of a small block on a device, by any way to run it."""
    mz.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu", in_units=4), nn.Dropout(0.5), nn.Dense(3))
    net.initialize("xavier", ctx=ctx)
    if hybrid:
        net.hybridize()
    trainer = mz.gluon.Trainer(net.collect_params(), "adamw", {"learning_rate": 0.01, "epsilon": 0.01})
    losses = []
    for _ in range(2):
        x = mz.random.normal((5, 4), ctx=ctx)
        with mz.autograd.record():
            loss = nd.mean(net(x) ** 2)
        loss.backward()
        trainer.step(1)
        losses.append(loss)
    net(mz.random.normal((5, 4), ctx=ctx))
    assert all(p.data().device is ctx for p in net.collect_params().values())
    return [loss.asnumpy() for loss in losses] + [p.data().asnumpy() for p in net.collect_params().values()]


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybridized"])
def test_blocks_train_there_as_they_do_here(hybrid: bool, standin: Standin) -> None:
    for got, want in zip(trained(mz.gpu(0), hybrid), trained(mz.cpu(), hybrid), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert standin.count("graph") > 0


def test_what_a_run_reads_others_read_meanwhile(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's kernels take its parameters where they lie. Who only reads them waits for no kernel that does."""
    net = nn.Dense(3, in_units=4)
    net.initialize(ctx="gpu:0")
    net.hybridize()
    x = nd.ones((2, 4), ctx=mz.gpu(0))
    want = net(x).asnumpy()
    under_way, go_on = threading.Event(), threading.Event()
    results = GpuInstance._results

    def held(self: GpuInstance, outputs: Any) -> list[Any]:
        under_way.set()
        assert go_on.wait(60)
        return results(self, outputs)

    monkeypatch.setattr(GpuInstance, "_results", held)
    y = net(x)
    assert under_way.wait(60)
    weight = net.weight.data().asnumpy()
    go_on.set()
    np.testing.assert_array_equal(y.asnumpy(), want)
    np.testing.assert_allclose(np.ones((2, 4)) @ weight.T, want, rtol=1e-5)


def test_a_block_and_its_input_lie_together(standin: Standin) -> None:
    net = nn.Dense(3, in_units=4)
    net.initialize(ctx="gpu:0")
    net.hybridize()
    with pytest.raises(mz.InputError, match="on two devices"):
        net(nd.ones((2, 4)))
    moved = net(nd.ones((2, 4), ctx=mz.gpu(0)))
    for p in net.collect_params().values():
        p.reset_ctx("cpu")
    np.testing.assert_allclose(net(nd.ones((2, 4))).asnumpy(), moved.asnumpy(), rtol=1e-5)


def test_symbols_are_bound_there(standin: Standin) -> None:
    def both_ways(ctx: Any) -> list[Any]:
        mz.random.seed(5)
        s = mz.sym.Variable("x") * mz.sym.Variable("w")
        executor = mz.sym.Dropout(s, p=0.5, name="drop").simple_bind(ctx, x=(3, 4), w=(3, 4))
        executor.forward(is_train=True, x=numbers(3, 4), w=numbers(3, 4) + 1)
        executor.backward(nd.ones((3, 4), ctx=ctx))
        weights, gradients = Arrays(executor.arg_dict), Arrays(executor.grad_dict)
        weights -= 0.5 * gradients
        found = [executor.arg_dict[n].asnumpy() for n in ("x", "w")]
        return [executor.outputs[0].asnumpy(), *found, *[g.asnumpy() for g in executor.grad_dict.values()]]

    for got, want in zip(both_ways(mz.gpu(0)), both_ways(mz.cpu()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


class Traced(HybridBlock):
    """What a trace has to follow: whole numbers, a stop, a write in place, a draw, and a branch on numbers."""

    def forward(self, x: Any) -> Any:
        y = nd.where(x > 0, x, 0.1 * x) * x.detach()
        made = nd.zeros_like(x)
        made[0] = y[1]
        made += mz.random.uniform(shape=x.shape, ctx=x.device)
        places = nd.argmax(y, axis=1)
        if nd.sum(x) > 0:
            made = made * nd.expand_dims(places.astype("float32"), axis=1)
        return made + y


def test_a_trace_follows_values_on_the_device(standin: Standin) -> None:
    found: dict[tuple[str, bool], list[Any]] = {}
    for device in ("cpu", "gpu:0"):
        for hybrid in (False, True):
            net = Traced()
            net.hybridize(hybrid)
            mz.random.seed(3)
            several = [nd.asarray(s * numbers(3, 4) + s, device=device) for s in (1.0, -1.0, 0.5, -0.5)]
            found[device, hybrid] = [net(x).asnumpy() for x in several]
            assert not net._broken
    expected = found["cpu", False]
    for each in found.values():
        for a, b in zip(each, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
