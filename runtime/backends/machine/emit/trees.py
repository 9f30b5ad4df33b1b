"""The walk of rows through trees, eight at a time: eight rows in one tree, or one row in eight trees.

A node has four words: a feature, the least key that goes to the left, how many more do, and its left child, behind
which the right one lies. Keys are unsigned numbers in the order of the float32 that they stand for; NaN is 0. Leaves
are their own left children, and take every key. Nothing branches on a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..blocks import Trees
from ..tiers import Tier
from .ir import F32, I8, I32, I64, PTR, Function, Local, Value, number, vector
from .team import shared

TOGETHER = 8  # walks between which the processor finds something to do
STEPS = 2  # between two looks whether all have arrived
LANES = 8


def functions(tier: Tier) -> list[Function]:
    """The one function for all forests."""
    return shared("trees", _chunk)


def _chunk(f: Function, a: Value, taken: Value) -> None:
    size, columns, count = f.word(a, Trees.CHUNK), f.word(a, Trees.FEATURES), f.word(a, Trees.COUNT)
    first = f.binary("mul", taken, size)
    last = f.binary("add", first, size)
    last = f.choose(f.compare("slt", last, f.word(a, Trees.ROWS)), last, f.word(a, Trees.ROWS))
    begin, end = (f.binary("mul", row, columns) for row in (first, last))
    _keys(f, f.word(a, Trees.X, PTR), f.word(a, Trees.KEYS, PTR), begin, end)
    scores, seen = f.word(a, Trees.SCORES, PTR), f.word(a, Trees.SEEN, PTR)
    with f.loop(f.binary("mul", first, count), f.binary("mul", last, count)) as i:
        f.store(number(0), f.at(scores, i, F32))
        f.store(number(0, I8), f.at(seen, i, I8))
    trees, roots = f.word(a, Trees.TREES), f.word(a, Trees.ROOTS, PTR)
    rows = f.binary("add", first, f.binary("and", f.binary("sub", last, first), -TOGETHER))
    with f.loop(0, trees) as tree:
        root = f.convert("zext", f.load(f.at(roots, tree, I32), I32), I64)
        with f.loop(first, rows, TOGETHER) as row:
            several = [f.binary("add", row, i) for i in range(TOGETHER)]
            for one, leaf in zip(several, _walk(f, a, [root] * TOGETHER, several), strict=True):
                _vote(f, a, leaf, one)
    whole = f.binary("and", trees, -TOGETHER)
    with f.loop(rows, last) as row:
        with f.loop(0, whole, TOGETHER) as tree:
            starts = [f.load(f.at(roots, f.binary("add", tree, i), I32), I32) for i in range(TOGETHER)]
            for leaf in _walk(f, a, [f.convert("zext", s, I64) for s in starts], [row] * TOGETHER):
                _vote(f, a, leaf, row)
        with f.loop(whole, trees) as tree:
            start = f.convert("zext", f.load(f.at(roots, tree, I32), I32), I64)
            for leaf in _walk(f, a, [start], [row]):
                _vote(f, a, leaf, row)
    _finish(f, a, first, last)


def _keys(f: Function, x: Value, keys: Value, begin: Value, end: Value) -> None:
    whole = f.binary("add", begin, f.binary("and", f.binary("sub", end, begin), -LANES))
    for width, first, last in ((LANES, begin, whole), (1, whole, end)):
        with f.loop(first, last, width) as i:
            floats, ints = vector(width, F32), vector(width, I32)
            value = f.binary("fadd", f.load(f.at(x, i, F32), floats), 0.0)  # -0 is 0
            bits = f.convert("bitcast", value, ints)
            flip = f.binary("or", f.binary("ashr", bits, 31), -(1 << 31))
            key = f.binary("xor", bits, flip)
            f.store(f.choose(f.compare("uno", value, value), number(0, ints), key), f.at(keys, i, I32))


def _walk(f: Function, a: Value, roots: Sequence[Value], rows: Sequence[Value]) -> list[Value]:
    """The leaves that walks from these roots, of these rows, arrive at."""
    nodes, columns = f.word(a, Trees.NODES, PTR), f.word(a, Trees.FEATURES)
    keys = [f.at(f.word(a, Trees.KEYS, PTR), f.binary("mul", row, columns), I32) for row in rows]
    at = [f.variable(root) for root in roots]
    for place, root in zip(at, roots, strict=True):
        f.set(place, root)
    left = f.variable(number(0, I64))
    f.set(left, f.word(a, Trees.DEPTH))
    with f.forever() as out:
        f.leave(f.compare("sle", f.get(left), 0), out)
        before = [f.get(place) for place in at]
        for _ in range(STEPS):
            for place, row in zip(at, keys, strict=True):
                _step(f, nodes, place, row)
        moved = f.binary("xor", before[0], f.get(at[0]))
        for old, place in zip(before[1:], at[1:], strict=True):
            moved = f.binary("or", moved, f.binary("xor", old, f.get(place)))
        f.leave(f.compare("eq", moved, 0), out)
        f.set(left, f.binary("sub", f.get(left), STEPS))
    return [f.get(place) for place in at]


def _step(f: Function, nodes: Value, place: Local, keys: Value) -> None:
    node = f.at(nodes, f.binary("shl", f.get(place), 2), I32)
    feature, base, span, child = (f.load(f.at(node, i, I32), I32) for i in range(4))
    key = f.load(f.at(keys, f.convert("zext", feature, I64), I32), I32)
    right = f.compare("ugt", f.binary("sub", key, base), span)
    f.set(place, f.binary("add", f.convert("zext", child, I64), f.convert("zext", right, I64)))


def _vote(f: Function, a: Value, leaf: Value, row: Value) -> None:
    """Add what a leaf votes for; its votes lie between two of the numbers in VOTES."""
    votes, count = f.at(f.word(a, Trees.VOTES, PTR), leaf, I32), f.word(a, Trees.COUNT)
    first, last = (f.convert("zext", f.load(f.at(votes, i, I32), I32), I64) for i in range(2))
    scores = f.at(f.word(a, Trees.SCORES, PTR), f.binary("mul", row, count), F32)
    seen = f.at(f.word(a, Trees.SEEN, PTR), f.binary("mul", row, count), I8)
    with f.loop(first, last) as vote:
        target = f.load(f.at(f.word(a, Trees.TARGETS, PTR), vote, I32), I32)
        target = f.convert("zext", target, I64)
        weight = f.load(f.at(f.word(a, Trees.WEIGHTS, PTR), vote, F32), F32)
        place = f.at(scores, target, F32)
        f.store(f.binary("fadd", f.load(place, F32), weight), place)
        f.store(number(1, I8), f.at(seen, target, I8))


def _finish(f: Function, a: Value, first: Value, last: Value) -> None:
    """Divide by the number of trees, where that is asked for, and add what every row begins with."""
    base, count = f.word(a, Trees.BASE, PTR), f.word(a, Trees.COUNT)
    divisor = f.word(a, Trees.DIVISOR)
    scores = f.word(a, Trees.SCORES, PTR)
    begin, end = (f.binary("mul", row, count) for row in (first, last))
    with f.when(f.compare("sgt", divisor, 1)), f.loop(begin, end) as i:
        place = f.at(scores, i, F32)
        f.store(f.binary("fdiv", f.load(place, F32), f.convert("sitofp", divisor, F32)), place)
    with f.when(f.value("i1", f"icmp ne {base}, null")), f.loop(begin, end) as i:
        place = f.at(scores, i, F32)
        more = f.load(f.at(base, f.binary("urem", i, count), F32), F32)
        f.store(f.binary("fadd", f.load(place, F32), more), place)
