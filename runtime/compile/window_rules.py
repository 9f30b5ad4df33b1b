"""Rules of padding (see padding_rules.py) for operators with sliding windows over spatial axes: convolutions, pools,
and images that are made larger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...ops.dataclasses import dataclass
from ...ops.nn.conv import conv, conv_transpose
from ...ops.nn.windows import per_axis
from ..ir.graph import Node
from .padding import Axis, PaddedGraph, PaddedValue
from .padding_rules import Rule, averaged, dtypes, operands, refused, rule_for, typed, unpadded
from .sizes import Size


@dataclass(frozen=True, slots=True)
class SlidingAxis:
    """A spatial axis with padding, of a window whose kernel covers `span` elements: `axis` of the operand becomes
    `size` of the result; `before` and `after` are the window's own pads."""

    axis: int
    size: Size
    span: int
    stride: int
    before: int
    after: int

    def end(self, planned: int, wanted: int) -> int:
        """The pad behind `planned` elements with which there are as many windows as `wanted`; below 0 where less than
        all elements are read."""
        return (wanted - 1) * self.stride + self.span - self.before - planned


def padded_rule(*ops: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operators whose first operand has padding; without any, they stay as they are."""

    def enter(rule: Rule) -> Rule:
        def chosen(g: PaddedGraph, node: Node) -> None:
            (rule if any(map(g.pads, g.value(node.inputs[0]).axes)) else unpadded)(g, node)

        rule_for(*ops)(chosen)
        return rule

    return enter


def _sliding(g: PaddedGraph, node: Node, x: PaddedValue, kernel: list[int]) -> tuple[list[SlidingAxis], list[int]]:
    """The axes with padding, and the pads of all axes."""
    (sizes, *_), count = typed(g, node), len(kernel)
    if not any(map(g.pads, x.axes[2:])):
        return [], []
    strides = per_axis(node.attrs.get("strides"), count, 1, "strides")
    dilations = per_axis(node.attrs.get("dilations"), count, 1, "dilations")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads, axes = _pads(node, spans, strides), list[SlidingAxis]()
    for i, (span, stride) in enumerate(zip(spans, strides, strict=True)):
        have, size = x.axes[i + 2], sizes[i + 2]
        if g.pads(have) != g.padded(size) or len(have) > 1:
            raise refused(node, f"windows over {have} become {size}")
        if g.pads(have):
            axes.append(SlidingAxis(i + 2, size, span, stride, pads[i], pads[count + i]))
    return axes, pads


def _pads(node: Node, spans: list[int], strides: tuple[int, ...]) -> list[int]:
    """The pads in numbers: first those before each axis, then those behind."""
    auto = node.attrs.get("auto_pad", "NOTSET") or "NOTSET"
    if not auto.startswith("SAME"):
        return [int(p) for p in node.attrs.get("pads") or ()] or [0] * (2 * len(spans))
    if any(s != 1 for s in strides):
        raise refused(node, f"auto_pad {auto} with strides divides its pads by the size")
    small, large = [(s - 1) // 2 for s in spans], [s // 2 for s in spans]
    return small + large if auto == "SAME_UPPER" else large + small


def _fitted(
    g: PaddedGraph, node: Node, sliding: list[SlidingAxis], pads: list[int], fill: float | None
) -> tuple[str, dict[str, Any]]:
    """The operand with `fill` behind what counts (None: with anything), and the attributes with which as many windows
    lie in it as are planned."""
    name, attrs = node.inputs[0], {k: v for k, v in node.attrs.items() if k not in ("auto_pad", "ceil_mode")}
    if fill is not None:
        for one in sliding:
            name = g.filled(node, name, one.axis, fill)
    x, pads = g.value(name), [*pads]
    for one in sliding:
        (planned,) = g.sizes([x.axes[one.axis]])
        end = one.end(planned, g.planned(one.size))
        if end >= one.span:
            raise refused(node, "windows that do not count lie in pads alone")
        if end <= -one.stride:  # the last elements are read by windows that are not planned
            ends = [g.constant(np.array([n], np.int64)) for n in (0, planned + end, one.axis, 1)]
            former, name = name, f"{node.outputs[0]}@{one.axis}"
            g.emit(node, (former, *ends), {name: x}, op="Slice", domain="", attrs={})
        pads[len(pads) // 2 + one.axis - 2] = max(end, 0)
    return name, {**attrs, "pads": tuple(pads)}


def _axes_of(x: PaddedValue, channels: Axis, sliding: list[SlidingAxis], sizes: tuple[Size, ...]) -> tuple[Axis, ...]:
    """The axes of the result."""
    ours = {one.axis: (one.size,) for one in sliding}
    spatial = (ours.get(i, () if sizes[i] == 1 else (sizes[i],)) for i in range(2, len(sizes)))
    return (x.axes[0], channels, *spatial)


def _convolved(g: PaddedGraph, node: Node) -> tuple[list[SlidingAxis], list[int], PaddedValue]:
    """The axes with padding and the pads of a convolution, and its result."""
    x, w, *bias = operands(g, node)
    assert x is not None and w is not None
    if g.pads(x.axes[1]) or any(map(g.pads, w.axes)) or any(b is not None and any(map(g.pads, b.axes)) for b in bias):
        raise refused(node, "channels or weights have padding")
    (sizes,) = typed(g, node)
    sliding, pads = _sliding(g, node, x, [g.planned(g.normal.of(n)) for n in g.dims_of(node.inputs[1])[2:]])
    axes = _axes_of(x, () if sizes[1] == 1 else (sizes[1],), sliding, sizes)
    return sliding, pads, PaddedValue(dtypes(g, node)[0], axes)


@padded_rule(conv.name)
def convolution(g: PaddedGraph, node: Node) -> None:
    """A convolution: zeros lie behind what counts where pads let windows read it."""
    sliding, pads, result = _convolved(g, node)
    name, attrs = node.inputs[0], node.attrs
    if sliding:
        name, attrs = _fitted(g, node, sliding, pads, 0.0 if any(one.after > 0 for one in sliding) else None)
    g.emit(node, (name, *node.inputs[1:]), {node.outputs[0]: result}, attrs=attrs)


@padded_rule(conv_transpose.name)
def transposed_convolution(g: PaddedGraph, node: Node) -> None:
    """A transposed convolution: each element spreads over a window of the result, padding as zeros."""
    (sliding, pads, result), name = _convolved(g, node), node.inputs[0]
    if sliding and (node.attrs.get("output_shape") or node.attrs.get("auto_pad", "NOTSET") != "NOTSET"):
        raise refused(node, "its pads follow from the size of the result")
    more, x = [*(node.attrs.get("output_padding") or [0] * (len(pads) // 2))], g.value(name)
    for one in sliding:
        name, at = g.filled(node, name, one.axis, 0.0), one.axis - 2
        ((planned,), wanted) = g.sizes([x.axes[one.axis]]), g.planned(one.size)
        full = (planned - 1) * one.stride + one.span - one.before
        pads[len(pads) // 2 + at], more[at] = max(full - wanted, 0), max(wanted - full, 0)
        if more[at] >= one.stride:
            raise refused(node, "more is planned for the result than its operand reaches")
    attrs = {**node.attrs, "pads": tuple(pads), "output_padding": tuple(more)} if sliding else node.attrs
    g.emit(node, (name, *node.inputs[1:]), {node.outputs[0]: result}, attrs=attrs)


@padded_rule("MaxPool")
def max_pool(g: PaddedGraph, node: Node) -> None:
    x = g.value(node.inputs[0])
    if len(node.outputs) > 1 and node.outputs[1]:
        raise refused(node, "places in an image with padding are asked for")
    _pooled(g, node, x, -np.inf)


@padded_rule("AveragePool")
def average_pool(g: PaddedGraph, node: Node) -> None:
    """AveragePool whose windows read nothing behind what counts: how many elements they divide by is theirs alone."""
    x = g.value(node.inputs[0])
    same = str(node.attrs.get("auto_pad", "")).startswith("SAME")
    if same or node.attrs.get("ceil_mode", 0) or any(node.attrs.get("pads") or ()):
        raise refused(node, "windows at the end divide by another number")
    _pooled(g, node, x, None)


def _pooled(g: PaddedGraph, node: Node, x: PaddedValue, fill: float | None) -> None:
    if g.pads(x.axes[1]):
        raise refused(node, "channels have padding")
    sliding, pads = _sliding(g, node, x, [int(k) for k in node.attrs["kernel_shape"]])
    name, attrs = _fitted(g, node, sliding, pads, fill) if sliding else (node.inputs[0], node.attrs)
    (sizes, *_) = typed(g, node)
    g.emit(node, (name,), {node.outputs[0]: PaddedValue(x.dtype, _axes_of(x, x.axes[1], sliding, sizes))}, attrs=attrs)


@padded_rule("GlobalMaxPool", "GlobalAveragePool")
def global_pool(g: PaddedGraph, node: Node) -> None:
    """Pools over all of an image: of its largest element, or of the sum, times how many are planned for each that
    counts."""
    x, (name,), average = g.value(node.inputs[0]), node.inputs, node.op == "GlobalAveragePool"
    for axis in range(2, len(x.axes)):
        name = g.filled(node, name, axis, 0.0 if average else -np.inf)
    axes = (*x.axes[:2], *[()] * (len(x.axes) - 2))
    rounded = [s for axis in x.axes[2:] for s in axis if g.padded(s)]
    pooled = PaddedValue(x.dtype, axes)
    if not average or not rounded:
        g.emit(node, (name,), {node.outputs[0]: pooled})
        return
    averaged(g, node, (name,), pooled, rounded)


@padded_rule("BatchNormalization")
def batch_normalization(g: PaddedGraph, node: Node) -> None:
    x, *others = operands(g, node)
    assert x is not None
    if g.pads(x.axes[1]) or node.attrs.get("training_mode", 0) or any(any(map(g.pads, o.axes)) for o in others if o):
        raise refused(node, "channels have padding, or statistics are those of the batch")
    g.emit(node, node.inputs, {node.outputs[0]: PaddedValue(dtypes(g, node)[0], x.axes)})


@padded_rule("Resize")
def resize(g: PaddedGraph, node: Node) -> None:
    """Resize that repeats each element a whole number of times: which one is read does not follow from sizes."""
    x, *_ = operands(g, node)
    assert x is not None
    (sizes,) = typed(g, node)
    places = node.attrs.get("coordinate_transformation_mode", "half_pixel")
    rounding = node.attrs.get("nearest_mode", "round_prefer_floor")
    local = (places == "asymmetric" and rounding == "floor") or (places == "half_pixel" and rounding != "ceil")
    if node.attrs.get("mode", "nearest") != "nearest" or not local or node.attrs.get("axes"):
        raise refused(node, "what it reads follows from the size")
    scales = [*_scales(g, node, x, sizes)]
    name, axes = node.outputs[0], tuple(() if s == 1 else (s,) for s in sizes)
    large = [n * s for n, s in zip(g.sizes(x.axes), scales, strict=True)]
    planned = g.sizes(axes)
    if any(p > n for p, n in zip(planned, large, strict=True)):
        raise refused(node, "more is planned for the result than for its operand")
    cut = [i for i, (p, n) in enumerate(zip(planned, large, strict=True)) if p < n]
    made = f"{name}@whole" if cut else name
    factors = g.constant(np.array(scales, np.float32))
    attrs = {k: v for k, v in node.attrs.items() if k not in ("keep_aspect_ratio_policy", "axes")}
    padded = PaddedValue(x.dtype, axes)
    g.emit(node, (node.inputs[0], "", factors), {made: padded}, op="Resize", domain="", attrs=attrs)
    if cut:
        numbers = ([0] * len(cut), [planned[i] for i in cut], cut, [1] * len(cut))
        ends = [g.constant(np.array(n, np.int64)) for n in numbers]
        g.emit(node, (made, *ends), {name: padded}, op="Slice", domain="", attrs={})


def _scales(g: PaddedGraph, node: Node, x: PaddedValue, sizes: tuple[Size, ...]) -> Iterator[int]:
    """The number of times that the elements of each axis are repeated."""
    for axis, size in zip(x.axes, sizes, strict=True):
        have = axis[0] if axis else 1
        if len(axis) > 1 or have == 0:
            raise refused(node, f"{axis} becomes {size}")
        scale = g.true(size) // g.true(have)
        if scale < 1 or g.normal.multiple(have, scale) != size:
            raise refused(node, f"{have} becomes {size}")
        yield scale
