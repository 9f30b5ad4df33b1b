"""GroupQueryAttention of the domain com.microsoft: attention of decoders over a cache, with fewer keys than queries.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core.rules import has_dims, has_rank, narrow, product, same, widen
from ..errors import ShapeError
from ..nn.decoding import rotary_embedding
from ..op import Context, Sample, op
from ..types import Array, Dim, Tensor, f32
from .attention import _split, _unsupported
from .attention_form import LEAST, check_bias, check_heads

NEW, CACHE = [f32(2, 1, 32), f32(2, 1, 16), f32(2, 1, 16)], [f32(2, 1, 5, 16), f32(2, 1, 5, 16)]
PROMPT = [f32(2, 3, 32), f32(2, 3, 16), f32(2, 3, 16)]
TURNS = [f32(9, 8), f32(9, 8)]
HEADS = {"num_heads": 2, "kv_num_heads": 1}


def _lengths(*lasts: int) -> list[Any]:
    """The last place of each sequence, and the length of the longest."""
    return [np.array(lasts, np.int32), np.array([max(lasts) + 1], np.int32)]


@op(
    "GroupQueryAttention",
    domain="com.microsoft",
    since=1,
    outputs=("output", "present_key", "present_value"),
    samples=[
        Sample([*PROMPT, None, None, *_lengths(2, 2)], HEADS, 3),
        Sample([*NEW, *CACHE, *_lengths(5, 3)], HEADS, 3),
        Sample([*NEW, *CACHE, *_lengths(4, 2), *TURNS], {**HEADS, "do_rotary": 1}, 3),
        Sample([f32(2, 3, 64), None, None, None, None, *_lengths(2, 2), *TURNS],
               {**HEADS, "do_rotary": 1, "rotary_interleaved": 1, "scale": 0.3}, 3),
        Sample([*NEW, *CACHE, *_lengths(5, 5)], {**HEADS, "local_window_size": 2, "softcap": 1.5}, 3),
        Sample([*PROMPT, None, None, *_lengths(2, 2)], {**HEADS, "smooth_softmax": 1}, 3),
        Sample([*NEW, *CACHE, *_lengths(5, 5), None, None, None, f32(2, 2, 1, 6), f32(2)], HEADS, 3),
        Sample([f32(1, 3, 32), f32(1, 3, 16), f32(1, 3, 16), f32(1, 1, 5, 16), f32(1, 1, 5, 16), *_lengths(7), *TURNS,
                np.array([[5, 1, 4]])], {**HEADS, "do_rotary": 1}, 3),
        Sample([*NEW, *CACHE, *_lengths(3, 2)], HEADS, 3),
        Sample([*PROMPT, None, None, *_lengths(2, 0)], HEADS, 3),
        Sample([*PROMPT, None, None, *_lengths(2, 0)], {**HEADS, "local_window_size": 1}, 3),
        Sample([*NEW, *CACHE, *_lengths(5, 3)], {**HEADS, "local_window_size": 0}, 3),
    ],
)  # fmt: skip
def group_query_attention(
    k: Context,
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    seqlens_k: Array,
    total_sequence_length: Array,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    position_ids: Array | None = None,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> tuple[Array, ...]:
    """Queries see the places before their own, in as many of the cache as `seqlens_k` says, and answer 0 where there
    are none; the cache grows to `total_sequence_length`, with zeros behind what a shorter sequence holds."""
    size = query.shape[-1] // (num_heads if key is not None else num_heads + 2 * kv_num_heads)
    if key is None or value is None:
        parts = [num_heads * size, (num_heads + kv_num_heads) * size]
        query, key, value = k.xp.split(query, parts, axis=2)
    q, new_keys, new_values = (_split(widen(x), n) for x, n in
                               ((query, num_heads), (key, kv_num_heads), (value, kv_num_heads)))  # fmt: skip
    batch, _, length, _ = q.shape
    longest, held = int(np.ravel(total_sequence_length)[0]), np.ravel(seqlens_k).astype(np.int64) + 1
    earlier = np.zeros(batch, np.int64) if longest == length else held - length
    if batch and (length > longest or earlier.min() < 0 or held.min() < 1 or held.max() > longest):
        raise ShapeError(
            f"seqlens_k {np.ravel(seqlens_k).tolist()} of {length} new places and a total_sequence_length of {longest}",
            hint="they are the last place of each sequence, whose new ones lie inside of the total",
        )
    places = earlier[:, None] + np.arange(length)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        turned = places if position_ids is None else position_ids
        if turned.size and turned.min() < 0:
            raise ShapeError(f"position_ids begin at {turned.min()}", hint="they count from 0")
        q, new_keys = (
            rotary_embedding.reference(k, x, cos_cache, sin_cache, turned, interleaved=rotary_interleaved)
            for x in (q, new_keys)
        )
    room = max(longest, 0 if past_key is None else past_key.shape[2])
    keys, values = (k.xp.zeros((batch, kv_num_heads, room, size), np.float32) for _ in range(2))
    for i, count in enumerate(earlier):
        for cache, past, new in ((keys, past_key, new_keys), (values, past_value, new_values)):
            if past is not None:
                cache[i, :, :count] = past[i, :, :count]
            cache[i, :, count : count + length] = new[i]
    each = num_heads // kv_num_heads
    wide = [k.xp.repeat(x[:, :, :longest], each, axis=1) for x in (keys, values)]
    scores = k.xp.matmul(q, wide[0].swapaxes(-1, -2)) * np.float32(scale or 1 / math.sqrt(size))
    if softcap > 0:
        scores = k.xp.tanh(scores / np.float32(softcap)) * np.float32(softcap)
    if attention_bias is not None:
        scores = scores + widen(attention_bias)
    at, own = np.arange(longest), places[:, None, :, None]
    seen = (at <= own) & (at < held[:, None, None, None]) & ((local_window_size < 0) | (at > own - local_window_size))
    scores = k.xp.where(seen, scores, LEAST)
    most = scores.max(-1, keepdims=True, initial=LEAST)
    sink = None
    if smooth_softmax or head_sink is not None:
        sink = k.xp.zeros((1, 1, 1, 1), np.float32) if head_sink is None else widen(head_sink).reshape(1, -1, 1, 1)
        most = k.xp.maximum(most, sink)
    weights = k.xp.where(seen, k.xp.exp(scores - most), np.float32(0))
    whole = weights.sum(-1, keepdims=True)
    whole = k.xp.where(whole == 0, 1, whole) if sink is None else whole + k.xp.exp(sink - most)
    y = k.xp.matmul(weights / whole, wide[1]).transpose(0, 2, 1, 3).reshape(batch, length, num_heads * size)
    return tuple(narrow(k.xp.ascontiguousarray(x), query.dtype) for x in (y, keys, values))


@group_query_attention.infer
def _(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    head_sink: Tensor | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    num_heads: int,
    qk_output: int = 0,
    sliding_window_cache: int = 0,
    v_quant_type: str = "NONE",
) -> tuple[Tensor, ...]:
    if not causal or {k_quant_type, v_quant_type} != {"NONE"}:
        raise ShapeError("causal=0 and quantised caches are not supported", hint="export the model without them")
    _unsupported(kv_cache_bit_width=kv_cache_bit_width, qk_output=qk_output, sliding_window_cache=sliding_window_cache)
    has_rank(query, 3)
    if kv_num_heads < 1 or num_heads < 1 or num_heads % kv_num_heads:
        raise ShapeError(f"{num_heads} heads of queries do not share {kv_num_heads} of keys", hint="correct the node")
    for name, parts in (("key and value", (key, value)), ("past_key and past_value", (past_key, past_value))):
        if (parts[0] is None) is not (parts[1] is None):
            raise ShapeError(f"{name} come together or not at all", hint="correct the node")
    batch, length, width = query.dims or (None, None, None)
    size = check_heads(width, num_heads if key is not None else num_heads + 2 * kv_num_heads)
    for part in (key, value):
        if part is not None:
            has_dims(part, (batch, length, product((kv_num_heads, size))), f"{kv_num_heads} heads of {query}")
    before: Dim = 0 if past_key is None else None
    for past in (past_key, past_value):
        if past is not None:
            has_dims(past, (batch, kv_num_heads, before, size), f"a cache for {query}")
            before = None if past.dims is None else past.dims[2]
    for numbers, count in ((seqlens_k, batch), (total_sequence_length, 1), (head_sink, num_heads)):
        if numbers is not None:
            same(numbers.elements, count, f"{numbers} does not fit a batch of {batch} and {num_heads} heads")
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise ShapeError("do_rotary needs cos_cache and sin_cache", hint="correct the node")
        for table in (cos_cache, sin_cache):
            has_dims(table, (None, size // 2 if isinstance(size, int) else None), f"heads of {size}")
        has_dims(sin_cache, cos_cache.dims or (None, None), f"the cosines {cos_cache}")
        if position_ids is not None:
            has_dims(position_ids, (batch, length), f"{query}")
    known, room = total_sequence_length.value, None
    longest = None if known is None else int(np.ravel(known)[0])
    check_bias(attention_bias, batch, num_heads, length, longest)
    if longest is not None and isinstance(before, int):
        room = max(longest, before)
    present = query.of((batch, kv_num_heads, room, size))
    return query.of((batch, length, product((num_heads, size)))), present, present
