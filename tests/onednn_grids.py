"""Grids of small models for oneDNN's kernels: every family, in every layout that a neighbour may leave or ask for, with
what follows it in one primitive, over sizes with and without axes of size 1. All of it is data; a Cell is one model."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mezzo.ops.dataclasses import dataclass
from mezzo.ops.layouts import parse, row_major
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.interpreter import evaluate

from .graphs import in_float64, wide

TOLERANCE = 2e-5  # two sums of some tens of products, one after the other

Dims = tuple[int, ...]
Made = tuple[str, Dims]


# Layouts that convolutions give, by the channels of their images: in blocks where there are three, else channels-last
IMAGES = {"blocks": 3, "channels last": 16}


class Maker:
    """A graph in the making, whose inputs lie in one layout: left so by a Transpose, or by a convolution (which gives
    blocks of channels for images of three channels, and channels last for others)."""

    def __init__(self, layout: str) -> None:
        self.g, self._layout, self._rng = GraphBuilder("grid"), layout, np.random.default_rng(7)
        self.feeds: dict[str, Any] = {}

    def numbers(self, *dims: int) -> Any:
        return self._rng.standard_normal(dims).astype(np.float32)

    def const(self, *dims: int) -> str:
        return self.g.const(self.numbers(*dims))

    def fed(self, *dims: int) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.numbers(*dims)
        return self.g.input(name, f32(*dims))

    def laid(self, *dims: int) -> str:
        """An input that lies in the layout of the grid, row-major if that is one of other ranks."""
        layout = self._layout
        if layout in IMAGES and len(dims) in (3, 4):
            channels, ones = IMAGES[layout], [1] * (len(dims) - 2)
            weights = self.const(dims[1], channels, *ones)
            return str(self.g.Conv(self.fed(dims[0], channels, *dims[2:]), weights))
        if not layout or len(layout) != len(dims) or layout in IMAGES:
            return self.fed(*dims)
        order = parse(layout, len(dims))[0]  # of the axes in memory: the input is what a Transpose makes this of
        return str(
            self.g.Transpose(self.fed(*(dims[d] for d in order)), perm=[order.index(d) for d in range(len(dims))])
        )


# Families: what is made of an input of these dims; None where there is nothing of the kind

Build = Callable[[Maker, Dims], Made | None]


def _conv(bias: bool, kernel: int = 1, depthwise: bool = False, filters: int = 6) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        if not 3 <= len(dims) <= 4:
            return None
        channels, rest = dims[1], dims[2:]
        made = channels if depthwise else filters
        weights = m.const(made, 1 if depthwise else channels, *[kernel] * len(rest))
        more = [m.const(made)] if bias else []
        attrs: dict[str, Any] = {"pads": [kernel // 2] * 2 * len(rest), "group": channels if depthwise else 1}
        return m.g.Conv(m.laid(*dims), weights, *more, **attrs), (dims[0], made, *rest)

    return build


def _conv_transpose(m: Maker, dims: Dims) -> Made | None:
    if len(dims) != 4:
        return None
    y = m.g.ConvTranspose(m.laid(*dims), m.const(dims[1], 16, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1])
    return y, (dims[0], 16, 2 * dims[2], 2 * dims[3])


def _matmul(second: str) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        if len(dims) < 2:
            return None
        *lead, _, depth = dims
        match second:
            case "constant":
                return m.g.MatMul(m.laid(*dims), m.const(depth, 7)), (*dims[:-1], 7)
            case "column":
                return m.g.MatMul(m.laid(*dims), m.const(depth, 1)), (*dims[:-1], 1)
            case "input":
                return m.g.MatMul(m.laid(*dims), m.laid(*lead, depth, 6)), (*dims[:-1], 6)
            case _:  # with itself, turned
                x = m.laid(*dims)
                axes = list(range(len(dims)))
                turned = m.g.Transpose(x, perm=[*axes[:-2], axes[-1], axes[-2]])
                return m.g.MatMul(x, turned), (*dims[:-1], dims[-2])

    return build


def _gemm(**attrs: int) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        if len(dims) != 2:
            return None
        rows, depth = reversed(dims) if attrs.get("transA") else dims
        weights = m.const(5, depth) if attrs.get("transB") else m.const(depth, 5)
        return m.g.Gemm(m.laid(*dims), weights, m.const(5), **attrs), (rows, 5)

    return build


def _same(op: str, least: int = 1, **attrs: Any) -> Build:
    """An operator of one operand, whose result has its size."""
    return lambda m, dims: (m.g.op(op, m.laid(*dims), **attrs), dims) if len(dims) >= least else None


def _along(op: str, axis: int) -> Build:
    return lambda m, dims: (m.g.op(op, m.laid(*dims), axis=axis), dims) if len(dims) > max(axis, 0) else None


def _layer_norm(axis: int) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        if len(dims) < -axis:
            return None
        return m.g.LayerNormalization(m.laid(*dims), m.const(*dims[axis:]), m.const(*dims[axis:]), axis=axis), dims

    return build


def _channel_norm(op: str) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        if len(dims) < 3:
            return None
        numbers = [m.const(dims[1]) for _ in range(2)]
        attrs: dict[str, Any] = {"num_groups": 2 if dims[1] % 2 == 0 else 1} if op == "GroupNormalization" else {}
        if op == "BatchNormalization":
            numbers += [m.const(dims[1]), m.g.const(abs(m.numbers(dims[1])) + 1)]
        return m.g.op(op, m.laid(*dims), *numbers, **attrs), dims

    return build


def _binary(op: str, spread: str) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        other = operand(m, spread, dims)
        return None if other is None else (m.g.op(op, m.laid(*dims), other), dims)

    return build


def _several(op: str) -> Build:
    return lambda m, dims: (m.g.op(op, *(m.laid(*dims) for _ in range(3))), dims)


def _prelu(m: Maker, dims: Dims) -> Made | None:
    return (m.g.PRelu(m.laid(*dims), m.const(dims[1], *[1] * (len(dims) - 2))), dims) if len(dims) > 1 else None


def _concat(axis: int) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        if len(dims) <= axis:
            return None
        y = m.g.Concat(m.laid(*dims), m.laid(*dims), m.fed(*dims), axis=axis)
        return y, (*dims[:axis], 3 * dims[axis], *dims[axis + 1 :])

    return build


def _split(axis: int) -> Build:
    """The second part, the first one added to it."""

    def build(m: Maker, dims: Dims) -> Made | None:
        if len(dims) <= axis:
            return None
        whole = (*dims[:axis], 2 * dims[axis], *dims[axis + 1 :])
        first, second = m.g.op("Split", m.laid(*whole), outputs=2, axis=axis, num_outputs=2)
        return m.g.Add(m.g.Abs(first), second), dims

    return build


def _reduce(op: str, axes: Sequence[int], keepdims: int) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        if len(dims) <= max(axes) or len(dims) < -min(axes):
            return None
        reduced = {a % len(dims) for a in axes}
        left = [1 if d in reduced else n for d, n in enumerate(dims) if keepdims or d not in reduced]
        return m.g.op(op, m.laid(*dims), m.g.const(np.array(axes)), keepdims=keepdims), tuple(left)

    return build


def _pool(op: str) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        if not 3 <= len(dims) <= 4:
            return None
        rest = dims[2:]
        if op.startswith("Global"):
            return m.g.op(op, m.laid(*dims)), (*dims[:2], *[1] * len(rest))
        ones = [1] * len(rest)
        y = m.g.op(op, m.laid(*dims), kernel_shape=[2] * len(rest), pads=[*ones, *[0] * len(rest)], strides=ones)
        return y, dims

    return build


def _resize(mode: str, *, pixel: bool = False) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        if len(dims) != 4:
            return None
        if pixel:
            to = (*dims[:2], 1, 1)
            return m.g.Resize(m.laid(*dims), None, None, m.g.const(np.array(to)), mode=mode, nearest_mode="ceil"), to
        rule = {"nearest": "asymmetric", "linear": "half_pixel"}[mode]
        attrs = {"mode": mode, "coordinate_transformation_mode": rule, "nearest_mode": "floor"}
        scales = m.g.const(np.array([1, 1, 2, 2], np.float32))
        return m.g.Resize(m.laid(*dims), None, scales, **attrs), (*dims[:2], 2 * dims[2], 2 * dims[3])

    return build


def _units(op: str) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        ones = [d for d, n in enumerate(dims) if n == 1]
        x = m.laid(*dims)
        if op == "Squeeze":
            return (m.g.Squeeze(x, m.g.const(np.array(ones))), tuple(n for n in dims if n != 1)) if ones else None
        if op == "Flatten":
            return m.g.Flatten(x, axis=1), (dims[0], math.prod(dims[1:]))
        return m.g.Unsqueeze(x, m.g.const(np.array([1]))), (dims[0], 1, *dims[1:])

    return build


def _gradient(op: str, operands: int, **attrs: Any) -> Build:
    """The gradient of an operator whose result has the size of its operand."""

    def build(m: Maker, dims: Dims) -> Made | None:
        if len(dims) <= attrs.get("axis", 0):
            return None
        return m.g.op(op, *(m.laid(*dims) for _ in range(operands)), domain="mezzo", **attrs), dims

    return build


def _pool_gradient(m: Maker, dims: Dims) -> Made | None:
    if not 3 <= len(dims) <= 4:
        return None
    window = [2 if n > 1 else 1 for n in dims[2:]]
    y = (*dims[:2], *(n // w for n, w in zip(dims[2:], window, strict=True)))
    shape = m.g.const(np.array(dims))
    return m.g.op("AveragePoolGrad", m.laid(*y), shape, domain="mezzo", kernel_shape=window, strides=window), dims


def _conv_gradient(to: str) -> Build:
    def build(m: Maker, dims: Dims) -> Made | None:
        if not 3 <= len(dims) <= 4:
            return None
        pixels = len(dims) - 2
        dy, kernel = m.laid(dims[0], 6, *dims[2:]), (6, dims[1], *[3] * pixels)
        attrs: dict[str, Any] = {"domain": "mezzo", "pads": [1] * 2 * pixels}
        if to == "weights":
            return m.g.op("ConvGradWeights", dy, m.laid(*dims), m.g.const(np.array(kernel)), **attrs), kernel
        return m.g.op("ConvGradInput", dy, m.const(*kernel), m.g.const(np.array(dims)), **attrs), dims

    return build


def _batch_norm(m: Maker, dims: Dims) -> Made | None:
    """The forward of training, with its statistics added to the result, so that they are wanted."""
    if len(dims) < 3 or math.prod(dims) == dims[1]:  # one number for each channel has no variance
        return None
    numbers = [m.const(dims[1]) for _ in range(3)] + [m.g.const(abs(m.numbers(dims[1])) + 1)]
    y, _, _, mean, spread = m.g.op("BatchNormalizationTrain", m.laid(*dims), *numbers, domain="mezzo", outputs=5)
    axes = m.g.const(np.arange(1, len(dims) - 1))
    return m.g.Add(m.g.Add(y, m.g.Unsqueeze(mean, axes)), m.g.Unsqueeze(spread, axes)), dims


def _batch_norm_gradient(m: Maker, dims: Dims) -> Made | None:
    if len(dims) < 3:
        return None
    numbers = [m.const(dims[1]), m.const(dims[1]), m.g.const(abs(m.numbers(dims[1])) + 1)]
    op = "BatchNormalizationGrad"
    dx, scale, shift = m.g.op(op, m.laid(*dims), m.laid(*dims), *numbers, domain="mezzo", outputs=3)
    axes = m.g.const(np.arange(1, len(dims) - 1))
    return m.g.Add(m.g.Add(dx, m.g.Unsqueeze(scale, axes)), m.g.Unsqueeze(shift, axes)), dims


FAMILIES: dict[str, Build] = {
    "conv": _conv(False), "conv + bias": _conv(True), "conv 3": _conv(True, 3), "conv 16": _conv(False, 3, filters=16),
    "depthwise": _conv(True, 3, True), "conv transpose": _conv_transpose,
    "matmul": _matmul("constant"), "matmul of two": _matmul("input"), "matmul column": _matmul("column"),
    "matmul with itself": _matmul("itself"), "gemm": _gemm(), "gemm turned": _gemm(transA=1, transB=1),
    "softmax last": _along("Softmax", -1), "softmax 1": _along("Softmax", 1), "softmax 0": _along("Softmax", 0),
    "log softmax": _along("LogSoftmax", -1),
    "layer norm": _layer_norm(-1), "layer norm 2": _layer_norm(-2),
    "instance norm": _channel_norm("InstanceNormalization"), "group norm": _channel_norm("GroupNormalization"),
    "batch norm": _channel_norm("BatchNormalization"), "lrn": _same("LRN", 3, size=3), "prelu": _prelu,
    "tanh": _same("Tanh"), "gelu": _same("Gelu"),
    "add whole": _binary("Add", "whole"), "sub channel": _binary("Sub", "channel"), "mul row": _binary("Mul", "row"),
    "mul column": _binary("Mul", "column"), "sum": _several("Sum"), "mean": _several("Mean"),
    "concat 0": _concat(0), "concat 1": _concat(1), "concat 2": _concat(2), "split 1": _split(1), "split 2": _split(2),
    **{f"{op} {axes} {kept}": _reduce(op, axes, kept)
       for op in ("ReduceMean", "ReduceSum", "ReduceL2") for axes, kept in (
           ((-1,), 1), ((1,), 0), ((1,), 1), ((0,), 0), ((0, 2), 1), ((2, 3), 0), ((2, 3), 1))},
    "ReduceL1 1": _reduce("ReduceL1", (1,), 1),
    **{op: _pool(op) for op in ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")},
    "nearest": _resize("nearest"), "linear": _resize("linear"),
    "nearest, one pixel": _resize("nearest", pixel=True), "linear, one pixel": _resize("linear", pixel=True),
    "squeeze": _units("Squeeze"), "flatten": _units("Flatten"), "unsqueeze": _units("Unsqueeze"),
    "relu grad": _gradient("ReluGrad", 2), "softmax grad": _gradient("SoftmaxGrad", 2, axis=1),
    "gelu grad": _gradient("GeluGrad", 2), "average pool grad": _pool_gradient, "batch norm train": _batch_norm,
    "batch norm grad": _batch_norm_gradient, "conv grad input": _conv_gradient("input"),
    "conv grad weights": _conv_gradient("weights"),
}  # fmt: skip


# What follows: links of a chain, by how their operand is spread over the result


def operand(m: Maker, spread: str, dims: Dims) -> str | None:
    """An operand for a result of these dims; None where there is none of the kind."""
    rank = len(dims)
    match spread:
        case "number":
            return m.g.const(np.float32(0.5))
        case "channel":
            return m.const(dims[1], *[1] * (rank - 2)) if rank > 1 else None
        case "row":
            return m.const(*dims[-1:]) if rank else None
        case "column":
            return m.fed(*dims[:-1], 1) if rank > 1 else None
        case "image":
            return m.fed(1, *dims[1:]) if rank > 1 else None
        case "whole":
            return m.fed(*dims)
        case "constant":
            return m.const(*dims)
        case "laid":
            return m.laid(*dims)
        case _:  # "dying": what another step has made and nobody else reads
            return str(m.g.Abs(m.laid(*dims)))


POSTS: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("Relu", ""),),
    *(((op, spread),) for op, spread in (
        ("Add", "number"), ("Add", "channel"), ("Mul", "channel"), ("Add", "row"), ("Mul", "column"),
        ("Add", "image"), ("Add", "whole"), ("Mul", "constant"), ("Sub", "laid"), ("Add", "dying"))),
    (("Mul", "channel"), ("Add", "channel")),
    (("Add", "row"), ("Relu", "")),
    (("Add", "channel"), ("Add", "dying")),
    (("Add", "dying"), ("Relu", "")),
    (("Mul", "number"), ("Add", "image")),
)  # fmt: skip

SIZES: tuple[Dims, ...] = (
    (1,), (17,),
    (1, 6), (3, 1), (3, 8), (2, 17),
    (1, 6, 1), (3, 8, 1), (1, 1, 7), (3, 1, 5), (3, 8, 5), (1, 16, 5),
    (1, 8, 1, 1), (3, 8, 1, 1), (1, 6, 1, 12), (2, 6, 5, 1), (3, 16, 1, 5), (3, 1, 4, 5), (1, 16, 4, 5), (3, 17, 4, 5),
    (2, 6, 3, 4),
)  # fmt: skip


def before(rank: int) -> list[str]:
    """Layouts in which an operand may be at hand: all that a Transpose can leave, and those of images."""
    turned = ["".join(p) for p in list(itertools.permutations(row_major(rank)))[1:]]
    return ["", *turned, *(IMAGES if rank in (3, 4) else ())]


def after(rank: int) -> list[tuple[int, ...]]:
    """Orders in which a Transpose behind may ask for the axes; none first."""
    return [(), *list(itertools.permutations(range(rank)))[1:]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One model of a grid: a family over dims in a layout, its post-ops, and a Transpose behind."""

    family: str
    dims: Dims
    layout: str
    posts: tuple[tuple[str, str], ...]
    turn: int  # which order of the axes is asked for behind, counted round the number of orders

    def add(self, m: Maker) -> str | None:
        """The value of the model, in a graph that may hold others; None where the family has no such thing."""
        made = FAMILIES[self.family](m, self.dims)
        if made is None:
            return None
        y, dims = made
        for op, spread in self.posts:
            other = operand(m, spread, dims) if spread else None
            if spread and other is None:
                return None
            y = m.g.op(op, y, *([other] if other else []))
        orders = after(len(dims))
        order = orders[self.turn % len(orders)]
        return str(m.g.Transpose(y, perm=list(order))) if order else y


def grid(family: str) -> Iterator[list[Cell]]:
    """All models of a family, those of one layout together: they make one graph. Each layout meets a result that is
    asked for as it is and one that is turned; all orders of axes have their turn."""
    for dims in SIZES:
        for i, layout in enumerate(before(len(dims))):
            for turn in (0, i + 1 + len(SIZES)):
                yield [Cell(family, dims, layout, posts, turn) for posts in POSTS]


def some(family: str, count: int, seed: int = 0) -> list[list[Cell]]:
    """A sample of the grid; always the same for a seed."""
    groups = list(grid(family))
    return random.Random(f"{family} {seed}").sample(groups, min(count, len(groups)))


def graph_of(group: Sequence[Cell]) -> tuple[Graph | None, dict[str, Any], dict[str, Cell]]:
    """The graph of several models of one layout, what it is fed, and the model of each output."""
    m = Maker(group[0].layout)
    outputs: dict[str, Cell] = {}
    for cell in group:
        made = cell.add(m)
        if made is not None:
            outputs[made] = cell
    return (m.g.graph(list(outputs)) if outputs else None), m.feeds, outputs


# What comes of them


def wrong(groups: Sequence[Sequence[Cell]]) -> list[str]:
    """What differs from the operators one by one, computed in float64: each model beside how far it is off, or the
    error that was raised. Every graph runs twice."""
    return [line for group in groups for line in _wrong(group)]


def _wrong(group: Sequence[Cell]) -> list[str]:
    graph, feeds, cells = graph_of(group)
    if graph is None:
        return []
    want = evaluate(in_float64(graph), {n: wide(x) for n, x in feeds.items()})
    found: dict[Cell, str] = {}
    try:
        session = Session(graph, threads=1)
        for got in (session.run(feeds) for _ in range(2)):
            found |= {cell: off for n, cell in cells.items() if (off := _off(got[n], want[n]))}
    except Exception as error:
        if len(group) > 1:
            return [line for cell in group for line in _wrong([cell])]
        found[group[0]] = f"{type(error).__name__}: {error}"
    return [f"{cell}: {what}" for cell, what in found.items()]


def _off(got: Any, want: Any) -> str:
    if got.shape != want.shape:
        return f"has shape {got.shape} instead of {want.shape}"
    worst, most = np.abs(got.astype(np.float64) - want).max(initial=0), np.abs(want).max(initial=0)
    scale = max(most, 1.0)  # as large as what sums and differences are made of, which may cancel out
    return "" if worst <= TOLERANCE * scale else f"off by {worst:.3g} of {most:.3g}"
