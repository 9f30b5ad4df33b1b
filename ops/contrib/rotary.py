"""RotaryEmbedding of the domain com.microsoft, which ONNX Runtime's optimiser of transformers writes.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.RotaryEmbedding
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.composed import composed
from ..core.rules import has_dims, has_rank, same
from ..errors import ShapeError
from ..op import Builder, Sample, Value
from ..types import Tensor, f32
from .attention_form import check_heads

PLACES = np.array([[0, 1, 2], [3, 1, 4]])
TURNS = [f32(5, 2), f32(5, 2)]


def _heads(dims: Any, half: Any, num_heads: int) -> int | None:
    """The number of heads that lie side by side; by the width of the table, unless the node says it."""
    if len(dims) == 4 or num_heads:
        return num_heads or None
    return int(dims[-1] // (2 * half)) if isinstance(dims[-1], int) and isinstance(half, int) and half else None


@composed(
    "RotaryEmbedding",
    domain="com.microsoft",
    inputs=("input", "position_ids", "cos_cache", "sin_cache"),
    outputs=("output",),
    attributes={"is_packed_batching": 0, "scale": 1.0},
    written_out=True,
    samples=[
        Sample([f32(2, 3, 8), PLACES, *TURNS]),
        Sample([f32(2, 3, 8), np.array([1]), *TURNS], {"interleaved": 1}),
        Sample([f32(2, 2, 3, 4), PLACES, *TURNS]),
        Sample([f32(2, 3, 12), PLACES, *TURNS], {"num_heads": 2, "rotary_embedding_dim": 4}),
    ],
)
def contrib_rotary_embedding(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    **_: Any,
) -> Value | None:
    """That of the standard, with one first place for all sequences, if not a place for each element."""
    x, places, cos, sin = xs
    if any(t is None or t.dims is None for t in types[:3]):
        return None
    heads, packed = _heads(types[0].dims, types[2].dims[-1], num_heads), len(types[0].dims) == 3
    if len(types[1].dims) < 2:
        shape = g.shape_of(x)
        batch, length = (g.Slice(shape, g.const([i]), g.const([i + 1]), g.const([0])) for i in (0, 1 if packed else 2))
        steps = g.Range(g.const(0), g.Squeeze(length, g.const([0])), g.const(1))
        places = g.Expand(g.Add(g.Reshape(places, g.const([1])), steps), g.Concat(batch, length, axis=0))
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": rotary_embedding_dim}
    if packed and heads is None:  # the width of a head is known when it runs
        width = g.Mul(g.Slice(g.shape_of(cos), g.const([1]), g.const([2]), g.const([0])), g.const([2]))
        heads_apart = g.Reshape(x, g.Concat(g.const([0, 0, -1]), width, axis=0))
        turned = g.RotaryEmbedding(g.Transpose(heads_apart, perm=(0, 2, 1, 3)), cos, sin, places, **attrs)
        return g.Reshape(g.Transpose(turned, perm=(0, 2, 1, 3)), g.shape_of(x))
    turned = g.RotaryEmbedding(x, cos, sin, places, **attrs, **({"num_heads": heads} if packed else {}))
    return g.Identity(turned)  # which is written out in turn, under a name that is not this one's


@contrib_rotary_embedding.infer
def _(
    input: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    has_rank(input, 3, 4)
    has_rank(position_ids, 0, 1, 2)
    if is_packed_batching or scale != 1:
        raise ShapeError("is_packed_batching and scale are not supported", hint="export the model without them")
    if interleaved not in (0, 1):
        raise ShapeError(f"interleaved {interleaved}", hint="0 turns halves of a head, 1 neighbours")
    has_rank(cos_cache, 2)
    has_dims(sin_cache, cos_cache.dims or (None, None), f"the cosines {cos_cache}")
    if input.dims is None or position_ids.dims is None or cos_cache.dims is None:
        return input.forget()
    packed, half = len(input.dims) == 3, cos_cache.dims[1]
    if len(position_ids.dims) < 2:
        same(position_ids.elements, 1, f"{position_ids} is no first place")
    else:
        has_dims(position_ids, (input.dims[0], input.dims[1 if packed else 2]), f"{input}")
    if packed and rotary_embedding_dim and not num_heads:
        raise ShapeError("num_heads is missing", hint="rotary_embedding_dim says how much of a head is turned")
    heads = _heads(input.dims, half, num_heads) if packed else 1
    size = None if heads is None else check_heads(input.dims[-1], heads)
    turned = rotary_embedding_dim or size
    if isinstance(turned, int) and isinstance(half, int) and turned != 2 * half:
        raise ShapeError(f"{cos_cache} turns {2 * half} elements of each head of {input}, not {turned}")
    if isinstance(turned, int) and isinstance(size, int) and turned > size:
        raise ShapeError(f"{turned} elements of heads of {size} are to be turned", hint="correct rotary_embedding_dim")
    return input.forget()
