"""What stands between brackets: views for basic indices, operators for arrays of indices."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...ops.errors import InputError, ShapeError
from .array import Array, Key
from .kinds import kind_of, known
from .recording import RECORDING
from .running import SCALARS, apply, as_array, assign, cast, line_of, refuse_recorded, site

Index = Any


def get(x: Array, key: Index) -> Array:
    """`x[key]`: a view for integers, slices, None and `...`; a copy for arrays of indices or of booleans."""
    given = key if isinstance(key, tuple) else (key,)
    if any(map(_is_array, given)):
        return _gather(x, given)
    if RECORDING.on and x._origin is not None:
        return as_operators(x, _basic(x, given))
    return view(x, _basic(x, given))


def put(x: Array, key: Index, value: Any) -> None:
    """`x[key] = value`, cast to the element type of `x`."""
    if RECORDING.on:
        refuse_recorded(x)
    given = key if isinstance(key, tuple) else (key,)
    if any(map(_is_array, given)):
        _scatter(x, given, value)
        return
    assign(x if given in ((Ellipsis,), (slice(None),)) else view(x, _basic(x, given)), value)


def view(x: Array, key: Key) -> Array:
    """A part of an array that shares its memory."""
    shape = _shape(x, key)
    out = Array(x._var, kind_of(x._kind.dtype, shape), x._place, (*x._view, key))
    out._code, out._at = site()
    if RECORDING.trace is not None:
        RECORDING.trace.seen_from(x, out)
    return out


def as_operators(x: Array, key: Key) -> Array:
    """What `view` shows, as a copy by operators: gradients go back through it."""
    shape = _shape(x, key)
    given = [p for p in key if p is not None]
    between = x.ndim - len(given) + 1
    at = given.index(Ellipsis)
    parts = [*given[:at], *[slice(None)] * between, *given[at + 1 :]]
    slices = [p if p.__class__ is slice else slice(p, None if p == -1 else p + 1) for p in parts]
    spans = [s.indices(n) for s, n in zip(slices, x.shape, strict=True)]
    cut = [i for i, (span, n) in enumerate(zip(spans, x.shape, strict=True)) if span != (0, n, 1)]
    if cut:
        starts, ends, steps = zip(*(spans[i] for i in cut), strict=True)
        ends = tuple(-(1 << 62) if e < 0 else e for e in ends)  # before the first: what -1 means to Python
        x = apply("Slice", x, known(starts), known(ends), known(tuple(cut)), known(steps))
    return x if x.shape == shape else apply("Reshape", x, known(shape), allowzero=1)


def _is_array(part: Any) -> bool:
    return isinstance(part, Array | np.ndarray | list) or part is True or part is False


def _basic(x: Array, given: tuple[Any, ...]) -> Key:
    """A basic index that NumPy answers with a view, even of one element."""
    parts: list[Any] = []
    for part in given:
        if part is None or part is Ellipsis:
            parts.append(part)
        elif isinstance(part, slice):
            parts.append(slice(*(None if v is None else operator.index(v) for v in (part.start, part.stop, part.step))))
        else:
            try:
                parts.append(operator.index(part))
            except TypeError as error:
                raise _wrong(x, given, f"{part!r} is no index") from error
    return tuple(parts) if Ellipsis in parts else (*parts, Ellipsis)


def _shape(x: Array, key: Key) -> tuple[int, ...]:
    """The shape of a view. Raises an ShapeError that is an IndexError for places that the array lacks."""
    sizes = x._kind.shape
    between = len(sizes) - sum([p is not None for p in key]) + 1  # axes that `...` stands for
    if between < 0 or key.count(Ellipsis) > 1:
        raise _wrong(x, key, "too many indices")
    shape: list[int] = []
    axis = 0
    for part in key:
        if part is None:
            shape.append(1)
        elif part is Ellipsis:
            shape += sizes[axis : axis + between]
            axis += between
        else:
            size = sizes[axis]
            if part.__class__ is not slice:
                if not -size <= part < size:
                    raise _wrong(x, key, f"axis {axis} has {size}")
            elif part.step == 0:
                raise _wrong(x, key, "a step of 0")
            else:
                shape.append(len(range(*part.indices(size))))
            axis += 1
    return tuple(shape)


class _IndexError(ShapeError, IndexError):
    """An index that an array does not have: an IndexError too, as Python's protocols ask."""


def _wrong(x: Array, key: Index, why: str) -> _IndexError:
    return _IndexError(f"{x._kind} has no {list(key)}: {why}", where=f"an index at {line_of(*site())}")


def _index_arrays(x: Array, given: tuple[Any, ...]) -> tuple[int, list[Array], tuple[Any, ...]]:
    """How many whole axes come first, then arrays of indices, and the basic part behind them. A mask stands for the
    places where it is true, a number beside arrays for an array of it."""
    if any(g is Ellipsis for g in given):
        at = next(i for i, g in enumerate(given) if g is Ellipsis)
        used = sum(_axes_of(g) for g in given if g is not Ellipsis)
        given = (*given[:at], *(slice(None),) * (x.ndim - used), *given[at + 1 :])
    lead = next(i for i, g in enumerate(given) if not (isinstance(g, slice) and g == slice(None)))
    found: list[Array] = []
    rest: list[Any] = []
    for part in given[lead:]:
        if rest or part is None or isinstance(part, slice):
            rest.append(part)
            continue
        one = as_array(part, x._place)
        if one.dtype.kind == "b":
            _check_mask(x, one, lead + len(found))
            places = apply("NonZero", one)
            found += [view(places, (i, Ellipsis)) for i in range(one.ndim)]
        elif one.dtype.kind in "iu":
            found.append(cast(one, np.dtype(np.int64)))
        else:
            raise _wrong(x, given, f"an index of {one.dtype}")
    if any(map(_is_array, rest)) or not found:
        raise InputError(
            "arrays of indices that are not beside each other, or behind a part of an axis",
            where=f"an index at {line_of(*site())}",
            hint="move their axes together first: mz.nd.moveaxis, or take(x, indices, axis=...)",
        )
    if lead + len(found) > x.ndim:
        raise _wrong(x, given, f"{lead + len(found)} indices for {x.ndim} axes")
    return lead, found, tuple(rest)


def _axes_of(part: Any) -> int:
    if part is None:
        return 0
    dtype, ndim = getattr(part, "dtype", None), getattr(part, "ndim", 0)
    return ndim if dtype is not None and dtype.kind == "b" else 1


def _check_mask(x: Array, mask: Array, first: int) -> None:
    if mask.shape != x.shape[first : first + mask.ndim]:
        raise _wrong(x, (mask._kind,), f"the mask is {mask._kind}")


def _places(found: list[Array]) -> Array:
    """Indices beside each other: [..., axes]."""
    from .shaping import broadcast_arrays, stack

    return stack(broadcast_arrays(*found), axis=-1)


def _gather(x: Array, given: tuple[Any, ...]) -> Array:
    from .shaping import moveaxis

    lead, found, rest = _index_arrays(x, given)
    if len(found) == 1:
        made: Array = apply("Gather", x, found[0], axis=lead)
        width = found[0].ndim
    else:
        places = _places(found)
        width, count = places.ndim - 1, len(found)
        front = moveaxis(x, tuple(range(lead, lead + count)), tuple(range(count))) if lead else x
        made = apply("GatherND", front, places)
        if lead:
            made = moveaxis(made, tuple(range(width)), tuple(range(lead, lead + width)))
    if all(isinstance(r, slice) and r == slice(None) for r in rest):
        return made
    return get(made, (*(slice(None),) * (lead + width), *rest))


def _scatter(x: Array, given: tuple[Any, ...], value: Any) -> None:
    from .functions import where
    from .shaping import broadcast_to

    if len(given) == 1 and getattr(given[0], "dtype", None) == np.bool_ and isinstance(value, (Array, *SCALARS)):
        mask = as_array(given[0], x._place)
        if mask.shape == x.shape and (not isinstance(value, Array) or not value.ndim):
            number = value if isinstance(value, Array) else as_array(value, x._place)
            assign(x, where(mask, cast(number, x.dtype), x))
            return
    lead, found, rest = _index_arrays(x, given)
    if rest or lead:
        raise InputError(
            "assignment to arrays of indices together with slices",
            where=f"an index at {line_of(*site())}",
            hint="index the leading axes with arrays alone",
        )
    places = _places(found)
    shape = (*places.shape[:-1], *x.shape[len(found) :])
    news = broadcast_to(cast(as_array(value, x._place), x.dtype), shape)
    assign(x, apply("ScatterND", x, places, news))
