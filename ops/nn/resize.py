"""Resize: each axis is resampled on its own, by one small matrix of weights or one list of nearest places.

https://onnx.ai/onnx/operators/onnx__Resize.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..core.rules import axes_of, ints, narrow, unknown, widen
from ..dataclasses import dataclass
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op, signature
from ..types import Array, Dim, DType, Tensor, f32

Vector = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Axis:
    """Resampling of one axis: sizes before and after, the factor (`scale` as requested, which need not be their ratio),
    and the part of the input that tf_crop_and_resize uses, as fractions."""

    axis: int
    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def resized(
    dims: Sequence[int],
    axes: Sequence[int] | None,
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    roi: Sequence[float] | None,
    policy: str,
    mode: str,
) -> list[Axis]:
    """The axes to resample; ShapeError where the lists do not fit."""
    at = tuple(range(len(dims))) if axes is None else axes_of(axes, len(dims))
    given: Sequence[Any] = sizes if scales is None and sizes is not None else scales or ()
    if (scales is None) == (sizes is None):
        raise ShapeError("Resize takes either scales or sizes", hint="give one of them")
    if len(given) != len(at):
        raise ShapeError(f"{'sizes' if scales is None else 'scales'} {list(given)} do not fit {len(at)} axes")
    parts = [(0.0, 1.0)] * len(at)
    if mode == "tf_crop_and_resize" and roi is not None:
        if len(roi) != 2 * len(at):
            raise ShapeError(f"roi has {len(roi)} entries for {len(at)} axes, which take {2 * len(at)}")
        parts = list(zip(roi[: len(at)], roi[len(at) :], strict=True))
    result = []
    ratio = None
    empty = [] if sizes is None else [a for n, a in zip(sizes, at, strict=True) if dims[a] == 0 and n != 0]
    if empty:
        raise ShapeError(f"axis {empty[0]} has no elements to make others of", hint="an empty image stays empty")
    if scales is None and policy != "stretch":
        if policy not in ("not_larger", "not_smaller"):
            raise ShapeError(f"keep_aspect_ratio_policy {policy!r} is none of stretch, not_larger, not_smaller")
        choose = min if policy == "not_larger" else max
        ratio = choose((n / dims[a] for n, a in zip(given, at, strict=True) if dims[a] != 0), default=1.0)
    for value, a, (start, end) in zip(given, at, parts, strict=True):
        if scales is not None:
            exact = float(value).is_integer() and end - start == 1 and dims[a] * int(value) < 1 << 24
            factor = np.float32(value)
            out = dims[a] * int(value) if exact else math.floor(factor * np.float32(dims[a]) * np.float32(end - start))
            scale = float(value)
        else:
            out = int(value) if ratio is None else math.floor(ratio * dims[a] + 0.5)
            scale = ratio if ratio is not None else out / dims[a] if out else 1.0
        result.append(Axis(a, dims[a], out, scale, start, end))
    return result


def coordinates(x: Axis, mode: str) -> Vector:
    """Return the coordinate in the input of each place of the output, in float32 as other runtimes compute it."""
    i = np.arange(x.out, dtype=np.float32)
    one, half, scale = np.float32(1), np.float32(0.5), np.float32(x.scale)
    last = np.float32(x.size - 1)
    if mode == "pytorch_half_pixel" and x.out <= 1:
        return i * 0
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (i + half) / scale - half
    if mode == "half_pixel_symmetric":
        shift = np.float32(x.size / 2) * (one - np.float32(x.out) / (scale * np.float32(x.size)))
        return shift + (i + half) / scale - half
    if mode == "align_corners":
        # the length before it is rounded down, as the official vectors have it (docs/standard.md)
        length = x.scale * x.size
        length = x.out if abs(length - x.out) < 1e-5 * x.out else length
        return i * 0 if x.out == 1 else i * last / np.float32(length - 1)
    if mode == "asymmetric":
        return i / scale
    if mode == "tf_crop_and_resize":
        start, end = np.float32(x.start), np.float32(x.end)
        if x.out <= 1:
            return i * 0 + half * (start + end) * last
        return start * last + i * (end - start) * last / np.float32(x.out - 1)
    raise ShapeError(f"coordinate_transformation_mode {mode!r} is unknown")


ROUNDINGS: dict[str, Callable[[Vector], Vector]] = {
    "round_prefer_floor": lambda c: np.ceil(c - np.float32(0.5)),
    "round_prefer_ceil": lambda c: np.floor(c + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(t: Vector) -> Vector:
    near: Vector = np.maximum(1 - t, 0)
    return near


def _cubic(a: float) -> Callable[[Vector], Vector]:
    """Keys' cubic filter of a distance (https://ieeexplore.ieee.org/document/1163711, equation 4)."""

    def weight(t: Vector) -> Vector:
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = (((t - 5) * t + 8) * t - 4) * a
        return np.where(t <= 1, near, np.where(t < 2, far, 0))

    return weight


def filters(x: Axis, at: Vector, mode: str, cubic_coeff_a: float, exclude_outside: int, antialias: int) -> Vector:
    """The matrix [out, size] of what each input element gives to each output element."""
    radius, weight = (1, _linear) if mode == "linear" else (2, _cubic(cubic_coeff_a))
    shrink = min(x.scale, 1.0) if antialias else 1.0  # the filter is stretched, to see every element it passes over
    reach = math.ceil(radius / shrink)
    places = np.floor(at)[:, None].astype(np.int64) + np.arange(1 - reach, reach + 1)
    w = weight(np.abs((places - at[:, None]) * shrink))
    if exclude_outside or antialias:
        w = np.where((places < 0) | (places >= x.size), 0, w) if exclude_outside else w
        w = w / w.sum(1, keepdims=True)
    matrix = np.zeros((x.out, x.size), np.float32)
    np.add.at(matrix, (np.arange(x.out)[:, None], places.clip(0, x.size - 1)), w)
    return matrix


def resamplings(
    dims: Sequence[int],
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Iterator[tuple[Axis, Vector | None, Vector | None]]:
    """Yield the resampling of each axis: the index in the input of each element, or the matrix of weights [out, size],
    or None if the axis stays; and, if only a part is used, a mask of the places outside of the input."""
    if mode not in ("nearest", "linear", "cubic") or nearest_mode not in ROUNDINGS:
        raise ShapeError(f"mode {mode!r} with nearest_mode {nearest_mode!r} is unknown")
    transform = coordinate_transformation_mode
    whole = resized(dims, axes, _floats(scales), None if not _given(sizes) else ints(sizes), _floats(roi),
                    keep_aspect_ratio_policy, transform)  # fmt: skip
    for x in whole:
        at = coordinates(x, transform)
        outside = (at < 0) | (at > x.size - 1) if transform == "tf_crop_and_resize" else None
        if x.size == x.out and np.array_equal(at, np.arange(x.size)):
            yield x, None, outside
        elif mode == "nearest":
            yield x, ROUNDINGS[nearest_mode](at).clip(0, x.size - 1).astype(np.int64), outside
        else:
            yield x, filters(x, at, mode, cubic_coeff_a, exclude_outside, antialias), outside


# The attributes of Resize that its gradient has too: what `resamplings` takes.
RESIZE = signature(resamplings)[1]


def along(xp: Any, y: Array, matrix: Vector, axis: int) -> Array:
    """The product of one axis with a matrix [size, new size]."""
    return xp.moveaxis(xp.matmul(xp.moveaxis(y, axis, -1), xp.asarray(matrix)), -1, axis)


_UP = np.array([1, 1, 2, 2], np.float32)
_DOWN = np.array([1, 1, 0.6, 0.7], np.float32)
_HW = np.array([0, 0, 0.25, 0.3, 1, 1, 0.8, 1.2], np.float32)
_X = f32(1, 2, 5, 6)
MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")


@op(
    "Resize", complex_numbers="first", mixed="wide", planned_from=0,
    attributes=RESIZE,
    since=19,
    samples=[
        Sample([_X, None, _UP]),
        *(Sample([_X, None, _UP], {"mode": m, "coordinate_transformation_mode": c})
          for m in ("nearest", "linear", "cubic") for c in MODES),
        *(Sample([_X, None, _DOWN], {"mode": m, "coordinate_transformation_mode": c})
          for m in ("nearest", "linear", "cubic") for c in MODES),
        *(Sample([_X, None, _DOWN], {"nearest_mode": r}) for r in ROUNDINGS),
        *(Sample([_X, None, None, np.array([1, 2, 3, 4])], {"mode": m, "antialias": 1}) for m in ("linear", "cubic")),
        Sample([_X, None, _DOWN], {"mode": "cubic", "antialias": 1, "exclude_outside": 1}),
        Sample([_X, None, _UP], {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}),
        Sample([_X, None, None, np.array([7, 9])], {"axes": [-2, 3], "mode": "linear"}),
        Sample([_X, None, None, np.array([7, 7])], {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
        Sample([_X, None, None, np.array([7, 7])], {"axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"}),
        Sample([_X, _HW, None, np.array([1, 2, 4, 3])],
               {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}),
        Sample([f32(2, 6), None, np.array([1, 1.5], np.float32)], {"mode": "linear"}),
        Sample([Tensor(DType.UINT8, (1, 1, 4, 4)), None, _UP]),
    ],
)  # fmt: skip
def resize(
    k: Context,
    X: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "nearest",
    **attrs: Any,
) -> Array:
    xp, y = k.xp, X if mode == "nearest" else widen(X)
    outside = []
    for x, how, beyond in resamplings(X.shape, roi, scales, sizes, mode=mode, **attrs):
        outside += [(x.axis, beyond)] if beyond is not None else []
        if how is not None:
            y = y.take(xp.asarray(how), x.axis) if how.ndim == 1 else along(xp, y, how.T, x.axis)
    y = xp.array(_rounded(xp, y, X.dtype), order="C")
    for axis, mask in outside:
        y[(slice(None),) * axis + (xp.asarray(mask),)] = extrapolation_value
    return y


def _rounded(xp: Any, y: Array, dtype: Any) -> Array:
    """Interpolated numbers in the input's element type: integers are rounded and kept in range."""
    if dtype.kind in "iu" and y.dtype != dtype:
        return xp.clip(xp.rint(y), np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
    return narrow(y, dtype)


def _given(x: Any) -> bool:
    """True if an optional list is given; old models pass an empty one for an absent list."""
    return x is not None and x.size > 0


def _floats(x: Array | None) -> list[float] | None:
    return [float(v) for v in x.ravel().tolist()] if x is not None and x.size else None


@resize.infer
def _(
    X: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    axes: Sequence[int] | None = None,
    **attrs: Any,
) -> Tensor:
    transform = attrs.get("coordinate_transformation_mode", "half_pixel")
    policy = attrs.get("keep_aspect_ratio_policy", "stretch")
    by_scale = scales is not None and scales.elements != 0
    by_size = sizes is not None and sizes.elements != 0
    asked = scales if by_scale else sizes if by_size else None
    if asked is None or asked.value is None or X.dims is None:
        return X.of(unknown(X.rank))
    factors = _floats(np.asarray(asked.value)) if by_scale else None
    wanted = None if by_scale else asked.ints()
    cropped = transform == "tf_crop_and_resize" and roi is not None and by_scale
    at = axes_of(range(X.rank) if axes is None else axes, X.rank)
    if not by_scale and policy == "stretch" and wanted is not None:
        sure = dict(zip(at, wanted, strict=True))
        return X.of(sure.get(i, d) for i, d in enumerate(X.dims))
    if (cropped and roi is not None and roi.value is None) or (
        policy != "stretch" and not by_scale and not _sized(X, at)
    ):
        return X.of(None if i in at else d for i, d in enumerate(X.dims))
    part = None if roi is None or roi.value is None else _floats(np.asarray(roi.value))
    dims = [d if isinstance(d, int) else 1 for d in X.dims]
    by_axis = {x.axis: x for x in resized(dims, at, factors, wanted, part, policy, transform)}

    def one(i: int, d: Dim) -> Dim:
        if i not in by_axis or (not isinstance(d, int) and by_axis[i].scale == 1 and not cropped):
            return d
        return by_axis[i].out if isinstance(d, int) else None

    return X.of(one(i, d) for i, d in enumerate(X.dims))


def _sized(X: Tensor, axes: Sequence[int]) -> bool:
    return all(isinstance(X.shape[a], int) for a in axes)


@resize.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, extrapolation_value: float = 0.0, **attrs: Any
) -> tuple[Value | None, ...]:
    X, *how = xs
    return g.ResizeGrad(dys[0], g.shape_of(X), *how, domain="mezzo", **attrs), None, None, None
