"""The extension linalg: NumPy's numbers, PyTorch's gradients, stacks, nothing in them, NaN, and what has no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.errors import UnsupportedModel

from .array_modes import every_mode, line_after  # noqa: F401 (a fixture)
from .peers import peer
from .test_array_complex import gradients_of, numbers, weight
from .test_gluon_traces import Of

nd: Any = mz.nd
la: Any = nd.linalg
INF, NAN = np.inf, np.nan


def steep(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    """Matrices with an inverse."""
    x = numbers(*shape, dtype=dtype, seed=seed)
    return (x + np.diag(np.arange(2.0, 2 + shape[-1]))).astype(dtype)


def positive(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    x = numbers(*shape, dtype=dtype, seed=seed)
    return (x @ x.conj().swapaxes(-1, -2) + np.eye(shape[-1])).astype(dtype)


def tall(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    return numbers(*shape[:-2], shape[-1] + 2, shape[-1], dtype=dtype, seed=seed)


def wide(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    return numbers(*shape[:-1], shape[-1] + 2, dtype=dtype, seed=seed)


Make = Callable[..., Any]
# The function of a namespace `la` on x, and the matrices that it is for. NumPy, PyTorch and we have the same names.
VALUES: dict[str, tuple[Callable[[Any, Any], Any], list[Make]]] = {
    "solve": (lambda la, x: la.solve(x, x[..., ::-1, :1] * 2), [steep]),
    "inv": (lambda la, x: la.inv(x), [steep]),
    "det": (lambda la, x: la.det(x), [steep]),
    "slogdet": (lambda la, x: la.slogdet(x), [steep]),
    "cholesky": (lambda la, x: la.cholesky(x), [positive]),
    "cholesky upper": (lambda la, x: la.cholesky(x, upper=True), [positive]),
    "eigvalsh": (lambda la, x: la.eigvalsh(x), [positive]),
    "svdvals": (lambda la, x: la.svdvals(x), [steep, tall, wide]),
    "pinv": (lambda la, x: la.pinv(x), [steep, tall, wide]),
    "matrix_rank": (lambda la, x: la.matrix_rank(x), [steep, tall, wide]),
    "matrix_power": (lambda la, x: la.matrix_power(x, -3), [steep]),
    **{f"matrix_norm {o}": (lambda la, x, o=o: la.matrix_norm(x, ord=o, keepdims=True), [steep, tall, wide])  # type: ignore[misc]
       for o in ("fro", "nuc", 1, -1, 2, -2, INF, -INF)},
}  # fmt: skip


def parts(found: Any) -> list[Any]:
    return [
        y.asnumpy() if isinstance(y, nd.Array) else np.asarray(y)
        for y in (found if isinstance(found, tuple) else [found])
    ]


def near(found: Any, expected: Any, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0) <= tolerance * max(np.abs(expected).max(initial=0), 1e-30)


DTYPES = ["float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VALUES)
def test_values_are_numpys(name: str, dtype: str) -> None:
    function, makes = VALUES[name]
    tolerance = 1e-4 if dtype in ("float32", "complex64") else 1e-11
    for make in makes:
        for shape in ((3, 3), (2, 2, 3, 3), (0, 3, 3), (1, 1)):
            x = make(*shape, dtype=dtype)
            found, expected = parts(function(la, nd.asarray(x))), parts(function(np.linalg, x))
            for ours, numpys in zip(found, expected, strict=True):
                assert ours.dtype == numpys.dtype
                near(ours, numpys, tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decompositions_make_up_their_matrix(dtype: str, mode: str) -> None:
    tolerance = 1e-5 if dtype in ("float32", "complex64") else 1e-12

    def turned(x: Any) -> Any:
        return x.conj().swapaxes(-1, -2)

    for make in (steep, tall, wide):
        for shape in ((3, 3), (2, 3, 3), (0, 2, 2)):
            x = make(*shape, dtype=dtype)
            a, (m, n) = nd.asarray(x), x.shape[-2:]
            for kind in ("reduced", "complete"):
                q, r = parts(la.qr(a, mode=kind))
                k = min(m, n) if kind == "reduced" else m
                assert (q.shape[-2:], r.shape[-2:]) == ((m, k), (k, n))
                near(q @ r, x, tolerance)
                near(turned(q) @ q, np.broadcast_to(np.eye(k), (*x.shape[:-2], k, k)), tolerance)
                assert not np.tril(r, -1).any()
            for full in (False, True):
                found = la.svd(a, full_matrices=full)
                u, s, vh = found.U.asnumpy(), found.S.asnumpy(), found.Vh.asnumpy()
                k = min(m, n)
                assert (u.shape[-1], vh.shape[-2]) == ((m, n) if full else (k, k))
                near((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x, tolerance)
                assert s.dtype == x.real.dtype
    x = positive(2, 4, 4, dtype=dtype)
    values, vectors = parts(la.eigh(nd.asarray(x)))
    near((vectors * values[..., None, :]) @ turned(vectors), x, tolerance)
    near(values, np.linalg.eigvalsh(x), tolerance)
    assert la.eigh(nd.asarray(x)).eigenvalues.dtype == x.real.dtype
    assert la.slogdet(nd.asarray(x)).logabsdet.dtype == x.real.dtype


def test_vectors_stacks_and_tolerances() -> None:
    x = steep(2, 3, 3)
    np.testing.assert_allclose(
        la.solve(nd.asarray(x), nd.asarray([1.0, 2, 3])).asnumpy(), np.linalg.solve(x, np.array([1.0, 2, 3]))
    )
    whole = la.solve(nd.asarray([[2, 0], [0, 4]]), nd.asarray([2, 2]))
    assert (whole.tolist(), whole.dtype) == ([1, 0.5], np.float64)
    low = np.diag([1.0, 1e-3, 1e-9])
    assert la.matrix_rank(nd.asarray(np.stack([low, np.eye(3)]))).tolist() == [3, 3]
    assert la.matrix_rank(nd.asarray(np.stack([low, np.eye(3)])), rtol=nd.asarray([1e-2, 0.0])).tolist() == [1, 3]
    assert la.pinv(nd.asarray(low), rtol=1e-2).asnumpy()[2, 2] == 0
    assert la.matrix_rank(nd.zeros((2, 0, 3))).tolist() == [0, 0]
    assert la.matrix_norm(nd.zeros((2, 0, 3)), ord="nuc").tolist() == [0, 0]
    assert la.det(nd.zeros((0, 0))).item() == 1
    huge = la.slogdet(nd.eye(400, dtype="float32") * 1e20)
    assert huge.sign.item() == 1
    assert abs(huge.logabsdet.item() / (400 * np.log(1e20)) - 1) < 1e-6


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_is_not_finite_is_nan_there_alone(bad: float) -> None:
    x = np.stack([positive(3, 3), positive(3, 3)])
    x[0, 1, 1] = bad
    a = nd.asarray(x)
    for found in (la.svdvals(a), la.eigvalsh(a), la.pinv(a), *la.svd(a), *la.eigh(a), la.matrix_norm(a, ord=2)):
        y = found.asnumpy()
        assert np.isnan(y[0]).all()
        assert np.isfinite(y[1]).all()


def test_what_has_no_answer_says_so(mode: str) -> None:
    none = la.inv(nd.asarray([[1.0, 2], [2, 4]]))
    here = line_after("none = la.inv(nd.asarray([[1.0, 2], [2, 4]]))")
    with pytest.raises(np.linalg.LinAlgError, match="Singular") as told:
        none.asnumpy()
    assert here in "".join(told.value.__notes__)
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        la.cholesky(nd.asarray([[1.0, 2], [2, 1]])).asnumpy()
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: la.inv(nd.ones((2, 3))), r"no square matrix: float32\[2,3\].*test_array_linalg"),
        (lambda: la.svd(nd.ones(3)), "no matrix"),
        (lambda: la.solve(nd.eye(3), nd.ones((2, 2))), "3 is not 2"),
        (lambda: la.qr(nd.eye(3), mode="raw"), "'reduced' or 'complete'"),
        (lambda: la.matrix_norm(nd.eye(3), ord=3), "nuc"),
        (lambda: la.matrix_power(nd.ones((2, 3)), 2), "no square matrix"),
    ]
    for call, match in wrong:
        with pytest.raises(mz.MezzoError, match=match):
            call()


Function = Callable[[Any, Any, Any], Any]


def of_la(function: Callable[[Any, Any], Any]) -> Function:
    """Of the namespace's linalg; the second operand is there for `gradients_of`."""
    return lambda xp, x, y: function(xp.linalg, x)


def turned(xp: Any, x: Any) -> Any:
    return xp.conj(x.mT) if x.dtype in (nd.complex128, getattr(xp, "complex128", None)) else x.mT


def shown(xp: Any, values: Any, vectors: Any) -> Any:
    """What of vectors does not depend on the phase that each is free to have."""
    return (vectors * xp.sin(values)[..., None, :]) @ turned(xp, vectors)


GRADIENTS: dict[str, tuple[Function, list[Make]]] = {
    "solve": (lambda xp, x, y: xp.linalg.solve(x, y), [steep]),
    "solve a stack": (lambda xp, x, y: xp.linalg.solve(x[0], y), [steep]),
    "inv": (of_la(lambda la, x: la.inv(x)), [steep]),
    "det": (of_la(lambda la, x: la.det(x)), [steep]),
    "logabsdet": (of_la(lambda la, x: la.slogdet(x)[1]), [steep]),
    "sign of det": (lambda xp, x, y: xp.linalg.slogdet(x)[0] * xp.linalg.slogdet(y)[1], [steep]),
    "cholesky": (of_la(lambda la, x: la.cholesky(x)), [positive]),
    "cholesky upper": (of_la(lambda la, x: la.cholesky(x, upper=True)), [positive]),
    "eigvalsh": (of_la(lambda la, x: la.eigvalsh(x)), [positive]),
    "eigh": (lambda xp, x, y: shown(xp, *xp.linalg.eigh(x)), [positive]),
    "svdvals": (of_la(lambda la, x: la.svdvals(x)), [steep, tall, wide]),
    "svd": (
        lambda xp, x, y: (lambda u, s, vh: (u * xp.sin(s)[..., None, :]) @ vh)(*xp.linalg.svd(x, full_matrices=False)),
        [steep, tall, wide],
    ),
    "vectors": (
        lambda xp, x, y: (lambda u, s, vh: shown(xp, s, u)[..., :2, :2] + shown(xp, s, turned(xp, vh))[..., :2, :2])(
            *xp.linalg.svd(x, full_matrices=False)
        ),
        [steep, tall, wide],
    ),
    "pinv": (of_la(lambda la, x: la.pinv(x)), [steep, tall, wide]),
    "Q": (of_la(lambda la, x: la.qr(x)[0]), [steep, tall]),
    "R": (of_la(lambda la, x: la.qr(x)[1]), [steep, tall, wide]),
    "Q and R": (
        of_la(lambda la, x: (lambda q, r: q[..., :2, :2] * 2 + r[..., :2, :2])(*la.qr(x))),
        [steep, tall, wide],
    ),
    "matrix_power": (of_la(lambda la, x: la.matrix_power(x, -2)), [steep]),
    **{f"norm {o}": (of_la(lambda la, x, o=o: la.matrix_norm(x, ord=o)), [steep, wide])  # type: ignore[misc]
       for o in ("fro", "nuc", 1, 2, -2, INF)},
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_pytorchs(name: str, dtype: str) -> None:
    torch = peer("torch")
    function, makes = GRADIENTS[name]
    for make in makes:
        xs = [make(2, 3, 3, dtype=dtype, seed=i) for i in (1, 2)]
        ours = gradients_of(nd, function, xs, weight)
        theirs = gradients_of(torch, function, xs, weight)
        for mine, expected in zip(ours, theirs, strict=True):
            if name.startswith(("eig", "cholesky")):  # of Hermitian matrices: what is not is no matter
                expected = (expected + expected.conj().swapaxes(-1, -2)) / 2
            near(mine, expected, 1e-8)


@pytest.mark.parametrize("name", ["eigh", "svd", "qr", "slogdet"])
def test_named_results_leave_a_traced_block(name: str) -> None:
    net = Of(lambda x: getattr(la, name)(x)).hybridize(fullgraph=True)
    x = nd.asarray(positive(3, 3))
    eager, traced = getattr(la, name)(x), net(x)
    assert type(traced) is type(eager)
    for mine, expected in zip(traced, eager, strict=True):
        near(mine.asnumpy(), expected.asnumpy(), 1e-12)


def test_vectors_that_could_be_others_have_no_gradient() -> None:
    x = nd.asarray(tall(3, 3))
    x.attach_grad()
    calls: list[Callable[[], Any]] = [lambda: la.svd(x).U, lambda: la.qr(x, mode="complete").Q]
    for call in calls:
        with mz.autograd.record():
            y = call().sum()
        with pytest.raises(UnsupportedModel, match=r"no gradient(.|\n)*(full_matrices=False|reduced)"):
            y.backward()
    with mz.autograd.record():
        y = la.svd(x).S.sum()
    y.backward()
    u, _, vh = np.linalg.svd(x.asnumpy(), full_matrices=False)
    near(x.grad.asnumpy(), u @ vh, 1e-10)


def test_values_that_are_equal() -> None:
    """Where gradients divide by the difference of equal values, what does not depend on their vectors has one."""
    x = nd.eye(3, dtype="float64")
    x.attach_grad()
    with mz.autograd.record():
        values, vectors = la.eigh(x)
        y = ((vectors * values) @ vectors.mT)[0, 1] * 2 + values.sum()
    y.backward()
    assert np.isfinite(x.grad.asnumpy()).all()
    np.testing.assert_allclose(np.diag(x.grad.asnumpy()), 1)
