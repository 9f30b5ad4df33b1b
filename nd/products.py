"""Products of matrices and vectors, and the functions of the extension `linalg` that need no decomposition.

https://data-apis.org/array-api/2024.12/API_specification/linear_algebra_functions.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ops.core.rules import axes_of, axis_of
from ..ops.errors import ShapeError
from .array import Array
from .elementwise import abs as absolute
from .elementwise import conj, floats
from .reducing import Axis, count_nonzero, reduced
from .reducing import sum as total
from .running import alike, apply, as_array, binary, cast, unary
from .shaping import broadcast_arrays, matrix_transpose, moveaxis, reshape, stack
from .specs import known


def matmul(x1: Any, x2: Any, /) -> Array:
    """The product of matrices, or stacks of them: `MatMul`."""
    return binary("MatMul", x1, x2)


def dot(x1: Any, x2: Any, /) -> Array:
    """MXNet's name for the sum of products over the last axis of one array and the first one of the other, which of
    vectors and matrices is `matmul`."""
    return tensordot(x1, x2, axes=1) if getattr(x2, "ndim", 0) > 2 else matmul(x1, x2)


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The sum of products along an axis, of complex numbers with the first conjugated. Raises ShapeError."""
    a, b = alike(x1, x2)
    if not -min(a.ndim, b.ndim) <= axis < min(a.ndim, b.ndim):
        raise ShapeError(f"axis {axis} of {a.where}, and {b.where}", where="mezzo.nd.vecdot")
    if a.shape[axis] != b.shape[axis]:
        raise ShapeError(f"sizes of axis {axis} differ: {a.where}, and {b.where}", where="mezzo.nd.vecdot")
    a, b = (moveaxis(x, axis, -1) for x in (a, b))
    a, b = broadcast_arrays(a, b)
    a = conj(a) if a.dtype.kind == "c" else a
    sums = apply("MatMul", apply("Unsqueeze", a, known([a.ndim - 1])), apply("Unsqueeze", b, known([b.ndim])))
    return reshape(sums, a.shape[:-1])


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """The sum of products over axes of both: one `MatMul`. Raises ShapeError where the sizes differ."""
    a, b = alike(x1, x2)
    if isinstance(axes, int):
        ours, theirs = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    else:
        ours, theirs = axes_of(axes[0], a.ndim), axes_of(axes[1], b.ndim)
    sizes = [a.shape[i] for i in ours]
    if sizes != [b.shape[i] for i in theirs]:
        raise ShapeError(f"axes {axes} of {a.where}, and {b.where}", where="mezzo.nd.tensordot")
    kept, others = [i for i in range(a.ndim) if i not in ours], [i for i in range(b.ndim) if i not in theirs]
    shape = (*(a.shape[i] for i in kept), *(b.shape[i] for i in others))
    rows, inner = math.prod(a.shape[i] for i in kept), math.prod(sizes)
    left = reshape(apply("Transpose", a, perm=(*kept, *ours)), (rows, inner))
    right = reshape(apply("Transpose", b, perm=(*theirs, *others)), (inner, math.prod(b.shape[i] for i in others)))
    return reshape(apply("MatMul", left, right), shape)


def outer(x1: Array, x2: Array, /) -> Array:
    """Products of each of one list with each of the other."""
    return binary("Mul", reshape(x1, (-1, 1)), reshape(x2, (1, -1)))


def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sum of a diagonal of each matrix."""
    return total(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """A diagonal of each matrix: `GatherND` of its places."""
    if x.ndim < 2:
        raise ShapeError(f"no matrix: {x.where}", where="mezzo.nd.linalg.diagonal")
    rows, columns = x.shape[-2:]
    first, second = max(-offset, 0), max(offset, 0)
    count = max(min(rows - first, columns - second), 0)
    flat = reshape(x, (*x.shape[:-2], rows * columns))
    places = np.arange(count, dtype=np.int64) * (columns + 1) + first * columns + second
    return apply("Gather", flat, as_array(places, x.device), axis=x.ndim - 2)


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of three. Raises ShapeError for others."""
    a, b = broadcast_arrays(*alike(x1, x2))
    at = axis_of(axis, a.ndim)
    if a.shape[at] != 3:
        raise ShapeError(f"vectors of {a.shape[at]}", where="mezzo.nd.linalg.cross", hint="they have three elements")
    lead = (slice(None),) * at
    p, q = ([x[(*lead, i)] for i in range(3)] for x in (a, b))
    parts = [p[i] * q[j] - p[j] * q[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return stack(parts, axis=at)


def det(x: Array, /) -> Array:
    """The determinant of each matrix: `Det`."""
    return apply("Det", floats(x))


def _sizes(x: Array) -> Array:
    """Floats whose norm is that of the array: for complex numbers how long they are."""
    one = floats(x)
    return absolute(one) if one.dtype.kind == "c" else one


def vector_norm(x: Array, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    """The norm of vectors: of any order, inf and -inf."""
    one = _sizes(x)
    match ord:
        case 2:
            return reduced("ReduceL2", one, axis, keepdims)
        case 1:
            return reduced("ReduceL1", one, axis, keepdims)
        case 0:
            return cast(count_nonzero(one, axis=axis, keepdims=keepdims), one.dtype)
    sizes = unary("Abs", one)
    if math.isinf(ord):
        return reduced("ReduceMax" if ord > 0 else "ReduceMin", sizes, axis, keepdims)
    powers = reduced("ReduceSum", binary("Pow", sizes, float(ord)), axis, keepdims)
    return binary("Pow", powers, 1 / ord)


__all__ = [
    "cross", "det", "diagonal", "dot", "matmul", "matrix_transpose", "outer", "tensordot", "trace", "vecdot",
    "vector_norm",
]  # fmt: skip
