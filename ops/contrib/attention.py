"""Attention of the domain com.microsoft, with its projections.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.composed import composed
from ..core.rules import has_dims, has_rank, product, same, total
from ..errors import ShapeError
from ..op import Builder, Sample, Value
from ..types import Dim, Tensor, Type, f32
from .attention_form import AttentionForm, check_bias, check_heads, check_mask

MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)


def check_absent(**asked: Any) -> None:
    """Raise ShapeError for an operand or attribute that is given and not supported."""
    for name, value in asked.items():
        if value is not None and not (isinstance(value, int) and value == 0):
            raise ShapeError(f"{name} is not supported", hint="export the model without it")


PROJECTION = [f32(2, 4, 8), f32(8, 24), f32(24)]


@composed(
    "Attention",
    domain="com.microsoft",
    inputs=("input", "weights", "bias?", "mask_index?", "past?", "attention_bias?", "past_sequence_length?"),
    outputs=("output", "present?"),
    attributes={"do_rotary": None, "past_present_share_buffer": None, "rotary_embedding_dim": None},
    written_out=True,
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
    """Attention of queries, keys and values that lie side by side, in a form that has the sizes of the operands of
    Attention; and keys and values with the past."""
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
    check_absent(do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer)
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


QUERY, KEY = f32(2, 3, 8), f32(2, 4, 8)


@composed(
    "MultiHeadAttention",
    domain="com.microsoft",
    inputs=(
        *("query", "key?", "value?", "bias?", "key_padding_mask?", "attention_bias?", "past_key?", "past_value?"),
        *("past_sequence_length?", "cache_indirection?"),
    ),
    outputs=("output", "present_key?", "present_value?", "qk?"),
    written_out=True,
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
    check_absent(past_sequence_length=past_sequence_length, cache_indirection=cache_indirection)
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
