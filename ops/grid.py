"""Grids of points over an image: made from an affine map, and read through.

https://onnx.ai/onnx/operators/onnx__AffineGrid.html, https://onnx.ai/onnx/operators/onnx__GridSample.html
"""

from __future__ import annotations

import math

import numpy as np

from .errors import ShapeError
from .op import Context, Sample, op
from .points import Outside, read_at, reflect, stay, to_border
from .rules import has_rank, ints, length, narrow, same, unknown, widen
from .strings import text
from .types import Array, Dim, DType, Tensor, f32


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

    def line(n: int) -> Array:
        at = k.xp.arange(n, dtype=matrix.dtype)
        return at * 2 / max(n - 1, 1) - 1 if align_corners else (2 * at + 1) / n - 1

    lines = k.xp.meshgrid(*map(line, sizes), indexing="ij")
    points = k.xp.stack([*lines[::-1], k.xp.ones(sizes, matrix.dtype)], -1)  # the innermost axis comes first
    grid = k.xp.matmul(points.reshape(1, -1, len(sizes) + 1), matrix.swapaxes(1, 2))
    return narrow(grid.reshape(len(theta), *sizes, len(sizes)), theta.dtype)


@affine_grid.infer
def _(theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    has_rank(theta, 3)
    batch: Dim = None if theta.dims is None else theta.dims[0]
    sizes = size.ints()
    if sizes is not None:
        return theta.of((same(batch, sizes[0], f"{theta} for a size of {sizes}"), *sizes[2:], len(sizes) - 2))
    count = length(size)
    return theta.of(None if count is None else (batch, *[None] * (count - 2), count - 2))


PADDINGS: dict[str, Outside] = {"zeros": stay, "border": to_border, "reflection": reflect}
_GRID = np.linspace(-1.43, 1.29, 2 * 3 * 2 * 2, dtype=np.float32).reshape(2, 3, 2, 2)[::-1]
_MODES = ("linear", "nearest", "cubic")


@op(
    "GridSample",
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
    sizes, points = X.shape[2:], widen(grid)
    points = points.reshape(len(grid), math.prod(grid.shape[1:-1]), grid.shape[-1])
    if 0 in sizes and padding_mode != "zeros":
        raise ShapeError(f"an image of {list(sizes)} has no edge to go to", hint="padding_mode='zeros' takes it")
    edges = [(0.0, n - 1.0) if align_corners else (-0.5, n - 0.5) for n in sizes]
    move = PADDINGS[padding_mode]
    places = []
    for i, (n, (low, high)) in enumerate(zip(sizes, edges, strict=True)):
        at = points[..., len(sizes) - 1 - i]  # a point lists its coordinates from the innermost axis
        at = (at + 1) / 2 * (n - 1) if align_corners else ((at + 1) * n - 1) / 2
        places.append(move(k.xp, at, n, low, high) if mode == "linear" else at)  # others move each neighbour alone
    x = X if mode == "nearest" or dtype.numpy.kind == "c" else widen(X) if dtype.floating else X.astype(np.float64)
    y = read_at(k.xp, x, places, mode, move, edges).reshape(*X.shape[:2], *grid.shape[1:-1])
    if dtype.integer and mode != "nearest":
        y = y.astype(np.int64)  # cut to a whole number; what is left and right of the type's range goes round
    return k.xp.array(narrow(y, X.dtype), order="C")


@grid_sample.infer
def _(X: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros") -> Tensor:
    ranks = [len(t.dims) for t in (X, grid) if t.dims is not None]
    if not ranks:
        return X.of(None)
    if len(set(ranks)) > 1 or ranks[0] < 3:
        raise ShapeError(f"the grid {grid} does not fit {X}")
    x, points = X.dims or unknown(ranks[0]) or (), grid.dims or unknown(ranks[0]) or ()
    same(points[-1], ranks[0] - 2, f"the points of {grid} do not fit {X}")
    return X.of((same(x[0], points[0], f"the batch of {grid} and {X}"), x[1], *points[1:-1]))
