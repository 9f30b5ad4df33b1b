"""Gradients of arrays: against finite differences, graphs and PyTorch; what is refused, what is freed, what is told."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mezzo as mz
from mezzo import nd
from mezzo.nd import autograd
from mezzo.nd.array import Array
from mezzo.nd.autograd import HeldTape, record
from mezzo.nd.autograd.tape import PATIENCE, Entry
from mezzo.nd.running import apply
from mezzo.ops.errors import InputError
from mezzo.runtime.engine import process

from .models import referee
from .peers import peer

RNG = np.random.default_rng(0)


def leaf(value: Any, request: str = "write") -> Array:
    made = nd.asarray(np.asarray(value, np.float64))
    made.attach_grad(request)
    return made


def close(a: Any, b: Any, tolerance: float = 1e-6) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-30)


UNARY: list[Callable[[Array], Array]] = [
    lambda x: nd.exp(nd.sin(x)), nd.sin, nd.tanh, lambda x: nd.sin(x * x), lambda x: x / (1 + x * x),
    lambda x: nd.sum(x, axis=0, keepdims=True), lambda x: nd.permute_dims(x, (1, 0)), lambda x: x[::-1, 1:],
    lambda x: x[0], lambda x: x[:, None, -1], lambda x: nd.reshape(x, (-1,)), lambda x: nd.mean(x, axis=1),
    lambda x: nd.concat([x, x * 2], axis=1), lambda x: nd.where(x > 0, x, x * 3), lambda x: nd.max(x, axis=0),
    lambda x: x.astype("float32").astype("float64"),
]  # fmt: skip


@given(st.lists(st.integers(0, len(UNARY) - 1), min_size=1, max_size=4), st.integers(0, 2**31))
def test_random_programs_against_finite_differences(steps: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = rng.standard_normal((3, 4))

    def program(x: Array) -> Array:
        for i in steps:
            y = x if x.ndim == 2 else nd.reshape(x, (-1, 1))
            if y.shape[0] < 2 or y.shape[1] < 2:
                y = nd.concat([nd.concat([y, y * 0.5], axis=0), nd.concat([y * 2, y], axis=0)], axis=1)
            x = UNARY[i](y)
        return nd.sum(nd.sin(x))

    x = leaf(start)
    with record():
        y = program(x)
    y.backward()
    assert x.grad is not None
    direction = rng.standard_normal(start.shape)
    step = 1e-5
    ahead, behind = (float(program(nd.asarray(start + s * step * direction))) for s in (1, -1))
    expected = (ahead - behind) / (2 * step)
    found = float((x.grad.asnumpy() * direction).sum())
    uses_float32 = UNARY[-1] in [UNARY[i] for i in steps]
    assert abs(found - expected) <= (1e-1 if uses_float32 else 1e-3) * max(abs(expected), 1)


def test_a_network_against_pytorch() -> None:
    referee()
    torch = peer("torch")
    shapes = {"k": (4, 1, 3, 3), "c": (4,), "w": (36, 5), "b": (5,)}
    values = {n: (RNG.standard_normal(s) * 0.3).astype(np.float32) for n, s in shapes.items()}
    data, label = RNG.standard_normal((6, 1, 8, 8)).astype(np.float32), np.arange(6) % 5
    ours = {n: nd.asarray(v) for n, v in values.items()}
    for a in ours.values():
        a.attach_grad()
    with record():
        x = apply("Conv", nd.asarray(data), ours["k"], ours["c"], kernel_shape=(3, 3))
        x = apply("MaxPool", nd.tanh(x), kernel_shape=(2, 2), strides=(2, 2))
        x = nd.reshape(x, (6, -1)) @ ours["w"] + ours["b"]
        loss = apply("SoftmaxCrossEntropyLoss", x, nd.asarray(label), reduction="mean")
    loss.backward()
    theirs = {n: torch.tensor(v, requires_grad=True) for n, v in values.items()}
    y = torch.max_pool2d(torch.tanh(torch.conv2d(torch.tensor(data), theirs["k"], theirs["c"])), 2, 2)
    expected = torch.nn.functional.cross_entropy(y.flatten(1) @ theirs["w"] + theirs["b"], torch.tensor(label))
    expected.backward()
    close(loss.item(), expected.item(), 1e-6)
    for name, array in ours.items():
        assert array.grad is not None
        close(array.grad.asnumpy(), theirs[name].grad.numpy(), 1e-5)


def test_requests() -> None:
    x, y, z = leaf([1, 2]), leaf([3, 4], "add"), leaf([5, 6])
    z.attach_grad("null")
    for _ in range(2):
        with record():
            out = x * y * z
        out.backward()
    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.asnumpy().tolist() == [15, 24]
    assert y.grad.asnumpy().tolist() == [10, 24]
    assert z.grad is None
    with pytest.raises(InputError, match="none of write"):
        x.attach_grad("sometimes")
    with pytest.raises(InputError, match="only floats"):
        nd.asarray([1, 2]).attach_grad()
    into = nd.zeros(2, dtype="float64")
    autograd.mark_variables(x, into)
    with record():
        out = x * 3
    autograd.backward([out], [[1, 10]])
    assert into.asnumpy().tolist() == [3, 30]


def test_what_is_recorded_and_what_is_not() -> None:
    x = leaf([1.0, 2.0])
    assert not autograd.is_recording()
    with record():
        assert autograd.is_recording()
        assert autograd.is_training()
        with autograd.pause():
            assert not autograd.is_recording()
            assert not autograd.is_training()
            paused = x * 2
        with autograd.predict_mode():
            assert not autograd.is_training()
            assert autograd.is_recording()
        with autograd.train_mode():
            assert autograd.is_training()
        y = x * x.detach() + paused
    y.backward()
    assert x.grad is not None
    assert x.grad.asnumpy().tolist() == [1, 2]
    with pytest.raises(InputError, match=r"test_autograd.py:\d+ .*does not depend"):
        (x * 2).backward()


def test_second_and_third_derivatives() -> None:
    x = leaf([0.3, -1.2])
    with record():
        y = nd.sin(x) * x
        first = autograd.grad(y, x, create_graph=True)
        second = autograd.grad(first, x, create_graph=True)
        third = autograd.grad(second, x)
    v = np.array([0.3, -1.2])
    close(first.asnumpy(), np.cos(v) * v + np.sin(v))
    close(second.asnumpy(), 2 * np.cos(v) - v * np.sin(v))
    close(third.asnumpy(), -3 * np.sin(v) - v * np.cos(v))
    assert x.grad is not None
    assert not x.grad.asnumpy().any()  # grad() leaves it alone


def test_gradients_to_values_in_between() -> None:
    x = leaf(2.0)
    with record():
        y = x * 3
        z = y * y + y
        w = z * x
    dz, dy, dx = autograd.grad(w, [z, y, x])
    assert (dz.item(), dy.item(), dx.item()) == (2, 26, 26 * 3 + 42)


def test_functions_of_the_user() -> None:
    class Clipped(autograd.Function):
        def forward(self, x: Any, y: Any) -> Any:
            self.save_for_backward(x)
            return nd.minimum(x, nd.asarray(1.0, dtype="float64")), x + y

        def backward(self, da: Any, db: Any) -> Any:
            assert self.saved_tensors[0].shape == da.shape
            return da * 10 + db, None

    x, y = leaf([0.5, 3]), leaf([1, 1])
    with record():
        a, b = Clipped()(x * 2, y)
        out = a * a + b
    out.backward()
    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.asnumpy().tolist() == [2 * (2 * 1 * 10 + 1), 2 * (2 * 1 * 10 + 1)]
    assert y.grad.asnumpy().tolist() == [0, 0]

    class Wrong(autograd.Function):
        def forward(self, x: Any) -> Any:
            return x * 1

        def backward(self, dy: Any) -> Any:
            return dy, dy

    with record():
        z = Wrong()(x)
    with pytest.raises(InputError, match="Wrong returns 2 gradients for 1"):
        z.backward()


def test_dropout_goes_back_through_the_same_mask() -> None:
    x = leaf(np.ones(500))
    with record():
        y = apply("Dropout", x, nd.asarray(np.float32(0.5)), nd.asarray(np.array(True)))
    y.backward()
    assert x.grad is not None
    assert np.array_equal(x.grad.asnumpy(), y.asnumpy())
    assert 100 < (y.asnumpy() == 0).sum() < 400


def test_a_tape_goes_back_once() -> None:
    x = leaf(2.0)
    with record():
        y = x * x
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(InputError, match="let go of by an earlier backward"):
        y.backward()


def test_changes_in_place() -> None:
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    with record():
        y = x * w
        with pytest.raises(InputError, match="changed in place while"):
            w += 1
        with pytest.raises(InputError, match="changed in place while"):
            y[0] = 1
    w -= 1
    with pytest.raises(InputError, match=r"test_autograd.py:\d+ .*changed in place after Mul had read it"):
        y.backward()
    with record():
        y = x * w
    y.backward()
    assert w.grad is not None
    w -= 0.1 * w.grad  # the usual step: after backward
    close(w.asnumpy(), [1.9, 2.8])


def test_nothing_is_left_behind() -> None:
    def kept() -> set[int]:
        """Recorded operations that still hold what they were given, of this test and of all before it."""
        return {id(e) for e in gc.get_objects() if type(e) is Entry and e.inputs is not None}

    gc.collect()
    before = kept()  # other tests may keep tapes of their own, on purpose
    x = leaf(np.ones(1000))
    entries: list[Any] = []
    for _ in range(3):
        with record():
            y = nd.exp(x)
            z = nd.sum(y * y)
        entries.append(weakref.ref(z._origin[0]))
        z.backward()
    del y, z
    nd.waitall()  # the engine holds what it has yet to compute
    gc.collect()
    assert [e() for e in entries] == [None] * 3
    assert kept() <= before


class Keeper:
    """What a training loop writes its losses to."""

    def __init__(self) -> None:
        self.losses: list[Any] = []


def test_a_tape_that_is_held_is_told() -> None:
    x, keeper = leaf(1.0), Keeper()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2 * PATIENCE + 2):
            with record():
                loss = x * 2
            keeper.losses.append(loss)
        del loss
    texts = [str(w.message) for w in told if w.category is HeldTape]
    assert texts
    assert "losses" in texts[0]
    assert "test_autograd.py" in texts[0]
    assert "item()" in texts[0]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2 * PATIENCE + 2):
            with record():
                loss = x * 2
            loss.backward()
            keeper.losses.append(loss.item())
    assert not [w for w in told if w.category is HeldTape and "x * 2" in str(w.message)]


def test_the_naive_engine_gives_the_same() -> None:
    start = RNG.standard_normal((4, 4))

    def gradient() -> Any:
        x = leaf(start)
        with record():
            y = nd.tanh(x @ x) * x[0]
        y.backward()
        assert x.grad is not None
        return x.grad.asnumpy()

    threaded = gradient()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEZZO_ENGINE", "naive")
        patch.setattr(process, "_engine", None, raising=False)
        naive = gradient()
    assert np.array_equal(threaded, naive)


def test_the_front_door() -> None:
    assert mz.autograd is autograd


@pytest.mark.parametrize("name", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [None, 1])
def test_gradients_to_the_weights_of_classes(name: str, reduction: str, ignored: int | None) -> None:
    """Which were zeros; against differences in float64."""
    rng = np.random.default_rng(0)
    scores, labels = nd.asarray(rng.standard_normal((2, 3, 2))), nd.asarray(np.array([[2, 0], [1, 2]]))
    how: dict[str, Any] = {} if ignored is None else {"ignore_index": ignored}

    def loss(weights: Any) -> Any:
        return apply(name, scores, labels, weights, reduction=reduction, **how).sum()

    values = rng.random(3) + 0.5
    weights = nd.asarray(values)
    weights.attach_grad()
    with autograd.record():
        y = loss(weights)
    y.backward()
    steps = 1e-6 * np.eye(3)
    differences = [float((loss(nd.asarray(values + d)) - loss(nd.asarray(values - d))).asnumpy()) / 2e-6 for d in steps]
    np.testing.assert_allclose(weights.grad.asnumpy(), differences, rtol=0, atol=1e-7)


def test_limits_do_not_take_of_the_gradient_what_lies_on_them() -> None:
    """As of MXNet's and PyTorch's clamp; beyond them it is none."""
    x = nd.asarray([-2.0, -1, 0, 1, 2])
    x.attach_grad()
    for low, high, gradient in ((-1, 1, [0, 1, 1, 1, 0]), (None, 1, [1, 1, 1, 1, 0]), (-1, None, [0, 1, 1, 1, 1])):
        with record():
            y = nd.clip(x, low, high)
        y.backward()
        assert x.grad.tolist() == gradient
