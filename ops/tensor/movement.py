"""Operators that rearrange, repeat or join elements without computing on them.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..core.broadcast import zeros_like
from ..core.rules import axes_of, axis_of, has_rank, ints, length, product, same, total, unknown
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Twin, Value, broadcast_dims, op
from ..types import Array, Dim, DType, Tensor, Type, f32, i64


def _list(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


@op(
    "Identity",
    moves="view",
    since=25,
    outputs=("output",),
    samples=[Sample([f32(2, 3)]), Sample([f32()]), Sample([i64(0, 2)])],
)
def identity(k: Context, input: Any) -> Any:
    if isinstance(input, list):
        return [identity.reference(k, v) for v in input]
    return input.copy() if hasattr(input, "copy") else input  # an optional may be None, a map holds plain numbers


@identity.infer
def _(input: Type) -> Type:
    return input  # what is known of the elements stays known


@identity.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (dys[0],)


@op("StopGradient", domain="mezzo", moves="view", outputs=("output",), samples=[Sample([f32(2, 3)]), Sample([f32()])])
def stop_gradient(k: Context, input: Array) -> Array:
    """The input, through which no gradient goes back: what detach() and pause() are in a graph."""
    return input.copy()


@stop_gradient.infer
def _(input: Type) -> Type:
    return input


@stop_gradient.body
def _(g: Builder, xs: Any, types: Any) -> Value:
    return g.Identity(xs[0])


@stop_gradient.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[None]:
    return (None,)


def _target(shape: Sequence[int], dims: Sequence[Dim], allowzero: int) -> tuple[Dim, ...]:
    """Dims that a reshape to `shape` gives to a value of these dims."""
    if shape.count(-1) > 1 or any(n < -1 for n in shape):
        raise ShapeError(f"{shape} is no shape to reshape to", hint="at most one entry may be -1")
    if allowzero and -1 in shape and 0 in shape:
        raise ShapeError(f"{shape} mixes -1 with 0, which allowzero=1 takes as a size")
    copied = [not n and not allowzero for n in shape]
    if any(c and i >= len(dims) for i, c in enumerate(copied)):
        raise ShapeError(f"{shape} copies an axis that rank {len(dims)} lacks")
    wanted: list[Dim] = [dims[i] if c else n for i, (n, c) in enumerate(zip(shape, copied, strict=True))]
    if -1 not in shape:
        before, after = product(dims), product(wanted)
        if isinstance(before, int) and isinstance(after, int) and before != after:
            raise ShapeError(f"cannot reshape {list(dims)} ({before} elements) to {shape} ({after} elements)")
        return tuple(wanted)
    # what is left once the copied dims are struck out on both sides: they cancel even where they are unknown
    have = [d for i, d in enumerate(dims) if i >= len(copied) or not copied[i]]
    rest = [n for n, c in zip(shape, copied, strict=True) if not c and n != -1]
    old, new = product(have), math.prod(rest)
    missing: Dim = None
    if isinstance(old, int):
        if old % new:
            raise ShapeError(f"cannot reshape {list(dims)} to {shape}: {old} is no multiple of {new}")
        missing = old // new
    elif None not in have:  # one name may be left, and the sizes cancel
        sizes, names = [d for d in have if isinstance(d, int)], [d for d in have if isinstance(d, str)]
        missing = names[0] if len(names) == 1 and math.prod(sizes) == new else None
    return tuple(missing if n == -1 else n for n in wanted)


@op(
    "Reshape",
    moves="view",
    since=25,
    outputs=("reshaped",),
    samples=[
        Sample([f32(2, 3, 4), _list(0, -1)]),
        Sample([f32(2, 3, 4), _list(4, 6)]),
        Sample([f32(1), _list()]),
        Sample([f32(), _list(1, 1)]),
        Sample([f32(0, 3), _list(3, 0)], {"allowzero": 1}),
        Sample([f32(0, 5), _list(0, 5)]),
    ],
)
def reshape(k: Context, data: Array, shape: Array, *, allowzero: int = 0) -> Array:
    return data.reshape(_target(ints(shape), data.shape, allowzero)).copy()


@reshape.infer
def _(data: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    sizes = shape.ints()
    if sizes is None:
        return data.of(unknown(length(shape)))
    if data.dims is None:
        return data.of(None if n == -1 or not (n or allowzero) else n for n in sizes)
    return data.of(_target(sizes, data.dims, allowzero))


def shaped_like(g: Builder, dy: Value, x: Value) -> Value:
    """The elements of `dy` in the shape of `x`, which has as many."""
    return g.Reshape(dy, g.shape_of(x), allowzero=1)


@reshape.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, allowzero: int = 0) -> tuple[Value | None, ...]:
    return shaped_like(g, dys[0], xs[0]), None


@op(
    "Flatten", moves="view",
    since=25,
    outputs=("output",),
    samples=[Sample([f32(2, 3, 4)]), Sample([f32(2, 3, 4)], {"axis": -1}), Sample([f32(2, 3)], {"axis": 0}),
             Sample([f32(2, 3)], {"axis": 2}), Sample([f32(0, 3)]), Sample([f32()], {"axis": 0})],
)  # fmt: skip
def flatten(k: Context, input: Array, *, axis: int = 1) -> Array:
    at = axis_of(axis, input.ndim + 1) if axis >= 0 else axis_of(axis, input.ndim)
    return input.reshape(math.prod(input.shape[:at]), math.prod(input.shape[at:])).copy()


@flatten.infer
def _(input: Tensor, *, axis: int = 1) -> Tensor:
    if input.dims is None:
        return input.of((1 if axis == 0 else None, None))
    at = axis_of(axis, input.rank + 1) if axis >= 0 else axis_of(axis, input.rank)
    return input.of((product(input.dims[:at]), product(input.dims[at:])))


@flatten.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = 1) -> tuple[Value, ...]:
    return (shaped_like(g, dys[0], xs[0]),)


@op(
    "Squeeze", moves="view",
    since=25,
    outputs=("squeezed",),
    samples=[Sample([f32(1, 3, 1)]), Sample([f32(1, 3, 1), _list(-1)]), Sample([f32(1, 1), _list(0, 1)]),
             Sample([f32(2, 3)]), Sample([f32(0, 1), _list(1)])],
)  # fmt: skip
def squeeze(k: Context, data: Array, axes: Array | None = None) -> Array:
    return data.squeeze(None if axes is None else axes_of(ints(axes), data.ndim)).copy()


@squeeze.infer
def _(data: Tensor, axes: Tensor | None = None) -> Tensor:
    if axes is None:
        known = all(isinstance(d, int) for d in data.shape)  # an unknown dim may be 1, and then its axis goes
        return data.of([d for d in data.shape if d != 1] if known else None)
    listed = axes.ints()
    if listed is None:
        gone = length(axes)
        return data.of(unknown(None if gone is None else data.rank - gone))
    drop = axes_of(listed, data.rank)
    for a in drop:
        same(data.shape[a], 1, f"axis {a} of {data} cannot be squeezed")
    return data.of(d for i, d in enumerate(data.shape) if i not in drop)


@squeeze.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    data, axes = xs
    return shaped_like(g, dys[0], data) if axes is None else g.Unsqueeze(dys[0], axes), None


@op(
    "Unsqueeze", moves="view",
    since=25,
    outputs=("expanded",),
    samples=[Sample([f32(2, 3), _list(0)]), Sample([f32(2, 3), _list(-1, 1)]), Sample([f32(), _list(0)]),
             Sample([f32(0), _list(1)])],
)  # fmt: skip
def unsqueeze(k: Context, data: Array, axes: Array) -> Array:
    at = ints(axes)
    return k.xp.expand_dims(data, axes_of(at, data.ndim + len(at))).copy()


@unsqueeze.infer
def _(data: Tensor, axes: Tensor) -> Tensor:
    listed = axes.ints()
    if listed is None:
        more = length(axes)
        return data.of(unknown(None if more is None else data.rank + more))
    at = axes_of(listed, data.rank + len(listed))
    rest = iter(data.shape)
    return data.of(1 if i in at else next(rest) for i in range(data.rank + len(listed)))


@unsqueeze.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    return g.Squeeze(dys[0], xs[1]), None


@op(
    "Transpose", moves="permute",
    since=25,
    outputs=("transposed",),
    samples=[Sample([f32(2, 3, 4)]), Sample([f32(2, 3, 4)], {"perm": [1, 0, 2]}), Sample([f32(5)]), Sample([f32()]),
             Sample([f32(2, 3)], {"perm": [0, 1]}), Sample([i64(0, 3)])],
)  # fmt: skip
def transpose(k: Context, data: Array, *, perm: Sequence[int] | None = None) -> Array:
    return k.xp.array(data.transpose(perm), order="C")


@transpose.infer
def _(data: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    if data.dims is None:
        return data.of(unknown(None if perm is None else len(perm)))
    order = list(range(data.rank))[::-1] if perm is None else list(perm)
    if sorted(order) != list(range(data.rank)):
        raise ShapeError(f"perm {order} is no order of the {data.rank} axes of {data}")
    return data.of(data.dims[p] for p in order)


@transpose.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, perm: Sequence[int] | None = None) -> tuple[Value, ...]:
    return (g.Transpose(dys[0]) if perm is None else g.Transpose(dys[0], perm=np.argsort(perm).tolist()),)


@op(
    "Concat", moves="join", quantized="com.microsoft::QLinearConcat",
    since=13,
    outputs=("concat_result",),
    samples=[Sample([f32(2, 3), f32(1, 3)], {"axis": 0}), Sample([f32(2, 3), f32(2, 0), f32(2, 1)], {"axis": -1}),
             Sample([f32(2)], {"axis": 0}), Sample([i64(1, 2, 1), i64(1, 2, 3)], {"axis": 2})],
)  # fmt: skip
def concat(k: Context, *inputs: Array, axis: int) -> Array:
    return k.xp.concatenate(inputs, axis_of(axis, inputs[0].ndim))


@concat.infer
def _(*inputs: Tensor, axis: int) -> Tensor:
    ranked = [t for t in inputs if t.dims is not None]
    if not ranked:
        return inputs[0].of(None)
    first = ranked[0]
    at = axis_of(axis, first.rank)
    dims: list[Dim] = list(first.shape)
    for t in inputs:
        if t.dtype is not inputs[0].dtype:
            raise ShapeError(f"cannot join {inputs[0]} and {t}: element types differ")
        has_rank(t, first.rank)
        for i, d in enumerate(t.dims or (None,) * first.rank):
            dims[i] = d if i == at else same(dims[i], d, f"cannot join {first} and {t}: axis {i}")
    dims[at] = total([t.dims[at] if t.dims is not None else None for t in inputs])
    return first.of(dims)


def size_of(g: Builder, x: Value, axis: int) -> Value:
    """The size of one axis, as a vector of one element."""
    return g.Gather(g.shape_of(x), g.const([axis]))


@concat.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int) -> tuple[Value, ...]:
    if len(xs) == 1:
        return (dys[0],)
    sizes = g.Concat(*(size_of(g, x, axis) for x in xs), axis=0)
    return tuple(g.Split(dys[0], sizes, axis=axis, outputs=len(xs)))


def _parts(size: int, count: int) -> list[int]:
    """Sizes of `count` parts: all alike, the last may be smaller."""
    step = -(-size // count)
    parts = [step] * (count - 1)
    if size < sum(parts):
        raise ShapeError(f"{size} elements do not fill {count} parts of {step}")
    return [*parts, size - sum(parts)]


@op(
    "Split", moves="slice",
    since=18,
    outputs=("outputs*",),
    samples=[Sample([f32(6, 2)], {"num_outputs": 3}, 3), Sample([f32(2, 7)], {"num_outputs": 3, "axis": -1}, 3),
             Sample([f32(6), _list(1, 0, 5)], {}, 3), Sample([f32(4)], {"num_outputs": 1})],
)  # fmt: skip
def split(
    k: Context, input: Array, split: Array | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> tuple[Array, ...]:
    at = axis_of(axis, input.ndim)
    parts = _parts(input.shape[at], num_outputs or len(k.wanted)) if split is None else ints(split)
    ends = np.cumsum([0, *parts]).tolist()
    return tuple(input[(slice(None),) * at + (slice(a, b),)].copy() for a, b in pairwise(ends))


@split.infer
def _(
    input: Tensor,
    split: Tensor | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    wanted: tuple[bool, ...] = (True,),
) -> tuple[Tensor, ...]:
    count = len(wanted)
    given = num_outputs or (length(split) if split is not None else None)
    if given is not None and given != count:
        raise ShapeError(f"Split into {given} parts has {count} outputs")
    at = axis_of(axis, input.rank)
    size = input.shape[at]
    parts: Sequence[Dim] | None = None if split is None else split.ints()
    if split is None:
        parts = _parts(size, count) if isinstance(size, int) else [size] if count == 1 else None
    elif parts is not None:
        same(size, total(parts), f"the parts {list(parts)} do not make up axis {at} of {input}")
    return tuple(
        input.of(n if i != at else None if parts is None else parts[p] for i, n in enumerate(input.shape))
        for p in range(count)
    )


@split.twin
def _(types: Any, wanted: tuple[bool, ...], **attrs: Any) -> Twin | None:
    return None if all(wanted) else Twin("Split", attrs, len(wanted))  # the gradient asks how large each part is


@split.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, axis: int = 0, num_outputs: int | None = None
) -> tuple[Value | None, ...]:
    parts = [zeros_like(g, y) if dy is None else dy for dy, y in zip(dys, ys, strict=True)]
    dx = parts[0] if len(parts) == 1 else g.Concat(*parts, axis=axis)
    return (dx, None)[: len(xs)]


@op(
    "Expand", moves="repeat",
    since=13,
    outputs=("output",),
    samples=[Sample([f32(3, 1), _list(2, 1, 4)]), Sample([f32(3), _list(1)]), Sample([f32(), _list(2, 2)]),
             Sample([f32(2, 1), _list(0)]), Sample([f32(3), _list()])],
)  # fmt: skip
def expand(k: Context, input: Array, shape: Array) -> Array:
    return k.xp.array(k.xp.broadcast_to(input, np.broadcast_shapes(input.shape, tuple(ints(shape)))), order="C")


@expand.infer
def _(input: Tensor, shape: Tensor) -> Tensor:
    sizes = shape.ints()
    count = length(shape) if sizes is None else len(sizes)
    if input.dims is None or count is None:
        return input.of(None)
    return input.of(broadcast_dims(input.dims, (None,) * count if sizes is None else tuple(sizes)))


@expand.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    return g.sum_to(dys[0], xs[0]), None


@op(
    "Tile",
    moves="repeat",
    since=13,
    outputs=("output",),
    samples=[Sample([f32(2, 3), _list(2, 1)]), Sample([f32(3), _list(0)]), Sample([f32(), _list()])],
)
def tile(k: Context, input: Array, repeats: Array) -> Array:
    return k.xp.array(k.xp.tile(input, tuple(ints(repeats))))


@tile.infer
def _(input: Tensor, repeats: Tensor) -> Tensor:
    times = repeats.ints()
    if input.dims is None or times is None:
        rank = len(input.dims) if input.dims is not None else length(repeats)
        return input.of(unknown(rank))
    if len(times) != input.rank:
        raise ShapeError(f"{len(times)} repeats do not fit {input}")
    return input.of(product((d, n)) for d, n in zip(input.dims, times, strict=True))


@tile.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    input, repeats = xs
    rank = g.rank_of(input)
    if not rank:
        return dys[0], None
    pairs = g.Concat(*(g.Unsqueeze(v, g.const([1])) for v in (repeats, g.shape_of(input))), axis=1)
    apart = g.Reshape(dys[0], g.Reshape(pairs, g.const([2 * rank])), allowzero=1)  # [repeat, size, repeat, size, ...]
    return g.ReduceSum(apart, g.const(list(range(0, 2 * rank, 2))), keepdims=0), None


# depth split into (block, block, depth) or (depth, block, block) -> (depth, height, block, width, block)
BLOCK_ORDER = {"DCR": (0, 3, 4, 1, 5, 2), "CRD": (0, 1, 4, 2, 5, 3)}


def _block_order(mode: str) -> tuple[int, ...]:
    if mode not in BLOCK_ORDER:
        raise ShapeError(f"mode {mode!r} is neither DCR nor CRD")
    return BLOCK_ORDER[mode]


@op(
    "DepthToSpace", moves="blocks",
    since=28,
    outputs=("output",),
    samples=[Sample([f32(2, 8, 2, 3)], {"blocksize": 2}), Sample([f32(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
             Sample([f32(0, 4, 1, 1)], {"blocksize": 2})],
)  # fmt: skip
def depth_to_space(k: Context, input: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    order = _block_order(mode)
    n, c, h, w = input.shape
    depth = c // blocksize**2
    parts = (blocksize, blocksize, depth) if mode == "DCR" else (depth, blocksize, blocksize)
    blocks = input.reshape(n, *parts, h, w).transpose(order)
    return k.xp.array(blocks.reshape(n, depth, h * blocksize, w * blocksize))


@depth_to_space.infer
def _(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    _block_order(mode)
    has_rank(input, 4)
    n, c, h, w = input.dims or (None,) * 4
    if isinstance(c, int) and c % blocksize**2:
        raise ShapeError(f"{c} channels do not divide into blocks of {blocksize} x {blocksize}")
    depth = c // blocksize**2 if isinstance(c, int) else None
    return input.of((n, depth, product((h, blocksize)), product((w, blocksize))))


def _apart(g: Builder, x: Value, count: int, *, first: bool) -> Value:
    """Channels by depth as channels by place in a block, or back: groups of `count`, which come `first`."""
    shape = g.shape_of(x)
    batch, space = (g.Slice(shape, g.const([a]), g.const([b]), g.const([0])) for a, b in ((0, 1), (2, 4)))
    groups = g.const([count, -1] if first else [-1, count])
    parts = g.Reshape(x, g.Concat(batch, groups, space, axis=0))
    return g.Reshape(g.Transpose(parts, perm=(0, 2, 1, 3, 4)), shape)


@depth_to_space.older
def _(g: Builder, xs: Any, types: Any, *, blocksize: int, mode: str = "DCR") -> Value | None:
    if mode == "DCR":
        return None
    return g.DepthToSpace(_apart(g, xs[0], blocksize**2, first=False), blocksize=blocksize)


@depth_to_space.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, blocksize: int, mode: str = "DCR") -> tuple[Value, ...]:
    if mode == "DCR":
        return (g.SpaceToDepth(dys[0], blocksize=blocksize),)
    n, c, h, w = (size_of(g, xs[0], i) for i in range(4))  # SpaceToDepth has this mode only since opset 28
    side, depth = g.const([blocksize]), g.Div(c, g.const([blocksize**2]))
    blocks = g.Reshape(dys[0], g.Concat(n, depth, h, side, w, side, axis=0), allowzero=1)
    return (shaped_like(g, g.Transpose(blocks, perm=np.argsort(_block_order(mode)).tolist()), xs[0]),)


@op(
    "SpaceToDepth", moves="blocks",
    since=28,
    outputs=("output",),
    samples=[Sample([f32(2, 2, 4, 6)], {"blocksize": 2}), Sample([f32(1, 2, 4, 6)], {"blocksize": 2, "mode": "CRD"}),
             Sample([f32(0, 1, 3, 3)], {"blocksize": 3})],
)  # fmt: skip
def space_to_depth(k: Context, input: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    back = np.argsort(_block_order(mode)).tolist()
    n, c, h, w = input.shape
    blocks = input.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize).transpose(back)
    return k.xp.array(blocks.reshape(n, c * blocksize**2, h // blocksize, w // blocksize))


@space_to_depth.infer
def _(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    _block_order(mode)
    has_rank(input, 4)
    n, c, *space = input.dims or (None,) * 4
    if any(isinstance(d, int) and d % blocksize for d in space):
        raise ShapeError(f"{input} does not divide into blocks of {blocksize} x {blocksize}")
    h, w = (d // blocksize if isinstance(d, int) else None for d in space)
    return input.of((n, product((c, blocksize**2)), h, w))


@space_to_depth.older
def _(g: Builder, xs: Any, types: Any, *, blocksize: int, mode: str = "DCR") -> Value | None:
    if mode == "DCR":
        return None
    return _apart(g, g.SpaceToDepth(xs[0], blocksize=blocksize), blocksize**2, first=True)


@space_to_depth.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, blocksize: int, mode: str = "DCR") -> tuple[Value, ...]:
    return (g.DepthToSpace(dys[0], blocksize=blocksize, mode=mode),)


@op(
    "Trilu", complex_numbers="direct",
    since=14,
    outputs=("output",),
    samples=[Sample([f32(3, 4)]), Sample([f32(2, 3, 3), np.int64(1)]), Sample([f32(3, 4), np.int64(-1)], {"upper": 0}),
             Sample([Tensor(DType.BOOL, (2, 2))], {"upper": 0}), Sample([f32(0, 3)])],
)  # fmt: skip
def trilu(context: Context, input: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    offset, xp = 0 if k is None else ints(k)[0], context.xp
    return xp.triu(input, offset) if upper else xp.tril(input, offset)


@trilu.infer
def _(input: Tensor, k: Tensor | None = None) -> Tensor:
    if input.rank < 2:
        raise ShapeError(f"{input} has no matrices")
    return input.forget()


@trilu.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, upper: int = 1) -> tuple[Value | None, ...]:
    return g.Trilu(*(v for v in (dys[0], xs[1]) if v is not None), upper=upper), None


@trilu.older
def _(g: Builder, xs: Any, types: Any, *, upper: int = 1) -> Value:
    x, k = xs[0], g.const(0) if xs[1] is None else xs[1]
    rank, zero, one = g.rank_of(x), g.const(0), g.const(1)
    rows, columns = (
        g.Range(zero, g.Gather(g.shape_of(x), g.const(axis), axis=0), one) for axis in (rank - 2, rank - 1)
    )
    above = g.Sub(columns, g.Unsqueeze(rows, g.const([1])))  # how far each element stands above the diagonal
    kept = g.Not(g.Less(above, k) if upper else g.Greater(above, k))
    boolean = isinstance(types[0], Tensor) and types[0].dtype is DType.BOOL
    return g.And(x, kept) if boolean else g.Where(kept, x, g.scalar(0, x))
