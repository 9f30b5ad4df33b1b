"""Rules of tensor parallelism: how tensors that are shared out among devices go through operators.

A rule is called with a node of which an operand is split along an axis. It answers how the node's parts look: along
which axes their operands and results are split, and which attributes and sizes are a part's. It raises NotSplit with
the reason where each device cannot compute its part alone: then the operands are put together first. Shoeybi et al.
2019 (Megatron-LM, arXiv 1909.08053) split transformers so by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
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
    """How the parts of a node look: the splits of its operands and results (None: whole); attributes and constants (by
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
    """What a rule is told of a node: the types of its operands and results, how operands are split, and among how many
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


def rule_for(*ops: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operators of ONNX."""

    def enter(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return enter


def parted(asked: Operands) -> Parted:
    """How the parts of a node look, by its operator's rule. Raises NotSplit where there is none, or it says so."""
    node = asked.node
    record = node.record
    if node.bodies:
        raise NotSplit("it has subgraphs")
    rule = RULES.get(node.op) if not node.domain else None
    if rule is None:
        rule = elementwise if record.elementwise else view if record.moves == "view" else None
    if rule is None and record.kind == "reduction" and not node.domain:
        rule = reduction
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


@rule_for("Transpose")
def transpose(asked: Operands) -> Parted:
    split = asked.only(0)
    perm = asked.node.attrs.get("perm") or tuple(reversed(range(len(asked.shape(0)))))
    return asked.first(split, split.at(tuple(perm).index(split.axis)))


@rule_for("Shape")
def shape(asked: Operands) -> Parted:
    """Sizes are those of the whole, which are made of a part's."""
    return asked.first(asked.only(0), None)


def view(asked: Operands) -> Parted:
    """Reshape, Flatten, Squeeze, Unsqueeze: elements keep their order."""
    node, split, result = asked.node, asked.only(0), asked.result()
    if node.domain:
        raise NotSplit(f"{node.domain}::{node.op} has no rule for parts")
    found = regrouped(asked.shape(0), split, result)
    size, whole = found.blocks[0], split.blocks[0]
    alone = len(split.blocks) == 1 and equal(split.repeat, 1) and equal(found.repeat, 1)
    within = (whole // size,) * size if alone and 1 < size < whole else ()
    if size % asked.devices:
        raise NotSplit(f"{size} cannot be shared by {asked.devices} devices", within)
    changes = {} if node.op != "Reshape" else _sizes(asked, 1, found.axis, result[found.axis])
    return asked.first(split, found, otherwise=within, **changes)


def _sizes(asked: Operands, operand: int, axis: int, size: int) -> dict[str, Any]:
    """How the operand that holds sizes is changed for a part: that of one axis is divided, unless it follows."""
    value = asked.value(operand)
    if value is None:
        raise NotSplit(f"the sizes {asked.node.inputs[operand]!r} are not known")
    told = value.reshape(-1)[axis]
    if is_number(told) and told in (-1, 0):
        return {}
    if not equal(told, size):
        raise NotSplit("the size of the axis is not known")
    if value.dtype == object:
        return {"divided": (operand, axis)}
    changed = value.copy()
    changed[axis] //= asked.devices
    return {"constants": {operand: changed}}


def regrouped(before: Sequence[Any], split: Split, after: Sequence[Any]) -> Split:
    """How a tensor is split whose elements are given other sizes. Raises NotSplit where parts would not be whole.

    >>> regrouped(("n", 10, 36), Split(2, (12, 12, 12)), ("n", 10, 3, 4, 3))
    Split(axis=3, blocks=(4,), repeat=1)
    >>> regrouped((20, 4, 3), Split(1, (4,)), (4, 5, 12))
    Split(axis=2, blocks=(12,), repeat=1)
    >>> regrouped((10, 2, 64), Split(2, (64,)), (10, 8, 16))
    Split(axis=1, blocks=(4,), repeat=2)
    """
    xs = [(i, d) for i, d in enumerate(before) if not (is_number(d) and d == 1)]
    ys = [(i, d) for i, d in enumerate(after) if not (is_number(d) and d == 1)]
    while xs and ys:
        left, right = [xs.pop()], [ys.pop()]
        while not equal(a := _product(left), b := _product(right)):
            smaller = xs if a < b else ys
            if not smaller:
                raise NotSplit(f"{tuple(before)} and {tuple(after)} do not agree")
            (left if smaller is xs else right).insert(0, smaller.pop())
        place = next((n for n, (i, _) in enumerate(left) if i == split.axis), None)
        if place is not None:
            return _inside([d for _, d in left], place, split, right)
    raise NotSplit(f"axis {split.axis} of {tuple(before)} is not found in {tuple(after)}")


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


def _product(axes: Sequence[tuple[int, Any]]) -> Any:
    """The product of sizes. Raises NotSplit where one is not known."""
    if not all(isinstance(d, int | np.integer) for _, d in axes):
        raise NotSplit("sizes are not known")
    return prod(d for _, d in axes)


def _inside(left: Sequence[Any], place: int, split: Split, right: Sequence[tuple[int, Any]]) -> Split:
    """The split of a group of axes that takes the place of another one."""
    if len(left) == len(right) == 1:
        return split.at(right[0][0])
    if len({*split.blocks}) > 1:
        raise NotSplit("blocks of several sizes are divided")
    outer, before = prod(left[:place]) * split.repeat * len(split.blocks), 1
    for axis, size in right:
        if equal(before, outer):
            return Split(axis, (size,)) if is_number(size) else _fails(axis)
        repeat = outer // before
        own = size // repeat
        if equal(repeat * before, outer) and is_number(own) and own > 1 and equal(own * repeat, size):
            return Split(axis, (int(own),), repeat)
        before = before * size
    raise NotSplit("the axis is divided in another place")


def _fails(axis: int) -> Split:
    raise NotSplit(f"the size of axis {axis} is not known")


@rule_for("Expand")
def expand(asked: Operands) -> Parted:
    split, result = asked.only(0), asked.result()
    axis = len(result) - (len(asked.shape(0)) - split.axis)
    value = asked.value(1)
    if value is None:
        raise NotSplit("its sizes are not known")
    place = axis - (len(result) - value.size)
    one = place < 0 or (is_number(told := value.reshape(-1)[place]) and told == 1)
    return asked.first(split, split.at(axis), **({} if one else _sizes(asked, 1, place, split.size)))


@rule_for("Softmax", "LogSoftmax")
def softmax(asked: Operands) -> Parted:
    split, rank = asked.only(0), len(asked.shape(0))
    if split.axis == asked.node.attrs.get("axis", -1) % rank:
        raise NotSplit("it adds up along the axis that is split")
    return asked.first(split, split)


@rule_for("LayerNormalization", "RMSNormalization")
def normalisation(asked: Operands) -> Parted:
    """Normalisations of the axes behind one: scales have these alone."""
    split, rank = asked.only(0), len(asked.shape(0))
    if split.axis >= asked.node.attrs.get("axis", -1) % rank:
        raise NotSplit("it adds up along the axis that is split")
    return asked.first(split, split)


@rule_for("Trilu")
def triangle(asked: Operands) -> Parted:
    split, rank = asked.only(0), len(asked.shape(0))
    if split.axis >= rank - 2:
        raise NotSplit("its rows or columns are split")
    return asked.first(split, split)


def reduction(asked: Operands) -> Parted:
    """Reductions along other axes."""
    split, rank, attrs = asked.only(0), len(asked.shape(0)), asked.node.attrs
    if asked.node.op in ("ArgMax", "ArgMin"):
        axes = [attrs.get("axis", 0)]
    else:
        given = attrs.get("axes")
        if given is None and len(asked.node.inputs) > 1 and asked.node.inputs[1]:
            given = asked.numbers(1)
        axes = [*(given or ([] if attrs.get("noop_with_empty_axes") else range(rank)))]
    axes = [a % rank for a in axes]
    if split.axis in axes:
        raise NotSplit("it adds up along the axis that is split")
    gone = 0 if attrs.get("keepdims", 1) else sum(a < split.axis for a in axes)
    return asked.first(split, split.at(split.axis - gone))


@rule_for("Concat")
def concat(asked: Operands) -> Parted:
    """Joined along another axis, all are split in the same way."""
    found = {s for s in asked.splits if s is not None}
    if len(found) > 1:
        raise NotSplit("its operands are split along different axes")
    (split,) = found
    if split.axis == asked.node.attrs["axis"] % len(asked.result()):
        raise NotSplit("it joins along the axis that is split")
    return Parted(tuple(split for _ in asked.splits), (split,))


@rule_for("Gather")
def gather(asked: Operands) -> Parted:
    split, axis = asked.only(0), asked.node.attrs.get("axis", 0) % len(asked.shape(0))
    if split.axis == axis:
        raise NotSplit("it picks along the axis that is split")
    more = len(asked.result()) - len(asked.shape(0)) if split.axis > axis else 0
    return asked.first(split, split.at(split.axis + more))


@rule_for("Split")
def split_op(asked: Operands) -> Parted:
    """Split along the axis itself where its results are the blocks, else along another one."""
    node, split = asked.node, asked.only(0)
    if split.axis != node.attrs.get("axis", 0) % len(asked.shape(0)):
        return asked.first(split, split)
    sizes = tuple(asked.result(i)[split.axis] for i in range(len(node.outputs)))
    if not all(map(is_number, sizes)) or not equal(split.repeat, 1) or sum(sizes) != split.size:
        raise NotSplit("it is divided in parts that are not known")
    if sizes != split.blocks:
        raise NotSplit("it divides the axis in another way", sizes)
    results = tuple(Split(split.axis, (s,)) if o else None for s, o in zip(sizes, node.outputs, strict=True))
    own = {} if len(node.inputs) < 2 or not node.inputs[1] else {1: np.array(sizes, np.int64) // asked.devices}
    return Parted((split, *[None] * (len(node.inputs) - 1)), results, constants=own)


@rule_for("Slice")
def slice_op(asked: Operands) -> Parted:
    """Slice along other axes, or of whole blocks."""
    node, split, rank = asked.node, asked.only(0), len(asked.shape(0))
    named = node.inputs[3] if len(node.inputs) > 3 else ""
    axes = [a % rank for a in asked.numbers(3)] if named else [*range(rank)]
    if not named and (starts := asked.value(1)) is not None:
        axes = axes[: starts.size]
    if split.axis not in axes:
        return asked.first(split, split)
    if not equal(split.repeat, 1):
        raise NotSplit("it takes a part of what comes several times")
    place, steps = axes.index(split.axis), len(node.inputs) > 4 and node.inputs[4]
    if steps and asked.numbers(4)[place] != 1:
        raise NotSplit("it takes steps along the axis that is split")
    starts, ends = asked.numbers(1), asked.numbers(2)
    begin, end, _ = slice(starts[place], ends[place]).indices(split.size)
    edges = [0, *np.cumsum(split.blocks).tolist()]
    if begin not in edges or end not in edges or begin >= end:
        raise NotSplit("it takes a part of a block", _cut(split.size, begin, end))
    blocks = split.blocks[edges.index(begin) : edges.index(end)]
    starts[place], ends[place] = begin // asked.devices, end // asked.devices
    own = {1: np.array(starts, np.int64), 2: np.array(ends, np.int64)}
    return asked.first(split, Split(split.axis, blocks), constants=own)


def _cut(size: int, begin: int, end: int) -> tuple[int, ...]:
    """Blocks of one size, so that a slice is some of them; none where it cannot be."""
    width = end - begin
    return (width,) * (size // width) if width > 0 and not begin % width and not size % width else ()


# -- products ---------------------------------------------------------------------------------------------------------


@rule_for("MatMul")
def matmul(asked: Operands) -> Parted:
    """Products: of rows, columns or batches each device has its own; along the axis that is added up, its sums."""
    a, b = (len(asked.shape(i)) for i in (0, 1))
    if min(a, b) < 2:
        raise NotSplit("an operand is a vector")
    x, y = asked.splits
    rank = len(asked.result())
    if (x is not None and x.axis == a - 1) or (y is not None and y.axis == b - 2):
        inner = _inner(x, a - 1, y, b - 2)
        return Parted((inner.at(a - 1), inner.at(b - 2)), (None,), adds=True)
    if x is None and y is not None and y.axis == b - 1:
        return Parted((None, y), (y.at(rank - 1),))
    if y is None and x is not None and x.axis == a - 2:
        return Parted((x, None), (x.at(rank - 2),))
    ends = {n - s.axis for n, s in ((a, x), (b, y)) if s is not None}
    own = {s.at(0) for s in (x, y) if s is not None}
    if len(ends) > 1 or len(own) > 1 or min(ends) < 3:
        raise NotSplit("its operands are split along different axes")
    (end,), (split,) = ends, own
    pair = list[Split | None]()
    for i, n in ((0, a), (1, b)):
        size = asked.shape(i)[n - end] if n >= end else 1
        shared = equal(size, split.size)
        if not shared and not equal(size, 1):
            raise NotSplit("its batches are not known")
        pair.append(split.at(n - end) if shared else None)
    return Parted(tuple(pair), (split.at(rank - end),))


def _inner(x: Split | None, a: int, y: Split | None, b: int) -> Split:
    """The split of the axis that a product adds up, which is axis `a` of its first operand and `b` of its second."""
    found = {s.at(0) for s in (x, y) if s is not None}
    if (x is not None and x.axis != a) or (y is not None and y.axis != b) or len(found) > 1:
        raise NotSplit("its operands are split along different axes")
    return found.pop()


@rule_for("Gemm")
def gemm(asked: Operands) -> Parted:
    """Products of two matrices, and what is added: behind the sum of all devices where they add up."""
    node = asked.node
    x, y, *rest = asked.splits
    turned = [bool(node.attrs.get(n, 0)) for n in ("transA", "transB")]
    rows, inner = (1, 0) if turned[0] else (0, 1)
    deep, columns = (1, 0) if turned[1] else (0, 1)
    bias = 2 if len(node.inputs) > 2 and node.inputs[2] else -1
    if any(rest):
        raise NotSplit("what is added is split")
    none: list[Split | None] = [None] * len(rest)
    if (x is not None and x.axis == inner) or (y is not None and y.axis == deep):
        own = _inner(x, inner, y, deep)
        if bias > 0 and node.attrs.get("beta", 1.0) != 1:
            raise NotSplit("what is added is multiplied first")
        return Parted((own.at(inner), own.at(deep), *none), (None,), adds=True, bias=bias)
    if x is not None and y is not None:
        raise NotSplit("rows and columns are split")
    axis, split = (0, x) if x is not None else (1, y)
    assert split is not None
    if bias > 0:
        dims = asked.shape(bias)
        place = len(dims) - 2 + axis
        if place >= 0 and equal(dims[place], split.size):
            none[0] = split.at(place)
        elif place >= 0 and not equal(dims[place], 1):
            raise NotSplit("what is added has other sizes")
    pair = (x.at(rows) if x is not None else None, y.at(columns) if y is not None else None)
    return Parted((*pair, *none), (split.at(axis),))


@rule_for("Attention")
def attention(asked: Operands) -> Parted:
    """Heads: each device has some of them, with their keys and values."""
    node, (q, *_) = asked.node, asked.splits
    if q is None or any(node.inputs[4:6]) or any(node.outputs[1:]):
        raise NotSplit("queries are whole, or it has a cache")
    flat = len(asked.shape(0)) == 3
    names = ("q_num_heads", "kv_num_heads")
    heads = [node.attrs[n] for n in names] if flat else [asked.shape(0)[1], asked.shape(1)[1]]
    asked.divides(*heads)
    axis = 2 if flat else 1
    whole = [Split(axis, (asked.shape(i)[axis],)) for i in range(3)]
    if any(s is not None and s != w for s, w in zip(asked.splits[:3], whole, strict=True)):
        raise NotSplit("no whole heads are split")
    mask = list[Split | None]()
    for i, name in enumerate(node.inputs[3:4], 3):
        dims = asked.shape(i) if name else ()
        mask.append(Split(1, (heads[0],)) if len(dims) == 4 and dims[1] == heads[0] else None)
    more = [None] * (len(node.inputs) - 3 - len(mask))
    result = Split(axis, (asked.result()[axis],))
    attrs = {n: h // asked.devices for n, h in zip(names, heads, strict=True)} if flat else {}
    return Parted((*whole, *mask, *more), (result, *[None] * (len(node.outputs) - 1)), attrs=attrs)


@rule_for("RotaryEmbedding")
def rotary(asked: Operands) -> Parted:
    split, node = asked.only(0), asked.node
    if len(asked.shape(0)) == 3:
        heads = node.attrs.get("num_heads", 0)
        if split.axis != 2 or not heads or len(split.blocks) > 1:
            raise NotSplit("no whole heads are split")
        asked.divides(heads)
        return asked.first(split, split, attrs={"num_heads": heads // asked.devices})
    if split.axis != 1:
        raise NotSplit("no whole heads are split")
    return asked.first(split, split)
