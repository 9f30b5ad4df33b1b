"""Products, decompositions, triangles, and special functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.errors import ShapeError
from ..converter import Converter, Value
from ..rules import rule
from .shapes import diagonal


@rule("dot", "_sparse_dot")
def dot(c: Converter, lhs: str, rhs: str, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """The sum over the last axis of `lhs` and the first of `rhs`; transposed: over the first and the last."""
    left, right = c.rank(lhs), c.rank(rhs)
    if left == right == 1:
        return c.reshape(c.MatMul(lhs, rhs), [1])
    if transpose_a and left > 1:
        lhs = c.transpose(lhs, (*range(1, left), 0))
    if transpose_b and right > 1:
        rhs = c.transpose(rhs, (right - 1, *range(right - 1)))
    if right <= 2:
        return c.MatMul(lhs, rhs)
    tail = [c.dim(rhs, i) for i in range(1, right)]
    flat = c.MatMul(lhs, c.reshape(rhs, [0, -1]))
    return c.Reshape(flat, c.shape_with([*(c.dim(lhs, i) for i in range(left - 1)), *tail]))


def turned(c: Converter, x: str) -> Value:
    """The last two axes swapped."""
    rank = c.rank(x)
    return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


@rule("batch_dot", "_npx_batch_dot")
def batch_dot(c: Converter, lhs: str, rhs: str, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    return c.MatMul(turned(c, lhs) if transpose_a else lhs, turned(c, rhs) if transpose_b else rhs)


@rule("khatri_rao")
def khatri_rao(c: Converter, *args: str) -> Any:
    """Column by column the Kronecker product: [(m, k), (n, k)] to (m n, k)."""
    result = args[0]
    for other in args[1:]:
        product = c.Mul(c.unsqueeze(result, 1), c.unsqueeze(other, 0))
        result = c.Reshape(product, c.shape_with([-1, c.dim(other, 1)]))
    return result if len(args) > 1 else c.Identity(result)


def _rows_last(c: Converter, x: str, axis: int) -> Value:
    """Matrices of the axes `axis` and the last, as the last two."""
    at, rank = c.axis(x, axis), c.rank(x)
    return x if at == rank - 2 else c.transpose(x, [*(i for i in range(rank - 1) if i != at), at, rank - 1])


def _rows_back(c: Converter, x: str, axis: int) -> Value:
    at, rank = c.axis(x, axis), c.rank(x)
    if at == rank - 2:
        return x
    order = [*(i for i in range(rank - 1) if i != at), at, rank - 1]
    return c.transpose(x, [order.index(i) for i in range(rank)])


def scaled(c: Converter, x: str, factor: float) -> Value:
    return x if factor == 1 else c.Mul(x, c.number(factor, x))


def _gemm(
    c: Converter, A: str, B: str, C: str | None, alpha: float, beta: float, axis: int, ta: bool, tb: bool
) -> Value:
    a, b = (_rows_last(c, x, axis) for x in (A, B))
    product = scaled(c, c.MatMul(turned(c, a) if ta else a, turned(c, b) if tb else b), alpha)
    if C is not None:
        product = c.Add(product, scaled(c, _rows_last(c, C, axis), beta))
    return _rows_back(c, product, axis)


@rule("_linalg_gemm", "linalg_gemm")
def gemm(
    c: Converter,
    A: str,
    B: str,
    C: str,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
    axis: int = -2,
) -> Any:
    return _gemm(c, A, B, C, alpha, beta, axis, transpose_a, transpose_b)


@rule("_linalg_gemm2", "linalg_gemm2")
def gemm2(
    c: Converter,
    A: str,
    B: str,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    axis: int = -2,
) -> Any:
    return _gemm(c, A, B, None, alpha, 0.0, axis, transpose_a, transpose_b)


@rule("_linalg_syrk", "linalg_syrk")
def syrk(c: Converter, A: str, *, transpose: bool = False, alpha: float = 1.0) -> Any:
    first, second = (turned(c, A), A) if transpose else (A, turned(c, A))
    return scaled(c, c.MatMul(first, second), alpha)


def lapack(c: Converter, name: str, *operands: str, outputs: int = 1) -> Any:
    return c.op(name, *operands, domain="mezzo", outputs=outputs)


def identity_like(c: Converter, A: str) -> Value:
    return c.array(np.eye(c.size(A, -1, "to solve for it")), A)


@rule("_linalg_potrf", "linalg_potrf")
def potrf(c: Converter, A: str) -> Any:
    return lapack(c, "Cholesky", A)


@rule("_linalg_potri", "linalg_potri")
def potri(c: Converter, A: str) -> Any:
    """The inverse of the matrix of which A is the lower factor."""
    lower = c.Trilu(A, upper=0)
    return inverse(c, c.MatMul(lower, turned(c, lower)))


@rule("_linalg_inverse", "linalg_inverse", "_npi_inv")
def inverse(c: Converter, A: str) -> Any:
    unit = identity_like(c, A)
    if c.rank(A) > 2:
        unit = c.Expand(unit, c.shape_of(A))
    return lapack(c, "Solve", A, unit)


@rule("_linalg_det", "linalg_det")
def det(c: Converter, A: str) -> Any:
    result = c.Det(A)
    return result if c.rank(A) > 2 else c.reshape(result, [1])


@rule("_linalg_slogdet", "linalg_slogdet")
def slogdet(c: Converter, A: str) -> Any:
    parts = lapack(c, "SlogDet", A, outputs=2)
    return parts if c.rank(A) > 2 else tuple(c.reshape(p, [1]) for p in parts)


def _triangle(c: Converter, A: str, lower: bool, transpose: bool) -> Value:
    part = c.Trilu(A, upper=int(not lower))
    return turned(c, part) if transpose else part


@rule("_linalg_trmm", "linalg_trmm")
def trmm(
    c: Converter,
    A: str,
    B: str,
    *,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
) -> Any:
    part = _triangle(c, A, lower, transpose)
    return scaled(c, c.MatMul(B, part) if rightside else c.MatMul(part, B), alpha)


@rule("_linalg_trsm", "linalg_trsm")
def trsm(
    c: Converter,
    A: str,
    B: str,
    *,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
) -> Any:
    part = _triangle(c, A, lower, transpose != rightside)
    solved = lapack(c, "Solve", part, scaled(c, turned(c, B) if rightside else B, alpha))
    return turned(c, solved) if rightside else solved


@rule("_linalg_sumlogdiag", "linalg_sumlogdiag")
def sumlogdiag(c: Converter, A: str) -> Any:
    logs = c.Log(diagonal(c, A, c.rank(A) - 2, c.rank(A) - 1, 0))
    total = c.ReduceSum(logs, c.ints(c.rank(A) - 2), keepdims=0)
    return total if c.rank(A) > 2 else c.reshape(total, [1])


@rule("_linalg_extractdiag", "linalg_extractdiag")
def extractdiag(c: Converter, A: str, *, offset: int = 0) -> Any:
    return diagonal(c, A, c.rank(A) - 2, c.rank(A) - 1, offset)


@rule("_linalg_makediag", "linalg_makediag")
def makediag(c: Converter, A: str, *, offset: int = 0) -> Any:
    """Matrices with the last axis as a diagonal: a product with the rows of a shifted unit matrix."""
    size = c.size(A, -1, "to make it a diagonal")
    total = size + abs(offset)
    rows, columns = max(-offset, 0), max(offset, 0)
    spread = np.zeros((size, total, total))
    spread[np.arange(size), np.arange(size) + rows, np.arange(size) + columns] = 1
    flat = c.MatMul(A, c.array(spread.reshape(size, -1), A))
    return c.Reshape(flat, c.shape_with([*(c.dim(A, i) for i in range(c.rank(A) - 1)), total, total]))


def _triangle_places(size: int, offset: int, lower: bool) -> tuple[Any, Any]:
    """Rows and columns of a triangle: a lower one row by row, an upper one column by column. An offset tells which."""
    if offset > 0:
        lower = False
    elif offset < 0:
        lower = True
    if lower:
        return np.tril_indices(size, offset)
    columns, rows = np.tril_indices(size, -offset)
    return rows, columns


@rule("_linalg_extracttrian", "linalg_extracttrian")
def extracttrian(c: Converter, A: str, *, offset: int = 0, lower: bool = True) -> Any:
    size = c.size(A, -1, "to take a triangle of it")
    rows, columns = _triangle_places(size, offset, lower)
    head = [c.dim(A, i) for i in range(c.rank(A) - 2)]
    flat = c.Reshape(A, c.shape_with([*head, size * size]))
    return c.Gather(flat, c.const(rows * size + columns), axis=-1)


@rule("_linalg_maketrian", "linalg_maketrian")
def maketrian(c: Converter, A: str, *, offset: int = 0, lower: bool = True) -> Any:
    count = c.size(A, -1, "to make a triangle of it")
    side = (math.isqrt(8 * count + 1) - 1) // 2
    size = side + abs(offset)
    rows, columns = _triangle_places(size, offset, lower)
    if len(rows) != count:
        raise ShapeError(f"{count} elements are no triangle")
    spread = np.zeros((count, size * size))
    spread[np.arange(count), rows * size + columns] = 1
    flat = c.MatMul(A, c.array(spread, A))
    return c.Reshape(flat, c.shape_with([*(c.dim(A, i) for i in range(c.rank(A) - 1)), size, size]))


@rule("_linalg_syevd")
def syevd(c: Converter, A: str) -> Any:
    """Eigenvectors as rows, and eigenvalues."""
    values, vectors = lapack(c, "Eigh", A, outputs=2)
    return turned(c, vectors), values


@rule("_linalg_gelqf", "linalg_gelqf")
def gelqf(c: Converter, A: str) -> Any:
    """A = L Q, with rows of Q that are orthonormal: the QR decomposition of the transposed."""
    q, r = c.op("QR", turned(c, A), domain="mezzo", outputs=2)
    return turned(c, q), turned(c, r)


# Special functions

LANCZOS = (  # g = 7, n = 9: within 2e-15 for positive numbers (Lanczos 1964, coefficients of Godfrey)
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip
# log gamma(1 + t) = -gamma t + sum of zeta(k) (-t)^k / k: near 1 and 2, where it passes through 0.
EULER = 0.57721566490153286
ZETA = tuple(sum(n**-k for n in range(1, 200)) + 200 ** (1 - k) / (k - 1) + 0.5 * 200**-k for k in range(2, 16))
# Approximating the erfinv function, M. Giles 2012: of w - 2.5 below w = 5, of sqrt(w) - 3 from there on.
INNER = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
         -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
OUTER = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
         1.00167406, 2.83297682)  # fmt: skip


def polynomial(c: Converter, x: str, coefficients: tuple[float, ...]) -> Value:
    """Coefficients from the highest power down."""
    result = c.number(coefficients[0], x)
    for value in coefficients[1:]:
        result = c.Add(c.Mul(result, x), c.number(value, x))
    return result


def _log_gamma_positive(c: Converter, x: str) -> Value:
    """Of numbers from 0.5 on."""
    less = c.Sub(x, c.number(1, x))
    series = c.number(LANCZOS[0], x)
    for i, value in enumerate(LANCZOS[1:], 1):
        series = c.Add(series, c.Div(c.number(value, x), c.Add(less, c.number(i, x))))
    t = c.Add(less, c.number(7.5, x))
    powers = c.Sub(c.Mul(c.Add(less, c.number(0.5, x)), c.Log(t)), t)
    general = c.Add(c.Add(powers, c.Log(series)), c.number(0.5 * math.log(2 * math.pi), x))
    near_two = c.Abs(c.Sub(x, c.number(2, x)))
    near_one = c.Abs(less)
    by_one = _log_gamma_near_one(c, less)
    back = c.Sub(x, c.number(2, x))
    apart = c.Max(back, c.number(-0.5, x))  # elsewhere its slope would be infinite, which times nothing is no number
    by_two = c.Add(lapack(c, "Log1p", apart), _log_gamma_near_one(c, back))
    result = c.Where(c.Less(near_two, c.number(0.3, x)), by_two, general)
    return c.Where(c.Less(near_one, c.number(0.3, x)), by_one, result)


def _log_gamma_near_one(c: Converter, t: str) -> Value:
    t = c.Clip(t, c.number(-0.3, t), c.number(0.3, t))
    terms = [(-1) ** k * z / k for k, z in enumerate(ZETA, 2)]
    return c.Mul(t, c.Add(c.number(-EULER, t), c.Mul(t, polynomial(c, t, tuple(reversed(terms))))))


def _sine_of_pi(c: Converter, x: str) -> Value:
    """sin(pi x), of the fraction alone."""
    whole = c.Round(x)
    odd = c.Sub(whole, c.Mul(c.Floor(c.Mul(whole, c.number(0.5, x))), c.number(2, x)))
    sine = c.Sin(c.Mul(c.Sub(x, whole), c.number(math.pi, x)))
    return c.Mul(sine, c.Sub(c.number(1, x), c.Mul(odd, c.number(2, x))))


@rule("gammaln", "_sparse_gammaln", "_npx_gammaln")
def gammaln(c: Converter, data: str) -> Any:
    """log |gamma(x)|; below 0.5 by reflection."""
    low = c.Less(data, c.number(0.5, data))
    other = c.Where(low, c.Sub(c.number(1, data), data), data)
    value = _log_gamma_positive(c, other)
    sine = c.Where(low, _sine_of_pi(c, data), c.number(1, data))
    reflected = c.Sub(c.Sub(c.number(math.log(math.pi), data), c.Log(c.Abs(sine))), value)
    return c.Where(low, reflected, value)


@rule("gamma", "_sparse_gamma", "_npx_gamma")
def gamma(c: Converter, data: str) -> Any:
    size = c.Exp(gammaln(c, data))
    negative = c.Less(data, c.number(0, data))
    sign = c.Where(negative, c.Sign(_sine_of_pi(c, data)), c.number(1, data))
    return c.Mul(sign, size)


@rule("erfinv", "_npx_erfinv")
def erfinv(c: Converter, data: str) -> Any:
    one, nothing = c.number(1, data), c.number(0, data)
    edge = c.Equal(c.Abs(data), one)
    inner_data = c.Where(edge, nothing, data)
    w = c.Neg(c.Log(c.Mul(c.Sub(one, inner_data), c.Add(one, inner_data))))
    inner = polynomial(c, c.Sub(w, c.number(2.5, w)), INNER)
    outer = polynomial(c, c.Sub(c.Sqrt(c.Max(w, c.number(5, w))), c.number(3, w)), OUTER)
    factor = c.Where(c.Less(w, c.number(5, w)), inner, outer)
    return c.Where(edge, c.Div(data, c.Where(edge, nothing, one)), c.Mul(factor, inner_data))


@rule("_contrib_fft")
def fft(c: Converter, data: str, *, compute_size: int = 128) -> Any:
    """The transform of the last axis, real and imaginary parts in turn."""
    spectrum = c.DFT(c.unsqueeze(data, c.rank(data)), None, c.const(c.rank(data) - 1), onesided=0)
    return c.reshape(spectrum, [*[0] * (c.rank(data) - 1), -1])


@rule("_contrib_ifft")
def ifft(c: Converter, data: str, *, compute_size: int = 128) -> Any:
    """The real part of the inverse transform, not divided by the size."""
    rank = c.rank(data)
    size = c.size(data, -1, "for a transform") // 2
    parts = c.reshape(data, [*[0] * (rank - 1), size, 2])
    back = c.DFT(parts, None, c.const(rank - 1), inverse=1, onesided=0)
    return c.Mul(c.squeeze(c.slice(back, rank, 0, 1), rank), c.number(size, data))


@rule("_contrib_count_sketch")
def count_sketch(c: Converter, data: str, h: str, s: str, *, out_dim: int, processing_batch_size: int = 32) -> Any:
    """Columns times signs, added into the places that the hashes name."""
    places = c.const(np.arange(out_dim).reshape(1, -1))
    hits = c.cast(c.Equal(c.Reshape(c.whole(h), c.ints(-1, 1)), places), c.dtype(data))
    return c.MatMul(c.Mul(data, c.Reshape(s, c.ints(1, -1))), hits)
