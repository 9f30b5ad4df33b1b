"""Helpers that rules of many operators share: axes, known elements, arithmetic on dims that may be names or unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..errors import OutOfRange, ShapeError
from ..op import broadcast_dims
from ..types import Array, Dim, DType, Tensor


class NoSuchPlace(ShapeError, IndexError):
    """An axis or an index that an array does not have: also an IndexError, as Python's protocols require."""


def axis_of(axis: int, rank: int) -> int:
    """The axis counted from the front; ShapeError where the rank has no such axis.

    >>> axis_of(-1, 3)
    2
    """
    if not -rank <= axis < rank:
        raise NoSuchPlace(f"axis {axis} is outside rank {rank}", hint=f"axes run from {-rank} to {rank - 1}")
    return int(axis) % rank


def axes_of(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Several axes counted from the front; ShapeError where one is named twice."""
    counted = tuple([axis_of(a, rank) for a in axes])
    if len(set(counted)) < len(counted):
        raise ShapeError(f"axes {list(counted)} name one axis twice")
    return counted


def ints(x: Array) -> list[int]:
    """The elements of a small array (axes, a shape) as Python integers, wherever it lives."""
    return list(map(int, x.ravel().tolist()))


def bounds(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """The first place of a slice and the one it stops at. Where Python leaves a start before the axis outside, ONNX
    moves it to the axis."""
    if step == 0:
        raise ShapeError("a slice cannot have step 0")
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return min(max(start, 0), size), min(max(end, 0), size)
    return min(max(start, 0), size - 1), min(max(end, -1), size - 1)


def taken(size: int, start: int, end: int, step: int) -> range:
    """The places that a slice takes."""
    return range(*bounds(size, start, end, step), step)


def places(start: int, end: int, step: int) -> int:
    """The number of elements of a range of integers.

    >>> places(0, 5, 2), places(5, -1, -1), places(3, 0, 1)
    (3, 6, 0)
    """
    return max(-((start - end) // step), 0)


def sliced(
    shape: Sequence[int], starts: Array, ends: Array, axes: Array | None, steps: Array | None
) -> tuple[slice, ...]:
    """The operands of a Slice of a tensor of this shape, as Python has them."""
    start, end = ints(starts), ints(ends)
    at = range(len(start)) if axes is None else axes_of(ints(axes), len(shape))
    step = [1] * len(start) if steps is None else ints(steps)
    index = [slice(None)] * len(shape)
    for a, s, e, by in zip(at, start, end, step, strict=True):
        places = taken(shape[a], s, e, by)
        index[a] = slice(places.start, places.stop if places.stop >= 0 else None, by) if places else slice(0, 0)
    return tuple(index)


def length(t: Tensor) -> int | None:
    """Return the length of a list operand, such as axes or a shape; None if unknown. Raises ShapeError for a higher
    rank."""
    if t.dims is not None and len(t.dims) > 1:
        raise ShapeError(f"{t} should be a list")
    return t.elements


def unknown(rank: int | None) -> tuple[Dim, ...] | None:
    """Return `rank` unknown dims; None for an unknown rank."""
    return None if rank is None else (None,) * rank


def same(a: Dim, b: Dim, what: str) -> Dim:
    """The dim that `a` and `b` both are; ShapeError with `what` where two sizes differ."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeError(f"{what}: {a} is not {b}")
    if isinstance(b, int) or a is None:
        return b
    return a


def product(dims: Sequence[Dim]) -> Dim:
    """The number of elements in these dims; a name survives only where all else is 1.

    >>> product((2, 3)), product((1, "n")), product((2, "n")), product((0, "n"))
    (6, 'n', None, 0)
    """
    size = math.prod(d for d in dims if isinstance(d, int))
    rest = [d for d in dims if not isinstance(d, int)]
    if not rest or size == 0:
        return size
    return rest[0] if size == 1 and len(rest) == 1 else None


def total(dims: Sequence[Dim]) -> Dim:
    """The sum of dims; a name survives only where all else is 0."""
    size = sum(d for d in dims if isinstance(d, int))
    rest = [d for d in dims if not isinstance(d, int)]
    if not rest:
        return size
    return rest[0] if size == 0 and len(rest) == 1 else None


def has_rank(t: Tensor, *ranks: int) -> None:
    """ShapeError unless the rank is unknown or one of these."""
    if t.dims is not None and len(t.dims) not in ranks:
        raise ShapeError(f"{t} should have rank {' or '.join(map(str, ranks))}")


def has_dims(t: Tensor, dims: Sequence[Dim], what: str) -> None:
    """ShapeError unless the rank and the sizes are these, as far as both are known; `what` says whom they suit."""
    has_rank(t, len(dims))
    for dim, wanted in zip(t.dims or (), dims, strict=False):
        same(dim, wanted, f"{t} does not fit {what}")


@cache
def is_narrow(dtype: Any) -> bool:
    """True if sums of this element type are taken in float32: floats of 16 bits and less."""
    return DType.of(dtype).narrow


def widen(x: Array) -> Array:
    """The array in the element type that sums are taken in."""
    return x.astype(np.float32) if is_narrow(x.dtype) else x


def narrow(x: Array, dtype: Any) -> Array:
    """The array in `dtype` again after a sum."""
    return x.astype(dtype, copy=False)


def in_table(places: Array, lowest: int, size: int) -> None:
    """Raise ShapeError for numbers of rows that a table of this size has not; `size` itself says that there is none."""
    if places.size and not (lowest <= places.min() and places.max() <= size):
        raise ShapeError(f"an index is outside an axis of {size}", hint=f"indices run from {lowest} to {size - 1}")


def mean_of(x: Array, axes: Any, *, keepdims: bool = False) -> Array:
    """The mean over axes: NaN over no elements, without numpy's warning about it."""
    count = math.prod(x.shape[a] for a in ((axes,) if isinstance(axes, int) else axes))
    total = x.sum(axes, keepdims=keepdims)
    return total / x.dtype.type(count)


def variance_of(x: Array, axes: Any, *, keepdims: bool = False) -> Array:
    """The mean of the squared distances from the mean."""
    centred = x - mean_of(x, axes, keepdims=True)
    return mean_of(centred * centred, axes, keepdims=keepdims)


def check_broadcast_to(X: Tensor, *operands: Tensor | None) -> None:
    """Raise ShapeError for an operand that does not broadcast to X, or would make more of it."""
    for t in operands:
        if X.dims is not None and t is not None and t.dims is not None:
            sizes = broadcast_dims(X.dims, t.dims)
            grows = sizes and any(d == 1 and isinstance(n, int) and n != 1 for d, n in zip(X.dims, sizes, strict=False))
            if sizes is None or grows or len(t.dims) > len(X.dims):
                raise ShapeError(f"{t} does not broadcast to {X}")


def check_labels(low: int, high: int, classes: int) -> None:
    """Raise OutOfRange where labels from `low` to `high` are not among so many classes: none counts from the end, and
    what other runtimes leave out (-1, -100) is asked for by `ignore_index`."""
    if low < 0 or high >= classes:
        raise OutOfRange(
            f"labels run from {low} to {high}, and there are {classes} classes",
            hint="classes count from 0; ignore_index=-100, say, leaves out the labels that are -100",
        )
