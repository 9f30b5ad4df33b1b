"""Sliding windows over the spatial axes, which convolutions and pools share: padding, output sizes, patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final

from ..dataclasses import dataclass
from ..errors import ShapeError
from ..types import Array, Dim

Ints = Sequence[int] | None
# Attributes that the operators with such windows share, with their defaults; a reference takes them by `**`.
WINDOW: Final[Mapping[str, Any]] = {"auto_pad": "NOTSET", "dilations": None, "pads": None, "strides": None}
CONV: Final[Mapping[str, Any]] = {**WINDOW, "group": 1, "kernel_shape": None}
POOL: Final[Mapping[str, Any]] = {**WINDOW, "ceil_mode": 0}


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial axis of a sliding window, all sizes known. `extra` is the padding at the end that only `ceil_mode`
    asks for: windows reach into it, averages never count it."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int
    extra: int = 0

    @property
    def span(self) -> int:
        """Number of places that the dilated kernel covers."""
        return (self.kernel - 1) * self.dilation + 1


def per_axis(values: Ints, count: int, default: int, what: str) -> tuple[int, ...]:
    """An attribute with one entry per spatial axis; ShapeError where the number of entries is another."""
    if not values:
        return (default,) * count
    if len(values) != count:
        raise ShapeError(f"{what} {list(values)} has {len(values)} entries for {count} spatial axes")
    return tuple(int(v) for v in values)


def window(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], auto_pad: str, ceil_mode: int = 0
) -> Window:
    """Return the windows of one axis of `size`. Raises ShapeError if none fits."""
    span = (kernel - 1) * dilation + 1
    before, after = pads if auto_pad == "NOTSET" else (0, 0)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        out = -(-size // stride)
        missing = max((out - 1) * stride + span - size, 0)
        small, large = missing // 2, missing - missing // 2
        before, after = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    elif auto_pad in ("NOTSET", "VALID", ""):
        room = size + before + after - span
        out = (-(-room // stride) if ceil_mode else room // stride) + 1
        if out < 0:  # exactly one step short there is no window and no fault: the result is empty
            raise ShapeError(f"a window of {span} does not fit into {size} padded by {before} and {after}")
        if ceil_mode and (out - 1) * stride >= size + before:  # a window that starts in the padding is left out
            out -= 1
    else:
        raise ShapeError(f"auto_pad {auto_pad!r} is none of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    room = size + before + after
    # a comparison of symbolic sizes: without need, it would let odd and even ones have templates of their own
    extra = max((out - 1) * stride + span - room, 0) if ceil_mode else 0
    if extra and out == 1 and room > 0:  # the only window may be far larger than the image: what it sees is enough
        return Window(-(-room // dilation), stride, dilation, before, after, out)
    return Window(kernel, stride, dilation, before, after, out, extra)


def windows(
    sizes: Sequence[Dim],
    kernel: Sequence[Dim],
    strides: Ints = None,
    dilations: Ints = None,
    pads: Ints = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    **_: Any,
) -> tuple[Window | None, ...]:
    """One window per spatial axis; None where the size of the axis or of the kernel is unknown. Other attributes of an
    operator change nothing."""
    n = len(sizes)
    if len(kernel) != n:
        raise ShapeError(f"a kernel of {len(kernel)} axes does not fit {n} spatial axes")
    step, spread = per_axis(strides, n, 1, "strides"), per_axis(dilations, n, 1, "dilations")
    if min((*step, *spread), default=1) < 1:
        raise ShapeError(f"strides {list(step)} and dilations {list(spread)} should be positive")
    edge = tuple(int(p) for p in pads) if pads else (0,) * (2 * n)
    if len(edge) != 2 * n:
        raise ShapeError(f"pads {list(edge)} has {len(edge)} entries for {n} spatial axes, which take {2 * n}")
    sliding: list[Window | None] = []
    for i, (d, k) in enumerate(zip(sizes, kernel, strict=True)):
        ends = edge[i], edge[n + i]
        if isinstance(d, int) and isinstance(k, int):
            sliding.append(window(d, k, step[i], spread[i], ends, auto_pad, ceil_mode))
        else:
            sliding.append(None)
    return tuple(sliding)


def known(sliding: Sequence[Window | None]) -> tuple[Window, ...]:
    """The windows of arrays, whose sizes are always known."""
    return tuple(w for w in sliding if w is not None)


def padded(xp: Any, x: Array, sliding: Sequence[Window], fill: Any = 0) -> Array:
    """The array with its spatial axes padded, so that every window lies inside; the array itself if none is needed.

    Negative padding crops.
    """
    edges = [(w.before, w.after + w.extra) for w in sliding]
    lead = x.ndim - len(sliding)
    if any(b < 0 or a < 0 for b, a in edges):
        crop = [slice(max(-b, 0), n - max(-a, 0)) for (b, a), n in zip(edges, x.shape[lead:], strict=True)]
        x = x[(slice(None),) * lead + tuple(crop)]
        edges = [(max(b, 0), max(a, 0)) for b, a in edges]
    if not any(b or a for b, a in edges):
        return x
    sizes = [n + b + a for n, (b, a) in zip(x.shape[lead:], edges, strict=True)]
    out = xp.full((*x.shape[:lead], *sizes), fill, x.dtype)
    inside = [slice(b, b + n) for (b, _), n in zip(edges, x.shape[lead:], strict=True)]
    out[(slice(None),) * lead + tuple(inside)] = x
    return out


def unpadded(xp: Any, x: Array, sliding: Sequence[Window], sizes: Sequence[int]) -> Array:
    """The derivative of `padded`: what lies where an array of these spatial sizes was put; 0 where it was cropped."""
    lead = (slice(None),) * (x.ndim - len(sliding))
    kept = [n + min(w.before, 0) + min(w.after + w.extra, 0) for w, n in zip(sliding, sizes, strict=True)]
    inside = tuple(slice(max(w.before, 0), max(w.before, 0) + n) for w, n in zip(sliding, kept, strict=True))
    if kept == list(sizes):
        return xp.ascontiguousarray(x[lead + inside])
    out = xp.zeros((*x.shape[: len(lead)], *sizes), x.dtype)
    to = tuple(slice(max(-w.before, 0), max(-w.before, 0) + n) for w, n in zip(sliding, kept, strict=True))
    out[lead + to] = x[lead + inside]
    return out


def taps(x: Array, sliding: Sequence[Window]) -> list[Array]:
    """Views of a padded array, one per place of the kernel in row-major order, each of the output's spatial shape."""
    lead = (slice(None),) * (x.ndim - len(sliding))
    return [
        x[lead + tuple(_tap(w, at) for w, at in zip(sliding, place, strict=True))]
        for place in product(*(range(w.kernel) for w in sliding))
    ]


def _tap(w: Window, at: int) -> slice:
    start = at * w.dilation
    return slice(start, start + (w.out - 1) * w.stride + 1 if w.out > 0 else start, w.stride)


def out_dims(
    sizes: Sequence[Dim],
    kernel: Sequence[Dim],
    strides: Ints = None,
    dilations: Ints = None,
    pads: Ints = None,
    **window: Any,
) -> tuple[Dim, ...]:
    """Spatial dims of the result; a name survives where the windows change no size."""
    sliding = windows(sizes, kernel, strides, dilations, pads, **window)
    if None not in sliding:
        return tuple(w.out for w in known(sliding))
    large = 1 << 30  # a window that moves by 1 changes every size by the same number
    trial = windows([large] * len(sizes), kernel, strides, dilations, pads, **window)

    def one(size: Dim, w: Window | None, like: Window | None) -> Dim:
        if w is not None:
            return w.out
        return size if like is not None and like.stride == 1 and like.out == large else None

    return tuple(one(s, w, t) for s, w, t in zip(sizes, sliding, trial, strict=True))
