"""Attention of 16-bit floats: one kernel that keeps no scores in memory.

https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .....ops import DType, Tensor
from .....ops.core.fused import ABSENT
from .....ops.layouts import is_permutation
from ....compile.kernel import KernelRequest
from ...onednn.postops import Link
from .draft import GraphDraft, GraphRefused, GraphTensor, Writer, strides_of
from .kernel import CuDnn

PLAIN = {  # what must have its default for cuDNN to mean the same
    "left_window_size": -1, "right_window_size": -1, "softcap": 0.0, "softmax_precision": None,
}  # fmt: skip


class Attention(CuDnn):
    """Attention with a scale, an additive mask, or a causal one. Heads may be packed into the last of three dims; four
    dims may be in any order in which the elements of a head are contiguous."""

    name = "cudnn.attention"
    ops = frozenset({"Attention"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[GraphDraft]:
        link, (y, *others) = links[0], request.outputs
        if len(links) > 1 or others:
            raise GraphRefused("other operators follow, or further results are requested")
        if any(link.operand(i) != ABSENT for i in (4, 5, 6)):
            raise GraphRefused("past keys, or their number, are given")
        for name, plain in PLAIN.items():
            if link.attrs.get(name, plain) != plain and not (name == "softmax_precision" and link.attrs[name] == 1):
                raise GraphRefused(f"{name} is {link.attrs[name]}")
        types = [request.inputs[i] for i in link.operands[:3]]
        q, k, v = (t for t in types if isinstance(t, Tensor))
        if {t.dtype for t in (q, k, v)} not in ({DType.FLOAT16}, {DType.BFLOAT16}):
            raise GraphRefused(f"{q} is no float of 16 bits")
        assert isinstance(y, Tensor)
        writer, heads = Writer(), (link.attrs.get("q_num_heads"), *[link.attrs.get("kv_num_heads")] * 2)
        places = [("in", i) for i in link.operands[:3]]
        operands = [_heads(place, t, n) for place, t, n in zip(places, (q, k, v), heads, strict=True)]
        result = _heads(("out", 0), y, heads[0])
        if operands[0].sizes[1] % operands[1].sizes[1]:
            raise GraphRefused("heads do not divide")
        inputs = [writer.read(operand) for operand in operands]
        if link.operand(3) != ABSENT:
            scores = (*operands[0].sizes[:3], operands[1].sizes[2])
            inputs.append(writer.read(_mask(link.operand(3), request.inputs[link.operand(3)], scores, q.dtype)))
        scale = link.attrs.get("scale")
        writer.add(
            "sdpa",
            *inputs,
            sizes=result.sizes,
            attn_scale=float(1 / math.sqrt(operands[0].sizes[3]) if scale is None else scale),
            use_causal_mask=bool(link.attrs.get("is_causal", 0)),
            generate_stats=False,
        )
        yield writer.draft(result, "strict")


def _heads(place: tuple[str, int], t: Tensor, heads: int | None) -> GraphTensor:
    """[batch, heads, length, size], as it lies."""
    if len(t.sizes) == 3:
        if not heads:
            raise GraphRefused("the number of heads is not given")
        batch, length, hidden = t.sizes
        size = hidden // heads
        return GraphTensor(place, (batch, heads, length, size), (length * hidden, size, hidden, 1), t.dtype)
    layout = t.layout if is_permutation(t.layout) and t.layout.endswith("d") else ""
    return GraphTensor(place, t.sizes, strides_of(layout, t.sizes), t.dtype, layout)


def _mask(at: int, t: Any, scores: tuple[int, ...], dtype: DType) -> GraphTensor:
    """Return the mask that is added to the scores. Raises GraphRefused if it does not fit."""
    if not isinstance(t, Tensor) or t.dtype is not dtype:
        raise GraphRefused(f"the mask is {t}")
    sizes = (1,) * (4 - len(t.sizes)) + t.sizes
    if sizes[3] != scores[3] or any(n not in (1, m) for n, m in zip(sizes, scores, strict=True)):
        raise GraphRefused(f"the mask {t} is no part of the scores")
    return GraphTensor(("in", at), sizes, strides_of("", sizes), dtype)
