"""Complex arrays: taken apart, put together, and differentiated as PyTorch does, on the tape and in traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.nd import autograd
from mezzo.ops.errors import InputError, UnsupportedModel

from .array_modes import every_mode  # noqa: F401 (a fixture)
from .peers import peer
from .test_gluon_traces import Of

nd: Any = mz.nd
INF, NAN = np.inf, np.nan
ODD = np.array([complex(a, b) for a in (0.0, -0.0, 1.5, -2, INF, -INF, NAN) for b in (0.0, -0.0, 3, -1, INF, NAN)])


def numbers(*shape: int, dtype: str = "complex128", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    made = rng.normal(0, 1.5, shape)
    return (made + 1j * rng.normal(0, 1.5, shape) if np.dtype(dtype).kind == "c" else made).astype(dtype)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_parts_are_numpys(dtype: str, mode: str) -> None:
    for x in (ODD.astype(dtype), numbers(2, 3, 4, dtype=dtype), numbers(0, 3, dtype=dtype), numbers(dtype=dtype)):
        a = nd.asarray(x)
        for name in ("abs", "real", "imag", "conj"):
            found, expected = getattr(nd, name)(a).asnumpy(), getattr(np, name)(x)
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0, err_msg=name)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert np.array_equal(np.signbit(found.real), np.signbit(expected.real)), name
        before = x.copy()
        part = nd.real(a)
        part += 1
        np.testing.assert_array_equal(a.asnumpy(), before)  # a part is a copy
    huge = nd.asarray(np.array([3e38 + 1e38j, 1e-38 + 1e-38j], np.complex64))
    np.testing.assert_allclose(abs(huge).asnumpy(), np.abs(huge.asnumpy()), rtol=1e-6)


def test_parts_of_real_numbers() -> None:
    x = nd.asarray(np.array([1.0, -INF, NAN]))
    assert nd.imag(x).tolist() == [0, 0, 0]
    assert nd.real(x).tolist()[:2] == [1, -INF]
    assert nd.conj(nd.asarray([1, 2])).tolist() == [1, 2]


Function = Callable[[Any, Any, Any], Any]  # namespace, and two operands: for PyTorch and for us
COMPLEX: dict[str, Function] = {
    "abs": lambda xp, x, y: xp.abs(x),
    "abs of zeros": lambda xp, x, y: xp.abs(x * 0) + xp.abs(y),
    "real": lambda xp, x, y: xp.real(x) * 2,
    "imag": lambda xp, x, y: xp.imag(x * y),
    "conj": lambda xp, x, y: xp.conj(x) * y,
    "add": lambda xp, x, y: x + y * 2 - x / 3,
    "multiply": lambda xp, x, y: x * y * (1 - 2j),
    "broadcast": lambda xp, x, y: x * y[0] + y[0],
    "divide": lambda xp, x, y: x / y,
    "matmul": lambda xp, x, y: xp.matmul(x, y),
    "vecdot": lambda xp, x, y: xp.vecdot(x, y) if xp is nd else xp.linalg.vecdot(x, y),
    "exp": lambda xp, x, y: xp.exp(x),
    "expm1": lambda xp, x, y: xp.expm1(x),
    "log": lambda xp, x, y: xp.log(x) + xp.log2(y) + xp.log10(x) + xp.log1p(y),
    "sqrt": lambda xp, x, y: xp.sqrt(x),
    "reciprocal": lambda xp, x, y: xp.reciprocal(x),
    "pow": lambda xp, x, y: xp.pow(x, 2) + xp.pow(x, y / 4),
    "sin": lambda xp, x, y: xp.sin(x) + xp.cos(y),
    "sinh": lambda xp, x, y: xp.sinh(x) + xp.cosh(y),
    "tan": lambda xp, x, y: xp.tan(x) + xp.tanh(y),
    "asin": lambda xp, x, y: xp.asin(x) + xp.acos(y) + xp.atan(x),
    "asinh": lambda xp, x, y: xp.asinh(x) + xp.acosh(y) + xp.atanh(x),
    "sums": lambda xp, x, y: x.sum(0) * y.mean(1),
    "moved": lambda xp, x, y: xp.concat([x[1:], y[:1]])[::1].reshape(2, 8)[:, 1:5],
    "where": lambda xp, x, y: xp.where(xp.real(x) > 0, x * y, y),
    "det": lambda xp, x, y: xp.linalg.det(x),
    "norm": lambda xp, x, y: xp.linalg.vector_norm(x, axis=1) if xp is nd else xp.linalg.vector_norm(x, dim=1),
}


def gradients_of(xp: Any, function: Function, xs: list[Any], weight: Any) -> list[Any]:
    """Gradients of a weighed sum of a function's results, which may be complex."""
    if xp is not nd:
        given = [xp.tensor(x, requires_grad=True) for x in xs]
        y = function(xp, *given)
        y.backward(xp.tensor(weight(tuple(y.shape), y.is_complex())))
        found = [xp.zeros_like(t) if t.grad is None else t.grad for t in given]
        return [t.resolve_conj().numpy() for t in found]
    arrays = [nd.asarray(x) for x in xs]
    for a in arrays:
        a.attach_grad()
    with autograd.record():
        y = function(nd, *arrays)
    y.backward(nd.asarray(weight(y.shape, y.dtype.kind == "c")))
    return [a.grad.asnumpy() for a in arrays]


def weight(shape: tuple[int, ...], is_complex: bool) -> Any:
    return numbers(*shape, dtype="complex128" if is_complex else "float64", seed=5)


@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("sorts", [("complex128", "complex128"), ("float64", "complex128")], ids=["complex", "mixed"])
def test_gradients_are_pytorchs(name: str, sorts: tuple[str, str]) -> None:
    torch = peer("torch")
    function = COMPLEX[name]
    if sorts[0] != "complex128" and name in ("imag", "vecdot", "matmul", "where", "det", "norm", "asin", "asinh"):
        return  # PyTorch wants operands of one sort there, or refuses real ones
    if sorts[0] != "complex128":
        whole, function = function, lambda xp, x, y: whole(xp, x * (1 + 0j) + 0j * y, y)
    xs = [numbers(4, 4, dtype=t, seed=i) for i, t in enumerate(sorts)]
    theirs = gradients_of(torch, function, xs, weight)
    for ours, expected in zip(gradients_of(nd, function, xs, weight), theirs, strict=True):
        assert ours.dtype == expected.dtype
        assert np.abs(ours - expected).max() <= 1e-9 * max(np.abs(expected).max(), 1e-30)


@pytest.mark.parametrize("name", COMPLEX)
def test_traces_are_eager_code(name: str) -> None:
    function, xs = COMPLEX[name], [numbers(4, 4, dtype="complex64", seed=i) for i in (3, 4)]
    net = Of(lambda x, y: function(nd, x, y))
    found = []
    for hybrid in (False, True):
        net.hybridize(hybrid, fullgraph=True)
        arrays = [nd.asarray(x) for x in xs]
        for a in arrays:
            a.attach_grad()
        with autograd.record():
            y = net(*arrays)
        y.backward(nd.asarray(weight(y.shape, y.dtype.kind == "c").astype(y.dtype)))
        found.append([y.asnumpy(), *(a.grad.asnumpy() for a in arrays)])
    for eager, traced in zip(*found, strict=True):
        assert eager.dtype == traced.dtype
        assert np.abs(eager - traced).max() <= 1e-5 * max(np.abs(eager).max(), 1e-30)


def test_what_has_no_gradient_says_so() -> None:
    x = nd.asarray(numbers(3, dtype="complex64"))
    x.attach_grad()
    with autograd.record():
        y = x * x
        sign = nd.abs(nd.sign(x)).sum()
    with pytest.raises(InputError, match=r"is complex: which way(.|\n)*nd\.abs"):
        y.backward()
    with pytest.raises(UnsupportedModel, match=r"no derivative: ai\.onnx::Sign"):
        sign.backward()


def test_an_export_of_what_onnx_lacks_names_it(tmp_path: Path) -> None:
    net = Of(lambda x: nd.conj(x) * x)
    with pytest.raises(UnsupportedModel, match=r"RealImag is no operator of ONNX(.|\n)*\.mezzo"):
        net.export(tmp_path / "net.onnx", nd.asarray(numbers(3)))
