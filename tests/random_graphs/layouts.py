"""Moves that change how elements lie, and nothing else: alone and in chains."""

from __future__ import annotations

from math import prod

import numpy as np

from mezzo.ops import DType

from .maker import Maker, Unfit
from .moves import move

FAVOURITES = {
    3: ((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)),
    4: ((0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3), (0, 1, 3, 2)),
}


def filled(m: Maker) -> str:
    return m.pick(lambda n: 0 not in m.shape(n))


@move(9, "layouts")
def transpose(m: Maker) -> str:
    x = m.pick(lambda n: m.rank(n) > 1)
    rank = m.rank(x)
    if rank in FAVOURITES and m.chance(0.6):
        return m.add("Transpose", x, perm=m.one(FAVOURITES[rank]))
    if m.chance(0.1):
        return m.add("Transpose", x)
    return m.add("Transpose", x, perm=m.rng.permutation(rank).tolist())


def splits(m: Maker, n: int) -> list[int]:
    """A size as a product of two."""
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    first = int(m.one(divisors))
    return [first, n // first]


@move(5, "layouts")
def reshape(m: Maker) -> str:
    x = filled(m)
    shape = list(m.shape(x))
    kept = 1 if m.batch and shape else 0
    rest = shape[kept:]
    for _ in range(int(m.rng.integers(1, 3))):
        if len(rest) > 1 and m.chance(0.5):  # two dims run together
            at = int(m.rng.integers(len(rest) - 1))
            rest[at : at + 2] = [rest[at] * rest[at + 1]]
        elif rest and len(rest) < 5:  # one dim falls into two
            at = int(m.rng.integers(len(rest)))
            rest[at : at + 1] = splits(m, rest[at])
    target = [0] * kept + rest
    if rest and m.chance(0.4):
        target[kept + int(m.rng.integers(len(rest)))] = -1
    elif kept and m.chance(0.5):
        target[0] = -1
    if len(target) > 5:
        raise Unfit("a high rank")
    return m.add("Reshape", x, m.ints(target))


@move(2, "layouts")
def squeeze(m: Maker) -> str:
    x = m.pick(lambda n: 1 in m.shape(n))
    axes = [i for i, n in enumerate(m.shape(x)) if n == 1]
    if m.chance(0.15) and not m.batch:
        return m.add("Squeeze", x)
    taken = [a for a in axes if m.chance(0.7)] or axes[:1]
    return m.add("Squeeze", x, m.ints([a - m.rank(x) if m.chance(0.3) else a for a in taken]))


@move(2.5, "layouts")
def unsqueeze(m: Maker) -> str:
    x = m.pick(lambda n: m.rank(n) < 5)
    return m.as_rank(x, int(m.rng.integers(m.rank(x) + 1, 6)))


@move(1.5, "layouts")
def flatten(m: Maker) -> str:
    x = filled(m)
    return m.add("Flatten", x, axis=int(m.rng.integers(-m.rank(x), m.rank(x) + 1)) if m.chance(0.5) else 1)


@move(5, "layouts")
def concat(m: Maker) -> str:
    x = m.pick(lambda n: m.rank(n) > 0)
    axis = int(m.rng.integers(m.rank(x)))
    rest = m.shape(x)[:axis] + m.shape(x)[axis + 1 :]

    def fits(n: str) -> bool:
        return m.rank(n) == m.rank(x) and m.shape(n)[:axis] + m.shape(n)[axis + 1 :] == rest

    parts = [x, *(m.pick(fits) for _ in range(int(m.rng.integers(1, 4))))]
    if m.chance(0.25):
        dims = list(m.shape(x))
        dims[axis] = m.size()
        parts.append(m.weight(*dims))
    order = m.rng.permutation(len(parts))
    return m.add("Concat", *(parts[i] for i in order), axis=axis - m.rank(x) if m.chance(0.3) else axis)


@move(4, "layouts")
def split(m: Maker) -> object:
    x = m.pick(lambda n: m.rank(n) > 0 and max(m.shape(n)) > 0)
    axes = [i for i, n in enumerate(m.shape(x)) if n > 1 or m.chance(0.2)]
    if not axes:
        raise Unfit("nothing to split")
    axis = int(m.one(axes))
    size = m.shape(x)[axis]
    parts = int(m.rng.integers(1, min(4, size) + 1)) if size else 1
    given = axis - m.rank(x) if m.chance(0.3) else axis
    if size % max(parts, 1) == 0 and m.chance(0.4):
        return m.several("Split", x, axis=given, num_outputs=parts, outputs=parts)
    cuts = sorted(int(m.rng.integers(0, size + 1)) for _ in range(parts - 1))
    sizes = np.diff([0, *cuts, size]).tolist()
    wanted = [m.chance(0.9) for _ in sizes]
    return m.several("Split", x, m.ints(sizes), axis=given, outputs=wanted if any(wanted) else len(sizes))


def bounds(m: Maker, size: int) -> tuple[int, int, int]:
    """Start, end and step of a slice, some of them out of range, as the standard allows."""
    step = int(m.one((1, 1, 1, 1, 2, 3, -1, -1, -2)))
    low, high = sorted(int(v) for v in m.rng.integers(0, size + 1, 2))
    if high == low:
        low, high = 0, size
    start, end = (low, high) if step > 0 else (high - 1, low - 1 if low else -size - 1)
    if m.chance(0.2):
        start = -size - 3 if step > 0 else size + 4
    if m.chance(0.2):
        end = 2**31 if step > 0 else -(2**31)
    if m.chance(0.2) and 0 <= start < size:
        start -= size
    return start, end, step


@move(4, "layouts")
def cut(m: Maker) -> str:
    x = m.pick(lambda n: m.rank(n) > 0)
    axes = sorted(m.rng.permutation(m.rank(x))[: int(m.rng.integers(1, min(3, m.rank(x)) + 1))].tolist())
    found = [bounds(m, m.shape(x)[a]) for a in axes]
    starts, ends, steps = ([b[i] for b in found] for i in range(3))
    given = [a - m.rank(x) if m.chance(0.3) else a for a in axes]
    if all(s == 1 for s in steps) and m.chance(0.5):
        return m.add("Slice", x, m.ints(starts), m.ints(ends), m.ints(given))
    return m.add("Slice", x, m.ints(starts), m.ints(ends), m.ints(given), m.ints(steps))


@move(2, "layouts")
def expand(m: Maker) -> str:
    x = m.pick(lambda n: m.rank(n) < 5)
    dims = [m.size() if n == 1 and m.chance(0.6) else 1 if m.chance(0.3) else n for n in m.shape(x)]
    if m.rank(x) < 4 and m.chance(0.3):
        dims = [m.size(), *dims]
    return m.add("Expand", x, m.ints(dims))


@move(1, "layouts")
def tile(m: Maker) -> str:
    x = m.pick(lambda n: m.rank(n) > 0)
    return m.add("Tile", x, m.ints([int(m.one((1, 1, 2, 3))) for _ in m.shape(x)]))


@move(2, "layouts")
def pad(m: Maker) -> str:
    x = filled(m)
    if not m.rank(x):
        raise Unfit("a scalar")
    mode = m.one(("constant", "constant", "reflect", "edge", "wrap"))
    low = -1 if m.chance(0.15) else 0
    pads = [int(m.rng.integers(low, 3)) if m.chance(0.5) else 0 for _ in range(2 * m.rank(x))]
    value = m.const(m.one((0.0, 0.5, -1.0))) if mode == "constant" and m.chance(0.5) else None
    return m.add("Pad", x, m.ints(pads), value, mode=mode)


@move(1.2, "layouts")
def blocks(m: Maker) -> str:
    x = m.ranked(4)
    size = int(m.one((1, 2, 2, 4)))
    if m.chance(0.5):
        return m.add("SpaceToDepth", x, blocksize=size)
    return m.add("DepthToSpace", x, blocksize=size, mode=m.one(("DCR", "CRD")))


@move(2.5, "layouts")
def gather(m: Maker) -> str:
    x = m.pick(lambda n: m.rank(n) > 0 and 0 not in m.shape(n))
    axis = int(m.rng.integers(m.rank(x)))
    size = m.shape(x)[axis]
    kind = m.one(("Gather", "Gather", "Gather", "GatherElements", "GatherND"))
    if kind == "Gather":
        where = m.rng.integers(-size, size, m.dims(int(m.one((0, 1, 1, 2))), 32))
        index = m.input(where) if m.chance(0.2) else m.const(where, m.one((DType.INT64, DType.INT32)))
        return m.add("Gather", x, index, axis=axis)
    if kind == "GatherElements":
        dims = [int(m.rng.integers(1, n + 1)) for n in m.shape(x)]
        return m.add("GatherElements", x, m.const(m.rng.integers(-size, size, dims), DType.INT64), axis=axis)
    depth = int(m.rng.integers(1, m.rank(x) + 1))
    where = np.stack([m.rng.integers(0, n, (3, 2)) for n in m.shape(x)[:depth]], -1)
    return m.add("GatherND", x, m.const(where, DType.INT64))


@move(1.2, "layouts")
def scatter(m: Maker) -> str:
    x = m.pick(lambda n: m.rank(n) > 0 and 0 not in m.shape(n) and m.rank(n) < 4)
    how = {} if m.chance(0.5) else {"reduction": m.one(("add", "max", "min"))}
    if m.chance(0.5):
        count = min(m.shape(x)[0], 3)
        rows = m.rng.permutation(m.shape(x)[0])[:count].reshape(-1, 1)
        return m.add("ScatterND", x, m.const(rows, DType.INT64), m.weight(count, *m.shape(x)[1:]), **how)
    axis = int(m.rng.integers(m.rank(x)))
    dims = [int(m.rng.integers(1, n + 1)) for n in m.shape(x)]
    dims[axis] = 1
    where = m.rng.integers(0, m.shape(x)[axis], dims)
    return m.add("ScatterElements", x, m.const(where, DType.INT64), m.weight(*dims), axis=axis, **how)


@move(0.8, "layouts")
def rest(m: Maker) -> str:
    x = filled(m)
    kind = m.one(("Identity", "Identity", "Trilu", "CenterCropPad", "ReverseSequence", "Dropout"))
    if kind == "CenterCropPad":
        return m.add(kind, x, m.ints([m.size() for _ in m.shape(x)]))
    if kind == "ReverseSequence":
        if m.rank(x) < 2:
            raise Unfit("no sequences")
        time, rows = m.shape(x)[:2]
        return m.add(kind, x, m.const(m.rng.integers(0, time + 1, rows), DType.INT64), time_axis=0, batch_axis=1)
    if kind == "Trilu":
        if m.rank(x) < 2:
            raise Unfit("no matrix")
        return m.add(kind, x, m.const(m.one((-1, 0, 1)), DType.INT64), upper=int(m.one((0, 1))))
    return m.add(kind, x)


@move(2, "layouts")
def chain(m: Maker) -> None:
    """Several in a row, each on the last."""
    for _ in range(int(m.rng.integers(2, 5))):
        m.one((transpose, transpose, reshape, squeeze, unsqueeze, flatten, cut, split, concat))(m)


@move(2, "layouts")
def through_shape(m: Maker) -> str:
    """A reshape whose target is worked out from the sizes, as exporters write `x.view(x.size(0), -1)`."""
    x = filled(m)
    if m.rank(x) < 2:
        raise Unfit("nothing to run together")
    kept = int(m.rng.integers(1, m.rank(x)))
    sizes = m.add("Shape", x)
    parts = [m.add("Slice", sizes, m.ints([0]), m.ints([kept]))]
    parts.append(m.ints([prod(m.shape(x)[kept:])]) if m.chance(0.3) else m.ints([-1]))
    return m.add("Reshape", x, m.add("Concat", *parts, axis=0))
