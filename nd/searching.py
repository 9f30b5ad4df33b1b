"""Searching, sorting, and sets.

https://data-apis.org/array-api/2024.12/API_specification/searching_functions.html, sorting_functions, set_functions
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..ops.core.rules import axis_of
from ..ops.errors import InputError, ShapeError
from .array import Array
from .elementwise import where
from .running import alike, apply, as_array, binary, cast, unary
from .shaping import concat, reshape
from .specs import INT, known


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """The places that are not zero, as one list for each axis: `NonZero`. How many there are has to be waited for."""
    if not x.ndim:
        raise ShapeError(f"nonzero of a scalar: {x.where}", where="mezzo.nd.nonzero")
    places = apply("NonZero", x)
    return tuple(places[i] for i in range(x.ndim))


def searchsorted(x1: Array, x2: Any, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """Return the positions at which the elements of `x2` are inserted into the sorted list `x1`. Raises InputError for
    a side other than left and right.

    A place is found by sorting both together: it is the rank of an element among all, less its rank in `x2`.
    """
    if side not in ("left", "right"):
        raise InputError(f"side {side!r}", where="mezzo.nd.searchsorted", hint="give 'left' or 'right'")
    if sorter is not None:
        x1 = apply("Gather", x1, cast(sorter, INT))
    given = as_array(x2, x1.device)
    a, b = alike(x1, reshape(given, (-1,)))
    both = concat([b, a] if side == "left" else [a, b], axis=0)
    ranks = argsort(argsort(both))
    mine = ranks[: b.size] if side == "left" else ranks[a.size :]
    return reshape(binary("Sub", mine, argsort(argsort(b))), given.shape)


def _ordered(x: Array, axis: int, descending: bool) -> tuple[Array, Array]:
    at = axis_of(axis, x.ndim)
    count = known((x.shape[at],))
    ordered: tuple[Array, Array] = apply("TopK", x, count, outputs=2, axis=at, largest=int(descending))
    return ordered


def _sortable(x: Array) -> Array:
    return cast(x, np.dtype(np.uint8)) if x.dtype.kind == "b" else x


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements along an axis in order: `TopK` of all of them."""
    return cast(_ordered(_sortable(x), axis, descending)[0], x.dtype)


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The numbers of the elements along an axis in order; of equal ones the first comes first."""
    return _ordered(_sortable(x), axis, descending)[1]


class UniqueAll(NamedTuple):
    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    values: Array
    inverse_indices: Array


def unique_all(x: Array, /) -> UniqueAll:
    """Return each value once, in order: `Unique`; the index of its first occurrence, the index of each element's value,
    and the counts. Every NaN is a value of its own."""
    values, first, inverse, counts = apply("Unique", x, outputs=4)
    return UniqueAll(values, first, reshape(inverse, x.shape), counts)


def unique_counts(x: Array, /) -> UniqueCounts:
    """Return each value once, and its count."""
    unique = unique_all(x)
    return UniqueCounts(unique.values, unique.counts)


def unique_inverse(x: Array, /) -> UniqueInverse:
    """Return each value once, and the index of each element's value."""
    unique = unique_all(x)
    return UniqueInverse(unique.values, unique.inverse_indices)


def unique_values(x: Array, /) -> Array:
    """Return each value once, in order."""
    return unique_all(x).values


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Test whether each element of `x1` is one of `x2`: it is, if searches from both sides return different
    positions."""
    place = next((x.device for x in (x1, x2) if isinstance(x, Array)), None)
    a, b = alike(as_array(x1, place), as_array(x2, place))
    listed = sort(reshape(b, (-1,)))
    present = binary("Less", searchsorted(listed, a, side="left"), searchsorted(listed, a, side="right"))
    if a.dtype.kind in "fc":  # NaN is nothing's equal
        present = where(unary("IsNaN", a), as_array(False, a.device), present)
    return unary("Not", present) if invert else present
