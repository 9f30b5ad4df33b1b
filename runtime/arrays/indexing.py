"""What stands between brackets: views for basic indices, operators for arrays of indices."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...ops.errors import InputError, ShapeError
from .array import Array, Key
from .kinds import kind_of, known
from .running import SCALARS, apply, as_array, assign, cast, line_of, site

Index = Any


def get(x: Array, key: Index) -> Array:
    """`x[key]`: a view for integers, slices, None and `...`; a copy for arrays of indices or of booleans."""
    given = key if isinstance(key, tuple) else (key,)
    if any(map(_is_array, given)):
        return _gather(x, given)
    return view(x, _basic(x, given))


def put(x: Array, key: Index, value: Any) -> None:
    """`x[key] = value`, cast to the element type of `x`."""
    given = key if isinstance(key, tuple) else (key,)
    if any(map(_is_array, given)):
        _scatter(x, given, value)
        return
    assign(x, value, (_basic(x, given),) if given not in ((Ellipsis,), (slice(None),)) else ())


def view(x: Array, key: Key) -> Array:
    """A part of an array that shares its memory."""
    shape = _shape(x, key)
    out = Array(x._var, kind_of(x._kind.dtype, shape), x._place, (*x._view, key))
    out._code, out._at = site()
    return out


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
    try:
        return np.broadcast_to(_NOTHING, x._kind.shape)[key].shape
    except (IndexError, ValueError) as error:
        raise _wrong(x, key, str(error)) from error


_NOTHING = np.empty((), np.bool_)


class _IndexError(ShapeError, IndexError):
    """An index that an array does not have: an IndexError too, as Python's protocols ask."""


def _wrong(x: Array, key: Index, why: str) -> _IndexError:
    return _IndexError(f"{x._kind} has no {list(key)}: {why}", where=f"an index at {line_of(*site())}")


def _index_arrays(x: Array, given: tuple[Any, ...]) -> tuple[list[Array], tuple[Any, ...]]:
    """Arrays of indices for the first axes, broadcast together, behind whatever basic part comes first; a mask stands
    for the places where it is true."""
    if Ellipsis in [g for g in given if not _is_array(g)]:
        at = next(i for i, g in enumerate(given) if g is Ellipsis)
        used = sum(_axes_of(g) for g in given if g is not Ellipsis)
        given = (*given[:at], *(slice(None),) * (x.ndim - used), *given[at + 1 :])
    found: list[Array] = []
    rest: list[Any] = []
    for part in given:
        if rest or part is None or isinstance(part, slice):
            rest.append(part)
            continue
        one = as_array(part, x._place)
        if one.dtype.kind == "b":
            _check_mask(x, one, len(found))
            places = apply("NonZero", one)
            found += [view(places, (i, Ellipsis)) for i in range(one.ndim)]
        elif one.dtype.kind in "iu":
            found.append(cast(one, np.dtype(np.int64)))
        else:
            raise _wrong(x, given, f"an index of {one.dtype}")
    if any(map(_is_array, rest)):
        raise InputError(
            "arrays of indices behind a slice or None",
            where=f"an index at {line_of(*site())}",
            hint="move these axes to the front first: mz.nd.moveaxis, or take(x, indices, axis=...)",
        )
    if len(found) > x.ndim:
        raise _wrong(x, given, f"{len(found)} indices for {x.ndim} axes")
    return found, tuple(rest)


def _axes_of(part: Any) -> int:
    if part is None:
        return 0
    dtype, ndim = getattr(part, "dtype", None), getattr(part, "ndim", 0)
    return ndim if dtype is not None and dtype.kind == "b" else 1


def _check_mask(x: Array, mask: Array, first: int) -> None:
    if mask.shape != x.shape[first : first + mask.ndim]:
        raise _wrong(x, (mask._kind,), f"the mask is {mask._kind}")


def _places(x: Array, found: list[Array]) -> Array:
    """Indices beside each other: [..., axes]."""
    from .shaping import broadcast_arrays, stack

    _check_range(x, found)
    return stack(broadcast_arrays(*found), axis=-1)


def _check_range(x: Array, found: list[Array]) -> None:
    """Nothing yet: the operators check what the indices are when they are known."""


def _gather(x: Array, given: tuple[Any, ...]) -> Array:
    found, rest = _index_arrays(x, given)
    if len(found) == 1:
        made: Array = apply("Gather", x, found[0])
        rest = (*(slice(None),) * found[0].ndim, *rest)
    else:
        made = apply("GatherND", x, _places(x, found))
        rest = (*(slice(None),) * found[0].ndim, *rest)
    return get(made, rest) if any(r != slice(None) for r in rest) else made


def _scatter(x: Array, given: tuple[Any, ...], value: Any) -> None:
    from .functions import where
    from .shaping import broadcast_to

    if len(given) == 1 and getattr(given[0], "dtype", None) == np.bool_ and isinstance(value, (Array, *SCALARS)):
        mask = as_array(given[0], x._place)
        if mask.shape == x.shape and (not isinstance(value, Array) or not value.ndim):
            number = value if isinstance(value, Array) else as_array(value, x._place)
            assign(x, where(mask, cast(number, x.dtype), x))
            return
    found, rest = _index_arrays(x, given)
    if rest:
        raise InputError(
            "assignment to arrays of indices together with slices",
            where=f"an index at {line_of(*site())}",
            hint="index the leading axes with arrays alone",
        )
    places = _places(x, found)
    shape = (*places.shape[:-1], *x.shape[len(found) :])
    news = broadcast_to(cast(as_array(value, x._place), x.dtype), shape)
    assign(x, apply("ScatterND", x, places, news))


def as_operators(x: Array, key: Index) -> Array:
    """`x[key]` of a basic index by operators (Slice, Squeeze, Unsqueeze), a copy: what a gradient can follow."""
    parts = list(_basic(x, key if isinstance(key, tuple) else (key,)))
    at = parts.index(Ellipsis)
    used = sum(p is not None for p in parts) - 1
    _shape(x, tuple(parts))
    parts[at : at + 1] = [slice(None)] * (x.ndim - used)
    cuts: list[tuple[int, int, int, int]] = []  # start, end, axis, step
    gone: list[int] = []
    new: list[int] = []
    axis = out = 0
    for part in parts:
        if part is None:
            new.append(out)
            out += 1
            continue
        size = x.shape[axis]
        if isinstance(part, slice):
            start, stop, step = part.indices(size)
            if (start, stop, step) != (0, size, 1):
                stop = stop if stop >= 0 else -(2**62)
                cuts.append((start, stop, axis, step))
            out += 1
        else:
            first = part + size if part < 0 else part
            cuts.append((first, first + 1, axis, 1))
            gone.append(axis)
        axis += 1
    made = x
    if cuts:
        made = apply("Slice", made, *map(known, zip(*cuts, strict=True)))
    if gone:
        made = apply("Squeeze", made, known(gone))
    if new:
        made = apply("Unsqueeze", made, known(new))
    return made.copy() if made is x else made
