"""Bytes of what the library makes: its code and descriptors lie in the heap, of which it tells nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, Final, TypeVar

from ...caches import MOST, bounded

T = TypeVar("T")
LEAST, USUAL, LARGEST = 1 << 12, 1 << 16, 1 << 23  # what other threads take at the same time must not count much
_GROWTH: Final[dict[Hashable, int]] = bounded("oneDNN: bytes of primitives", MOST + 1, {})


class _HeapInfo(ctypes.Structure):
    """`struct mallinfo2` of GNU's C library."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


@cache
def _asked() -> Callable[[], Any] | None:
    """Return the function that tells what of the heap is in use; None where the C library has none."""
    try:
        mallinfo: Any = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo.restype, mallinfo.argtypes = _HeapInfo, ()
    return mallinfo  # type: ignore[no-any-return]


def weighed(kind: Hashable, make: Callable[[], T]) -> tuple[T, int]:
    """The result of `make`, and its bytes in the heap. They are measured for the first of a kind, and taken for the
    others: to measure takes longer the more pieces the heap is in. A guess where the system does not tell."""
    known = _GROWTH.get(kind)
    if known is not None:
        return make(), known
    asked = _asked()
    if asked is None:
        return make(), USUAL
    before = asked()
    created = make()
    after = asked()
    grown = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd
    if len(_GROWTH) > MOST:
        _GROWTH.clear()
    _GROWTH[kind] = min(max(grown, LEAST), LARGEST)
    return created, _GROWTH[kind]
