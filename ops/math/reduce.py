"""Operators that combine the elements along axes: sums, extremes and their positions, running sums, the largest k.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.broadcast import zeros_like
from ..core.rules import axes_of, axis_of, ints, length, narrow, unknown, widen
from ..errors import ShapeError
from ..op import Builder, Context, Op, Sample, Twin, Value, op
from ..types import Array, Dim, DType, Tensor, f32, i64

if TYPE_CHECKING:
    from typing import Unpack

    from ..traits import Traits

Axes = tuple[int, ...]


def _reduced_dims(dims: tuple[Dim, ...], axes: Axes, keepdims: int) -> tuple[Dim, ...]:
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(dims))
    return tuple(d for i, d in enumerate(dims) if i not in axes)


def _reduce_axes(axes: list[int] | None, rank: int, noop: int) -> Axes:
    """Axes to reduce: none given means all of them, or none where `noop_with_empty_axes` says so."""
    return axes_of(axes, rank) if axes else () if noop else tuple(range(rank))


REDUCE_SAMPLES = [
    Sample([f32(2, 3, 4), np.array([1])]),
    Sample([f32(2, 3, 4), np.array([-1, 0])], {"keepdims": 0}),
    Sample([f32(2, 3)]),
    Sample([f32(2, 3)], {"noop_with_empty_axes": 1}),
    Sample([f32(2, 3), np.zeros(0, np.int64)], {"keepdims": 0}),
    Sample([f32()], {"keepdims": 0}),
]
WHOLE = Sample([i64(2, 3), np.array([0])])
EMPTY = Sample([f32(2, 0), np.array([1])])
OPERATORS = """
    ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceSumSquare ArgMax ArgMin CumSum CumProd
"""


def reduction(
    name: str,
    since: int,
    combine: Callable[[Any, Array, Axes, bool], Array],
    slope: Callable[[Builder, Value, Value, Value, Callable[..., Value]], Value],
    samples: list[Sample] | None = None,
    **traits: Unpack[Traits],
) -> Op:
    """An operator that combines the elements along axes by `combine(xp, x, axes, keepdims)`; x is float32 or wider.

    Its gradient is `slope(g, dy, y, x, reduced)`, where `dy` and `y` have the lost axes as ones again, and
    `reduced(name, v)` is another reduction over the same axes, which keeps them.
    """

    def reference(
        k: Context, data: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array:
        over = _reduce_axes(None if axes is None else ints(axes), data.ndim, noop_with_empty_axes)
        result = k.xp.asarray(combine(k.xp, widen(data), over, bool(keepdims)))
        return result.astype(data.dtype, copy=not over)

    record = op(name, since=since, outputs=("reduced",), samples=[*REDUCE_SAMPLES, *(samples or [])], **traits)(
        reference
    )
    record.kind = "reduction"

    @record.infer
    def _(data: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        given: list[int] | None = []
        if axes is not None and length(axes) != 0:
            given = axes.ints()
        if given is not None and data.dims is not None:
            return data.of(_reduced_dims(data.dims, _reduce_axes(given, data.rank, noop_with_empty_axes), keepdims))
        if not keepdims and data.dims is not None and axes is not None and length(axes):
            return data.of(unknown(data.rank - (length(axes) or 0)))
        if not keepdims and given == [] and not noop_with_empty_axes:
            return data.of(())
        return data.of(unknown(data.rank if keepdims and data.dims is not None else None))

    @record.grad
    def _(
        g: Builder, dys: Any, ys: Any, xs: Any, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> tuple[Value | None, ...]:
        data, axes = xs

        def kept(v: Value) -> Value:
            return v if keepdims or axes is None else g.Unsqueeze(v, axes)

        def reduced(name: str, v: Value) -> Value:
            return getattr(g, name)(v, axes, keepdims=1, noop_with_empty_axes=noop_with_empty_axes)

        return slope(g, kept(dys[0]), kept(ys[0]), data, reduced), None

    return record


def _mean(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    count = math.prod(x.shape[a] for a in axes)
    if x.dtype.kind in "fc":
        with xp.errstate(all="ignore"):
            return xp.asarray(_sum(xp, x, axes, keepdims)) / count
    # whole numbers towards 0, of a sum that may not fit where the mean does
    sums = xp.asarray(x.sum(axes, keepdims=keepdims, dtype=np.uint64 if x.dtype.kind == "u" else np.int64))
    count = max(count, 1)
    return sums // count + ((sums < 0) & (sums % count != 0))


def _extreme(method: str, lowest: bool) -> Callable[[Any, Array, Axes, bool], Array]:
    def combine(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
        if all(x.shape[a] for a in axes):
            return getattr(x, method)(axes, keepdims=keepdims)
        empty: Any = -math.inf if lowest else math.inf
        if x.dtype.kind == "b":
            empty = not lowest
        elif x.dtype.kind in "iu":
            empty = np.iinfo(x.dtype).min if lowest else np.iinfo(x.dtype).max
        return xp.full(_reduced_dims(x.shape, axes, int(keepdims)), empty, x.dtype)

    return combine


BOOL = [Sample([np.array([[True, False], [False, False]]), np.array([1])]), Sample([np.zeros((2, 0), bool)])]


def _sum(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    if not axes:
        return x  # a sum begins with 0, to which -0 is 0
    return x.sum(axes, keepdims=keepdims, dtype=x.dtype)


def _prod(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    return x.prod(axes, keepdims=keepdims, dtype=x.dtype)


def _log_sum_exp(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    largest = _extreme("max", True)(xp, x, axes, True)
    shift = xp.where(xp.isfinite(largest), largest, 0)  # so that exp does not overflow
    with xp.errstate(divide="ignore"):
        sums = xp.log(xp.exp(x - shift).sum(axes, keepdims=True)) + shift
    return sums if keepdims else sums.reshape(_reduced_dims(x.shape, axes, 0))


def _log_sum(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    with xp.errstate(divide="ignore", invalid="ignore"):
        return xp.log(x.sum(axes, keepdims=keepdims))


def _sum_slope(g: Builder, dy: Value, y: Value, x: Value, reduced: Any) -> Value:
    return g.Expand(dy, g.shape_of(x))


def _mean_slope(g: Builder, dy: Value, y: Value, x: Value, reduced: Any) -> Value:
    groups, elements = (g.Cast(g.Size(v), to=DType.DOUBLE.onnx) for v in (y, x))  # float16 could not count so far
    return g.Expand(g.Mul(dy, g.CastLike(g.Div(groups, elements), dy)), g.shape_of(x))


def _extreme_slope(g: Builder, dy: Value, y: Value, x: Value, reduced: Any) -> Value:
    """Elements that equal the extreme share evenly."""
    hit = g.CastLike(g.Equal(x, y), dy)
    return g.Mul(hit, g.Div(dy, reduced("ReduceSum", hit)))


def _prod_slope(g: Builder, dy: Value, y: Value, x: Value, reduced: Any) -> Value:
    """dy times the product of all others: without the zeros it is a quotient, and with another zero it is 0."""
    zero, one = g.scalar(0, x), g.scalar(1, x)
    is_zero = g.Equal(x, zero)
    full, flag = g.Where(is_zero, one, x), g.Where(is_zero, one, zero)
    alone = g.Equal(reduced("ReduceSum", flag), flag)
    return g.Where(alone, g.Mul(dy, g.Div(reduced("ReduceProd", full), full)), zero)


def _l1_slope(g: Builder, dy: Value, y: Value, x: Value, reduced: Any) -> Value:
    return g.Mul(dy, g.Sign(x))


def _l2_slope(g: Builder, dy: Value, y: Value, x: Value, reduced: Any) -> Value:
    zero = g.scalar(0, x)
    return g.Mul(x, g.Where(g.Equal(y, zero), zero, g.Div(dy, y)))


def _log_sum_slope(g: Builder, dy: Value, y: Value, x: Value, reduced: Any) -> Value:
    return g.Expand(g.Div(dy, g.Exp(y)), g.shape_of(x))


def _log_sum_exp_slope(g: Builder, dy: Value, y: Value, x: Value, reduced: Any) -> Value:
    return g.Mul(dy, g.Exp(g.Sub(x, y)))


def _sum_square_slope(g: Builder, dy: Value, y: Value, x: Value, reduced: Any) -> Value:
    return g.Mul(g.Mul(dy, g.scalar(2, x)), x)


_LARGE = [Sample([np.array([[500, 501], [-np.inf, -np.inf], [np.inf, 1]], np.float32), np.array([1])])]
_ABOVE_ZERO = [Sample([np.array([[1, 2, 0.5], [4, 0, 0]], np.float32), np.array([1])], {"keepdims": k}) for k in (0, 1)]

_ZEROS = [Sample([np.array([[2, 0, 3], [0, 0, 1], [1, -2, 3]], np.float32), np.array([a])]) for a in (0, 1)]


def _l1(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    return _sum(xp, xp.abs(x), axes, keepdims)


def _l2(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    return xp.sqrt(_sum_square(xp, x, axes, keepdims))


def _sum_square(xp: Any, x: Array, axes: Axes, keepdims: bool) -> Array:
    return _sum(xp, x * x, axes, keepdims)


reduce_sum = reduction(
    "ReduceSum", 13, _sum, _sum_slope, [EMPTY, WHOLE], mixed="wide", complex_numbers="direct", neutral=0.0
)
reduce_mean = reduction(
    "ReduceMean", 18, _mean, _mean_slope, [WHOLE], mixed="wide", complex_numbers="direct", neutral=0.0
)
reduce_max = reduction("ReduceMax", 20, _extreme("max", True), _extreme_slope, [*BOOL, EMPTY, WHOLE], neutral=-np.inf)
reduce_min = reduction("ReduceMin", 20, _extreme("min", False), _extreme_slope, [*BOOL, EMPTY, WHOLE], neutral=np.inf)
reduce_prod = reduction(
    "ReduceProd", 18, _prod, _prod_slope, [EMPTY, WHOLE, *_ZEROS], mixed="wide", complex_numbers="taken", neutral=1.0
)
reduce_l1 = reduction("ReduceL1", 18, _l1, _l1_slope, [EMPTY, WHOLE], mixed="wide", neutral=0.0)
reduce_l2 = reduction("ReduceL2", 18, _l2, _l2_slope, [EMPTY, WHOLE], mixed="wide", neutral=0.0)
reduce_log_sum = reduction(
    "ReduceLogSum", 28, _log_sum, _log_sum_slope, [EMPTY, *_ABOVE_ZERO], mixed="wide", neutral=0.0
)
reduce_log_sum_exp = reduction(
    "ReduceLogSumExp", 28, _log_sum_exp, _log_sum_exp_slope, [EMPTY, *_LARGE], mixed="wide", neutral=-np.inf
)
reduce_sum_square = reduction(
    "ReduceSumSquare", 18, _sum_square, _sum_square_slope, [EMPTY, WHOLE], mixed="wide", neutral=0.0
)


ARG_SAMPLES = [
    Sample([f32(2, 3)]),
    Sample([f32(2, 3)], {"axis": -1, "keepdims": 0}),
    Sample([np.array([[1, 1, 0], [0, 2, 2]])], {"axis": 1, "select_last_index": 1}),
    Sample([np.array([[1, 1, 0], [0, 2, 2]])], {"axis": 1}),
    Sample([f32(0, 3)], {"axis": 1}),
    Sample([f32(0, 0)], {"axis": 1, "keepdims": 0}),
]


def place_of(name: str, since: int, method: str) -> Op:
    """An operator that tells where along an axis the extreme element stands."""

    def reference(k: Context, data: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        at = axis_of(axis, data.ndim)
        dims = _reduced_dims(data.shape, (at,), keepdims)
        if 0 in dims:  # no extreme is asked for, not even of nothing
            return k.xp.zeros(dims, np.int64)
        x = k.xp.flip(data, at) if select_last_index else data
        places = k.xp.expand_dims(getattr(widen(x), method)(at), at).astype(np.int64)
        places = data.shape[at] - 1 - places if select_last_index else places
        return k.xp.array(places.reshape(dims))

    record = op(name, since=since, outputs=("reduced",), samples=ARG_SAMPLES)(reference)

    @record.infer
    def _(data: Tensor, *, axis: int = 0, keepdims: int = 1) -> Tensor:
        if data.dims is None:
            return Tensor(DType.INT64, None)
        return Tensor(DType.INT64, _reduced_dims(data.dims, (axis_of(axis, data.rank),), keepdims))

    @record.older
    def _(
        g: Builder, xs: Any, types: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> Value | None:
        if not select_last_index:
            return None
        at, back = g.const([axis_of(axis, g.rank_of(xs[0]))]), g.const([-1])
        last = g.Sub(
            g.Gather(g.shape_of(xs[0]), at, axis=0), g.const([1])
        )  # of the axis, where the first one is looked for
        turned = g.Slice(xs[0], back, g.const([-np.iinfo(np.int64).max]), at, back)
        return g.Sub(last, getattr(g, name)(turned, axis=axis, keepdims=keepdims))

    return record


arg_max = place_of("ArgMax", 13, "argmax")
arg_min = place_of("ArgMin", 13, "argmin")


LONG_ROW = 64  # elements behind an axis from which on whole rows are combined

CUMULATED_SAMPLES = [
    Sample([f32(2, 3), np.array(1)]),
    Sample([f32(2, 3), np.array(-2, np.int32)], {"reverse": 1}),
    Sample([i64(4), np.array([0])], {"exclusive": 1}),
    Sample([i64(2, 3), np.array(0)], {"exclusive": 1, "reverse": 1}),
    Sample([f32(0, 3), np.array(0)]),
    Sample([np.array([[2, 0, 3, 0.5], [0, -1, 0, 3], [1, -2, 0.5, 3]], np.float32), np.array(1)]),
    *(Sample([f32(2, 4), np.array(1)], {"exclusive": 1, "reverse": r}) for r in (0, 1)),
    *(Sample([np.array([2, 0, 3, 0.5, 0], np.float32), np.array(0)], {"exclusive": 1, "reverse": r}) for r in (0, 1)),
]


def running(xp: Any, x: Array, axis: int, name: str) -> Array:
    """Sums or products (`name`: "cumsum", "cumprod") of all elements before and at each place of an axis, in order.

    Whole rows are combined where they are long: NumPy's accumulate goes along an outer axis element by element, forty
    times slower. Both take the same steps in the same order, so that all bits are equal.
    """
    if math.prod(x.shape[axis + 1 :]) < LONG_ROW or not x.shape[axis]:
        return getattr(x, name)(axis, dtype=x.dtype)
    combine = xp.add if name == "cumsum" else xp.multiply
    sums = xp.empty(x.shape, x.dtype)
    given, running_sums = xp.moveaxis(x, axis, 0), xp.moveaxis(sums, axis, 0)
    running_sums[0] = given[0]
    for i in range(1, len(given)):
        combine(running_sums[i - 1], given[i], out=running_sums[i])
    return sums


def cumulated(name: str, since: int, method: str, first: int, **traits: Unpack[Traits]) -> Op:
    """An operator that combines all elements before and at each place; `first` is what none of them give."""

    def reference(k: Context, x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
        at = axis_of(ints(axis)[0], x.ndim)
        wide = widen(k.xp.flip(x, at) if reverse else x)
        sums = running(k.xp, wide, at, method)
        if exclusive:
            sums = k.xp.roll(sums, 1, at)
            sums[(slice(None),) * at + (slice(0, 1),)] = first
        return k.xp.ascontiguousarray(narrow(k.xp.flip(sums, at) if reverse else sums, x.dtype))

    record = op(name, since=since, outputs=("y",), samples=CUMULATED_SAMPLES, **traits)(reference)

    @record.infer
    def _(x: Tensor, axis: Tensor) -> Tensor:
        at = axis.ints()
        if at and x.dims is not None:
            axis_of(at[0], x.rank)
        return x.forget()

    return record


cum_sum = cumulated("CumSum", 14, "cumsum", 0, mixed="wide", complex_numbers="direct")
cum_prod = cumulated("CumProd", 26, "cumprod", 1, complex_numbers="taken")


@cum_sum.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, exclusive: int = 0, reverse: int = 0) -> tuple[Value | None, ...]:
    return g.CumSum(dys[0], xs[1], exclusive=exclusive, reverse=1 - reverse), None


@cum_prod.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, exclusive: int = 0, reverse: int = 0) -> tuple[Value | None, ...]:
    """Before the first zero a quotient; at it, the products that leave it out; behind it, nothing."""
    (x, axis), zero, one = xs, g.scalar(0, xs[0]), g.scalar(1, xs[0])
    is_zero = g.Equal(x, zero)
    zeros = g.CumSum(g.CastLike(is_zero, x), axis, reverse=reverse)
    first = g.And(is_zero, g.Equal(zeros, one))

    def back(y: Value) -> Value:
        return g.CumSum(g.Mul(dys[0], y), axis, exclusive=exclusive, reverse=1 - reverse)

    without = g.CumProd(g.Where(first, one, x), axis, exclusive=exclusive, reverse=reverse)
    before = g.Where(g.Equal(zeros, zero), g.Div(back(ys[0]), g.Where(is_zero, one, x)), zero)
    return g.Where(first, back(without), before), None


@op(
    "TopK",
    since=24,
    outputs=("Values", "Indices"),
    samples=[
        Sample([f32(2, 5), np.array([3])], {}, 2),
        Sample([f32(4, 3), np.array([2])], {"axis": 0, "largest": 0}, 2),
        Sample([np.array([2, 1, 2, 1]), np.array([3])], {}, 2),
        Sample([np.array([2, 1, 2, 1]), np.array([3])], {"largest": 0}, 2),
        Sample([f32(2, 3), np.array([0])], {}, 2),
    ],
)
def top_k(k: Context, X: Array, K: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    at, count = axis_of(axis, X.ndim), ints(K)[0]
    x = widen(X)
    if largest:  # ascending on the reversed axis, read backwards: of equals the first comes first
        order = k.xp.flip(X.shape[at] - 1 - k.xp.argsort(k.xp.flip(x, at), axis=at, kind="stable"), at)
    else:
        order = k.xp.argsort(x, axis=at, kind="stable")
    places = k.xp.array(order[(slice(None),) * at + (slice(count),)], dtype=np.int64, order="C")
    return k.xp.take_along_axis(X, places, at), places


@top_k.infer
def _(X: Tensor, K: Tensor, *, axis: int = -1) -> tuple[Tensor, Tensor]:
    if X.dims is None:
        return X.of(None), Tensor(DType.INT64, None)
    at, count = axis_of(axis, X.rank), K.ints()
    size = X.dims[at]
    if count and isinstance(size, int) and not 0 <= count[0] <= size:
        raise ShapeError(f"the largest {count[0]} of {size} elements (axis {axis} of {X})")
    dims = tuple((count[0] if count else None) if i == at else d for i, d in enumerate(X.dims))
    return X.of(dims), Tensor(DType.INT64, dims)


@top_k.twin
def _(types: Any, wanted: tuple[bool, ...], **attrs: Any) -> Twin | None:
    return None if len(wanted) > 1 and wanted[1] else Twin("TopK", attrs, 2)


@top_k.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Value | None, ...]:
    return g.ScatterElements(zeros_like(g, xs[0]), ys[1], dys[0], axis=axis), None
