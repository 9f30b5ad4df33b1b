"""Indexing: views for basic indices, operators for arrays of indices."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from ..ops.core.rules import NoSuchPlace
from .array import Array, Key
from .elementwise import where
from .recording import RECORDING
from .running import SCALARS, apply, as_array, assign, cast, numbers_for, refuse_recorded
from .shaping import broadcast_arrays, broadcast_to, moveaxis, reshape, stack
from .sites import line_of, site
from .specs import known, spec_of

Index = Any


def get(x: Array, key: Index) -> Array:
    """`x[key]`: a view for integers, slices, None and `...`; a copy for arrays of indices or of booleans."""
    given = key if isinstance(key, tuple) else (key,)
    if key.__class__ is not slice and any(map(_is_array, given)):
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
    out = Array(x._var, spec_of(x._spec.dtype, shape), x._place, (*x._view, key))
    out._code, out._at = site(2)
    if RECORDING.trace is not None:
        RECORDING.trace.seen_from(x, out)
    return out


def as_operators(x: Array, key: Key) -> Array:
    """Return the part that `view` shows as a copy by operators, so that gradients pass through it."""
    shape = _shape(x, key)
    given = [p for p in key if p is not None]
    skipped = x.ndim - len(given) + 1
    at = given.index(Ellipsis)
    parts = [*given[:at], *[slice(None)] * skipped, *given[at + 1 :]]
    slices = [p if p.__class__ is slice else slice(p, None if p == -1 else p + 1) for p in parts]
    spans = [s.indices(n) for s, n in zip(slices, x.shape, strict=True)]
    cut = [i for i, (span, n) in enumerate(zip(spans, x.shape, strict=True)) if span != (0, n, 1)]
    if cut:
        starts, ends, steps = zip(*(spans[i] for i in cut), strict=True)
        ends = tuple(-(1 << 62) if e < 0 else e for e in ends)  # before the first: what -1 means to Python
        x = apply("Slice", x, known(starts), known(ends), known(tuple(cut)), known(steps))
    return x if x.shape == shape else apply("Reshape", x, known(shape), allowzero=1)


def _is_array(part: Any) -> bool:
    return isinstance(part, Array | np.ndarray | np.bool_ | list | bool)


def _basic(x: Array, given: tuple[Any, ...]) -> Key:
    """A basic index that NumPy answers with a view, even of one element."""
    parts: list[Any] = []
    for part in given:
        if part is None or part is Ellipsis:
            parts.append(part)
        elif isinstance(part, slice):
            start, stop, step = part.start, part.stop, part.step
            start = start if start is None else index(start)
            stop = stop if stop is None else index(stop)
            parts.append(slice(start, stop, step if step is None else index(step)))
        else:
            try:
                parts.append(index(part))
            except TypeError as error:
                raise _wrong(x, given, f"{part!r} is no index") from error
    return tuple(parts) if Ellipsis in parts else (*parts, Ellipsis)


def _shape(x: Array, key: Key) -> tuple[int, ...]:
    """The shape of a view. Raises NoSuchPlace for what the array lacks."""
    sizes = x._spec.shape
    skipped = len(sizes) - len(key) + key.count(None) + 1  # axes that `...` stands for
    if skipped < 0 or key.count(Ellipsis) > 1:
        raise _wrong(x, key, "too many indices")
    shape: list[int] = []
    axis = 0
    for part in key:
        if part is None:
            shape.append(1)
        elif part is Ellipsis:
            shape += sizes[axis : axis + skipped]
            axis += skipped
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


def _wrong(x: Array, key: Index, why: str) -> NoSuchPlace:
    shown = ", ".join(str(p._spec) if isinstance(p, Array) else repr(p) for p in key)
    return NoSuchPlace(f"{x._spec} has no [{shown}]: {why}", where=f"an index at {line_of(*site())}")


class _Indices:
    """An index with arrays in it, split as in NumPy: a basic index first, then indices for some axes of the result.

    `basic` has whole axes where the arrays stand, `axes` says which these are in what it shows, `indices` is a list of
    places for each. A mask stands for the places where it is true, a number beside arrays for an array of it, True and
    False for an axis of one element or none. `at` is where the axes of the indices are in the result: in their place if
    they stand beside each other, else first.
    """

    def __init__(self, x: Array, given: tuple[Any, ...]) -> None:
        self.indices: list[Array] = []
        axes: list[int] = []
        basic: list[Any] = []
        shown = axis = 0  # axes of what the basic index shows, and of x
        runs, before = 0, False  # of parts that are arrays or numbers
        for part in _filled(x, given):
            advanced = not (part is None or part is Ellipsis or isinstance(part, slice))
            runs += advanced and not before
            before = advanced
            if not advanced:
                if part is not Ellipsis:
                    basic.append(part)
                    shown += 1
                    axis += part is not None
                continue
            places, width = _places_of(x, part, axis, given)
            basic += [slice(None)] * width if width else [None]
            axis += width
            axes += range(shown, shown + len(places))
            shown += len(places)
            self.indices += places
        if axis > x.ndim:
            raise _wrong(x, given, f"{axis} indices for {x.ndim} axes")
        self.basic, self.axes = _basic(x, tuple(basic)), tuple(axes)
        self.whole = all(p is Ellipsis or p == slice(None) for p in basic if p is not None) and None not in basic
        self.at = self.axes[0] if runs == 1 else 0

    def to_front(self, x: Array) -> Array:
        """The axes that are indexed first."""
        count = len(self.axes)
        return x if self.axes == (*range(count),) else _moved(x, self.axes, tuple(range(count)))

    def places(self) -> Array:
        """Indices beside each other: [..., axes]."""
        return stack(broadcast_arrays(*self.indices), axis=-1)


def _filled(x: Array, given: tuple[Any, ...]) -> list[Any]:
    """The index with whole axes for `...`, and behind it: an Ellipsis stays, since it stands between arrays."""
    dots = [i for i, g in enumerate(given) if g is Ellipsis]
    if len(dots) > 1:
        raise _wrong(x, given, "several ellipses")
    at = dots[0] if dots else len(given)
    whole_axes = [slice(None)] * (x.ndim - sum(_axes_of(g) for g in given if g is not Ellipsis))
    return [*given[:at], Ellipsis, *whole_axes, *given[at + 1 :]]


def _places_of(x: Array, part: Any, axis: int, given: tuple[Any, ...]) -> tuple[list[Array], int]:
    """The indices that a part of an index stands for, and how many axes of `x` it takes."""
    one = as_array(np.zeros(0, np.int64) if isinstance(part, list) and not part else part, x._place)
    if one.dtype.kind in "iu":
        return [cast(one, np.dtype(np.int64))], 1
    if _whole(one):
        return [cast(one, np.dtype(np.int64))], 1
    if one.dtype.kind != "b":
        raise _wrong(x, given, f"an index of {one.dtype}")
    sizes = x.shape[axis : axis + one.ndim]
    if len(sizes) < one.ndim or any(m not in (n, 0) for m, n in zip(one.shape, sizes, strict=True)):
        raise _wrong(x, given, f"the mask is {one._spec}")  # of no size it may be, as the standard has it
    places = apply("NonZero", one if one.ndim else apply("Reshape", one, known((1,))))
    return [view(places, (i, Ellipsis)) for i in range(max(one.ndim, 1))], one.ndim


def _whole(one: Array) -> bool:
    """True for floats that are whole numbers, as MXNet's indices are; where elements cannot be read, False."""
    if one.dtype.kind != "f" or RECORDING.trace is not None:
        return False
    values = one.asnumpy()
    return bool((np.isfinite(values) & (values == np.trunc(values))).all())


def _axes_of(part: Any) -> int:
    """Return the number of axes that a part of an index takes."""
    if part is None or isinstance(part, bool):
        return 0
    if isinstance(part, list):
        part = np.asarray(part)
    dtype = getattr(part, "dtype", None)
    return part.ndim if dtype is not None and dtype.kind == "b" else 1


def _moved(x: Array, source: tuple[int, ...], destination: tuple[int, ...]) -> Array:
    return x if source == destination else moveaxis(x, source, destination)


def _gather(x: Array, given: tuple[Any, ...]) -> Array:
    if len(given) == 1 and x.ndim and isinstance(given[0], Array) and given[0].dtype.kind in "iu":  # the common case
        return apply("Gather", x, cast(given[0], np.dtype(np.int64)), axis=0)
    how = _Indices(x, given)
    shown = x if how.whole else get(x, how.basic)
    if len(how.indices) == 1:
        return apply("Gather", shown, how.indices[0], axis=how.axes[0])
    places = how.places()
    width = places.ndim - 1
    result = apply("GatherND", how.to_front(shown), places)
    return _moved(result, tuple(range(width)), tuple(range(how.at, how.at + width)))


def _scatter(x: Array, given: tuple[Any, ...], value: Any) -> None:
    number = isinstance(value, (*SCALARS, np.generic)) or (isinstance(value, Array | np.ndarray) and value.size == 1)
    if number and _where_true(x, given, value):
        return
    how = _Indices(x, given)
    target = x if how.whole else view(x, how.basic)
    front, places = how.to_front(target), how.places()
    width, count = places.ndim - 1, len(how.axes)
    other_sizes = front.shape[count:]
    shape = (*other_sizes[: how.at], *places.shape[:-1], *other_sizes[how.at :])
    news = numbers_for(x, value)
    if news.ndim > len(shape) and set(news.shape[: news.ndim - len(shape)]) == {1}:
        news = reshape(news, news.shape[news.ndim - len(shape) :])
    news = _moved(broadcast_to(news, shape), tuple(range(how.at, how.at + width)), tuple(range(width)))
    result = apply("ScatterND", front, places, news)
    assign(target, _moved(result, tuple(range(count)), how.axes))


def _where_true(x: Array, given: tuple[Any, ...], value: Any) -> bool:
    """Write one number where a mask is true, beside basic indices alone; whether that was it. No size depends on the
    elements of the mask then."""
    parts = _filled(x, given)
    several = [i for i, p in enumerate(parts) if _is_array(p)]
    if len(several) != 1 or _axes_of(parts[several[0]]) == 0:
        return False
    mask = as_array(parts[several[0]], x._place)
    axis = sum(_axes_of(p) for p in parts[: several[0]] if p is not Ellipsis)
    if mask.dtype.kind != "b" or mask.shape != x.shape[axis : axis + mask.ndim]:
        return False
    behind = parts[several[0] + 1 :]
    parts[several[0] : several[0] + 1] = [slice(None)] * mask.ndim
    target = view(x, _basic(x, tuple(parts)))
    after = sum(p is None or isinstance(p, slice) for p in behind)
    beside = reshape(mask, (*mask.shape, *(1,) * after)) if after else mask
    one = numbers_for(x, value)
    assign(target, where(beside, reshape(one, ()) if one.ndim else one, target))
    return True
