"""Process-wide caches: each has a name, a bound and a way to be emptied, and `mz.caches()` lists them all."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

MOST: Final = 512  # a network has some tens of different steps; changing sizes must not pile them up
T = TypeVar("T")


class CacheKey:
    """The parts of a key, hashed once: a key is looked up in several caches, and most of its parts are types."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Hashable) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheKey) and self._hash == other._hash and self._parts == other._parts


class Cache(Generic[T]):
    """Values by key, at most `bound` of them: one more empties the cache first."""

    __slots__ = ("__weakref__", "_values", "bound", "name")

    def __init__(self, name: str, bound: int = MOST) -> None:
        self.name, self.bound = name, bound
        self._values: dict[Hashable, T] = {}
        _CACHES.add(self)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this key, made now if it is not there."""
        value = self._values.get(key)
        if value is None:
            value = make()
            if len(self._values) >= self.bound:
                self._values.clear()
            self._values[key] = value
        return value

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()


_CACHES: WeakSet[Cache[Any]] = WeakSet()
