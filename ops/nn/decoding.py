"""Operators of language model decoders besides attention: rotary positions, caches, linear attention.

https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html, https://onnx.ai/onnx/operators/onnx__LinearAttention.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.formula import Arithmetic, Arrays, Nodes, Operand
from ..core.rules import axis_of, has_rank, narrow, product, same, widen
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, Dim, DType, Tensor, f32, i64

_COS, _SIN = (
    np.cos(np.arange(12, dtype=np.float32)).reshape(6, 2),
    np.sin(np.arange(12, dtype=np.float32)).reshape(6, 2),
)
_PLACES = np.array([[0, 1, 2], [5, 3, 0]])


def split_heads(x: Array, heads: int | None) -> Array:
    """[batch, heads, length, size] of an array that may have the heads packed into its last of three dims."""
    if x.ndim == 4:
        return x
    if not heads:
        raise ShapeError(f"an input of {x.ndim} dims needs the number of heads", hint="set num_heads")
    batch, length, hidden = x.shape
    return x.reshape(batch, length, heads, hidden // heads).transpose(0, 2, 1, 3)


@op(
    "RotaryEmbedding",
    since=23,
    samples=[
        Sample([f32(2, 3, 3, 4), _COS, _SIN, _PLACES]),
        Sample([f32(2, 3, 3, 4), _COS, _SIN, _PLACES], {"interleaved": 1}),
        Sample([f32(2, 3, 3, 6), _COS, _SIN, _PLACES], {"rotary_embedding_dim": 4}),
        Sample([f32(2, 3, 8), f32(2, 3, 2), f32(2, 3, 2)], {"num_heads": 2}),
        Sample([f32(2, 3, 12), f32(2, 3, 2), f32(2, 3, 2)],
               {"num_heads": 2, "rotary_embedding_dim": 4, "interleaved": 1}),
    ],
)  # fmt: skip
def rotary_embedding(
    k: Context,
    X: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    y = k.xp.array(X, order="C")
    heads = split_heads(y, num_heads)  # a view: what is written into it lands in y
    turned = widen(heads[..., : rotary_embedding_dim or heads.shape[-1]])
    half = turned.shape[-1] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    a, b = turned[..., first].copy(), turned[..., second].copy()
    cos, sin = (widen(c if position_ids is None else c[position_ids])[:, None] for c in (cos_cache, sin_cache))
    into = heads[..., : 2 * half]
    into[..., first] = a * cos - b * sin
    into[..., second] = a * sin + b * cos
    return y


@rotary_embedding.infer
def _(X: Tensor, cos_cache: Tensor, sin_cache: Tensor, position_ids: Tensor | None = None, **attrs: Any) -> Tensor:
    has_rank(X, 3, 4)
    if X.dims is not None and len(X.dims) == 3 and not attrs.get("num_heads"):
        raise ShapeError(f"{X} needs the number of heads", hint="set num_heads")
    width: Dim = attrs.get("rotary_embedding_dim") or None
    if width is None and X.dims is not None:
        width, heads = X.dims[-1], attrs.get("num_heads") if len(X.dims) == 3 else 1
        width = width // heads if isinstance(width, int) and heads else width
    if isinstance(width, int) and width % 2:
        raise ShapeError(f"{width} elements of each head do not make pairs to turn", hint="correct the sizes")
    return X.forget()


@rotary_embedding.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Value | None:
    if types[0].dims is None:
        return None
    X, cos, sin, places = xs
    packed = len(types[0].dims) == 3
    heads = g.Reshape(X, g.const([0, 0, num_heads, -1])) if packed else g.Transpose(X, perm=(0, 2, 1, 3))
    if types[0].dtype.narrow:
        heads, cos, sin = (g.Cast(x, to=DType.FLOAT.onnx) for x in (heads, cos, sin))
    # [batch, length, heads, size]: the turns of a place are those of all heads
    cos, sin = (g.Unsqueeze(c if places is None else g.Gather(c, places), g.const([2])) for c in (cos, sin))

    def part(first: int | None, last: int | None, step: int = 1) -> Value:
        ends = [first or 0], [np.iinfo(np.int64).max if last is None else last], [3], [step]
        return g.Slice(heads, *map(g.const, ends))

    rest = part(rotary_embedding_dim, None) if rotary_embedding_dim else None
    if interleaved:
        a, b = (part(i, rotary_embedding_dim or None, 2) for i in (0, 1))
    else:
        whole = part(0, rotary_embedding_dim) if rotary_embedding_dim else heads
        a, b = g.Split(whole, axis=3, num_outputs=2, outputs=2)
    turned = g.Sub(g.Mul(a, cos), g.Mul(b, sin)), g.Add(g.Mul(a, sin), g.Mul(b, cos))
    if interleaved:
        pairs = g.Concat(*(g.Unsqueeze(x, g.const([4])) for x in turned), axis=4)
        y = g.Reshape(
            pairs, g.Concat(g.Shape(pairs, end=3), g.Mul(g.Shape(a, start=3), g.const(2)), axis=0), allowzero=1
        )
    else:
        y = g.Concat(*turned, axis=3)
    y = y if rest is None else g.Concat(y, rest, axis=3)
    y = g.Cast(y, to=types[0].dtype.onnx) if types[0].dtype.narrow else y
    return g.Reshape(y, g.shape_of(X), allowzero=1) if packed else g.Transpose(y, perm=(0, 2, 1, 3))


@op(
    "TensorScatter",
    complex_numbers="taken",
    since=24,
    outputs=("present_cache",),
    samples=[
        Sample([f32(2, 3, 5, 2), f32(2, 3, 2, 2), np.array([1, 3])]),
        Sample([f32(2, 4, 3), f32(2, 2, 3)]),
        Sample([f32(2, 4, 3), f32(2, 3, 3), np.array([2, 3])], {"mode": "circular"}),
        Sample([i64(2, 3, 4), i64(2, 3, 1), np.array([3, 0])], {"axis": 2}),
    ],
)
def tensor_scatter(
    k: Context,
    past_cache: Array,
    update: Array,
    write_indices: Array | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Array:
    at = axis_of(axis, past_cache.ndim)
    size, count = past_cache.shape[at], update.shape[at]
    if mode not in ("linear", "circular"):
        raise ShapeError(f"mode {mode!r} is none of linear, circular")
    batch = past_cache.shape[0]
    start = k.xp.zeros(batch, np.int64) if write_indices is None else write_indices
    places = start[:, None] + k.xp.arange(count)
    if mode == "circular":
        places = places % size
    elif bool((places < 0).any()) or bool((places >= size).any()):
        raise ShapeError(f"an update of {count} does not fit into a cache of {size} at {start.tolist()}")
    result = k.xp.array(past_cache, order="C")
    rows = k.xp.arange(batch)[:, None]
    k.xp.moveaxis(result, at, 1)[rows, places] = k.xp.moveaxis(update, at, 1)
    return result


@tensor_scatter.infer
def _(past_cache: Tensor, update: Tensor, write_indices: Tensor | None = None, *, axis: int = -2) -> Tensor:
    at = axis_of(axis, past_cache.rank)
    if at == 0:
        raise ShapeError("axis 0 is the batch, along which nothing is written")
    if update.dims is not None:
        for i, (a, b) in enumerate(zip(past_cache.shape, update.dims, strict=True)):
            if i != at:
                same(a, b, f"axis {i} of the cache {past_cache} and its update {update}")
    return past_cache.forget()


@tensor_scatter.body
def _(g: Builder, xs: Any, types: Any, *, axis: int = -2, mode: str = "linear") -> Value | None:
    if types[0].dims is None:
        return None
    past, update, start = xs
    rank = len(types[0].dims)
    at = axis_of(axis, rank)
    swap = tuple({1: at, at: 1}.get(i, i) for i in range(rank))  # [batch, places, ...]

    def numbers(size: Value) -> Value:
        return g.Range(g.const(0), g.Squeeze(size), g.const(1))

    batch, count = g.Shape(past, start=0, end=1), g.Shape(update, start=at, end=at + 1)
    places = g.Unsqueeze(numbers(count), g.const([0]))
    if start is not None:
        places = g.Add(places, g.Unsqueeze(start, g.const([1])))
    if mode == "circular":
        places = g.Mod(places, g.Shape(past, start=at, end=at + 1))
    full = g.Concat(batch, count, axis=0)
    pairs = [g.Expand(g.Unsqueeze(numbers(batch), g.const([1])), full), g.Expand(places, full)]
    indices = g.Concat(*(g.Unsqueeze(i, g.const([2])) for i in pairs), axis=2)
    written = g.ScatterND(*(g.Transpose(past, perm=swap), indices, g.Transpose(update, perm=swap)))
    return g.Transpose(written, perm=swap)


@op(
    "CausalConvWithState",
    since=27,
    outputs=("output", "present_state"),
    samples=[
        Sample([f32(2, 3, 6), f32(3, 1, 4)], {}, 2),
        Sample([f32(2, 3, 6), f32(3, 1, 4), f32(3), f32(2, 3, 3)], {"activation": "silu"}, 2),
        Sample([f32(1, 2, 1), f32(2, 1, 4), None, f32(1, 2, 3)], {"activation": "swish"}, 2),
        Sample([f32(1, 2, 3), f32(2, 1, 1)], {}, 2),
    ],
)
def causal_conv_with_state(
    k: Context,
    input: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
) -> tuple[Array, Array]:
    if activation not in ("none", "silu", "swish"):
        raise ShapeError(f"activation {activation!r} is none of none, silu, swish")
    batch, channels, length = input.shape
    before = weight.shape[2] - 1
    past = k.xp.zeros((batch, channels, before), input.dtype) if past_state is None else past_state
    whole = k.xp.concatenate([past, input], 2)
    x, w = widen(whole), widen(weight)
    y = k.xp.zeros(input.shape, x.dtype)
    for tap in range(before + 1):
        y += x[:, :, tap : tap + length] * w[:, 0, tap, None]
    if bias is not None:
        y += widen(bias)[:, None]
    if activation != "none":
        with k.xp.errstate(over="ignore"):
            y /= 1 + k.xp.exp(-y)
    return narrow(y, input.dtype), k.xp.array(whole[:, :, length:], order="C")


@causal_conv_with_state.infer
def _(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, past_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    for t in (input, weight):
        has_rank(t, 3)
    batch, channels, _ = input.dims or (None, None, None)
    filters, _, size = weight.dims or (None, None, None)
    channels = same(channels, filters, f"the kernel {weight} does not fit the channels of {input}")
    return input.forget(), input.of((batch, channels, size - 1 if isinstance(size, int) else None))


@causal_conv_with_state.body
def _(g: Builder, xs: Any, types: Any, *, activation: str = "none") -> tuple[Value, ...]:
    input, weight, bias, past = xs
    if past is None:
        missing = g.Sub(g.Shape(weight, start=2, end=3), g.const(1))
        past = g.Expand(g.scalar(0, input), g.Concat(g.Shape(input, start=0, end=2), missing, axis=0))
    whole = g.Concat(past, input, axis=2)
    x, w, b = (v if v is None or not t.dtype.narrow else g.Cast(v, to=DType.FLOAT.onnx)
               for v, t in zip((whole, weight, bias), types, strict=False))  # fmt: skip
    channels = next((t.dims[i] for t, i in ((types[1], 0), (types[0], 1)) if t.dims is not None), None)
    if isinstance(channels, int):
        y = g.Conv(x, w, b, group=channels)
    else:  # [batch, channels, length, taps]: a convolution has to be told how many channels there are
        length, taps = (g.Squeeze(g.Shape(v, start=2, end=3)) for v in (input, weight))
        at, tap = (g.Range(g.const(0), n, g.const(1)) for n in (length, taps))
        windows = g.Gather(x, g.Add(g.Unsqueeze(at, g.const([1])), tap), axis=2)
        y = g.ReduceSum(g.Mul(windows, w), g.const([3]), keepdims=0)
        y = y if b is None else g.Add(y, g.Unsqueeze(b, g.const([1])))
    y = y if activation == "none" else g.Mul(y, g.Sigmoid(y))
    length = g.Shape(input, start=2, end=3)
    state = g.Slice(whole, length, g.const([np.iinfo(np.int64).max]), g.const([2]))
    return g.Cast(y, to=types[0].dtype.onnx) if types[0].dtype.narrow else y, state


RULES = ("linear", "gated", "delta", "gated_delta")
_HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
_QKV = [f32(2, 3, 12), f32(2, 3, 6), f32(2, 3, 8)]  # queries and keys of size 3, values of size 4
_DECAY = np.linspace(-1, -0.1, 12, dtype=np.float32).reshape(2, 3, 2)


@op(
    "LinearAttention",
    since=27,
    outputs=("output", "present_state"),
    samples=[
        Sample(_QKV, {**_HEADS, "update_rule": "linear"}, 2),
        Sample([*_QKV, f32(2, 2, 3, 4), _DECAY], {**_HEADS, "update_rule": "gated", "scale": 0.5}, 2),
        Sample([*_QKV, None, None, f32(2, 3, 1)], {**_HEADS, "update_rule": "delta"}, 2),
        Sample([*_QKV, f32(2, 2, 3, 4), _DECAY, f32(2, 3, 2)], _HEADS, 2),
        Sample([*_QKV, None, np.repeat(_DECAY, 3, 2), f32(2, 3, 2)], _HEADS, 2),
    ],
)
def linear_attention(
    k: Context,
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    return _linear_attention(
        Arrays(k.xp), (query, key, value, past_state, decay, beta), kv_num_heads, q_num_heads, scale, update_rule
    )


def _linear_attention(
    m: Arithmetic, given: tuple[Operand, ...], kv_num_heads: int, q_num_heads: int, scale: float, update_rule: str
) -> tuple[Operand, Operand]:
    """One step after another; a formula, of which reference and standard body are made."""
    query, key, value, past_state, decay, beta = given
    if update_rule not in RULES:
        raise ShapeError(f"update_rule {update_rule!r} is none of {', '.join(RULES)}")
    rows = {name: m.heads(m.widened(x), kv_num_heads) for name, x in (("key", key), ("value", value))}
    rows["query"] = m.scaled(m.heads(m.widened(query), q_num_heads, kv_num_heads), scale)
    for name, x, needed, heads in (
        ("decay", decay, update_rule.startswith("gated"), kv_num_heads),
        ("beta", beta, update_rule.endswith("delta"), 0),
    ):
        if needed and x is None:
            raise ShapeError(f"update_rule {update_rule!r} needs the input {name}")
        if needed:  # without a number of heads, each entry is one head's
            rows[name] = m.heads(m.widened(x), heads) if heads else m.insert(m.lead(m.widened(x), 3), 3)
    if past_state is None:
        state = m.zeros(rows["key"], (rows["key"], 1), (rows["key"], 2), (rows["key"], 3), (rows["value"], 3))
    else:
        state = m.widened(past_state)

    def step(states: list[Operand], row: Mapping[str, Operand]) -> tuple[list[Operand], list[Operand]]:
        (state,), column, value = states, m.insert(row["key"], 3), m.insert(row["value"], 2)
        if "decay" in row:
            state = state * m.exp(m.insert(row["decay"], 3))
        if "beta" in row:  # write only what the state does not answer for this key yet
            value = (value - m.sum(state * column, 2)) * m.insert(row["beta"], 3)
        state = state + column * value
        return [state], [row["query"] @ state]

    (state,), (y,) = m.scan(step, [state], rows, 1)
    return m.like(m.beside(y), query), m.like(state, query if past_state is None else past_state)


@linear_attention.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Value | None, ...]:
    m = Nodes(g)
    return m.names(_linear_attention(m, tuple(m.of(xs)), kv_num_heads, q_num_heads, scale, update_rule))


@linear_attention.infer
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    **attrs: Any,
) -> tuple[Tensor, Tensor]:
    q_heads, kv_heads = attrs["q_num_heads"], attrs["kv_num_heads"]
    if q_heads % kv_heads:
        raise ShapeError(f"{q_heads} heads of queries do not divide among {kv_heads} heads of keys")

    def size(t: Tensor, heads: int) -> Dim:
        has_rank(t, 3)
        last = None if t.dims is None else t.dims[2]
        if isinstance(last, int) and last % heads:
            raise ShapeError(f"the last dim of {t} does not divide into {heads} heads")
        return last // heads if isinstance(last, int) else None

    batch, length, _ = query.dims or (None, None, None)
    deep, wide = (
        same(size(query, q_heads), size(key, kv_heads), "queries and keys differ in size"),
        size(value, kv_heads),
    )
    state = query if past_state is None else past_state
    return query.of((batch, length, product((q_heads, wide)))), state.of((batch, kv_heads, deep, wide))
