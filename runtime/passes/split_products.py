"""Rules of parts (see split_rules.py) for products of matrices and attention: what ends in sums of all devices."""

from __future__ import annotations

from .split_rules import NotSplit, Operands, Parted, Split, equal, rule_for


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
    splits = {s.at(0) for s in (x, y) if s is not None}
    if (x is not None and x.axis != a) or (y is not None and y.axis != b) or len(splits) > 1:
        raise NotSplit("its operands are split along different axes")
    return splits.pop()


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
