"""Memory layouts as strings, in the notation of oneDNN's format tags.

The empty string is row-major. `acdb` names the dims from the outermost to the innermost (here a channels-last image);
a capital letter marks a dim that is split, and blocks follow from the outer to the inner: `aBcd16b` keeps sixteen
channels together. Blocked dims are padded to whole blocks. `+64` at the end counts bytes behind the elements.
`NAME=1024` is a form that only one kernel knows, of so many bytes: packed weights have such layouts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from .errors import PlanError

_FORM = re.compile(r"([A-Za-z]+)((?:\d+[a-z])*)(?:\+(\d+))?")
_BLOCK = re.compile(r"(\d+)([a-z])")
Loops = tuple[tuple[int, int], ...]


@lru_cache(maxsize=4096)
def parse(layout: str, rank: int) -> tuple[tuple[int, ...], Loops, int]:
    """The order of dims, the inner blocks (dim, size) from outer to inner, and the bytes behind the elements.

    Raises PlanError if it is no layout of tensors of this rank.

    >>> parse("aBcd16b", 4)
    ((0, 1, 2, 3), ((1, 16),), 0)
    """
    match = _FORM.fullmatch(layout)
    order = tuple(ord(c) - ord("a") for c in match[1].lower()) if match else ()
    if match is None or sorted(order) != list(range(rank)):
        raise PlanError(f"{layout!r} is no layout of rank {rank}")
    blocks = tuple((ord(d) - ord("a"), int(n)) for n, d in _BLOCK.findall(match[2]))
    split = {i for i, c in zip(order, match[1], strict=True) if c.isupper()}
    if split != {d for d, _ in blocks} or any(n < 2 for _, n in blocks):
        raise PlanError(f"{layout!r}: capital letters and blocks differ")
    return order, blocks, int(match[3] or 0)


def padded(layout: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes, rounded up to whole blocks."""
    whole = [1] * len(sizes)
    for dim, size in parse(layout, len(sizes))[1] if layout else ():
        whole[dim] *= size
    return tuple(-(-n // b) * b for n, b in zip(sizes, whole, strict=True))


def nbytes(layout: str, sizes: Sequence[int], itemsize: int) -> int:
    """Bytes of a tensor in this layout; PlanError if it is no layout.

    >>> nbytes("aBcd16b", (1, 3, 2, 2), 4), nbytes("packed=640", (3, 3), 4)
    (256, 640)
    """
    if not layout:
        return math.prod(sizes) * itemsize
    name, _, count = layout.rpartition("=")
    if name and count.isdecimal() and len(count) < 16:
        return int(count)
    return math.prod(padded(layout, sizes)) * itemsize + parse(layout, len(sizes))[2]


def is_permutation(layout: str) -> bool:
    """True if a layout is a permutation of the dims: constant strides, without padding."""
    return layout.isalpha() and layout.islower()


def plain(layout: str, sizes: Sequence[int]) -> str:
    """The layout, or "" where the bytes are in row-major order all the same, since dims of size 1 do not count.

    >>> plain("acdb", (1, 64, 1, 1)), plain("acdb", (1, 64, 7, 7))
    ('', 'acdb')
    """
    if not layout or "=" in layout:
        return layout
    return "" if alike(layout, "", sizes) else layout


def alike(a: str, b: str, sizes: Sequence[int]) -> bool:
    """True if tensors of these sizes have the same bytes in both layouts, since dims of size 1 do not count.

    >>> alike("acbd", "acdb", (1, 64, 7, 1)), alike("acbd", "acdb", (1, 64, 7, 7))
    (True, False)
    """
    return a == b or ("=" not in a + b and _loops(a, tuple(sizes)) == _loops(b, tuple(sizes)))


@lru_cache(maxsize=1024)
def _loops(layout: str, sizes: tuple[int, ...]) -> tuple[list[tuple[int, int]], int]:
    """Return the loops over the elements, from outer to inner, as dims with their counts; and the extra bytes
    behind."""
    order, blocks, extra = parse(layout or row_major(len(sizes)), len(sizes))
    inner = [math.prod(n for d, n in blocks if d == dim) for dim in range(len(sizes))]
    loops: list[tuple[int, int]] = []
    for dim, n in [(d, -(-sizes[d] // inner[d])) for d in order] + list(blocks):
        if loops and loops[-1][0] == dim:  # blocks that follow one another
            loops[-1] = dim, loops[-1][1] * n
        elif n > 1:
            loops.append((dim, n))
    return loops, extra


def row_major(rank: int) -> str:
    """The letters of the dims in order."""
    return "abcdefghijkl"[:rank]


def channels_last(rank: int) -> str:
    """The layout of images whose channels lie together.

    >>> channels_last(4)
    'acdb'
    """
    letters = row_major(rank)
    return letters[:1] + letters[2:] + letters[1:2]


@lru_cache(maxsize=4096)
def usual(layout: str, sizes: tuple[int, ...]) -> str:
    """The one name of all the layouts that have the same bytes, since dims of size 1 may stand anywhere in them:
    row-major if it is that, else channels-last, else with dims of size 1 behind the dim before them.

    >>> usual("acdb", (1, 64, 1, 1)), usual("acbd", (1, 64, 7, 1)), usual("bdca", (1, 64, 7, 5))
    ('', 'acdb', 'abdc')
    """
    if not layout or "=" in layout or alike(layout, "", sizes):
        return plain(layout, sizes)
    if not is_permutation(layout):
        return layout
    last = channels_last(len(sizes))
    return (
        last
        if alike(layout, last, sizes)
        else _with_ones((d for d in parse(layout, len(sizes))[0] if sizes[d] != 1), sizes)
    )


def _with_ones(order: Iterable[int], sizes: Sequence[int]) -> str:
    """The layout in which dims lie in this order, and those of size 1 behind the dim before them."""
    order = list(order)
    for d in (d for d, n in enumerate(sizes) if n == 1):
        order.insert(order.index(d - 1) + 1 if d else 0, d)
    return "".join(row_major(len(sizes))[d] for d in order)


def turned(layout: str, order: Sequence[int], sizes: Sequence[int]) -> str:
    """The layout in which a tensor of these sizes lies once its axes are put in another order.

    >>> turned("", (0, 2, 3, 1), (1, 8, 5, 5)), turned("acdb", (0, 2, 3, 1), (1, 8, 5, 5))
    ('adbc', '')
    """
    letters, lying = row_major(len(sizes)), parse(layout or row_major(len(sizes)), len(sizes))[0]
    return usual("".join(letters[order.index(d)] for d in lying), tuple(sizes[d] for d in order))


def with_units(layout: str, before: Sequence[int], after: Sequence[int]) -> str | None:
    """The layout of the same bytes once axes of size 1 are taken away or added; None where other axes change.

    >>> with_units("acdb", (2, 8, 1, 5), (2, 8, 5)), with_units("acdb", (2, 8, 1, 5), (16, 5))
    ('acb', None)
    """
    moving = [d for d in parse(layout, len(before))[0] if before[d] != 1]
    left = [d for d, n in enumerate(before) if n != 1]
    present = [d for d, n in enumerate(after) if n != 1]
    if [before[d] for d in left] != [after[d] for d in present]:
        return None
    return usual(_with_ones((present[left.index(d)] for d in moving), after), tuple(after))
