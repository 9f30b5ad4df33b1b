"""Pooling: the maximum or the average of each window, or of everything.

https://onnx.ai/onnx/operators/onnx__MaxPool.html, https://onnx.ai/onnx/operators/onnx__AveragePool.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.rules import ints, mean_of, narrow, unknown, widen
from ..core.shapes import cast_like, count, joined, moved_into, reshaped, sizes, spread_over_windows, wide, zeros
from ..errors import ShapeError
from ..op import Builder, Context, Op, Sample, Twin, Value, op
from ..types import Array, Dim, DType, Tensor, f32
from .windows import POOL, Ints, Window, known, out_dims, padded, per_axis, taps, windows

if TYPE_CHECKING:
    from typing import Unpack

    from ..traits import Traits


def pooled_dims(X: Tensor, kernel_shape: Sequence[int], **window: Any) -> tuple[Dim, ...]:
    """Dims of the result of a pool."""
    dims = X.dims if X.dims is not None else unknown(len(kernel_shape) + 2) or ()
    if len(dims) != len(kernel_shape) + 2:
        raise ShapeError(f"kernel_shape {list(kernel_shape)} does not fit the spatial axes of {X}")
    return (*dims[:2], *out_dims(dims[2:], kernel_shape, **window))


POOL_SAMPLES = [
    Sample([f32(1, 2, 5, 6)], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    Sample([f32(1, 2, 6, 6)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Sample([f32(1, 1, 5, 5)], {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    Sample([f32(2, 2, 8)], {"kernel_shape": [3], "dilations": [2]}),
    Sample([f32(1, 2, 2, 5)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Sample([f32(1, 2, 7)], {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_UPPER"}),
    Sample([f32(1, 2, 8)], {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_LOWER"}),
    Sample([f32(1, 2, 8)], {"kernel_shape": [3], "auto_pad": "VALID"}),
    Sample([f32(1, 1, 4, 3, 5)], {"kernel_shape": [2, 2, 2], "pads": [0, 1, 0, 1, 0, 1]}),
    Sample([f32(0, 2, 4, 4)], {"kernel_shape": [2, 2]}),
    Sample([f32(1, 2, 2, 5)], {"kernel_shape": [3, 3]}),  # one row short of a window
    Sample([f32(1, 2, 1, 5)], {"kernel_shape": [3, 2], "strides": [2, 1]}),
]


def lowest(dtype: Any) -> Any:
    """Return the padding value for a search of the maximum."""
    return -math.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _places(xp: Any, sliding: Sequence[Window], sizes: Sequence[int], storage_order: int) -> list[tuple[Array, Array]]:
    """For each place of the kernel: the position in the unpadded channel that each window sees there, and whether
    it lies inside."""
    n = len(sizes)
    steps = [math.prod(sizes[:i]) if storage_order else math.prod(sizes[i + 1 :]) for i in range(n)]
    result = []
    for place in product(*(range(w.kernel) for w in sliding)):
        flat, inside = xp.zeros((1,) * n, np.int64), xp.ones((1,) * n, bool)
        for i, (w, at) in enumerate(zip(sliding, place, strict=True)):
            position = xp.arange(w.out) * w.stride + (at * w.dilation - w.before)
            position = position.reshape([-1 if i == j else 1 for j in range(n)])
            flat = flat + position * steps[i]
            inside = inside & (position >= 0) & (position < sizes[i])
        result.append((flat, inside))
    return result


@op(
    "MaxPool",
    attributes=POOL,
    kind="pooling",
    follows=True,
    planned_from=0,
    since=22,
    outputs=("Y", "Indices?"),
    samples=[
        *POOL_SAMPLES,
        Sample([f32(2, 2, 5, 4)], {"kernel_shape": [2, 3], "pads": [0, 1, 1, 1], "strides": [2, 1]}, 2),
        Sample([f32(2, 2, 5, 4)], {"kernel_shape": [2, 2], "storage_order": 1}, 2),
        Sample([Tensor(DType.INT8, (1, 1, 4, 4))], {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}),
    ],
)
def max_pool(
    k: Context, X: Array, *, kernel_shape: Sequence[int], storage_order: int = 0, **window: Any
) -> tuple[Array, ...]:
    sliding = known(windows(X.shape[2:], kernel_shape, **window))
    x = widen(X)
    first, *rest = taps(padded(k.xp, x, sliding, lowest(x.dtype)), sliding)
    y = k.xp.array(first, order="C")
    for view in k.each(rest, 1):
        k.xp.maximum(y, view, out=y)
    if len(k.wanted) < 2 or not k.wanted[1]:
        return (narrow(y, X.dtype),)
    where = k.xp.full(y.shape, -1, np.int64)
    places = _places(k.xp, sliding, X.shape[2:], storage_order)
    for view, (flat, inside) in zip(k.each([first, *rest], 1), places, strict=True):
        where = k.xp.where((where < 0) & inside & (view == y), flat, where)
    channel = k.xp.arange(X.shape[0] * X.shape[1]).reshape(*X.shape[:2], *(1,) * len(sliding))
    return narrow(y, X.dtype), where + channel * math.prod(X.shape[2:])


@max_pool.infer
def _(X: Tensor, **window: Any) -> tuple[Tensor, Tensor]:
    dims = pooled_dims(X, **window)
    return X.of(dims), Tensor(DType.INT64, dims)


@max_pool.twin
def _(types: Any, wanted: tuple[bool, ...], **attrs: Any) -> Twin | None:
    """Return the twin that also saves the positions; None for a node that returns Indices already."""
    return None if len(wanted) > 1 and wanted[1] else Twin("MaxPoolTrain", attrs, 2, "mezzo")


@max_pool.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, storage_order: int = 0, **attrs: Any) -> tuple[Value | None, ...]:
    """From the Indices, which count in the whole tensor; by columns where `storage_order` says so."""
    shape, n = g.shape_of(xs[0]), g.rank_of(xs[0])
    order = [0, 1, *(range(n - 1, 1, -1) if storage_order else range(2, n))]
    flat = g.const([-1])
    ground = zeros(g, count(g, shape), dys[0])
    dX = g.ScatterElements(ground, g.Reshape(ys[1], flat), g.Reshape(dys[0], flat), axis=0, reduction="add")
    dX = reshaped(g, dX, g.Gather(shape, g.const(order), axis=0))
    return (g.Transpose(dX, perm=order) if storage_order else dX,)


def counted(sliding: Sequence[Window], sizes: Sequence[int], count_include_pad: int) -> Array:
    """Return the number of elements that the average of each window is taken over."""
    count: Any = np.ones((), np.int64)
    for w, size in zip(sliding, sizes, strict=True):
        seen = np.arange(w.out)[:, None] * w.stride + np.arange(w.kernel) * w.dilation - w.before
        low, high = (-w.before, size + w.after) if count_include_pad else (0, size)
        count = count[..., None] * ((seen >= low) & (seen < high)).sum(1)
    return count


@op(
    "AveragePool",
    attributes=POOL,
    kind="pooling",
    follows=True,
    quantized="com.microsoft::QLinearAveragePool",
    planned_from=0,
    since=22,
    samples=[*POOL_SAMPLES, *(Sample(s.inputs, {**s.attrs, "count_include_pad": 1}) for s in POOL_SAMPLES)],
)
def average_pool(
    k: Context, X: Array, *, count_include_pad: int = 0, kernel_shape: Sequence[int], **window: Any
) -> Array:
    sliding = known(windows(X.shape[2:], kernel_shape, **window))
    first, *rest = taps(padded(k.xp, widen(X), sliding), sliding)
    y = k.xp.array(first, order="C")
    for view in k.each(rest, 1):
        y += view
    y /= k.xp.asarray(counted(sliding, X.shape[2:], count_include_pad).astype(y.dtype))
    return narrow(y, X.dtype)


@average_pool.infer
def _(X: Tensor, **window: Any) -> Tensor:
    return X.of(pooled_dims(X, **window))


@average_pool.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    return (g.AveragePoolGrad(dys[0], g.shape_of(xs[0]), domain="mezzo", **attrs),)


def _power(x: Array, p: int) -> Array:
    return abs(x) if p == 1 else x * x if p == 2 else abs(x) ** p


def _root(x: Array, p: int) -> Array:
    return x if p == 1 else x ** (1 / p)


@op(
    "LpPool",
    attributes=POOL,
    kind="pooling",
    since=22,
    samples=[
        *(s for s in POOL_SAMPLES if not s.attrs.get("ceil_mode")),
        Sample([f32(1, 2, 6, 6)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        *(Sample([f32(1, 2, 5, 5)], {"kernel_shape": [2, 3], "p": p, "pads": [1, 0, 0, 1]}) for p in (1, 3)),
    ],
)
def lp_pool(k: Context, X: Array, *, kernel_shape: Sequence[int], p: int = 2, **window: Any) -> Array:
    sliding = known(windows(X.shape[2:], kernel_shape, **window))
    y = sum(taps(padded(k.xp, _power(widen(X), p), sliding), sliding))
    return narrow(k.xp.array(_root(y, p), order="C"), X.dtype)


@lp_pool.infer
def _(X: Tensor, **window: Any) -> Tensor:
    return X.of(pooled_dims(X, **window))


def _lp_parts(g: Builder, dy: Value, y: Value, x: Value, p: int) -> tuple[Value, Value]:
    """The two factors of the gradient of (sum |x|^p)^(1/p): one for each sum, 0 where that is 0, and one for each x."""
    dy, y, x = wide(g, dy), wide(g, y), wide(g, x)
    if p == 1:
        return dy, g.Sign(x)
    nothing, zero = g.Equal(y, g.scalar(0, y)), g.scalar(0, y)
    root = g.Where(nothing, g.scalar(1, y), y)
    slope = g.Div(dy, root if p == 2 else g.Pow(root, g.scalar(p - 1, y)))
    return g.Where(nothing, zero, slope), x if p == 2 else g.Mul(x, g.Pow(g.Abs(x), g.scalar(p - 2, x)))


@lp_pool.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, kernel_shape: Sequence[int], p: int = 2, **attrs: Any
) -> tuple[Value | None, ...]:
    outer, inner = _lp_parts(g, dys[0], ys[0], xs[0], p)
    spread = spread_over_windows(g, outer, g.shape_of(xs[0]), kernel_shape, **attrs)
    return (cast_like(g, g.Mul(spread, inner), xs[0]),)


_PLACES = np.array([[[[5, 7], [13, 15]]]])


@op(
    "MaxUnpool",
    since=22,
    outputs=("output",),
    samples=[
        Sample([f32(1, 1, 2, 2), _PLACES], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Sample([f32(1, 1, 2, 2), _PLACES, np.array([1, 1, 5, 5])], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Sample([f32(1, 2, 3), np.array([[[0, 2, 4], [5, 7, 9]]])],
               {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ],
)  # fmt: skip
def max_unpool(
    k: Context,
    X: Array,
    I: Array,  # noqa: E741 (the schema calls it so)
    output_shape: Array | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Ints = None,
    strides: Ints = None,
) -> Array:
    usual = (*X.shape[:2], *(s or 0 for s in unpooled(X.shape[2:], kernel_shape, pads, strides)))
    x, flat = X.reshape(-1), I.reshape(-1)
    if output_shape is None:
        y = k.xp.zeros(usual, X.dtype)
        y.reshape(-1)[flat] = x
        return y
    # the official vectors count places in the size that the attributes give, whatever size is asked for
    whole = k.xp.zeros(ints(output_shape), X.dtype)
    places = k.xp.stack(k.xp.unravel_index(flat, usual))
    inside = (places < k.xp.asarray(whole.shape)[:, None]).all(0)
    whole[tuple(places[:, inside])] = x[inside]
    return whole


def unpooled(sizes: Sequence[Dim], kernel_shape: Sequence[int], pads: Ints, strides: Ints) -> tuple[int | None, ...]:
    """Spatial sizes of what was pooled, as far as they can be told."""
    n = len(kernel_shape)
    if len(sizes) != n:
        raise ShapeError(f"kernel_shape {list(kernel_shape)} does not fit {len(sizes)} spatial axes")
    step, edge = per_axis(strides, n, 1, "strides"), per_axis(pads, 2 * n, 0, "pads")
    return tuple(
        (d - 1) * step[i] + kernel_shape[i] - edge[i] - edge[n + i] if isinstance(d, int) else None
        for i, d in enumerate(sizes)
    )


@max_unpool.infer
def _(
    X: Tensor,
    I: Tensor,  # noqa: E741
    output_shape: Tensor | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Ints = None,
    strides: Ints = None,
) -> Tensor:
    n = len(kernel_shape)
    if output_shape is not None:
        asked = output_shape.ints()
        return X.of([None] * (n + 2) if asked is None else asked)
    dims = X.dims or I.dims or (None,) * (n + 2)
    return X.of((*dims[:2], *unpooled(dims[2:], kernel_shape, pads, strides)))


@max_unpool.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, kernel_shape: Sequence[int], pads: Ints = None, strides: Ints = None
) -> tuple[Value | None, ...]:
    (dy,), (X, places, output_shape), n = dys, xs, len(kernel_shape)
    if output_shape is not None:  # back to the size that places are counted in
        step, edge = per_axis(strides, n, 1, "strides"), per_axis(pads, 2 * n, 0, "pads")
        shape = g.shape_of(X)
        more = [k - s - a - b for k, s, a, b in zip(kernel_shape, step, edge[:n], edge[n:], strict=True)]
        spatial = g.Add(g.Mul(sizes(g, shape, 2), g.const(step)), g.const(more))
        dy = moved_into(g, dy, g.const([0] * (n + 2)), joined(g, sizes(g, shape, 0, 2), spatial), n + 2)
    return g.Gather(g.Reshape(dy, g.const([-1])), places, axis=0), None, None


def _global_type(X: Tensor) -> Tensor:
    return X.of((*X.shape[:2], *(1,) * (X.rank - 2)))


GLOBAL_SAMPLES = [Sample([f32(2, 3, 4, 5)]), Sample([f32(1, 2, 3)]), Sample([f32(0, 2, 3, 1)])]


OPERATORS = "GlobalAveragePool GlobalMaxPool"


def _global(name: str, combine: Callable[[Any, tuple[int, ...]], Array], *more: Sample, **traits: Unpack[Traits]) -> Op:
    """A pool whose window is all of the spatial axes."""

    def reference(k: Context, X: Array) -> Array:
        return narrow(k.xp.asarray(combine(widen(X), tuple(range(2, X.ndim)))), X.dtype)

    record = op(name, since=22, samples=[*GLOBAL_SAMPLES, *more], **traits)(reference)
    record.kind, record.follows, record.planned_from = "pooling", True, 0

    @record.infer
    def _(X: Tensor) -> Tensor:
        return _global_type(X)

    return record


global_average_pool = _global(
    "GlobalAveragePool",
    lambda x, axes: mean_of(x, axes, keepdims=True),
    quantized="com.microsoft::QLinearGlobalAveragePool",
)
global_max_pool = _global(
    "GlobalMaxPool", lambda x, axes: x.max(axes, keepdims=True, initial=-np.inf), Sample([f32(0, 2, 0, 1)])
)


@global_average_pool.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    shape, dy = g.shape_of(xs[0]), wide(g, dys[0])
    part = g.Div(dy, cast_like(g, count(g, sizes(g, shape, 2)), dy))
    return (g.Expand(cast_like(g, part, xs[0]), shape),)


@global_max_pool.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    shape = g.shape_of(xs[0])
    lead = sizes(g, shape, 0, 2)
    first = g.Hardmax(reshaped(g, xs[0], joined(g, lead, count(g, sizes(g, shape, 2)))), axis=-1)
    return (reshaped(g, g.Mul(first, reshaped(g, dys[0], joined(g, lead, [1]))), shape),)


@op(
    "GlobalLpPool",
    kind="pooling",
    since=22,
    samples=[*GLOBAL_SAMPLES, *(Sample([f32(2, 3, 4)], {"p": p}) for p in (1, 3))],
)
def global_lp_pool(k: Context, X: Array, *, p: int = 2) -> Array:
    return narrow(_root(_power(widen(X), p).sum(tuple(range(2, X.ndim)), keepdims=True), p), X.dtype)


@global_lp_pool.infer
def _(X: Tensor) -> Tensor:
    return _global_type(X)


@global_lp_pool.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, p: int = 2) -> tuple[Value | None, ...]:
    outer, inner = _lp_parts(g, dys[0], ys[0], xs[0], p)
    return (cast_like(g, g.Mul(outer, inner), xs[0]),)
