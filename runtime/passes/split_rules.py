"""Rules of tensor parallelism: how tensors that are shared out among devices go through operators.

A rule is called with a node of which an operand is split along an axis. It answers how the node's parts look: along
which axes their operands and results are split, and which attributes and sizes are a part's. It raises NotSplit with
the reason where each device cannot compute its part alone: then the operands are put together first. Shoeybi et al.
2019 (Megatron-LM, arXiv 1909.08053) split transformers so by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...ops import Tensor, Type
from ...ops.dataclasses import dataclass, field
from ...ops.types import Array
from ..ir.graph import Node


class NotSplit(Exception):
    """Raised with the reason why the parts of a node cannot be computed apart. `blocks` are those in which its operand
    would have to be split."""

    def __init__(self, why: str, blocks: tuple[int, ...] = ()) -> None:
        super().__init__(why)
        self.blocks = blocks


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor that is shared out along an axis, which consists of blocks of these sizes: every device has an equal
    part of each block. Queries, keys and values of one matrix are three blocks. The blocks come `repeat` times where
    another axis went up in this one: batches and heads, say; that may be a symbolic size."""

    axis: int
    blocks: tuple[int, ...]
    repeat: Any = 1

    @property
    def size(self) -> Any:
        """The size of the axis."""
        return self.repeat * sum(self.blocks)

    def at(self, axis: int) -> Split:
        """The same split along an axis of another number."""
        return Split(axis, self.blocks, self.repeat)


@dataclass(frozen=True, slots=True)
class Parted:
    """The parts of a node: the splits of its operands and results (None: whole); attributes and constants (by
    operand) of a part. `divided` names an operand that holds sizes, and the place of the one that is a part's.
    `adds` is True where the results of the parts add up to the result; `bias` is then the operand that is added
    afterwards. `otherwise` are blocks in which the operand might be split as well, so that another axis is."""

    operands: tuple[Split | None, ...]
    results: tuple[Split | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    constants: Mapping[int, Array] = field(default_factory=dict[int, Array])
    divided: tuple[int, int] | None = None
    adds: bool = False
    bias: int = -1
    otherwise: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Operands:
    """Facts of a node for a rule: the types of its operands and results, how operands are split, and among how many
    devices."""

    node: Node
    types: Mapping[str, Type]
    splits: tuple[Split | None, ...]
    devices: int

    def dims(self, name: str) -> tuple[Any, ...]:
        """The dims of a value. Raises NotSplit where its rank is not known."""
        known = self.types.get(name)
        if not isinstance(known, Tensor) or known.dims is None:
            raise NotSplit(f"the rank of {name!r} is not known")
        return known.dims

    def shape(self, i: int) -> tuple[Any, ...]:
        """The dims of an operand."""
        return self.dims(self.node.inputs[i])

    def result(self, i: int = 0) -> tuple[Any, ...]:
        """The dims of a result."""
        return self.dims(self.node.outputs[i])

    def value(self, i: int) -> Array | None:
        """The elements of an operand, if they are known."""
        known = self.types.get(self.node.inputs[i]) if i < len(self.node.inputs) else None
        return known.value if isinstance(known, Tensor) else None

    def numbers(self, i: int) -> list[int]:
        """The known numbers of an operand. Raises NotSplit where they are not, or sizes of inputs."""
        value = self.value(i)
        if value is None or value.dtype == object:
            raise NotSplit(f"the numbers {self.node.inputs[i]!r} are not known")
        return [int(v) for v in value.reshape(-1)]

    def only(self, i: int) -> Split:
        """The split of operand `i`. Raises NotSplit unless it is the only one that is split."""
        split = self.splits[i]
        if split is None or sum(s is not None for s in self.splits) > 1:
            raise NotSplit("another operand is split")
        return split

    def divides(self, *sizes: int) -> None:
        """Raise NotSplit for sizes that the devices cannot share equally."""
        if any(size % self.devices for size in sizes):
            raise NotSplit(f"{', '.join(map(str, sizes))} cannot be shared by {self.devices} devices")

    def first(self, split: Split, result: Split | None, **changes: Any) -> Parted:
        """The answer where operand 0 alone is split, and all results are so."""
        count = len(self.node.inputs)
        results = tuple(result if o else None for o in self.node.outputs)
        return Parted((split, *[None] * (count - 1)), results, **changes)


Rule = Callable[[Operands], Parted]
RULES: dict[str, Rule] = {}  # of operators of ONNX that no trait tells apart
TRAITS: dict[str, Rule] = {}  # of operators that move elements in a way, or are of a kind


def rule_for(*ops: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operators of ONNX."""

    def enter(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return enter


def rule_of_trait(trait: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operators that move elements in a way, or are of a kind."""

    def enter(rule: Rule) -> Rule:
        TRAITS[trait] = rule
        return rule

    return enter


def parted(asked: Operands) -> Parted:
    """The parts of a node by its operator's rule. Raises NotSplit where there is none, or it says so."""
    node = asked.node
    record = node.record
    if node.bodies:
        raise NotSplit("it has subgraphs")
    rule = RULES.get(node.op) if not node.domain else None
    if rule is None:
        rule = elementwise if record.elementwise else TRAITS.get(record.moves or record.kind)
    if rule is None:
        raise NotSplit(f"{node.domain or 'ai.onnx'}::{node.op} has no rule for parts")
    return rule(asked)


def elementwise(asked: Operands) -> Parted:
    """Operators on each element: operands are aligned from their last axes."""
    node, rank = asked.node, len(asked.result())
    ends = {len(asked.shape(i)) - s.axis: s for i, s in enumerate(asked.splits) if s is not None}
    if len(ends) > 1 or len({s.at(0) for s in asked.splits if s is not None}) > 1:
        raise NotSplit("its operands are split along different axes")
    ((end, split),) = ends.items()
    operands = list[Split | None]()
    for i, name in enumerate(node.inputs):
        dims = asked.shape(i) if name else ()
        shared = len(dims) >= end and equal(dims[len(dims) - end], split.size)
        if len(dims) >= end and not shared and not equal(dims[len(dims) - end], 1):
            raise NotSplit(f"{name!r} is {dims}")
        operands.append(split.at(len(dims) - end) if shared else None)
    return Parted(tuple(operands), tuple(split.at(rank - end) if o else None for o in node.outputs))


@rule_for("Identity", "Cast", "Dropout", "CastLike")
def same(asked: Operands) -> Parted:
    """Operators whose results have the sizes of the first operand."""
    split = asked.only(0)
    return asked.first(split, split)


def is_number(size: Any) -> bool:
    """True for a size that is no symbol."""
    return type(size) in (int, np.int64)


def equal(a: Any, b: Any) -> bool:
    """True for sizes that are equal whatever the symbols in them are.

    >>> equal(4, 4), equal("n", "n"), equal("n", 4), equal(None, None)
    (True, False, False, False)
    """
    if not (isinstance(a, int | np.integer) and isinstance(b, int | np.integer)):
        return False
    rest = a - b
    return is_number(rest) and bool(rest == 0)
