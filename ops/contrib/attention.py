"""Attention of the domain com.microsoft, with its projections.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.rules import has_dims, has_rank, narrow, product, same, total, widen
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, Dim, Tensor, Type, f32
from .attention_form import LEAST, AttentionForm, causal, check_bias, check_heads, check_mask

MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)


def _split(x: Array, heads: int) -> Array:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def _attend(xp: Any, q: Array, k: Array, v: Array, bias: Array | None, scale: float | None) -> tuple[Array, Array]:
    """softmax(q k' scale + bias) v with the heads side by side again, and the products before the softmax."""
    factor = scale if scale else 1 / math.sqrt(max(q.shape[-1], 1))
    products = xp.matmul(q, k.swapaxes(-1, -2)) * np.float32(factor)
    if bias is not None:
        products = products + bias
    weights = xp.exp(products - products.max(-1, keepdims=True, initial=LEAST))
    weights /= weights.sum(-1, keepdims=True)
    y = xp.matmul(weights, v).transpose(0, 2, 1, 3)
    return y.reshape(*y.shape[:2], y.shape[2] * y.shape[3]), products


def _mask_bias(xp: Any, mask: Array, batch: int, rows: int, columns: int, filter_value: float) -> Array:
    """Return the number that a mask, in any of its forms, adds to the scores: 0, or `filter_value` for hidden keys.

    A list gives the end of each sequence (and, if twice as long, then their starts); else nonzero means visible.
    """
    if mask.ndim == 1:
        at = xp.arange(columns)
        seen = at < mask[:batch, None]
        if mask.size == 2 * batch:
            seen = seen & (at >= mask[batch:, None])
        seen = seen[:, None, None]
    elif mask.ndim == 4:  # a square of the longest length, of which the last rows in use are taken
        seen = mask[:, :, columns - rows : columns, :columns] > 0
    else:
        seen = (mask[:, None, None] if mask.ndim == 2 else mask[:, None]) > 0
    return xp.where(seen, np.float32(0), np.float32(filter_value))


def _together(*parts: Array | None) -> Array | None:
    """The sum of what is there; hidden places stay finite."""
    present = [p for p in parts if p is not None]
    if not present:
        return None
    whole = present[0]
    for part in present[1:]:
        whole = whole + part
    return np.maximum(whole, LEAST)


def _unsupported(**asked: Any) -> None:
    for name, value in asked.items():
        if value is not None and not (isinstance(value, int) and value == 0):
            raise ShapeError(f"{name} is not supported", hint="export the model without it")


PROJECTION = [f32(2, 4, 8), f32(8, 24), f32(24)]


@op(
    "Attention",
    domain="com.microsoft",
    written_out=True,
    since=1,
    outputs=("output", "present?"),
    samples=[
        Sample(PROJECTION, {"num_heads": 2}),
        Sample(PROJECTION, {"num_heads": 4, "unidirectional": 1}),
        Sample([*PROJECTION, MASK], {"num_heads": 2, "scale": 0.3}),
        Sample([*PROJECTION, np.array([4, 2], np.int32)], {"num_heads": 2, "mask_filter_value": -50.0}),
        Sample([*PROJECTION, np.array([4, 3, 1, 0], np.int32)], {"num_heads": 2}),
        Sample([*PROJECTION, np.tile(MASK[:, None], (1, 4, 1)), None, f32(2, 2, 4, 4)], {"num_heads": 2}),
        Sample([f32(2, 4, 8), f32(8, 20), f32(20)], {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}),
        Sample([*PROJECTION, None, f32(2, 2, 2, 3, 4)], {"num_heads": 2, "unidirectional": 1}, 2),
    ],
)
def attention(
    k: Context,
    input: Array,
    weights: Array,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_sequence_length: Array | None = None,
    *,
    do_rotary: int | None = None,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int | None = None,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Array, ...]:
    projected = k.xp.matmul(widen(input), widen(weights))
    if bias is not None:
        projected = projected + widen(bias)
    sizes = list(qkv_hidden_sizes or [weights.shape[1] // 3] * 3)
    added = None if attention_bias is None else widen(attention_bias)
    y, present = projected_attention(
        k, projected, sizes, mask_index, past, added,
        mask_filter_value=mask_filter_value, num_heads=num_heads, scale=scale, unidirectional=unidirectional,
    )  # fmt: skip
    return narrow(y, input.dtype), narrow(present, input.dtype)


def projected_attention(
    k: Context,
    projected: Array,
    sizes: Sequence[int],
    mask: Array | None,
    past: Array | None,
    bias: Array | None,
    *,
    mask_filter_value: float,
    num_heads: int,
    scale: float | None,
    unidirectional: int,
) -> tuple[Array, Array]:
    """Attention of queries, keys and values that lie side by side; and keys and values with the past, if wanted."""
    q, key, value = (_split(x, num_heads) for x in k.xp.split(projected, [sizes[0], sizes[0] + sizes[1]], axis=2))
    if past is not None:
        key, value = (k.xp.concatenate([widen(old), new], 2) for old, new in zip(past, (key, value), strict=True))
    rows, columns = q.shape[2], key.shape[2]
    added = _together(
        bias,
        None if mask is None else _mask_bias(k.xp, mask, len(projected), rows, columns, mask_filter_value),
        causal(k.xp, rows, columns, columns - rows) if unidirectional else None,
    )
    y, _ = _attend(k.xp, q, key, value, added, scale)
    return y, k.xp.stack([key, value]) if k.wanted[1:2] == (True,) else k.xp.zeros(0, np.float32)


@attention.infer
def _(
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    *,
    do_rotary: int | None = None,
    num_heads: int,
    past_present_share_buffer: int | None = None,
    qkv_hidden_sizes: Sequence[int] | None = None,
) -> tuple[Tensor, ...]:
    _unsupported(do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer)
    has_rank(input, 3)
    has_rank(weights, 2)
    batch, length, width = input.dims or (None, None, None)
    if weights.dims is not None:
        same(width, weights.dims[0], f"the weights {weights} do not fit {input}")
    whole = None if weights.dims is None else weights.dims[1]
    if bias is not None:
        has_dims(bias, (whole,), f"the weights {weights}")
    sizes: Sequence[Dim] = qkv_hidden_sizes or [whole // 3 if isinstance(whole, int) else None] * 3
    if len(sizes) != 3 or sizes[0] != sizes[1] or (isinstance(whole, int) and whole != total(sizes)):
        raise ShapeError(
            f"the {whole} columns of {weights} are not queries, keys and values of {[*sizes]}",
            hint="queries and keys have one size; where values have another, qkv_hidden_sizes are the three",
        )
    out, (_, _, each) = sizes[2], (check_heads(size, num_heads) for size in sizes)
    if past is not None:
        has_dims(past, (2, batch, num_heads, None, each), f"keys and values of {num_heads} heads of {input}")
    earlier: Dim = 0 if past is None else None if past.dims is None else past.dims[3]
    columns = total((earlier, length))
    check_mask(mask_index, batch, length, columns)
    check_bias(attention_bias, batch, num_heads, length, columns)
    return input.of((batch, length, out)), input.of((2, batch, num_heads, columns, each))


@attention.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
    **_: Any,
) -> tuple[Value, ...] | None:
    if not AttentionForm.possible(types):
        return None
    m = AttentionForm(g, xs, types, num_heads)
    x, weights, bias, past, added = (m.xs[i] for i in (0, 1, 2, 4, 5))
    projected = g.MatMul(x, weights)
    if bias is not None:
        projected = g.Add(projected, bias)
    sizes = list(qkv_hidden_sizes or [m.sizes[1][1] // 3] * 3)
    return projected_form(m, projected, sizes, past, added, mask_filter_value, scale, unidirectional)


def projected_form(
    m: AttentionForm,
    projected: Value,
    sizes: Sequence[int],
    past: Value | None,
    added: Value | None,
    mask_filter_value: float,
    scale: float | None,
    unidirectional: int,
) -> tuple[Value, ...]:
    """`projected_attention` as standard operators: of a form that has the sizes of the operands of Attention."""
    g, (batch, rows) = m.g, m.sizes[0][:2]
    parts = zip(g.Split(projected, g.const(sizes), axis=2, outputs=3), sizes, strict=True)
    q, key, value = (m.split(part, batch, rows, width) for part, width in parts)
    earlier = 0 if past is None else m.sizes[4][3]
    if past is not None:
        key, value = (g.Concat(g.Gather(past, g.const(i), axis=0), new, axis=2) for i, new in enumerate((key, value)))
    columns = earlier + rows
    bias = m.together(
        added,
        m.mask(3, batch, rows, columns, mask_filter_value),
        m.causal(rows, columns, columns - rows) if unidirectional else None,
    )
    y, _ = m.attend(q, key, value, bias, scale, (batch, rows, sizes[2]), sizes[0] // m.heads)
    if sizes[1] != sizes[2]:
        return m.results(y)  # keys and values do not go into one tensor
    return m.results(y, g.Concat(*(g.Unsqueeze(v, g.const([0])) for v in (key, value)), axis=0))


QUERY, KEY = f32(2, 3, 8), f32(2, 4, 8)


@op(
    "MultiHeadAttention",
    domain="com.microsoft",
    written_out=True,
    since=1,
    outputs=("output", "present_key?", "present_value?", "qk?"),
    samples=[
        Sample([QUERY, KEY, KEY], {"num_heads": 2}),
        Sample([QUERY, KEY, f32(2, 4, 4), f32(20)], {"num_heads": 2, "scale": 0.4}),
        Sample([KEY, KEY, KEY, f32(24), MASK], {"num_heads": 4, "unidirectional": 1}),
        Sample([QUERY, f32(2, 2, 2, 4), f32(2, 2, 2, 4)], {"num_heads": 2, "unidirectional": 1}),
        Sample([QUERY, KEY, KEY, None, np.array([4, 2], np.int32)], {"num_heads": 2, "mask_filter_value": -30.0}),
        Sample([QUERY, KEY, KEY, None, None, f32(1, 2, 3, 4)], {"num_heads": 2}),
        Sample([QUERY, QUERY, QUERY, None, None, None, f32(2, 2, 5, 4), f32(2, 2, 5, 4)], {"num_heads": 2}, 3),
        Sample([QUERY, f32(2, 2, 4, 4), f32(2, 2, 4, 4)], {"num_heads": 2}),
        Sample([QUERY, f32(2, 6, 8), f32(2, 6, 8)], {"num_heads": 2, "unidirectional": 1}),
        Sample(
            [QUERY, KEY, KEY, None, None, None, f32(2, 2, 5, 4), f32(2, 2, 5, 4)],
            {"num_heads": 2, "unidirectional": 1},
            3,
        ),
    ],
)
def multi_head_attention(
    k: Context,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_sequence_length: Array | None = None,
    cache_indirection: Array | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Array, ...]:
    q, keys, values = _operands(k.xp, query, key, value, bias, num_heads)
    if past_key is not None and past_value is not None:
        keys = k.xp.concatenate([widen(past_key), keys], 2)
        values = k.xp.concatenate([widen(past_value), values], 2)
    rows, columns = q.shape[2], keys.shape[2]
    added = _together(
        None if attention_bias is None else widen(attention_bias),
        None if key_padding_mask is None
        else _mask_bias(k.xp, key_padding_mask, q.shape[0], rows, columns, mask_filter_value),
        causal(k.xp, rows, columns, 0 if past_key is None else past_key.shape[2]) if unidirectional else None,
    )  # fmt: skip
    y, products = _attend(k.xp, q, keys, values, added, scale)
    return tuple(narrow(k.xp.array(x, order="C"), query.dtype) for x in (y, keys, values, products))


def _operands(
    xp: Any, query: Array, key: Array | None, value: Array | None, bias: Array | None, heads: int
) -> tuple[Array, Array, Array]:
    """Query, key and value as (batch, heads, length, size), however they were packed."""
    if query.ndim == 5:  # (batch, length, heads, 3, size)
        q, keys, values = (widen(query)[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3))
    elif key is None:
        raise ShapeError("MultiHeadAttention lacks its key, and the query is not packed")
    elif key.ndim == 5:  # (batch, length, heads, 2, size)
        keys, values = (widen(key)[:, :, :, i].transpose(0, 2, 1, 3) for i in range(2))
        q = _split(widen(query), heads)
    elif value is None:
        raise ShapeError("MultiHeadAttention lacks its value, and the key is not packed")
    else:
        q = _split(widen(query), heads)
        keys, values = (widen(x) if x.ndim == 4 else _split(widen(x), heads) for x in (key, value))
    if bias is None:
        return q, keys, values
    sizes = [heads * x.shape[3] for x in (q, keys)]
    shares = xp.split(widen(bias), [sizes[0], sum(sizes)])
    shaped = [b.reshape(1, heads, 1, -1) for b in shares]
    q, keys, values = (
        x if given is not None and given.ndim == 4 else x + b
        for x, b, given in zip((q, keys, values), shaped, (query, key, value), strict=True)
    )
    return q, keys, values


@multi_head_attention.infer
def _(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    cache_indirection: Tensor | None = None,
    *,
    num_heads: int,
) -> tuple[Type, ...]:
    _unsupported(past_sequence_length=past_sequence_length, cache_indirection=cache_indirection)
    check_heads(0, num_heads)
    has_rank(query, 3, 5)
    batch, length = (None, None) if query.dims is None else query.dims[:2]
    columns: Dim
    key_size: Dim
    value_size: Dim
    packed = query if query.dims is not None and len(query.dims) == 5 else key
    if packed is None:
        raise ShapeError("MultiHeadAttention lacks its key, and the query is not packed")
    if packed.dims is not None and len(packed.dims) == 5:
        same(packed.dims[3], 3 if packed is query else 2, f"{packed} does not hold what is packed in it along axis 3")
        columns, key_size, value_size = packed.dims[1], packed.dims[4], packed.dims[4]
    elif value is None and packed.dims is not None:
        raise ShapeError("MultiHeadAttention lacks its value, and the key is not packed")
    else:
        columns, key_size = _kept(packed, num_heads)
        value_size = None if value is None else _kept(value, num_heads)[1]
    if past_key is not None:
        columns = total((columns, None if past_key.dims is None else past_key.dims[2]))
    check_mask(key_padding_mask, batch, length, columns)
    check_bias(attention_bias, batch, num_heads, length, columns)
    head = (batch, num_heads)
    return (
        query.of((batch, length, product((num_heads, value_size)))),
        query.of((*head, columns, key_size)),
        query.of((*head, columns, value_size)),
        query.of((*head, length, columns)),
    )


def _kept(t: Tensor, heads: int) -> tuple[Dim, Dim]:
    """Length and size of a head of a key or value, in either of its layouts."""
    has_rank(t, 3, 4)
    if t.dims is None:
        return None, None
    if len(t.dims) == 4:
        return t.dims[2], t.dims[3]
    return t.dims[1], check_heads(t.dims[2], heads)


@multi_head_attention.body
def _(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Value, ...] | None:
    if not AttentionForm.possible(types):
        return None
    m = AttentionForm(g, xs, types, num_heads)
    query, key, value, bias, _, added, past_key, past_value, *_ = m.xs
    batch, rows = m.sizes[0][:2]
    parts: list[Value] = []
    given = [*zip((query, key, value), m.sizes, strict=False)]
    last = next((i for i, (_, of) in enumerate(given) if len(of) == 5), 2)  # nothing counts behind what is packed
    given = given[: last + 1]
    sizes: list[int] = []
    for x, of in given:
        if len(of) == 5:  # (batch, length, heads, 2 or 3, size)
            for i in range(of[3]):
                parts.append(g.Transpose(g.Gather(x, g.const(i), axis=3), perm=(0, 2, 1, 3)))
                sizes.append(of[4])
        elif len(of) == 4:
            parts.append(x)
            sizes.append(of[3])
        elif x is not None:
            parts.append(m.split(x, batch, of[1], of[2]))
            sizes.append(of[2] // num_heads)
    if bias is not None:
        shares = g.Split(bias, g.const([num_heads * n for n in sizes]), axis=0, outputs=3)
        for i, (share, n) in enumerate(zip(shares, sizes, strict=True)):
            if len(m.sizes[i]) != 4:
                parts[i] = g.Add(parts[i], g.Reshape(share, g.const([1, num_heads, 1, n])))
    q, keys, values = parts
    packed = m.sizes[0] if len(m.sizes[0]) == 5 else m.sizes[1]
    columns, earlier = packed[2 if len(packed) == 4 else 1], 0
    if past_key is not None and past_value is not None:
        keys, values = g.Concat(past_key, keys, axis=2), g.Concat(past_value, values, axis=2)
        earlier = m.sizes[6][2]
    columns += earlier
    together = m.together(
        added,
        m.mask(4, batch, rows, columns, mask_filter_value),
        m.causal(rows, columns, earlier) if unidirectional else None,
    )
    y, products = m.attend(q, keys, values, together, scale, (batch, rows, num_heads * sizes[2]), sizes[0])
    return m.results(y, keys, values, products)
