"""Fake quantisation: pairs of QuantizeLinear and DequantizeLinear become one operator over floats with a
straight-through gradient (ops/quantization/fake_quantize.py), for training.

Between the two there may be a Clip, by which PyTorch's exporter says that fewer steps are used than the type has.
"""

from __future__ import annotations

import numpy as np

from ...ops import Tensor
from ...ops.core.rules import axis_of
from ...ops.quantization.quantize import int_range
from ...ops.types import Array
from ..ir.graph import Graph, Node
from ..ir.infer import infer
from ..ir.prune import prune
from .rewrite import Leaf, Match, Pattern, Replacement, Rule, rewrite


def straight_through(graph: Graph) -> Graph:
    """The graph with `mezzo.FakeQuantize` in place of each pair that counts alike on both sides."""
    if not any((n.op, n.domain) == ("DequantizeLinear", "") for _, n in graph.walk()):
        return graph
    typed = infer(graph)
    rewritten = rewrite(typed, RULES)
    return graph if rewritten is typed else infer(prune(rewritten))


def _nodes(m: Match) -> tuple[Node, Node, Node | None]:
    """The two of the pair, and the Clip between them."""
    back, *clips, first = m.nodes
    return first, back, clips[0] if clips else None


def _zero(m: Match, node: Node) -> Array | None:
    """The zero point, 0 where there is none; None where it is not known."""
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    return m.constant(name) if name else np.zeros((), np.int64)


def _pair(m: Match) -> str | None:
    first, back, _ = _nodes(m)
    x, scale, y, counted = map(m.tensor, (first.inputs[0], first.inputs[1], back.outputs[0], back.inputs[0]))
    if x is None or scale is None or y is None or counted is None or x.dims is None or scale.dims is None:
        return "the ranks are not known"
    if not (x.dtype is scale.dtype is y.dtype) or x.dtype.bits < 16 or not counted.dtype.integer:
        return f"{x} becomes {counted} by {scale}, and {y}"
    if first.attrs.get("precision") or len(scale.dims) > 1 or any(n.attrs.get("block_size") for n in (first, back)):
        return "there is a scale for each block, or another precision"
    zeros = [_zero(m, node) for node in (first, back)]
    if zeros[0] is None or zeros[1] is None or not np.array_equal(zeros[0].ravel(), zeros[1].ravel()):
        return "the zero points are not known, or differ"
    scales = [m.constant(node.inputs[1]) for node in (first, back)]
    known = scales[0] is not None and scales[1] is not None and np.array_equal(scales[0], scales[1])
    if first.inputs[1] != back.inputs[1] and not known:
        return "the scales differ"
    if scale.elements != 1:
        axes = {axis_of(n.attrs.get("axis", 1), len(x.dims)) if len(x.dims) > 1 else 0 for n in (first, back)}
        return None if len(axes) == 1 else "the axes differ"
    return None if x.dims or not scale.dims else "a number has a scale for an axis"


def _clipped(m: Match) -> str | None:
    return _pair(m) or (None if _bounds(m) else "the bounds of Clip are not known")


def _bounds(m: Match) -> tuple[int, int] | None:
    """The least and the largest number of a step."""
    _, back, clip = _nodes(m)
    counted = m.tensor(back.inputs[0])
    assert counted is not None
    bounds = list(int_range(counted.dtype))
    for i, name in enumerate(clip.inputs[1:3] if clip else ()):
        known = m.constant(name) if name else bounds[i]
        if known is None:
            return None
        bounds[i] = (max, min)[i](bounds[i], int(np.asarray(known).reshape(())))
    return bounds[0], bounds[1]


def _as_floats(m: Match) -> Replacement:
    first, back, _ = _nodes(m)
    x, scale = m.tensor(first.inputs[0]), m.tensor(first.inputs[1])
    bounds, zero, result = _bounds(m), _zero(m, first), back.outputs[0]
    assert isinstance(x, Tensor)
    assert isinstance(scale, Tensor)
    assert bounds is not None
    zero = np.asarray(zero, x.dtype.numpy)
    size, nodes, constants = first.inputs[1], list[Node](), dict[str, Array]()
    if scale.elements != 1 and x.rank > 1:  # one scale for each place along the axis: broadcast from there
        at = axis_of(first.attrs.get("axis", 1), x.rank)
        dims = (-1, *(1,) * (x.rank - 1 - at))
        zero, size = zero.reshape(dims) if zero.ndim else zero, f"fake/{result}/scale"
        constants[f"fake/{result}/dims"] = np.array(dims, np.int64)
        nodes.append(Node("Reshape", (first.inputs[1], f"fake/{result}/dims"), (size,), name=size))
    elif zero.size == 1:
        zero = zero.reshape(())
    constants[f"fake/{result}/zero"] = zero
    origin = tuple(n.name for n in reversed(m.nodes))
    inputs, attrs = (first.inputs[0], size, f"fake/{result}/zero"), {"low": bounds[0], "high": bounds[1]}
    nodes.append(Node("FakeQuantize", inputs, (result,), attrs, "mezzo", back.name, back.where, origin))
    return Replacement({}, tuple(nodes), constants)


_QUANTIZED = Pattern("QuantizeLinear", (Leaf("x"), Leaf("scale")))
RULES: tuple[Rule, ...] = (
    Rule("a pair in training", Pattern("DequantizeLinear", (_QUANTIZED,)), _pair, _as_floats),
    Rule("a pair in training", Pattern("DequantizeLinear", (Pattern("Clip", (_QUANTIZED,)),)), _clipped, _as_floats),
)
