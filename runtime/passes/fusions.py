"""Fusion rules that put one operator in the place of several; applied where the caller asks for them."""

from __future__ import annotations

from ...ops import DType
from ..ir.graph import Node
from .rewrite import Leaf, Match, Pattern, Replacement, Rule


def _plain_images(m: Match) -> str | None:
    conv, pool = m.nodes[-1], m.root
    x, w = m.tensor(conv.inputs[0]), m.tensor(conv.inputs[1])
    if x is None or w is None or x.dims is None or len(x.dims) != 4 or x.dtype is not DType.FLOAT:
        return "it is no convolution of float32 images"
    if len(pool.outputs) > 1 and pool.outputs[1]:
        return "the indices of the maxima are used"
    for node in (conv, pool):
        odd = [
            a
            for a in ("auto_pad", "dilations", "group", "ceil_mode")
            if node.attrs.get(a, _USUAL[a][0]) not in _USUAL[a]
        ]
        if odd:
            return f"{node.op} has {odd[0]}={node.attrs[odd[0]]}"
    return "the pooling pads" if any(pool.attrs.get("pads", ())) else None


_USUAL: dict[str, tuple[object, ...]] = {
    "auto_pad": ("NOTSET",),
    "dilations": ((1, 1),),
    "group": (1,),
    "ceil_mode": (0,),
}


def _fused(m: Match) -> Replacement:
    conv, pool = m.nodes[-1], m.root
    kept = {a: tuple(conv.attrs[a]) for a in ("pads", "strides") if a in conv.attrs}
    window = {"pool_shape": tuple(pool.attrs["kernel_shape"]), "pool_strides": tuple(pool.attrs.get("strides", (1, 1)))}
    node = Node(
        "ConvReluPool", conv.inputs, pool.outputs[:1], {**kept, **window}, "mezzo", name=pool.name,
        origin=tuple(n.name for n in m.nodes),
    )  # fmt: skip
    return Replacement({}, (node,))


_rectified = Pattern("Relu", (Pattern("Conv", (Leaf("x"), Leaf("w")), uses=1),), uses=1)
FUSIONS: tuple[Rule, ...] = (Rule("Conv, Relu, MaxPool", Pattern("MaxPool", (_rectified,)), _plain_images, _fused),)
