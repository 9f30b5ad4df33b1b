"""Functions and methods of arrays under MXNet's names, beside NumPy's formulas; imports of `mezzo.nd`."""

from __future__ import annotations

import functools
import importlib
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.nd import activations, methods, neural
from mezzo.nd.array import Array
from mezzo.ops.errors import MezzoError
from mezzo.tools.lazy import ELSEWHERE, HOMES, training

from .peers import peer

nd = mz.nd
RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 3, 6)).astype(np.float32)
Y = RNG.standard_normal((4, 3, 6)).astype(np.float32)
ROWS = np.array([[0, 5, 2], [3, -4, 9], [1, 1, 1], [5, 0, 4]])
erf = np.vectorize(math.erf)


def shares(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def smooth(x: Any, s: float) -> Any:
    return np.where(np.abs(x) < 1 / s**2, (s * x) ** 2 / 2, np.abs(x) - 0.5 / s**2)


def along(x: Any, numbers: Any) -> Any:
    return np.take_along_axis(x, numbers[..., None], -1)[..., 0]


ONES: dict[str, Any] = {  # of X: what is called, and what NumPy makes
    "relu": (lambda x: nd.relu(x), lambda x: np.maximum(x, 0)),
    "sigmoid": (lambda x: nd.sigmoid(x), lambda x: 1 / (1 + np.exp(-x))),
    "hard_sigmoid": (lambda x: nd.hard_sigmoid(x, 0.3), lambda x: np.clip(0.3 * x + 0.5, 0, 1)),
    "softsign": (lambda x: nd.softsign(x), lambda x: x / (1 + np.abs(x))),
    "softrelu": (lambda x: nd.softrelu(x), lambda x: np.log1p(np.exp(x))),
    "gelu": (lambda x: nd.gelu(x), lambda x: x * (1 + erf(x / np.sqrt(2))) / 2),
    "erf": (lambda x: nd.erf(x), erf),
    "softmax": (lambda x: nd.softmax(x), shares),
    "softmax, axis": (lambda x: nd.softmax(x, axis=1, temperature=0.5), lambda x: shares(x / 0.5, 1)),
    "log_softmax": (lambda x: nd.log_softmax(x, 0), lambda x: np.log(shares(x, 0))),
    "softmin": (lambda x: nd.softmin(x), lambda x: shares(-x)),
    "logsumexp": (lambda x: nd.logsumexp(x), lambda x: np.log(np.exp(x).sum())),
    "logsumexp, axes": (
        lambda x: nd.logsumexp(x * 1000, axis=(0, -1), keepdims=True),
        lambda x: np.logaddexp.reduce(np.logaddexp.reduce(x * 1000, 0, keepdims=True), -1, keepdims=True),
    ),
    "one_hot": (lambda x: nd.one_hot(nd.array(ROWS), 6, 2, -1), lambda x: 3 * (ROWS[..., None] == np.arange(6)) - 1),
    "pick": (lambda x: nd.pick(x, nd.array(ROWS)), lambda x: along(x, ROWS.clip(0, 5))),
    "pick, wrap": (lambda x: nd.pick(x, nd.array(ROWS), mode="wrap"), lambda x: along(x, ROWS % 6)),
    "pick, axis": (
        lambda x: nd.pick(x, nd.array([[[0, 1, 2, 0, 1, 2]]] * 4), axis=1, keepdims=True),
        lambda x: np.take_along_axis(x, np.array([[[0, 1, 2, 0, 1, 2]]] * 4), 1),
    ),
    "topk": (lambda x: nd.topk(x, k=2), lambda x: np.argsort(-x, -1)[..., :2]),
    "topk, value": (lambda x: nd.topk(x, 1, 2, "value"), lambda x: -np.sort(-x, 1)[:, :2]),
    "topk, least": (lambda x: nd.topk(x, 0, 1, "both", is_ascend=True)[0], lambda x: x.min(0, keepdims=True)),
    "topk, mask": (
        lambda x: nd.topk(x, axis=1, k=2, ret_typ="mask"),
        lambda x: (x >= -np.sort(-x, 1)[:, 1:2]).astype(np.float32),
    ),
    "split": (lambda x: nd.split(x, 3)[2], lambda x: x[:, 2:]),
    "split, squeezed": (lambda x: nd.split(x, 4, axis=0, squeeze_axis=True)[1], lambda x: x[1]),
    "split, one": (lambda x: nd.split(x, 1), lambda x: x),
    "flatten": (lambda x: nd.flatten(x), lambda x: x.reshape(4, 18)),
    "transpose": (lambda x: nd.transpose(x), lambda x: x.T),
    "transpose, numbers": (lambda x: nd.transpose(x, 1, 0, 2), lambda x: x.transpose(1, 0, 2)),
    "transpose, axes": (lambda x: nd.transpose(x, axes=(2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "swapaxes": (lambda x: nd.swapaxes(x, 0, -1), lambda x: x.swapaxes(0, -1)),
    "slice_axis": (lambda x: nd.slice_axis(x, axis=-1, begin=1, end=-2), lambda x: x[..., 1:-2]),
    "slice_axis, end": (lambda x: nd.slice_axis(x, 0, -2, None), lambda x: x[-2:]),
    "gather_nd": (lambda x: nd.gather_nd(x, nd.array([[0, 3], [2, 1]])), lambda x: x[[0, 3], [2, 1]]),
    "reverse": (lambda x: nd.reverse(x, 1), lambda x: x[:, ::-1]),
    "batch_dot": (lambda x: nd.batch_dot(x, nd.array(Y), transpose_b=True), lambda x: x @ Y.swapaxes(1, 2)),
    "batch_dot, first": (lambda x: nd.batch_dot(x, nd.array(Y), transpose_a=True), lambda x: x.swapaxes(1, 2) @ Y),
    "add_n": (lambda x: nd.add_n(x, nd.array(Y), x), lambda x: x + Y + x),
    "rsqrt": (lambda x: nd.rsqrt(nd.square(x) + 1), lambda x: (x**2 + 1) ** -0.5),
    "smooth_l1": (lambda x: nd.smooth_l1(x, 1.5), lambda x: smooth(x, 1.5)),
    "einsum": (lambda x: nd.einsum("abc,adc->abd", x, nd.array(Y)), lambda x: np.einsum("abc,adc->abd", x, Y)),
    "einsum, one": (lambda x: nd.einsum("abc->ca", x), lambda x: np.einsum("abc->ca", x)),
    "cumsum": (lambda x: nd.cumsum(x, axis=1), lambda x: x.cumsum(1)),
    "cumsum, list": (lambda x: nd.cumsum(x), lambda x: x.cumsum()),
    "broadcast_like": (lambda x: nd.broadcast_like(x[:1], x), lambda x: np.broadcast_to(x[:1], x.shape)),
    "reshape_like": (lambda x: nd.reshape_like(x, nd.zeros((6, 12))), lambda x: x.reshape(6, 12)),
    "expand_dims": (lambda x: nd.expand_dims(x, 1), lambda x: x[:, None]),
}  # fmt: skip


def cosines(a: Any, b: Any) -> Any:
    return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


IMAGE = np.arange(4 * 3 * 6.0).reshape(1, 4, 3, 6).astype(np.float32)
THIRDS = np.array([0.1, 0.2, 0.3], np.float32)
ONES |= {  # of nd/activations.py
    "elu": (lambda x: nd.elu(x, 0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    "selu": (
        lambda x: nd.selu(x),
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    ),
    "celu": (lambda x: nd.celu(x, 0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x / 0.5))),
    "leaky_relu": (lambda x: nd.leaky_relu(x), lambda x: np.where(x > 0, x, 0.01 * x)),
    "prelu": (lambda x: nd.prelu(x, nd.array(THIRDS)), lambda x: np.where(x > 0, x, THIRDS[:, None] * x)),
    "prelu, one": (lambda x: nd.prelu(x, nd.array([0.5])), lambda x: np.where(x > 0, x, 0.5 * x)),
    "silu": (lambda x: nd.silu(x), lambda x: x / (1 + np.exp(-x))),
    "mish": (lambda x: nd.mish(x), lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "hardswish": (lambda x: nd.hardswish(x * 3), lambda x: 3 * x * np.clip(3 * x + 3, 0, 6) / 6),
    "hardtanh": (lambda x: nd.hardtanh(x, -0.5), lambda x: np.clip(x, -0.5, 1)),
    "relu6": (lambda x: nd.relu6(x * 9), lambda x: np.clip(x * 9, 0, 6)),
    "softplus": (lambda x: nd.softplus(x), lambda x: np.log1p(np.exp(x))),
    "logsigmoid": (lambda x: nd.logsigmoid(x), lambda x: -np.log1p(np.exp(-x))),
    "softshrink": (lambda x: nd.softshrink(x), lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0)),
    "hardshrink": (lambda x: nd.hardshrink(x), lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    "tanhshrink": (lambda x: nd.tanhshrink(x), lambda x: x - np.tanh(x)),
    "threshold": (lambda x: nd.threshold(x, 0.1, 20.0), lambda x: np.where(x > np.float32(0.1), x, 20)),
    "glu": (lambda x: nd.glu(x), lambda x: x[..., :3] / (1 + np.exp(-x[..., 3:]))),
    "glu, axis": (lambda x: nd.glu(x, 0), lambda x: x[:2] / (1 + np.exp(-x[2:]))),
    "normalize": (lambda x: nd.normalize(x), lambda x: x / np.sqrt((x * x).sum(1, keepdims=True))),
    "normalize, sums": (lambda x: nd.normalize(x, 1, -1), lambda x: x / np.abs(x).sum(-1, keepdims=True)),
    "normalize, zeros": (lambda x: nd.normalize(x * 0), lambda x: x * 0),
    "cosine_similarity": (lambda x: nd.cosine_similarity(x, nd.array(Y)), lambda x: cosines(x, Y)),
    "embedding": (lambda x: nd.embedding(nd.array(ROWS % 4), x), lambda x: x[ROWS % 4]),
    "linear": (lambda x: nd.linear(x, nd.array(Y[0]), nd.array(THIRDS)), lambda x: x @ Y[0].T + THIRDS),
    "linear, no bias": (lambda x: nd.linear(x, nd.array(Y[0])), lambda x: x @ Y[0].T),
    "pad": (
        lambda x: nd.pad(x, (0, 0, 1, 2, 3, 0), constant_value=2),
        lambda x: np.pad(x, ((0, 0), (1, 2), (3, 0)), constant_values=2),
    ),
    "pad, reflect": (
        lambda x: nd.pad(x, (0, 0, 1, 2, 3, 0), "reflect"),
        lambda x: np.pad(x, ((0, 0), (1, 2), (3, 0)), "reflect"),
    ),
    "space_to_depth": (
        lambda x: nd.space_to_depth(nd.array(IMAGE[:, :, :2]), 2),
        lambda x: IMAGE[:, :, :2].reshape(1, 4, 1, 2, 3, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 16, 1, 3),
    ),
    "depth_to_space": (
        lambda x: nd.depth_to_space(nd.array(IMAGE), 2),
        lambda x: IMAGE.reshape(1, 2, 2, 1, 3, 6).transpose(0, 3, 4, 1, 5, 2).reshape(1, 1, 6, 12),
    ),
    "pixel_shuffle": (
        lambda x: nd.pixel_shuffle(nd.array(np.tile(IMAGE, (1, 2, 1, 1))), 2),
        lambda x: (
            np.tile(IMAGE, (1, 2, 1, 1)).reshape(1, 2, 2, 2, 3, 6).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 6, 12)
        ),
    ),
    "stop_gradient": (lambda x: nd.stop_gradient(x), lambda x: x),
    "degrees": (lambda x: nd.degrees(x), np.degrees),
    "radians": (lambda x: nd.radians(x), np.radians),
}


@pytest.mark.parametrize("name", ONES)
def test_a_function(name: str) -> None:
    ours, numpys = ONES[name]
    got, want = ours(nd.array(X)).asnumpy(), np.asarray(numpys(X.astype(np.float64)))
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-5 * max(np.abs(want).max(), 1)


OF: dict[str, tuple[Any, ...]] = {n: (np.array([0.3, 0.7], np.float32),) for n in (*activations.__all__,)}
OF |= {"arccosh": (OF["arccos"][0] + 1,), "arctan2": (OF["arccos"][0], -OF["arccos"][0])}


def test_gradients_of_a_sum_of_exponentials_are_shares() -> None:
    x = nd.array(X)
    x.attach_grad()
    with mz.autograd.record():
        total = nd.logsumexp(x, axis=(0, 2)).sum()
    total.backward()
    e = np.exp(X.astype(np.float64))
    assert np.abs(x.grad.asnumpy() - e / e.sum((0, 2), keepdims=True)).max() <= 1e-6
    net = mz.sym.logsumexp(mz.sym.Variable("x"), axis=1)
    (found,) = net.eval(x=X)
    assert np.abs(np.asarray(found) - np.log(np.exp(X).sum(1))).max() <= 1e-5


def test_activations_are_those_of_pytorch() -> None:
    torch = peer("torch")
    f = torch.nn.functional
    for name in ("elu", "selu", "celu", "leaky_relu", "silu", "mish", "hardswish", "hardtanh", "relu6", "softplus",
                 "logsigmoid", "softshrink", "hardshrink", "tanhshrink", "glu", "normalize"):  # fmt: skip
        theirs = torch.tensor(X, requires_grad=True)
        getattr(f, name)(theirs).sum().backward()
        ours = nd.array(X)
        ours.attach_grad()
        with mz.autograd.record():
            y = getattr(nd, name)(ours)
        y.backward()
        assert np.abs(y.asnumpy() - getattr(f, name)(theirs).detach().numpy()).max() <= 1e-5, name
        assert np.abs(ours.grad.asnumpy() - theirs.grad.numpy()).max() <= 1e-5, name


def test_what_is_no_number_stays_so() -> None:
    """As in PyTorch: a NaN is not taken for a small number."""
    odd = np.array([np.nan, np.inf, -np.inf, 0.5, -0.5, 3], np.float32)
    torch = peer("torch")
    for name, *numbers in (("threshold", 0.1, 20.0), ("softshrink",), ("hardshrink",), ("relu6",), ("hardtanh",)):
        theirs = getattr(torch.nn.functional, name)(torch.from_numpy(odd), *numbers).numpy()
        np.testing.assert_array_equal(getattr(nd, name)(nd.array(odd), *numbers).asnumpy(), theirs, err_msg=name)


SIZES = [((2, 3, 4), (3, 4), 1), ((2, 3, 4), (3, 4), -1), ((2, 3), (2, 1), 1), ((4,), (2, 3, 4), 0), ((3,), (3,), 0)]


@pytest.mark.parametrize(("one", "other", "axis"), SIZES)
def test_cosines_of_arrays_that_broadcast(one: tuple[int, ...], other: tuple[int, ...], axis: int) -> None:
    """The axis is one of the common shape, to which both are stretched before they are measured."""
    a, b = (RNG.standard_normal(sizes).astype(np.float32) for sizes in (one, other))
    a_wide, b_wide = np.broadcast_arrays(a, b)
    lengths = np.linalg.norm(a_wide, axis=axis) * np.linalg.norm(b_wide, axis=axis)
    found = nd.cosine_similarity(nd.array(a), nd.array(b), axis).asnumpy()
    np.testing.assert_allclose(found, (a_wide * b_wide).sum(axis) / lengths, atol=1e-6)


def test_all_functions_are_tried() -> None:
    same = {n for n in neural.__all__ if n.startswith(("broadcast_", "elemwise_"))} - {"broadcast_like"}
    tried = {n.partition(",")[0] for n in ONES}
    assert tried | same | {"power"} >= {*neural.__all__}
    others = {n for n in activations.__all__ if n not in tried}
    assert others == {"fix", "rint"} | {n for n in activations.__all__ if n.startswith("arc")}
    for name in same | {"power"}:
        assert getattr(neural, name) in vars(sys.modules["mezzo.nd.functions"]).values()
    for name in others:
        assert np.allclose(getattr(nd, name)(*OF[name]).asnumpy(), getattr(np, name)(*OF[name]), atol=1e-6), name


@pytest.mark.parametrize("name", [n for n, (ours, _) in ONES.items() if n.partition(",")[0] in methods.NEURAL])
def test_a_method_is_the_function(name: str) -> None:
    assert getattr(Array, name.partition(",")[0]) is getattr(nd, name.partition(",")[0])


def test_methods() -> None:
    x = nd.array(X)
    assert np.array_equal(x.expand_dims(axis=1).squeeze(1).transpose(2, 1, 0).asnumpy(), X.T)
    assert np.allclose(x.square().sum(axis=1).sqrt().asnumpy(), np.sqrt((X**2).sum(1)), rtol=1e-5)
    assert np.allclose(x.clip(-1, 1).abs().prod(axis=-1).asnumpy(), np.abs(X.clip(-1, 1)).prod(-1), rtol=1e-5)
    assert np.array_equal(x.topk(k=1).asnumpy()[..., 0], X.argmax(-1))
    for name in (*methods.FUNCTIONS, *methods.NEURAL):
        assert callable(getattr(x, name))


WRONG: dict[str, Callable[[Any], Any]] = {
    "does not divide into 4 parts": lambda x: nd.split(x, 4),
    "cannot lose it": lambda x: nd.split(x, 2, axis=0, squeeze_axis=True),
    "axis 3 is outside": lambda x: nd.softmax(x, axis=3),
    "ret_typ 'places'": lambda x: nd.topk(x, ret_typ="places"),
    "give two for each axis": lambda x: nd.pad(x, (1, 1)),
    "4 slopes for 3 channels": lambda x: nd.prelu(x, nd.ones((4, 1))),
    "mode 'symmetric'": lambda x: nd.pad(x, (1,) * 6, "symmetric"),
    "mode 'raise'": lambda x: nd.pick(x, nd.array(ROWS), mode="raise"),
}


@pytest.mark.parametrize("told", WRONG)
def test_what_makes_no_sense_is_told(told: str) -> None:
    with pytest.raises(MezzoError, match=told):
        WRONG[told](nd.array(X))


def test_gradients_go_through() -> None:
    x = nd.array(X)
    x.attach_grad()
    with mz.autograd.record():
        y = nd.pick(nd.log_softmax(x), nd.array(ROWS.clip(0, 5)))
        loss = y.sum()
    loss.backward()
    marks = np.arange(6) == ROWS.clip(0, 5)[..., None]
    assert np.abs(x.grad.asnumpy() - (marks - shares(X))).max() <= 1e-6


def test_the_module_can_be_imported() -> None:
    code = (
        "import mezzo.nd as first\nfrom mezzo.nd import softmax, random\nimport mezzo as mz\n"
        "assert mz.nd is first and 'nd' in vars(mz) and softmax is mz.nd.softmax and random is mz.random\n"
        "assert mz.nd.ones((1,)).__array_namespace__() is mz.nd"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_that_come_when_they_are_used() -> None:
    for name, (module, inside) in HOMES.items():
        home = importlib.import_module(f"mezzo.{module}")
        assert getattr(mz, name) is (getattr(home, inside) if inside else home)
        assert name in mz.__all__
        assert name in vars(mz)


def test_names_of_other_libraries_are_answered_with_ours() -> None:
    importlib.import_module("mezzo.compat.mxnet")
    for name, ours in ELSEWHERE.items():
        with pytest.raises(AttributeError, match=f"it is mezzo.{ours} here"):
            training(name)
        functools.reduce(getattr, ours.split("."), mz)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = mz.nothing
