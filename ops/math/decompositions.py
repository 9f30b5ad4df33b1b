"""Linear systems and matrix decompositions, which ONNX lacks: LAPACK computes them, on the host.

Each is for stacks of matrices, real or complex, as https://data-apis.org/array-api/2024.12 has them in its extension
linalg. Where an element is not finite, what LAPACK would search for without an end is NaN. Gradients are those of
Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation" (2008), and their
complex forms; where values are equal, what their difference divides is left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core.broadcast import zeros_like
from ..core.complexes import is_complex, part_of, real_part
from ..core.rules import narrow, same, widen
from ..errors import ShapeError, UnsupportedModel
from ..op import Builder, Context, Sample, Twin, Value, broadcast_dims, op
from ..types import Array, Dim, DType, Tensor, f32

_SQUARE = np.array([[[4, 1, -1], [0.5, 3, 1], [1, -1, 5]], [[2, 0.5, 0], [1, -3, 1], [0, 1, 1.5]]], np.float32)
_POSITIVE = np.array([[5, 1, -1], [1, 4, 0.5], [-1, 0.5, 3]], np.float32)
_TALL = np.array([[1, 2], [0.5, -1], [2, 0.25], [-1, 1.5]], np.float32)
_NONE = f32(0, 2, 2)


def _real(t: Tensor) -> DType:
    """The element type of the parts of complex numbers, or of real ones themselves."""
    return {DType.COMPLEX64: DType.FLOAT, DType.COMPLEX128: DType.DOUBLE}.get(t.dtype, t.dtype)


def _matrix(X: Tensor) -> tuple[Dim, ...]:
    if X.rank < 2:
        raise ShapeError(f"{X} is no matrix")
    return X.shape


def _square(X: Tensor) -> tuple[Dim, ...]:
    shape = _matrix(X)
    same(shape[-1], shape[-2], f"{X} is no square matrix")
    return shape


def _least(m: Dim, n: Dim) -> Dim:
    if isinstance(m, int) and isinstance(n, int):
        return min(m, n)
    return m if m == n else 0 if 0 in (m, n) else None


def _rows(k: Context, y: Any, like: Any) -> Array:
    """A result of NumPy's in the element type that it should have, row after row, and fresh."""
    return k.xp.array(narrow(k.xp.asarray(y), like), order="C")


def _finite(k: Context, X: Array) -> tuple[Array, Array]:
    """The matrices with zeros for those that hold what is not finite, and which ones are sound."""
    sound = k.xp.isfinite(X).all((-2, -1), keepdims=True)
    return k.xp.where(sound, X, 0), sound


def _hermitian(k: Context, X: Array) -> Array:
    half = X * X.real.dtype.type(0.5)
    return half + k.xp.conj(k.xp.swapaxes(half, -1, -2))


# -- in gradient rules ------------------------------------------------------------------------------------------------


def _turned(g: Builder, x: Value) -> Value:
    """The conjugate transpose of each matrix."""
    rank = g.rank_of(x)
    transposed = g.Transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))
    return g.Conj(transposed, domain="mezzo") if is_complex(g.type_of(x)) else transposed


def _solved(g: Builder, a: Value, b: Value) -> Value:
    return g.Solve(a, b, domain="mezzo")


def _lower(g: Builder, x: Value, k: int = 0) -> Value:
    return g.Trilu(x, g.const(k), upper=0)


def _diagonal(g: Builder, x: Value) -> Value:
    """The matrices without what is beside the diagonal."""
    return g.Trilu(_lower(g, x), g.const(0), upper=1)


def _half(g: Builder, x: Value) -> Value:
    return g.Mul(x, g.scalar(0.5, x))


def _row(g: Builder, x: Value) -> Value:
    """A list for each matrix as a row."""
    return g.Unsqueeze(x, g.const([-2]))


def _column(g: Builder, x: Value) -> Value:
    return g.Unsqueeze(x, g.const([-1]))


def _one_over(g: Builder, x: Value) -> Value:
    """One divided by each number, and zero by none."""
    zero = g.scalar(0, x)
    none = g.Equal(x, zero)
    return g.Where(none, zero, g.Reciprocal(g.Where(none, g.scalar(1, x), x)))  # so that it has a gradient, too


def _between(g: Builder, values: Value, like: Value) -> Value:
    """Return, for each pair i, j of values, one over the difference of j and i, in the element type of other
    matrices."""
    return g.CastLike(_one_over(g, g.Sub(_row(g, values), _column(g, values))), like)


def _first(g: Builder, x: Value, count: Value, axis: int) -> Value:
    return g.Slice(x, g.const([0]), count, g.const([axis]))


# -- equations --------------------------------------------------------------------------------------------------------


@op(
    "Solve",
    domain="mezzo",
    complex_numbers="direct",
    samples=[
        Sample([_SQUARE, f32(3, 2)]),
        Sample([_SQUARE[0], f32(2, 3, 1)]),
        Sample([_NONE, f32(2, 3)]),
        Sample([f32(0, 0), f32(0, 2)]),
    ],
)
def solve(k: Context, A: Array, B: Array) -> Array:
    """X in A @ X = B, for square matrices A."""
    return _rows(k, k.xp.linalg.solve(widen(A), widen(B)), A.dtype)


@solve.infer
def _(A: Tensor, B: Tensor) -> Tensor:
    if A.dtype is not B.dtype:
        raise ShapeError(f"{A} beside {B}: element types differ")
    rows, shape = _square(A), _matrix(B)
    n = same(rows[-1], shape[-2], f"{A} times what is {B}")
    lead = broadcast_dims(rows[:-2], shape[:-2])
    return A.of(None if lead is None else (*lead, n, shape[-1]))


@solve.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    A, B = xs
    dB = _solved(g, _turned(g, A), dys[0])
    dA = g.sum_to(g.Neg(g.MatMul(dB, _turned(g, ys[0]))), A) if g.wants[0] else None
    return dA, g.sum_to(dB, B)


@op(
    "PInv",
    domain="mezzo",
    complex_numbers="direct",
    samples=[
        Sample([_TALL, np.float32(1e-6)]),
        Sample([np.stack([_TALL.T, _TALL.T[::-1] * 2]), np.full(2, 1e-6, np.float32)]),
        Sample([_NONE, np.float32(1e-6)]),
    ],
)
def pinv(k: Context, X: Array, rtol: Array) -> Array:
    """The pseudo-inverse of Moore and Penrose; singular values up to rtol times the largest count as zeros."""
    x, sound = _finite(k, widen(X))
    inverse = k.xp.linalg.pinv(x, rcond=k.xp.asarray(rtol, dtype=x.real.dtype))
    return _rows(k, k.xp.where(k.xp.swapaxes(sound, -1, -2), inverse, math.nan), X.dtype)


@pinv.infer
def _(X: Tensor, rtol: Tensor) -> Tensor:
    if not rtol.dtype.floating:
        raise ShapeError(f"a tolerance of {rtol}", hint="it is a real float")
    shape = _matrix(X)
    return X.of((*shape[:-2], shape[-1], shape[-2]))


@pinv.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    A, P = xs[0], ys[0]
    dPh, Ph = _turned(g, dys[0]), _turned(g, P)
    rows = g.MatMul(dPh, g.MatMul(P, Ph))
    columns = g.MatMul(g.MatMul(Ph, P), dPh)
    outside = g.Sum(rows, columns, g.Neg(g.MatMul(A, g.MatMul(P, rows))), g.Neg(g.MatMul(g.MatMul(columns, P), A)))
    return g.Sub(outside, g.MatMul(Ph, g.MatMul(dys[0], Ph))), None


@op(
    "SlogDet",
    domain="mezzo",
    complex_numbers="measured",
    outputs=("Sign", "LogAbs"),
    samples=[Sample([_SQUARE], outputs=2), Sample([_POSITIVE], outputs=2), Sample([_NONE], outputs=2)],
)
def slogdet(k: Context, X: Array) -> tuple[Array, Array]:
    """The determinant as its sign, or the complex number of length 1 in its place, and the logarithm of its size, which
    does not overflow."""
    sign, size = k.xp.linalg.slogdet(widen(X))
    return _rows(k, sign, X.dtype), _rows(k, size, X.real.dtype)


@slogdet.infer
def _(X: Tensor) -> tuple[Tensor, Tensor]:
    dims = _square(X)[:-2]
    return X.of(dims), Tensor(_real(X), dims)


@slogdet.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    (d_sign, d_size), (sign, _), (X,) = dys, ys, xs
    parts = [] if d_size is None else [g.CastLike(d_size, X)]
    if d_sign is not None and is_complex(g.type_of(X)):  # a sign of real numbers stays
        turn = part_of(g, g.Mul(d_sign, g.Conj(sign, domain="mezzo")), 1)
        parts.append(
            g.Complex(g.Concat(_column(g, g.Mul(turn, g.scalar(0, turn))), _column(g, turn), axis=-1), domain="mezzo")
        )
    if not parts:
        return (None,)
    n = g.Squeeze(g.Gather(g.shape_of(X), g.const([-1])))
    places = g.Range(g.const(0), n, g.const(1))
    ones = g.CastLike(g.Equal(_column(g, places), places), X)
    inverse = _solved(g, _turned(g, X), ones)
    return (g.Mul(_column(g, _column(g, g.total(parts))), inverse),)


# -- decompositions ---------------------------------------------------------------------------------------------------


@op(
    "Cholesky",
    domain="mezzo",
    complex_numbers="direct",
    samples=[Sample([_POSITIVE]), Sample([np.stack([_POSITIVE * 2, np.eye(3, dtype=np.float32)])]), Sample([_NONE])],
)
def cholesky(k: Context, X: Array) -> Array:
    """L, lower triangular, of L @ L^H = (X + X^H) / 2, which has to be positive definite."""
    return _rows(k, k.xp.linalg.cholesky(_hermitian(k, widen(X))), X.dtype)


@cholesky.infer
def _(X: Tensor) -> Tensor:
    return X.of(_square(X))


@cholesky.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    turned = _turned(g, ys[0])
    inner = g.MatMul(turned, dys[0])
    inner = g.Sub(_lower(g, inner), _half(g, _diagonal(g, inner)))
    dX = _turned(g, _solved(g, turned, _turned(g, _solved(g, turned, inner))))
    return (_half(g, g.Add(dX, _turned(g, dX))),)


@op("Eigh", domain="mezzo", complex_numbers="measured", outputs=("W", "V?"), samples=[
    Sample([_POSITIVE], outputs=2), Sample([_POSITIVE]), Sample([_SQUARE], outputs=2), Sample([_NONE], outputs=2),
])  # fmt: skip
def eigh(k: Context, X: Array) -> tuple[Array, ...]:
    """Eigenvalues of (X + X^H) / 2, least first, and its eigenvectors as columns."""
    x, sound = _finite(k, _hermitian(k, widen(X)))
    if len(k.wanted) < 2 or not k.wanted[1]:
        return (_rows(k, k.xp.where(sound[..., 0], k.xp.linalg.eigvalsh(x), math.nan), X.real.dtype),)
    w, v = k.xp.linalg.eigh(x)
    return (
        _rows(k, k.xp.where(sound[..., 0], w, math.nan), X.real.dtype),
        _rows(k, k.xp.where(sound, v, math.nan), X.dtype),
    )


@eigh.infer
def _(X: Tensor) -> tuple[Tensor, Tensor]:
    shape = _square(X)
    return Tensor(_real(X), shape[:-1]), X.of(shape)


@eigh.twin
def _(types: Any, wanted: tuple[bool, ...], **attrs: Any) -> Twin | None:
    return None if wanted == (True, True) else Twin("Eigh", attrs, 2, "mezzo")


@eigh.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    (dW, dV), (W, V) = dys, ys
    turned = _turned(g, V)
    parts = [] if dW is None else [g.Mul(V, g.CastLike(_row(g, dW), V))]
    if dV is not None:
        parts.append(g.MatMul(V, g.Mul(g.MatMul(turned, dV), _between(g, W, V))))
    dX = g.MatMul(g.total(parts), turned)
    return (_half(g, g.Add(dX, _turned(g, dX))),)


@op("SVD", domain="mezzo", complex_numbers="measured", outputs=("S", "U?", "Vh?"), samples=[
    Sample([_TALL], outputs=3), Sample([_TALL.T], outputs=3), Sample([_TALL]), Sample([_SQUARE], outputs=3),
    Sample([_NONE], outputs=3),
])  # fmt: skip
def svd(k: Context, X: Array, *, full_matrices: int = 0) -> tuple[Array, ...]:
    """Singular values, the largest first, the vectors on the left as columns, and those on the right as rows; the
    latter two square with `full_matrices`."""
    x, sound = _finite(k, widen(X))
    if not any(k.wanted[1:]):
        s = k.xp.linalg.svd(x, compute_uv=False)
        return (_rows(k, k.xp.where(sound[..., 0], s, math.nan), X.real.dtype),)
    u, s, vh = k.xp.linalg.svd(x, full_matrices=bool(full_matrices))
    return (
        _rows(k, k.xp.where(sound[..., 0], s, math.nan), X.real.dtype),
        _rows(k, k.xp.where(sound, u, math.nan), X.dtype),
        _rows(k, k.xp.where(sound, vh, math.nan), X.dtype),
    )


@svd.infer
def _(X: Tensor, *, full_matrices: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    *lead, m, n = _matrix(X)
    few = _least(m, n)
    u, v = ((m, m), (n, n)) if full_matrices else ((m, few), (few, n))
    return Tensor(_real(X), (*lead, few)), X.of((*lead, *u)), X.of((*lead, *v))


@svd.twin
def _(types: Any, wanted: tuple[bool, ...], **attrs: Any) -> Twin | None:
    return None if len(wanted) == 3 and all(wanted) else Twin("SVD", attrs, 3, "mezzo")


@svd.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, full_matrices: int = 0) -> tuple[Value, ...]:
    (dS, dU, dVh), (S, U, Vh) = dys, ys
    if full_matrices:
        if dU is not None or dVh is not None:
            raise UnsupportedModel(
                "singular vectors have no gradient with full_matrices: some of them are any that fit",
                hint="svd(x, full_matrices=False)",
            )
        count = g.Gather(g.shape_of(S), g.const([-1]))
        U, Vh = _first(g, U, count, -1), _first(g, Vh, count, -2)
    V = _turned(g, Vh)
    s, over = g.CastLike(S, U), g.CastLike(_one_over(g, S), U)
    parts = [] if dS is None else [g.Mul(U, g.CastLike(_row(g, dS), U))]
    around: list[Value] = []  # of what lies outside of the vectors' space
    apart = _between(g, g.Mul(S, S), U) if dU is not None or dVh is not None else None
    if dU is not None:
        onto = g.MatMul(_turned(g, U), dU)
        turn = g.Sub(onto, _turned(g, onto))
        inner = g.Mul(g.Mul(turn, apart), _row(g, s))
        if is_complex(g.type_of(U)):
            inner = g.Add(inner, g.Mul(_half(g, _diagonal(g, turn)), _row(g, over)))
        parts.append(g.MatMul(U, inner))
        around.append(g.MatMul(g.Mul(g.Sub(dU, g.MatMul(U, onto)), _row(g, over)), Vh))
    if dVh is not None:
        onto = g.MatMul(dVh, V)  # of dV^H
        turn = g.Sub(_turned(g, onto), onto)
        parts.append(g.MatMul(U, g.Mul(_column(g, s), g.Mul(turn, apart))))
        around.append(g.MatMul(U, g.Mul(_column(g, over), g.Sub(dVh, g.MatMul(onto, Vh)))))
    return (g.total([g.MatMul(g.total(parts), Vh), *around]),)


@op("QR", domain="mezzo", complex_numbers="direct", outputs=("Q", "R"), samples=[
    Sample([_TALL], outputs=2), Sample([_TALL.T], outputs=2), Sample([_SQUARE], outputs=2),
    Sample([_NONE], outputs=2),
])  # fmt: skip
def qr(k: Context, X: Array, *, mode: str = "reduced") -> tuple[Array, Array]:
    """Q of columns that stand upright on each other, and R, upper triangular, of Q @ R = X; Q is square if the mode is
    complete."""
    q, r = k.xp.linalg.qr(widen(X), mode)
    return _rows(k, q, X.dtype), _rows(k, r, X.dtype)


@qr.infer
def _(X: Tensor, *, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    if mode not in ("reduced", "complete"):
        raise ShapeError(f"mode {mode!r}", hint="give 'reduced' or 'complete'")
    *lead, m, n = _matrix(X)
    inner = m if mode == "complete" else _least(m, n)
    return X.of((*lead, m, inner)), X.of((*lead, inner, n))


@qr.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, mode: str = "reduced") -> tuple[Value, ...]:
    """Of more columns than rows, the first make Q, and the others are what R has of them."""
    if mode == "complete":
        raise UnsupportedModel(
            "a complete QR has no gradient: some columns of Q are any that fit", hint="mode='reduced'"
        )
    (dQ, dR), (Q, R), (X,) = dys, ys, xs
    if Q is None or R is None:  # one of them is not wanted
        Q, R = g.QR(X, domain="mezzo", outputs=2, mode=mode)
    dQ = zeros_like(g, Q) if dQ is None else dQ
    dR = zeros_like(g, R) if dR is None else dR
    count = g.Gather(g.shape_of(Q), g.const([-1]))
    most, axis, start = g.Gather(g.shape_of(X), g.const([-1])), g.const([-1]), g.const([0])
    late = g.Slice(dR, count, most, axis)
    dQ = g.Add(dQ, g.MatMul(g.Slice(X, count, most, axis), _turned(g, late)))
    square, d_square = g.Slice(R, start, count, axis), g.Slice(dR, start, count, axis)
    inner = g.Sub(g.MatMul(square, _turned(g, d_square)), g.MatMul(_turned(g, dQ), Q))
    below, middle = _lower(g, inner, -1), _diagonal(g, inner)
    middle = g.CastLike(real_part(g, middle), middle) if is_complex(g.type_of(middle)) else middle
    whole = g.Add(dQ, g.MatMul(Q, g.Sum(below, _turned(g, below), middle)))
    return (g.Concat(_turned(g, _solved(g, square, _turned(g, whole))), g.MatMul(Q, late), axis=-1),)
