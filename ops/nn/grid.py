"""Sampling grids over an image: built from an affine map, and sampled.

https://onnx.ai/onnx/operators/onnx__AffineGrid.html, https://onnx.ai/onnx/operators/onnx__GridSample.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.rules import has_rank, ints, length, narrow, same, unknown, widen
from ..core.shapes import cast_like, count, joined, reshaped, size, sizes, wide
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..tensor.strings import text
from ..types import Array, Dim, DType, Tensor, f32
from .points import Outside, free, held, read_at, read_grads, reflect, stay, to_border, turned
from .reading import Reader, neighbours


def _list(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(values, np.int64)


@op(
    "AffineGrid",
    since=20,
    outputs=("grid",),
    samples=[
        Sample([f32(2, 2, 3), _list(2, 1, 3, 4)]),
        Sample([f32(2, 2, 3), _list(2, 1, 3, 4)], {"align_corners": 1}),
        Sample([f32(1, 3, 4), _list(1, 1, 2, 3, 4)]),
        Sample([f32(1, 3, 4), _list(1, 1, 2, 3, 4)], {"align_corners": 1}),
    ],
)
def affine_grid(k: Context, theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    sizes = ints(size)[2:]
    matrix = widen(theta)
    if not len(theta):  # no points are made for nobody
        return k.xp.zeros((0, *sizes, len(sizes)), theta.dtype)

    def line(n: int) -> Array:
        at = k.xp.arange(n, dtype=matrix.dtype)
        return at * 2 / max(n - 1, 1) - 1 if align_corners else (2 * at + 1) / n - 1

    lines = k.xp.meshgrid(*map(line, sizes), indexing="ij")
    points = k.xp.stack([*lines[::-1], k.xp.ones(sizes, matrix.dtype)], -1)  # the innermost axis comes first
    grid = k.xp.matmul(points.reshape(1, -1, len(sizes) + 1), matrix.swapaxes(1, 2))
    return narrow(grid.reshape(len(theta), *sizes, len(sizes)), theta.dtype)


@affine_grid.infer
def _(theta: Tensor, size: Tensor) -> Tensor:
    has_rank(theta, 3)
    batch: Dim = None if theta.dims is None else theta.dims[0]
    sizes = size.ints()
    if sizes is not None:
        return theta.of((same(batch, sizes[0], f"{theta} for a size of {sizes}"), *sizes[2:], len(sizes) - 2))
    count = length(size)
    if count is not None and count not in (4, 5):
        raise ShapeError(f"{count} sizes are not those of an image", hint="give (N, C, H, W) or (N, C, D, H, W)")
    return theta.of(None if count is None else (batch, *[None] * (count - 2), count - 2))


@affine_grid.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, align_corners: int = 0) -> tuple[Value | None, ...]:
    """Every point is the map of its own coordinates, and of 1; the unit map tells these."""
    dy, (theta, shape) = wide(g, dys[0]), xs
    n, known = g.rank_of(dy) - 2, g.type_of(dy)
    assert isinstance(known, Tensor)
    unit = g.const(np.eye(n, n + 1)[None], known.dtype)
    points = g.AffineGrid(unit, joined(g, [1], sizes(g, shape, 1)), align_corners=align_corners)
    many = count(g, sizes(g, shape, 2))
    moved = g.Transpose(reshaped(g, dy, joined(g, sizes(g, shape, 0, 1), many, [n])), perm=[0, 2, 1])
    linear = g.MatMul(moved, reshaped(g, points, joined(g, many, [n])))
    return cast_like(g, g.Concat(linear, g.ReduceSum(moved, g.const([2])), axis=2), theta), None


PADDINGS: dict[str, Outside] = {"zeros": stay, "border": to_border, "reflection": reflect}
SLOPES: dict[str, Outside] = {"zeros": free, "border": held, "reflection": turned}  # the derivatives of these
_GRID = np.linspace(-1.43, 1.29, 2 * 3 * 2 * 2, dtype=np.float32).reshape(2, 3, 2, 2)[::-1]
_MODES = ("linear", "nearest", "cubic")


def _edges(sizes: Sequence[int], align_corners: int) -> list[tuple[float, float]]:
    """The ends of each axis, at which places outside are mirrored."""
    return [(0.0, n - 1.0) if align_corners else (-0.5, n - 0.5) for n in sizes]


def _places(grid: Array, sizes: Sequence[int], align_corners: int) -> list[Array]:
    """The points of a grid as places along each axis, [batch, points]."""
    points = widen(grid).reshape(len(grid), math.prod(grid.shape[1:-1]), grid.shape[-1])
    places = []
    for i, n in enumerate(sizes):
        at = points[..., len(sizes) - 1 - i]  # a point lists its coordinates from the innermost axis
        places.append((at + 1) / 2 * (n - 1) if align_corners else ((at + 1) * n - 1) / 2)
    return places


@op(
    "GridSample", complex_numbers="first", mixed="wide",
    since=22,
    samples=[
        *(Sample([f32(2, 2, 4, 5), _GRID], {"mode": m, "padding_mode": p, "align_corners": a})
          for m in _MODES for p in PADDINGS for a in (0, 1)),
        Sample([f32(1, 2, 3, 4, 2), f32(1, 2, 2, 3, 3)]),
        Sample([f32(1, 2, 3, 4, 2), f32(1, 2, 2, 3, 3)], {"mode": "nearest", "padding_mode": "reflection"}),
        Sample([f32(2, 1, 5), f32(2, 4, 1)]),
        Sample([Tensor(DType.INT32, (2, 1, 4, 5)), _GRID], {"mode": "nearest"}),
        Sample([f32(1, 1, 1, 1), f32(1, 2, 2, 2)], {"padding_mode": "reflection", "align_corners": 1}),
        Sample([f32(1, 2, 0, 3), f32(1, 2, 2, 2)]),
        Sample([text(["a", "b"], ["c", "d"])[None, None], _GRID[:1]], {"mode": "nearest"}),
    ],
)  # fmt: skip
def grid_sample(
    k: Context, X: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    if mode not in _MODES or padding_mode not in PADDINGS:
        raise ShapeError(f"mode {mode!r} with padding_mode {padding_mode!r} is unknown")
    dtype = DType.of(X.dtype)
    if mode != "nearest" and dtype is DType.STRING:
        raise ShapeError(f"there is no {mode} mean of texts", hint="mode='nearest' takes them")
    sizes = X.shape[2:]
    if 0 in sizes and padding_mode != "zeros":
        raise ShapeError(f"an image of {list(sizes)} has no edge to go to", hint="padding_mode='zeros' takes it")
    edges, move = _edges(sizes, align_corners), PADDINGS[padding_mode]
    places = _places(grid, sizes, align_corners)
    if mode == "linear":  # others move each neighbour alone
        places = [move(k.xp, at, n, *ends) for at, n, ends in zip(places, sizes, edges, strict=True)]
    x = X if mode == "nearest" or dtype.numpy.kind == "c" else widen(X) if dtype.floating else X.astype(np.float64)
    y = read_at(k.xp, x, places, mode, move, edges).reshape(*X.shape[:2], *grid.shape[1:-1])
    if dtype.integer and mode != "nearest":
        y = y.astype(np.int64)  # cut to a whole number; what is left and right of the type's range goes round
    return k.xp.array(narrow(y, X.dtype), order="C")


@grid_sample.infer
def _(X: Tensor, grid: Tensor) -> Tensor:
    ranks = [len(t.dims) for t in (X, grid) if t.dims is not None]
    if not ranks:
        return X.of(None)
    if len(set(ranks)) > 1 or ranks[0] < 3:
        raise ShapeError(f"the grid {grid} does not fit {X}")
    x, points = X.dims or unknown(ranks[0]) or (), grid.dims or unknown(ranks[0]) or ()
    same(points[-1], ranks[0] - 2, f"the points of {grid} do not fit {X}")
    return X.of((same(x[0], points[0], f"the batch of {grid} and {X}"), x[1], *points[1:-1]))


@grid_sample.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    dx, dgrid = g.GridSampleGrad(dys[0], *xs, domain="mezzo", outputs=2, **attrs)
    return dx, dgrid


@op(
    "GridSampleGrad",
    domain="mezzo",
    outputs=("dX", "dgrid"),
    samples=[
        *(Sample([f32(2, 2, 3, 2), f32(2, 2, 4, 5), _GRID], {"mode": m, "padding_mode": p, "align_corners": a}, 2)
          for m in _MODES for p in PADDINGS for a in (0, 1)),
        Sample([f32(1, 2, 2, 2, 3), f32(1, 2, 3, 4, 2), f32(1, 2, 2, 3, 3)], {}, 2),
        Sample([f32(2, 1, 4), f32(2, 1, 5), f32(2, 4, 1)], {}, 2),
        Sample([f32(1, 1, 2, 2), f32(1, 1, 1, 1), f32(1, 2, 2, 2)],
               {"padding_mode": "reflection", "align_corners": 1}, 2),
        Sample([f32(1, 2, 2, 2), f32(1, 2, 0, 3), f32(1, 2, 2, 2)], {}, 2),
    ],
)  # fmt: skip
def grid_sample_grad(
    k: Context,
    dY: Array,
    X: Array,
    grid: Array,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> tuple[Array, Array]:
    """The gradients of GridSample to X and to the grid."""
    sizes = X.shape[2:]
    edges, move, slope = _edges(sizes, align_corners), PADDINGS[padding_mode], SLOPES[padding_mode]
    places = _places(grid, sizes, align_corners)
    factors = [((n - 1) if align_corners else n) / 2 for n in sizes]
    if mode == "linear":
        ends = list(zip(places, sizes, edges, strict=True))
        factors = [f * slope(k.xp, at, n, *e) for f, (at, n, e) in zip(factors, ends, strict=True)]
        places = [move(k.xp, at, n, *e) for at, n, e in ends]
    dy = widen(dY).reshape(*X.shape[:2], math.prod(grid.shape[1:-1]))
    dx, dplaces = read_grads(k.xp, dy, widen(X), places, mode, move, edges)
    dgrid = k.xp.stack([d * f for d, f in zip(dplaces, factors, strict=True)][::-1], -1)
    return narrow(dx, X.dtype), narrow(dgrid.reshape(grid.shape), grid.dtype)


@grid_sample_grad.infer
def _(dY: Tensor, X: Tensor, grid: Tensor, **attrs: Any) -> tuple[Tensor, Tensor]:
    return X.forget(), grid.forget()


@grid_sample_grad.body
def _(
    g: Builder, xs: Any, types: Any, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> tuple[Value, Value]:
    dY, X, grid = xs
    dy, x, points = wide(g, dY), wide(g, X), wide(g, grid)
    n, shape, places, factors = g.rank_of(X) - 2, g.shape_of(grid), [], []
    image = sizes(g, g.shape_of(X), 2)
    many = count(g, sizes(g, shape, 1, -1))
    points = reshaped(g, points, joined(g, sizes(g, shape, 0, 1), many, [n]))
    one, half = g.scalar(1, points), g.scalar(0.5, points)

    def outside(at: Value, many: Value) -> Value:
        return _moved(g, at, many, padding_mode, align_corners)[0]

    for i in range(n):
        length = cast_like(g, size(g, image, i), points)
        from_start = g.Add(g.Gather(points, g.const(n - 1 - i), axis=2), one)
        if align_corners:
            factor = g.Mul(g.Sub(length, one), half)
            at = g.Mul(from_start, factor)
        else:
            factor = g.Mul(length, half)
            at = g.Sub(g.Mul(from_start, factor), half)
        if mode == "linear":
            at, slope = _moved(g, at, size(g, image, i), padding_mode, align_corners)
            factor = factor if slope is None else g.Mul(slope, factor)
        places.append(at)
        factors.append(factor)
    around = neighbours(g, places, image, mode, None if padding_mode == "zeros" else outside)
    lead = sizes(g, g.shape_of(X), 0, 2)
    dx, dplaces = Reader(g, x, around).grads(reshaped(g, dy, joined(g, lead, many)))
    parts = [g.Unsqueeze(g.Mul(d, f), g.const([2])) for d, f in zip(dplaces, factors, strict=True)]
    return cast_like(g, dx, X), cast_like(g, reshaped(g, g.Concat(*parts[::-1], axis=2), shape), grid)


def _moved(g: Builder, at: Value, many: Value, padding_mode: str, align_corners: int) -> tuple[Value, Value | None]:
    """Return the places inside an axis for places outside of it, and the derivative of that (None: 1); see
    points.py."""
    one, zero = g.scalar(1, at), g.scalar(0, at)
    size_ = cast_like(g, many, at)
    last = g.Sub(size_, one)
    if padding_mode == "zeros":
        return at, None
    if padding_mode == "border":
        return g.Clip(at, zero, last), cast_like(g, g.And(g.Greater(at, zero), g.Less(at, last)), at)
    low, span = (zero, last) if align_corners else (g.scalar(-0.5, at), size_)
    flat = g.LessOrEqual(span, zero)
    twice = g.Mul(g.Where(flat, one, span), g.scalar(2, at))
    way = g.Mod(g.Abs(g.Sub(at, low)), twice, fmod=1)
    place = g.Where(flat, zero, g.Add(g.Min(way, g.Sub(twice, way)), low))
    minus = g.scalar(-1, at)
    sign = g.Mul(g.Where(g.LessOrEqual(way, span), one, minus), g.Where(g.Less(at, low), minus, one))
    return place, g.Where(flat, zero, sign)
