"""Requests to cuDNN as data: a graph of operations between tensors in memory. Nothing here needs cuDNN.

A draft follows from types alone, prints as text, and is the key under which plans are kept.
https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .....ops import DType, MezzoError
from .....ops.dataclasses import dataclass, field
from .....ops.layouts import parse, row_major

Place = tuple[str, int]  # ("in", 2): the third input of the step; ("out", 0): its first output
Value = int | float  # operand i of the draft, the result of node j as ~j, or a number that is part of the graph

# The tensors that an operation reads, by cuDNN's names for them, in the order of Node.inputs.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "conv_fprop": ("image", "weight"),
    "conv_dgrad": ("loss", "filter"),
    "conv_wgrad": ("image", "loss"),
    "matmul": ("A", "B"),
    "sdpa": ("q", "k", "v", "bias"),
    "bias": ("input", "bias"),
    **dict.fromkeys(("add", "sub", "mul", "div"), ("a", "b")),
    **dict.fromkeys(("max", "min", "pow"), ("input0", "input1")),
    **dict.fromkeys(
        ("abs", "ceil", "cos", "elu", "erf", "exp", "floor", "gelu", "gelu_approx_tanh", "log", "neg", "reciprocal",
         "relu", "rsqrt", "sigmoid", "sin", "softplus", "sqrt", "swish", "tan", "tanh"),
        ("input",),
    ),
}  # fmt: skip


class GraphRefused(MezzoError):
    """cuDNN does not support the request, or the request has no draft. What fails `for_now`, for want of memory or of
    another library, is asked again the next time, and kept nowhere."""

    for_now = False


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor in memory: its place in the step, its form for cuDNN (sizes, and strides in elements), and its layout in
    the step."""

    place: Place
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    layout: str = ""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One operation: a method of cuDNN's graph, its operands, its settings, and the sizes of its result."""

    op: str
    inputs: tuple[Value, ...]
    settings: tuple[tuple[str, Any], ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphDraft:
    """A sequence of operations; the result of the last one is written to `result`.

    `math` says how float32 is multiplied: `strict`, or `tf32`. Sums are taken in float32 (float64 for float64), and
    what lies between two operations has that type too.
    """

    operands: tuple[GraphTensor, ...]
    nodes: tuple[GraphNode, ...]
    result: GraphTensor
    math: str = "strict"

    @property
    def all(self) -> tuple[GraphTensor, ...]:
        """All tensors: the operands, then the result."""
        return (*self.operands, self.result)

    @property
    def wide(self) -> DType:
        """The type of sums and of what lies in between."""
        return DType.DOUBLE if self.result.dtype is DType.DOUBLE else DType.FLOAT


@dataclass(slots=True)
class Writer:
    """Builder of a draft."""

    operands: list[GraphTensor] = field(default_factory=list[GraphTensor])
    nodes: list[GraphNode] = field(default_factory=list[GraphNode])

    def read(self, operand: GraphTensor) -> int:
        """The number of a tensor that the graph reads."""
        if operand in self.operands:
            return self.operands.index(operand)
        self.operands.append(operand)
        return len(self.operands) - 1

    def add(self, op: str, *inputs: Value, sizes: tuple[int, ...], **settings: Any) -> int:
        """The number of the result of one more operation."""
        self.nodes.append(GraphNode(op, inputs, tuple(settings.items()), sizes))
        return ~(len(self.nodes) - 1)

    def draft(self, result: GraphTensor, math: str) -> GraphDraft:
        """Return the finished draft."""
        return GraphDraft(tuple(self.operands), tuple(self.nodes), result, math)


def strides_of(layout: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Elements between neighbours of each dim, for a layout that is an order of dims.

    >>> strides_of("", (2, 3, 4, 5)), strides_of("acdb", (2, 3, 4, 5))
    ((60, 20, 5, 1), (60, 1, 15, 3))
    """
    order = parse(layout or row_major(len(sizes)), len(sizes))[0]
    strides = [0] * len(sizes)
    for at, dim in enumerate(order):
        strides[dim] = math.prod(sizes[d] for d in order[at + 1 :])
    return tuple(strides)


def channels_last(rank: int) -> str:
    """The layout of images whose channels lie together.

    >>> channels_last(4)
    'acdb'
    """
    letters = row_major(rank)
    return letters[0] + letters[2:] + letters[1]
