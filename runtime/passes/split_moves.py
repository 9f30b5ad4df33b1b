"""Rules of parts (see split_rules.py) for operators that move elements, and for those that add up along other axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from .split_rules import NotSplit, Operands, Parted, Split, equal, is_number, rule_for, rule_of_trait


@rule_for("Transpose")
def transpose(asked: Operands) -> Parted:
    split = asked.only(0)
    perm = asked.node.attrs.get("perm") or tuple(reversed(range(len(asked.shape(0)))))
    return asked.first(split, split.at(tuple(perm).index(split.axis)))


@rule_for("Shape")
def shape(asked: Operands) -> Parted:
    """Sizes are those of the whole, which are made of a part's."""
    return asked.first(asked.only(0), None)


@rule_of_trait("view")
def view(asked: Operands) -> Parted:
    """Reshape, Flatten, Squeeze, Unsqueeze: elements keep their order."""
    node, split, result = asked.node, asked.only(0), asked.result()
    if node.domain:
        raise NotSplit(f"{node.domain}::{node.op} has no rule for parts")
    after = regrouped(asked.shape(0), split, result)
    size, whole = after.blocks[0], split.blocks[0]
    alone = len(split.blocks) == 1 and equal(split.repeat, 1) and equal(after.repeat, 1)
    within = (whole // size,) * size if alone and 1 < size < whole else ()
    if size % asked.devices:
        raise NotSplit(f"{size} cannot be shared by {asked.devices} devices", within)
    changes = {} if node.op != "Reshape" else _sizes(asked, 1, after.axis, result[after.axis])
    return asked.first(split, after, otherwise=within, **changes)


def _sizes(asked: Operands, operand: int, axis: int, size: int) -> dict[str, Any]:
    """The change of an operand that holds sizes, for a part: that of one axis is divided, unless it follows."""
    value = asked.value(operand)
    if value is None:
        raise NotSplit(f"the sizes {asked.node.inputs[operand]!r} are not known")
    entry = value.reshape(-1)[axis]
    copies = is_number(entry) and entry == 0  # the size of the operand's axis of this number
    if copies and asked.only(0).axis != axis:
        raise NotSplit("the size is that of another axis")
    if copies or (is_number(entry) and entry == -1):
        return {}
    if not equal(entry, size):
        raise NotSplit("the size of the axis is not known")
    if value.dtype == object:
        return {"divided": (operand, axis)}
    changed = value.copy()
    changed[axis] //= asked.devices
    return {"constants": {operand: changed}}


def regrouped(before: Sequence[Any], split: Split, after: Sequence[Any]) -> Split:
    """The split of a tensor whose elements are given other sizes. Raises NotSplit where parts would not be whole.

    >>> regrouped(("n", 10, 36), Split(2, (12, 12, 12)), ("n", 10, 3, 4, 3))
    Split(axis=3, blocks=(4,), repeat=1)
    >>> regrouped((20, 4, 3), Split(1, (4,)), (4, 5, 12))
    Split(axis=2, blocks=(12,), repeat=1)
    >>> regrouped((10, 2, 64), Split(2, (64,)), (10, 8, 16))
    Split(axis=1, blocks=(4,), repeat=2)
    """
    if any(is_number(d) and d == 0 for d in (*before, *after)):
        raise NotSplit("there are no elements")
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
    one = place < 0 or (is_number(entry := value.reshape(-1)[place]) and entry == 1)
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


@rule_of_trait("reduction")
def reduction(asked: Operands) -> Parted:
    """Reductions along other axes."""
    split, rank, attrs = asked.only(0), len(asked.shape(0)), asked.node.attrs
    given = attrs.get("axes")
    if given is None and len(asked.node.inputs) > 1 and asked.node.inputs[1]:
        given = asked.numbers(1)
    axes = [a % rank for a in given or ([] if attrs.get("noop_with_empty_axes") else range(rank))]
    if split.axis in axes:
        raise NotSplit("it adds up along the axis that is split")
    gone = 0 if attrs.get("keepdims", 1) else sum(a < split.axis for a in axes)
    return asked.first(split, split.at(split.axis - gone))


@rule_for("Concat")
def concat(asked: Operands) -> Parted:
    """Joined along another axis, all are split in the same way."""
    splits = {s for s in asked.splits if s is not None}
    if len(splits) > 1:
        raise NotSplit("its operands are split along different axes")
    (split,) = splits
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
