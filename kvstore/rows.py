"""Sums of row-sparse gradients over workers: row indices first, then the union of the rows as one dense value.

Both are rounds of the store as it is: the sums have the order, and the bits, of dense ones in every layout. What
travels is the numbers of all workers' rows, and of the table the rows that anybody has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import proxy

import numpy as np

from ..ops.errors import InputError, ShapeError
from ..ops.types import Array
from .protocol.keys import OWN

if TYPE_CHECKING:
    from .store import Declared, KVStore

FIRST = 256  # rows of a worker that the first round has room for
Rows = tuple[Array, Array]  # their numbers, ascending and each once; and they
Sum = Callable[[Array, Array], Rows]  # of rows over all workers


def room_for(count: int) -> int:
    """Round a count up by at most a quarter, to one of few sizes: a store has a key for each.

    >>> [room_for(n) for n in (0, 1, 5, 9, 100, 257)]
    [1, 1, 5, 10, 112, 320]
    """
    step = 1 << max(0, (max(1, count) - 1).bit_length() - 3)
    return -(-max(1, count) // step) * step


def are_rows(given: Any) -> bool:
    """True if a value is a RowSparse of `mz.nd`, or a list of them, one per device."""
    several = given if isinstance(given, list | tuple) else (given,)
    return bool(several) and all(getattr(x, "stype", "") == "row_sparse" for x in several)


def rows_of(given: Any) -> Rows:
    """The sum of such values, when they are computed."""
    several = given if isinstance(given, list | tuple) else (given,)
    parts = [(x.indices.asnumpy(), x.data.asnumpy()) for x in several]
    return parts[0] if len(parts) == 1 else union(parts)


def check_rows(declared: Declared, ids: Array, rows: Array, where: str) -> None:
    """Raise ShapeError for rows that do not fit their numbers or the value, InputError for numbers out of order."""
    if rows.shape != (len(ids), *declared.shape[1:]) or rows.dtype != declared.dtype:
        raise ShapeError(
            f"key {declared.key!r}: {rows.dtype}{list(rows.shape)} for {len(ids)} rows of {declared.dtype}"
            f"{list(declared.shape)}",
            where=where,
        )
    if not (ids[1:] > ids[:-1]).all():
        raise InputError(
            f"key {declared.key!r}: rows are given twice, or in another order than their numbers", where=where
        )


def fill(declared: Declared, out: Any, found: Rows, where: str) -> None:
    """Give each RowSparse these rows."""
    if not are_rows(out):
        raise InputError(f"key {declared.key!r}: rows go to a RowSparse", where=where, hint="give it as out=")
    for one in out if isinstance(out, list | tuple) else (out,):
        if (one.shape, one.dtype) != (declared.shape, declared.dtype):
            raise ShapeError(
                f"key {declared.key!r} is {declared.dtype}{list(declared.shape)}, and {one!r} is to be filled",
                where=where,
            )
        one.fill(*found)


def whole_of(ids: Array, rows: Array, table: Array) -> Array:
    """A value like this table, of zeros but for these rows."""
    whole = np.zeros_like(table)
    whole[ids] = rows
    return whole


def union(parts: Sequence[Rows]) -> Rows:
    """The sum of several, in their order."""
    ids = np.unique(np.concatenate([ids for ids, _ in parts]))
    first = parts[0][1]
    total = np.zeros((len(ids), *first.shape[1:]), first.dtype)
    for own, rows in parts:
        total[np.searchsorted(ids, own)] += rows
    return ids, total


class RowSums:
    """Sums of rows in the rounds of a store that sums. Every worker calls for the same keys in the same order."""

    def __init__(self, store: KVStore) -> None:
        self._store: KVStore = proxy(store)  # which holds this: a circle would keep its memory until it is searched for
        self._room: dict[str, int] = {}
        self._places: dict[str, Array] = {}

    def sum(self, key: str, ids: Array, rows: Array, priority: int) -> Rows:
        """The rows that any worker has, summed over all. They are valid until the next sum of the key."""
        if self._store.num_workers == 1:
            return ids, rows
        shown = self._shown(key, ids, priority)
        many = room_for(len(shown))
        name = f"{OWN}{key}/rows/{many}"
        place = self._place(name, (many, *rows.shape[1:]), rows.dtype)
        place[...] = 0
        place[np.searchsorted(shown, ids)] = rows
        self._store.pushpull(name, place, place, priority=priority, wait=True)
        return shown, place[: len(shown)]

    def _shown(self, key: str, ids: Array, priority: int) -> Array:
        """The numbers of the rows that any worker has. Whoever has more of them than there was room for makes all of
        them ask again: all see how many there are."""
        store = self._store
        while True:
            room = self._room.setdefault(key, FIRST)
            name = f"{OWN}{key}/ids/{room}"
            place = self._place(name, (store.num_workers, 1 + room), np.dtype(np.int64))
            place[...] = 0
            mine = place[store.rank]
            mine[0] = len(ids)
            mine[1 : 1 + len(ids)] = ids[:room]
            store.pushpull(name, place, place, priority=priority, wait=True)
            most = int(place[:, 0].max())
            if most <= room:
                return np.unique(np.concatenate([row[1 : 1 + row[0]] for row in place]))
            self._room[key] = room_for(most)

    def _place(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Memory of the store for a round of this size, whose key is declared with it."""
        found = self._places.get(name)
        if found is None:
            self._store._init(name, np.zeros(shape, dtype))
            found = self._places[name] = self._store.empty(shape, dtype)
        return found
