"""What decoders of language models use besides attention: rotary positions, caches, linear attention.

https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html, https://onnx.ai/onnx/operators/onnx__LinearAttention.html
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .attention import split_heads
from .errors import ShapeError
from .op import Context, Sample, op
from .rules import axis_of, has_rank, narrow, product, same, widen
from .types import Array, Dim, Tensor, f32, i64

_COS, _SIN = (
    np.cos(np.arange(12, dtype=np.float32)).reshape(6, 2),
    np.sin(np.arange(12, dtype=np.float32)).reshape(6, 2),
)
_PLACES = np.array([[0, 1, 2], [5, 3, 0]])


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


@op(
    "TensorScatter",
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
def _(
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    at = axis_of(axis, past_cache.rank)
    if at == 0:
        raise ShapeError("axis 0 is the batch, along which nothing is written")
    if update.dims is not None:
        for i, (a, b) in enumerate(zip(past_cache.shape, update.dims, strict=True)):
            if i != at:
                same(a, b, f"axis {i} of the cache {past_cache} and its update {update}")
    return past_cache.forget()


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
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    for t in (input, weight):
        has_rank(t, 3)
    batch, channels, _ = input.dims or (None, None, None)
    filters, _, size = weight.dims or (None, None, None)
    channels = same(channels, filters, f"the kernel {weight} does not fit the channels of {input}")
    return input.forget(), input.of((batch, channels, size - 1 if isinstance(size, int) else None))


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
    xp = k.xp
    if update_rule not in RULES:
        raise ShapeError(f"update_rule {update_rule!r} is none of {', '.join(RULES)}")
    q = widen(split_heads(query, q_num_heads))
    keys, values = widen(split_heads(key, kv_num_heads)), widen(split_heads(value, kv_num_heads))
    batch, _, length, size = q.shape
    group = q_num_heads // kv_num_heads
    state = xp.zeros((batch, kv_num_heads, size, values.shape[3]), q.dtype)
    state = state if past_state is None else state + widen(past_state)
    fading = _gate(decay, "decay", update_rule.startswith("gated"), update_rule, kv_num_heads)
    rate = _gate(beta, "beta", update_rule.endswith("delta"), update_rule, None)
    y = xp.empty((batch, kv_num_heads, group, length, values.shape[3]), q.dtype)
    queries = q.reshape(batch, kv_num_heads, group, length, size) * (scale or 1 / math.sqrt(size))
    for t in range(length):
        column, row = keys[:, :, t, :, None], values[:, :, t, None, :]
        if fading is not None:
            state = state * xp.exp(fading[:, :, t, :, None])
        if rate is not None:  # write only what the state does not answer for this key yet
            row = (row - (state * column).sum(2, keepdims=True)) * rate[:, :, t, :, None]
        state = state + column * row
        y[:, :, :, t] = xp.matmul(queries[:, :, :, t], state)
    joined = y.transpose(0, 3, 1, 2, 4).reshape(batch, length, q_num_heads * values.shape[3])
    return xp.array(narrow(joined, query.dtype)), narrow(state, query.dtype if past_state is None else past_state.dtype)


def _gate(x: Array | None, name: str, needed: bool, update_rule: str, heads: int | None) -> Array | None:
    """A gate as [batch, heads, length, size or 1]; None where the rule has no such gate. Without `heads`, each entry
    is one head's."""
    if not needed:
        return None
    if x is None:
        raise ShapeError(f"update_rule {update_rule!r} needs the input {name}")
    return widen(split_heads(x, heads or x.shape[2]))


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
