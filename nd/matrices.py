"""Linear systems, decompositions and functions of them: the rest of the extension `linalg`. LAPACK computes these, on
the host; ONNX has no operators for them, so that graphs with them are kept in .mezzo files.

https://data-apis.org/array-api/2024.12/extensions/linear_algebra_functions.html
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from ..ops.errors import InputError, ShapeError
from .array import Array
from .creation import eye
from .elementwise import abs as absolute
from .elementwise import conj, floats
from .products import matmul
from .reducing import max as largest
from .reducing import min as least
from .reducing import reduced
from .reducing import sum as total
from .running import alike, apply, as_array, binary, cast
from .shaping import broadcast_to, expand_dims, matrix_transpose, reshape
from .specs import INT


class Eigh(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class QR(NamedTuple):
    Q: Array
    R: Array


class SlogDet(NamedTuple):
    sign: Array
    logabsdet: Array


class SVD(NamedTuple):
    U: Array
    S: Array
    Vh: Array


def _matrices(name: str, x: Any, square: bool = False) -> Array:
    """The operand in floats. Raises ShapeError for what is no matrix, or no square one."""
    one = floats(x)
    if one.ndim < 2 or (square and one.shape[-1] != one.shape[-2]):
        sort = "no square matrix" if square else "no matrix"
        raise ShapeError(f"{sort}: {one.where}", where=f"mezzo.nd.linalg.{name}")
    return one


def solve(x1: Array, x2: Array, /) -> Array:
    """x in `x1 @ x = x2`: `mezzo.Solve`. `x2` is a vector, or matrices. A matrix that has no inverse is an error where
    the result is read. Raises ShapeError."""
    a, b = alike(floats(x1), floats(x2))
    a = _matrices("solve", a, square=True)
    result = apply("Solve", a, expand_dims(b, axis=-1) if b.ndim == 1 else b, domain="mezzo")
    return reshape(result, result.shape[:-1]) if b.ndim == 1 else result


def inv(x: Array, /) -> Array:
    """The inverse of each matrix. One that has none is an error where the result is read. Raises ShapeError."""
    one = _matrices("inv", x, square=True)
    return apply("Solve", one, eye(one.shape[-1], dtype=one.dtype, device=one.device), domain="mezzo")


def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """L of `L @ L^H = x`, lower triangular, or its conjugate transpose: `mezzo.Cholesky` of the Hermitian part. What is
    not positive definite is an error where the result is read. Raises ShapeError."""
    result = apply("Cholesky", _matrices("cholesky", x, square=True), domain="mezzo")
    return _turned(result) if upper else result


def _turned(x: Array) -> Array:
    """The conjugate transpose of each matrix."""
    result = matrix_transpose(x)
    return conj(result) if result.dtype.kind == "c" else result


def eigh(x: Array, /) -> Eigh:
    """Eigenvalues, least first, and eigenvectors as columns, of the Hermitian part: `mezzo.Eigh`. Raises ShapeError."""
    return Eigh(*apply("Eigh", _matrices("eigh", x, square=True), outputs=2, domain="mezzo"))


def eigvalsh(x: Array, /) -> Array:
    """Eigenvalues, least first, of the Hermitian part: `mezzo.Eigh`. Raises ShapeError."""
    return apply("Eigh", _matrices("eigvalsh", x, square=True), domain="mezzo")


def qr(x: Array, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QR:
    """Q of orthonormal columns and R, upper triangular, whose product is the matrix: `mezzo.QR`. A complete one of more
    rows than columns has no gradient. Raises InputError for other modes, ShapeError for what is no matrix."""
    if mode not in ("reduced", "complete"):
        raise InputError(f"mode {mode!r}", where="mezzo.nd.linalg.qr", hint="give 'reduced' or 'complete'")
    one = _matrices("qr", x)
    tall = one.shape[-2] > one.shape[-1]
    return QR(*apply("QR", one, outputs=2, mode=mode if tall else "reduced", domain="mezzo"))


def slogdet(x: Array, /) -> SlogDet:
    """The sign of the determinant and the logarithm of its size, which does not overflow: `mezzo.SlogDet`. Raises
    ShapeError."""
    return SlogDet(*apply("SlogDet", _matrices("slogdet", x, square=True), outputs=2, domain="mezzo"))


def svd(x: Array, /, *, full_matrices: bool = True) -> SVD:
    """U, singular values (the largest first), and V^H, whose product is the matrix: `mezzo.SVD`. U and V have gradients
    where `full_matrices=False`, or they are square anyhow. Raises ShapeError."""
    one = _matrices("svd", x)
    whole = full_matrices and one.shape[-1] != one.shape[-2]
    values, left, right = apply("SVD", one, outputs=3, full_matrices=int(whole), domain="mezzo")
    return SVD(left, values, right)


def svdvals(x: Array, /) -> Array:
    """Singular values, the largest first: `mezzo.SVD`. Raises ShapeError."""
    return apply("SVD", _matrices("svdvals", x), domain="mezzo")


def _tolerance(x: Array, rtol: Any) -> Array:
    """Return the relative tolerance for zero singular values, as an array of floats, one for each matrix or for all."""
    real = np.dtype(np.finfo(x.dtype).dtype)
    if rtol is None:
        rtol = max(*x.shape[-2:], 1) * float(np.finfo(real).eps)
    return cast(as_array(rtol, x.device), real)


def pinv(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """The pseudo-inverse: `mezzo.PInv`. Singular values up to `rtol` times the largest count as zeros; it is the
    element type's precision times the larger size if not given. Raises ShapeError."""
    one = _matrices("pinv", x)
    return apply("PInv", one, _tolerance(one, rtol), domain="mezzo")


def matrix_rank(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Return the number of singular values above `rtol` times the largest (see `pinv`), as int64. Raises ShapeError."""
    one = _matrices("matrix_rank", x)
    values = svdvals(one)
    if not values.shape[-1]:
        return total(cast(values, INT), axis=-1)
    bound = binary("Mul", _tolerance(one, rtol), largest(values, axis=-1))
    return total(cast(binary("Greater", values, expand_dims(bound, axis=-1)), INT), axis=-1)


def matrix_power(x: Array, n: int, /) -> Array:
    """A matrix times itself; for negative powers its inverse is. Raises ShapeError."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"no square matrix: {x.where}", where="mezzo.nd.linalg.matrix_power")
    if n < 0:
        return matrix_power(inv(x), -n)
    if n == 0:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype, device=x.device), x.shape).copy()
    if n == 1:
        return x.copy()
    half = matrix_power(x, n // 2)
    whole = matmul(half, half)
    return matmul(whole, x) if n % 2 else whole


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: float | str | None = "fro") -> Array:
    """The norm of each matrix: 'fro', 'nuc' (the sum of its singular values), 2 and -2 (the largest and the least of
    them), 1, -1, inf or -inf. Raises InputError for others."""
    one = _matrices("matrix_norm", x)
    if ord in (2, -2, "nuc"):
        values = svdvals(one)
        how = {2: largest, -2: least, "nuc": total}[ord]
        result = how(values, axis=-1) if values.shape[-1] or ord == "nuc" else total(values, axis=-1)
        return reshape(result, (*result.shape, 1, 1)) if keepdims else result
    one = absolute(one) if one.dtype.kind == "c" else one
    if ord in ("fro", None):
        return reduced("ReduceL2", one, (-2, -1), keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        raise InputError(
            f"ord={ord!r}", where="mezzo.nd.linalg.matrix_norm", hint="'fro', 'nuc', 1, 2, inf, or -1, -2, -inf"
        )
    inner, outer_axis = (-2, -1) if ord in (1, -1) else (-1, -2)
    sums = reduced("ReduceL1", one, inner, True)
    result = reduced("ReduceMax" if float(ord) > 0 else "ReduceMin", sums, outer_axis, True)
    return result if keepdims else reshape(result, one.shape[:-2])
