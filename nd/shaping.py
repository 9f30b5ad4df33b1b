"""Reshaping, permuting and joining. All results are copies.

https://data-apis.org/array-api/2024.12/API_specification/manipulation_functions.html
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ops.core.rules import axes_of, axis_of
from ..ops.errors import ShapeError
from .array import Array
from .running import apply, as_array, as_arrays, cast, common
from .specs import checked_sizes, known


class WrongSize(ShapeError, ValueError):
    """An axis has another size than requested: also a ValueError, as the standard requires."""


def reshape(x: Array, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    """The same elements in another shape; one entry may be -1, and 0 keeps a size of an array that has elements, as in
    MXNet: `Reshape`. Raises ShapeError, also for `copy=False`."""
    if copy is False:
        raise ShapeError("a reshape is a copy", where="mezzo.nd.reshape", hint="leave out copy=False")
    sizes = checked_sizes(shape)
    if -1 in sizes and 0 in x.shape and 0 in sizes:
        raise ShapeError(f"{list(sizes)} of {x.where}: -1 could be anything", where="mezzo.nd.reshape")
    if 0 in sizes and 0 not in x.shape:
        sizes = tuple(x.shape[i] if d == 0 and i < x.ndim else d for i, d in enumerate(sizes))
    return apply("Reshape", x, known(sizes), allowzero=1)


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """The axes in another order: `Transpose`."""
    return apply("Transpose", x, perm=axes_of(axes, x.ndim))


def matrix_transpose(x: Array, /) -> Array:
    """Transpose each matrix. Raises ShapeError below rank 2."""
    if x.ndim < 2:
        raise ShapeError(f"no matrix: {x.where}", where="mezzo.nd.matrix_transpose")
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Axes moved to other places, the rest in their order."""
    of = axes_of((source,) if isinstance(source, int) else source, x.ndim)
    to = axes_of((destination,) if isinstance(destination, int) else destination, x.ndim)
    if len(of) != len(to):
        raise ShapeError(f"{len(of)} axes to {len(to)} places", where="mezzo.nd.moveaxis")
    order = [a for a in range(x.ndim) if a not in of]
    for place, axis in sorted(zip(to, of, strict=True)):
        order.insert(place, axis)
    return permute_dims(x, order)


def expand_dims(x: Array, /, axis: int | Sequence[int] = 0) -> Array:
    """Insert axes of size 1: `Unsqueeze`."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    return apply("Unsqueeze", x, known(axes_of(axes, x.ndim + len(axes))))


def squeeze(x: Array, /, axis: int | Sequence[int]) -> Array:
    """Fewer axes of size 1: `Squeeze`. Raises WrongSize for one of another size."""
    axes = axes_of((axis,) if isinstance(axis, int) else axis, x.ndim)
    wrong = next((a for a in axes if x.shape[a] != 1), None)
    if wrong is not None:
        raise WrongSize(f"axis {wrong} of {x.where}, has {x.shape[wrong]} elements", where="mezzo.nd.squeeze")
    return apply("Squeeze", x, known(axes))


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Arrays behind each other along an axis, or as one list for None: `Concat`."""
    xs = as_arrays(arrays)
    if not xs:
        raise ShapeError("nothing to join", where="mezzo.nd.concat")
    dtype = common(xs)
    xs = [cast(x, dtype) for x in xs]
    if axis is None:
        xs, axis = [reshape(x, (-1,)) for x in xs], 0
    return apply("Concat", *xs, axis=axis_of(axis, xs[0].ndim))


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Arrays beside each other along a new axis."""
    xs = as_arrays(arrays)
    if any(x.shape != xs[0].shape for x in xs):
        raise ShapeError(f"shapes differ: {', '.join(str(x.shape) for x in xs)}", where="mezzo.nd.stack")
    at = axis_of(axis, xs[0].ndim + 1)
    return concat([expand_dims(x, axis=at) for x in xs], axis=at)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices along an axis; views."""
    at = axis_of(axis, x.ndim)
    return tuple(x[(slice(None),) * at + (i,)] for i in range(x.shape[at]))


def flip(x: Array, /, *, axis: int | Sequence[int] | None = None) -> Array:
    """Axes read backwards: `Slice`."""
    axes = range(x.ndim) if axis is None else axes_of((axis,) if isinstance(axis, int) else axis, x.ndim)
    if not axes:
        return x.copy()
    n = len(axes)
    return apply("Slice", x, known([-1] * n), known([-(2**62)] * n), known(tuple(axes)), known([-1] * n))


def roll(x: Array, /, shift: int | Sequence[int], *, axis: int | Sequence[int] | None = None) -> Array:
    """Elements moved along axes, what leaves at one end coming in at the other."""
    if axis is None:
        if not isinstance(shift, int):
            raise ShapeError("several shifts of no axis", where="mezzo.nd.roll", hint="give axis=")
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    shifts = (shift,) * len(axes) if isinstance(shift, int) else tuple(shift)
    if len(axes) != len(shifts):
        raise ShapeError(f"{len(shifts)} shifts of {len(axes)} axes", where="mezzo.nd.roll")
    result = x
    for at, by in zip((axis_of(a, x.ndim) for a in axes), shifts, strict=True):
        if result.shape[at]:
            cut = -by % result.shape[at]
            lead = (slice(None),) * at
            result = concat([result[(*lead, slice(cut, None))], result[(*lead, slice(None, cut))]], axis=at)
    return result.copy() if result is x else result


def tile(x: Array, repetitions: Sequence[int], /) -> Array:
    """The array over and over along its axes: `Tile`."""
    times = (repetitions,) if isinstance(repetitions, int) else tuple(repetitions)
    rank = max(x.ndim, len(times))
    if x.ndim < rank:
        x = reshape(x, (1,) * (rank - x.ndim) + x.shape)
    return apply("Tile", x, known((1,) * (rank - len(times)) + times))


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Repeat each element, or each slice along an axis."""
    if axis is None:
        return repeat(reshape(x, (-1,)), repeats, axis=0)
    at = axis_of(axis, x.ndim)
    size = x.shape[at]
    if isinstance(repeats, int):
        places = np.repeat(np.arange(size), repeats)
    else:  # how often is what the shape depends on: it is read
        counts = as_array(repeats).asnumpy()
        places = np.repeat(np.arange(size), np.broadcast_to(counts, (size,)))
    return take(x, as_array(places, x.device), axis=at)


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """Slices along an axis, by number: `Gather`. A number that the axis lacks is an error where the result is read."""
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"which axis of {x.where}?", where="mezzo.nd.take", hint="give axis=")
        axis = 0
    return apply("Gather", x, cast(as_array(indices, x.device), np.dtype(np.int64)), axis=axis_of(axis, x.ndim))


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Elements by number along an axis, beside each of the other axes' places: `GatherElements`."""
    at = axis_of(axis, x.ndim)
    numbers = cast(indices, np.dtype(np.int64))
    lead = np.broadcast_shapes(*((*t.shape[:at], 1, *t.shape[at + 1 :]) for t in (x, numbers)))
    x = broadcast_to(x, (*lead[:at], x.shape[at], *lead[at + 1 :]))
    numbers = broadcast_to(numbers, (*lead[:at], numbers.shape[at], *lead[at + 1 :]))
    return apply("GatherElements", x, numbers, axis=at)


def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    """Sizes of 1 stretched: `Expand`. Raises ShapeError where the shape is no broadcast of the array's."""
    sizes = tuple(shape)
    if sizes == x.shape:
        return x
    try:
        fits = np.broadcast_shapes(x.shape, sizes) == sizes
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"{x.where}, does not broadcast to {list(sizes)}", where="mezzo.nd.broadcast_to")
    return apply("Expand", x, known(sizes))


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """Arrays in their common shape. Raises ShapeError where they have none."""
    return [broadcast_to(x, _common_shape(*(a.shape for a in arrays))) for x in arrays]


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape. Raises ShapeError where there is none."""
    return _common_shape(*shapes)


def _common_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ShapeError(f"{' and '.join(map(str, shapes))} do not broadcast", where="mezzo.nd") from error


__all__ = [
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "concat", "expand_dims", "flip",
    "matrix_transpose", "moveaxis", "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack", "take",
    "take_along_axis", "tile", "unstack",
]  # fmt: skip
