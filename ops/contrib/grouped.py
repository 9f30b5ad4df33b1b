"""GroupQueryAttention of the domain com.microsoft: attention of decoders over a cache, with fewer keys than queries.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.rules import has_dims, has_rank, narrow, product, same, widen
from ..core.shapes import cast_like, wide
from ..dataclasses import dataclass, fields
from ..errors import ShapeError
from ..nn.decoding import rotary_embedding
from ..op import REQUIRED, Builder, Context, Sample, Value, op
from ..types import Array, Dim, DType, Tensor, f32
from .attention_form import LEAST, check_bias, check_heads

NEW, CACHE = [f32(2, 1, 32), f32(2, 1, 16), f32(2, 1, 16)], [f32(2, 1, 5, 16), f32(2, 1, 5, 16)]
PROMPT = [f32(2, 3, 32), f32(2, 3, 16), f32(2, 3, 16)]
TURNS = [f32(9, 8), f32(9, 8)]
HEADS = {"num_heads": 2, "kv_num_heads": 1}


def _lengths(*lasts: int) -> list[Any]:
    """The last place of each sequence, and the length of the longest."""
    return [np.array(lasts, np.int32), np.array([max(lasts) + 1], np.int32)]


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """The heads of queries, and of keys and values, in rows of `width` numbers; all three in one if they are packed."""

    width: int
    queries: int
    keys: int
    packed: bool = False

    @classmethod
    def of(cls, query: Array, key: Array | None, attrs: Mapping[str, Any]) -> HeadCounts:
        return cls(query.shape[-1], attrs["num_heads"], attrs["kv_num_heads"], packed=key is None)

    @property
    def size(self) -> int:
        """The size of a head."""
        return self.width // (self.queries + 2 * self.keys if self.packed else self.queries)


@dataclass(frozen=True, slots=True)
class Scoring:
    """The attributes that say how queries look at keys."""

    do_rotary: int = 0
    local_window_size: int = -1
    rotary_interleaved: int = 0
    scale: float = 0.0
    smooth_softmax: int = 0
    softcap: float = 0.0

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> Scoring:
        return cls(**{f.name: attrs[f.name] for f in fields(cls) if f.name in attrs})


OTHERS = ("cos_cache?", "sin_cache?", "position_ids?", "attention_bias?", "head_sink?")
SCORING: dict[str, Any] = {f.name: f.default for f in fields(Scoring)} | {
    "kv_num_heads": REQUIRED,
    "num_heads": REQUIRED,
}
# Attributes that have to say what they say by default, and their defaults.
FIXED = {
    "causal": 1,
    "k_quant_type": "NONE",
    "kv_cache_bit_width": 0,
    "qk_output": 0,
    "sliding_window_cache": 0,
    "v_quant_type": "NONE",
}


@op(
    "GroupQueryAttention",
    domain="com.microsoft",
    inputs=(
        *("query", "key?", "value?", "past_key?", "past_value?", "seqlens_k", "total_sequence_length"),
        *OTHERS,
    ),
    attributes={**SCORING, **FIXED},
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
    *others: Array | None,
    **attrs: Any,
) -> tuple[Array, ...]:
    """Queries see the places before their own, in as many of the cache as `seqlens_k` says, and answer 0 where there
    are none; the cache grows to `total_sequence_length`, with zeros behind what a shorter sequence holds."""
    longest, length = int(np.ravel(total_sequence_length)[0]), query.shape[1]
    heads, scoring = HeadCounts.of(query, key, attrs), Scoring.of(attrs)
    room = max(longest, 0 if past_key is None else past_key.shape[2])
    caches = [np.zeros((len(query), heads.keys, room, heads.size), query.dtype) for _ in range(2)]
    places = Places.of(seqlens_k, longest, length)
    y = grouped(k, (query, key, value), (past_key, past_value), caches, places, _five(others), heads, scoring)
    return narrow(y, query.dtype), *caches


def _five(others: Sequence[Array | None]) -> tuple[Array | None, ...]:
    """The operands behind the caches and their lengths, absent ones too."""
    return (*others, *(None,) * (len(OTHERS) - len(others)))


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of `length` new rows among `longest`: those before them, and those held in all, of each sequence."""

    earlier: Array
    held: Array
    longest: int
    length: int

    @classmethod
    def of(cls, seqlens_k: Array, longest: int, length: int) -> Places:
        """Places by the last one of each sequence. Raises ShapeError where new rows are not inside of the total."""
        held = np.ravel(seqlens_k).astype(np.int64) + 1
        earlier = np.zeros(len(held), np.int64) if longest == length else held - length
        if len(held) and (length > longest or earlier.min() < 0 or held.min() < 1 or held.max() > longest):
            raise ShapeError(
                f"seqlens_k {np.ravel(seqlens_k).tolist()} of {length} new places and a total_sequence_length of "
                f"{longest}",
                hint="they are the last place of each sequence, whose new ones lie inside of the total",
            )
        return cls(earlier, held, longest, length)


def _split(x: Array, heads: int) -> Array:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def grouped(
    k: Context,
    new: Sequence[Array | None],
    past: Sequence[Array | None],
    caches: Sequence[Array],
    places: Places,
    others: Sequence[Array | None],
    heads: HeadCounts,
    scoring: Scoring,
) -> Array:
    """Attention of new rows over caches, which get these rows (and, where they lie elsewhere, those of the past); what
    is behind becomes 0. `others` are cosines, sines, positions, what is added to the scores, and sinks. In float32."""
    xp, longest, length, size = k.xp, places.longest, places.length, heads.size
    query, key, value = new
    cos, sin, position_ids, bias, head_sink = others
    assert query is not None
    if key is None or value is None:
        query, key, value = xp.split(query, [heads.queries * size, (heads.queries + heads.keys) * size], axis=2)
    counts = (heads.queries, heads.keys, heads.keys)
    q, keys, values = (_split(widen(x), n) for x, n in zip((query, key, value), counts, strict=True))
    own = places.earlier[:, None] + np.arange(length)
    if scoring.do_rotary and cos is not None and sin is not None:
        turned = own if position_ids is None else position_ids
        if turned.size and turned.min() < 0:
            raise ShapeError(f"position_ids begin at {turned.min()}", hint="they count from 0")
        if turned.size and turned.max() >= len(cos):
            raise ShapeError(
                f"position {turned.max()} is none of {len(cos)}", hint="the tables of angles are too short"
            )
        q, keys = (
            rotary_embedding.reference(k, x, cos, sin, turned, interleaved=scoring.rotary_interleaved)
            for x in (q, keys)
        )
    for cache, old, rows in zip(caches, past, (keys, values), strict=True):
        elsewhere = old is not None and old.ctypes.data != cache.ctypes.data if xp is np else old is not None
        for i, count in enumerate(places.earlier.tolist()):
            if elsewhere:
                assert old is not None
                cache[i, :, :count] = old[i, :, :count]
            cache[i, :, count : count + length] = rows[i]
            cache[i, :, count + length :] = 0
    batch = len(q)
    grouped_q = q.reshape(batch, heads.keys, -1, size)  # queries of heads that share keys lie together
    seen_keys, seen_values = (widen(cache[:, :, :longest]) for cache in caches)
    scores = xp.matmul(grouped_q, seen_keys.swapaxes(-1, -2)).reshape(batch, heads.queries, length, longest)
    scores *= np.float32(scoring.scale or 1 / math.sqrt(size))
    if scoring.softcap > 0:
        scores = xp.tanh(scores / np.float32(scoring.softcap)) * np.float32(scoring.softcap)
    if bias is not None:
        scores = scores + widen(bias)
    at, row = np.arange(longest), own[:, None, :, None]
    seen = (at <= row) & (at < places.held[:, None, None, None])
    if scoring.local_window_size >= 0:
        seen &= at > row - scoring.local_window_size
    scores = xp.where(seen, scores, LEAST)
    most = scores.max(-1, keepdims=True, initial=LEAST)
    sink = None
    if scoring.smooth_softmax or head_sink is not None:
        sink = xp.zeros((1, 1, 1, 1), np.float32) if head_sink is None else widen(head_sink).reshape(1, -1, 1, 1)
        most = xp.maximum(most, sink)
    weights = xp.where(seen, xp.exp(scores - most), np.float32(0))
    whole = weights.sum(-1, keepdims=True)
    whole = xp.where(whole == 0, 1, whole) if sink is None else whole + xp.exp(sink - most)
    weights = (weights / whole).reshape(batch, heads.keys, -1, longest)
    y: Array = xp.matmul(weights, seen_values).reshape(batch, heads.queries, length, size)
    return xp.ascontiguousarray(y.transpose(0, 2, 1, 3).reshape(batch, length, heads.queries * size))


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
    do_rotary: int = 0,
    kv_num_heads: int,
    num_heads: int,
    **attrs: Any,
) -> tuple[Tensor, ...]:
    for name, usual in FIXED.items():
        if attrs.get(name, usual) != usual:
            raise ShapeError(f"{name}={attrs[name]!r} is not supported", hint="export the model without it")
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
    longest = None if known is None else np.ravel(known).tolist()[0]
    check_bias(attention_bias, batch, num_heads, length, longest)
    if longest is not None and isinstance(before, int):
        grown = before + length if isinstance(length, int) else None
        room = grown if grown == longest else max(longest, before)  # sizes that are symbolic are found equal here
    present = query.of((batch, kv_num_heads, room, size))
    return query.of((batch, length, product((num_heads, size)))), present, present


@op(
    "GroupedRows",
    domain="mezzo",
    inputs=("counts", "query", "key?", "value?", "past_key", "past_value", "seqlens_k", *OTHERS),
    attributes={**SCORING, "size": REQUIRED},
    outputs=("output", "present_key", "present_value"),
    appends=((4, 1), (5, 2)),
    samples=[
        Sample([np.array([2, 3]), f32(2, 4, 32), f32(2, 4, 16), f32(2, 4, 16), f32(2, 1, 6, 16), f32(2, 1, 6, 16),
                np.array([4, 3], np.int32)], {**HEADS, "size": 8}, 3),
        Sample([np.array([1, 4]), f32(2, 2, 64), None, None, f32(2, 1, 4, 16), f32(2, 1, 4, 16),
                np.array([4, 4], np.int32), *TURNS],
               {**HEADS, "size": 5, "do_rotary": 1, "local_window_size": 3, "softcap": 2.0}, 3),
    ],
)  # fmt: skip
def grouped_rows(
    k: Context,
    counts: Array,
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array,
    past_value: Array,
    seqlens_k: Array,
    *others: Array | None,
    **attrs: Any,
) -> tuple[Array, ...]:
    """GroupQueryAttention of which the first `counts[0]` new rows and `counts[1]` rows of the past count; caches have
    `size` rows."""
    heads, scoring = HeadCounts.of(query, key, attrs), Scoring.of(attrs)
    caches = [np.zeros((len(query), heads.keys, attrs["size"], heads.size), query.dtype) for _ in range(2)]
    y = np.zeros((*query.shape[:2], heads.queries * heads.size), query.dtype)
    new, past, results = (query, key, value), (past_key, past_value), (y, *caches)
    rows_into(k, counts, new, past, seqlens_k, _five(others), heads, scoring, results)
    return y, *caches


def rows_into(
    k: Context,
    counts: Array,
    new: Sequence[Array | None],
    past: Sequence[Array],
    seqlens_k: Array,
    others: Sequence[Array | None],
    heads: HeadCounts,
    scoring: Scoring,
    results: Sequence[Array],
) -> None:
    """GroupedRows into arrays that there are; caches may lie where the past does."""
    length, before = (int(n) for n in counts.tolist())
    longest, (y, *caches) = before + length, results
    if not (0 < length <= y.shape[1] and longest <= min(c.shape[2] for c in caches)):
        raise ShapeError(f"{length} rows behind {before} are none of {[c.shape for c in results]}")
    cos, sin, positions, bias, sink = others
    positions = None if positions is None else positions[:, :length]
    bias = None if bias is None else bias[:, :, :length, :longest]
    part = [None if x is None else x[:, :length] for x in new]
    places = Places.of(seqlens_k, longest, length)
    y[:, :length] = grouped(k, part, past, caches, places, (cos, sin, positions, bias, sink), heads, scoring)
    y[:, length:] = 0


@grouped_rows.infer
def _(
    counts: Tensor,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor,
    past_value: Tensor,
    *others: Tensor | None,
    kv_num_heads: int,
    num_heads: int,
    size: int,
) -> tuple[Tensor, ...]:
    batch, length, width = query.dims or (None, None, None)
    one = check_heads(width, num_heads if key is not None else num_heads + 2 * kv_num_heads)
    present = query.of((batch, kv_num_heads, size, one))
    return query.of((batch, length, product((num_heads, one)))), present, present


@group_query_attention.body
def _(g: Builder, xs: Any, types: Any, *, kv_num_heads: int, num_heads: int, **attrs: Any) -> tuple[Value, ...] | None:
    """Caches are rows of the past, then the new ones, then zeros, picked by the places of each sequence."""
    query, key, value, past_key, past_value, last, total, cos, sin, position_ids, bias, head_sink = xs
    scoring = Scoring.of(attrs)
    width = types[0].dims[-1] if isinstance(types[0], Tensor) and types[0].dims else None
    if not isinstance(width, int):
        return None
    heads, like = HeadCounts(width, num_heads, kv_num_heads, packed=key is None), query
    size, whole = heads.size, DType.INT64.onnx
    if key is None:
        parts = g.const([n * size for n in (num_heads, kv_num_heads, kv_num_heads)])
        query, key, value = g.Split(query, parts, axis=2, outputs=3)

    def dim(x: Value, at: int) -> Value:
        return g.Slice(g.shape_of(x), g.const([at]), g.const([at + 1]), g.const([0]))

    def steps(count: Value) -> Value:
        return g.Range(g.const(0), g.Squeeze(count, g.const([0])), g.const(1))

    batch, length = dim(query, 0), dim(query, 1)
    longest = g.Reshape(g.Cast(total, to=whole), g.const([1]))
    held = g.Unsqueeze(g.Add(g.Cast(g.Reshape(last, g.const([-1])), to=whole), g.const(1)), g.const([1]))  # (batch, 1)
    earlier = g.Where(g.Equal(longest, length), g.const([0]), g.Sub(held, length))
    own = g.Add(earlier, steps(length))
    counts = (num_heads, kv_num_heads, kv_num_heads)
    q, keys, values = (
        g.Transpose(g.Reshape(wide(g, x), g.const([0, 0, n, size])), perm=(0, 2, 1, 3))
        for x, n in zip((query, key, value), counts, strict=True)
    )
    if scoring.do_rotary:
        turned = own if position_ids is None else position_ids
        q, keys = (
            g.RotaryEmbedding(x, wide(g, cos), wide(g, sin), turned, interleaved=scoring.rotary_interleaved)
            for x in (q, keys)
        )
    before = g.const([0]) if past_key is None else dim(past_key, 2)
    room = g.Max(longest, before)
    at, behind = steps(room), g.Add(before, length)
    new = g.Add(g.Sub(at, earlier), before)
    places = g.Where(g.Less(at, earlier), at, g.Where(g.Less(at, g.Add(earlier, length)), new, behind))
    each = g.Concat(batch, g.const([kv_num_heads]), room, g.const([size]), axis=0)
    places = g.Expand(g.Unsqueeze(places, g.const([1, 3])), each)
    caches = []
    for past, rows in ((past_key, keys), (past_value, values)):
        row = g.Concat(batch, g.const([kv_num_heads, 1, size]), axis=0)
        ends = [rows, g.Expand(g.scalar(0, rows), row)]
        rows_of_all = g.Concat(*([] if past is None else [wide(g, past)]), *ends, axis=2)
        caches.append(g.GatherElements(rows_of_all, places, axis=2))
    zero = g.const([0])
    seen_keys, seen_values = (g.Slice(x, zero, longest, g.const([2])) for x in caches)
    shared = g.const([0, kv_num_heads, -1, size])
    scores = g.MatMul(g.Reshape(q, shared), g.Transpose(seen_keys, perm=(0, 1, 3, 2)))
    shape = g.Concat(batch, g.const([num_heads]), length, longest, axis=0)
    scores = g.Mul(g.Reshape(scores, shape), g.scalar(scoring.scale or 1 / math.sqrt(size), scores))
    if scoring.softcap > 0:
        cap = g.scalar(scoring.softcap, scores)
        scores = g.Mul(g.Tanh(g.Div(scores, cap)), cap)
    if bias is not None:
        scores = g.Add(scores, wide(g, bias))
    columns, row = steps(longest), g.Unsqueeze(own, g.const([1, 3]))
    seen = g.And(g.LessOrEqual(columns, row), g.Less(columns, g.Unsqueeze(held, g.const([1, 3]))))
    if scoring.local_window_size >= 0:
        seen = g.And(seen, g.Greater(columns, g.Sub(row, g.const(scoring.local_window_size))))
    scores = g.Where(seen, scores, g.scalar(float(LEAST), scores))
    if scoring.smooth_softmax or head_sink is not None:
        sink = g.scalar(0, scores) if head_sink is None else g.Reshape(wide(g, head_sink), g.const([1, -1, 1, 1]))
        column = g.Expand(sink, g.Concat(batch, g.const([num_heads]), length, g.const([1]), axis=0))
        weights = g.Slice(g.Softmax(g.Concat(scores, column, axis=3), axis=-1), zero, longest, g.const([3]))
    else:
        weights = g.Softmax(scores, axis=-1)
    weights = g.Where(seen, weights, g.scalar(0, scores))  # queries that see nothing answer 0
    wanted = g.Concat(batch, g.const([kv_num_heads, -1]), longest, axis=0)
    answer = g.Concat(batch, g.const([num_heads]), length, g.const([size]), axis=0)
    y = g.Reshape(g.MatMul(g.Reshape(weights, wanted), seen_values), answer)
    y = g.Reshape(g.Transpose(y, perm=(0, 2, 1, 3)), g.const([0, 0, num_heads * size]))
    return tuple(cast_like(g, x, like) for x in (y, *caches))
