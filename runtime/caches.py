"""Process-wide caches: each has a name, a bound and a way to be emptied, and `mz.caches()` lists them all.

A new one is a `Cache`, `LatestCache` or `HeavyCache`, a dict given to `bounded` by the module that keeps its bound, or
`functools.lru_cache` with a `maxsize` on a function of a module, which is found by itself. tests/test_caches.py finds
those that are none of these.

>>> "kernel choices" in caches()
True
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet, WeakValueDictionary

from ..ops import OPS
from ..ops.dataclasses import dataclass

MOST: Final = 512  # a network has some tens of different steps; changing sizes must not pile them up
T = TypeVar("T")
Table = TypeVar("Table", bound=MutableMapping[Any, Any])


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


class LatestCache(Cache[T]):
    """Values by key: one more than `bound` puts out the one that was not asked for longest. For values that are costly
    to make; to ask for one takes a lock."""

    __slots__ = ("_lock",)

    def __init__(self, name: str, bound: int = MOST) -> None:
        super().__init__(name, bound)
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
                return value
        value = make()
        with self._lock:
            self._values[key] = value
            former = self._values.popitem(last=False) if len(self._values) > self.bound else None
        del former  # outside of the lock: nobody knows what else goes with it
        return value

    def clear(self) -> None:
        with self._lock:
            former, self._values = self._values, OrderedDict()
        del former


class Heavy(Protocol):
    """A value that knows how many bytes it holds; they may become more."""

    @property
    def nbytes(self) -> int: ...


H = TypeVar("H", bound=Heavy)


class HeavyCache(LatestCache[H]):
    """A cache whose values hold much: the latest stay, at most `most_bytes` of them together, and others can be found
    as long as somebody else has them. Values grow while they are used, and to count all takes long: a new one is taken
    to become twice what it is, and all are counted when they may be too many; then an eighth of the room is made."""

    __slots__ = ("_alive", "_held", "most_bytes")

    def __init__(self, name: str, most_bytes: int, bound: int = MOST) -> None:
        super().__init__(name, bound)
        self.most_bytes = most_bytes
        self._alive: WeakValueDictionary[Hashable, H] = WeakValueDictionary()
        self._held = 0

    def get(self, key: Hashable, make: Callable[[], H]) -> H:
        with self._lock:
            value = self._alive.get(key)
            if value is not None:
                if key in self._values:
                    self._values.move_to_end(key)
                return value
        value = make()
        former = list[H]()
        with self._lock:
            self._alive[key] = self._values[key] = value
            self._held += 2 * value.nbytes
            if len(self._values) > self.bound or self._held > self.most_bytes:
                held = sum(v.nbytes for v in self._values.values())
                most = self.most_bytes - self.most_bytes // 8
                while len(self._values) > self.bound or (held > most and len(self._values) > 1):
                    former.append(self._values.popitem(last=False)[1])
                    held -= former[-1].nbytes
                self._held = held
        former.clear()  # outside of the lock, as above
        return value

    def alive(self, key: Hashable) -> H | None:
        """The value of this key if the cache or anybody else has it."""
        return self._alive.get(key)

    def clear(self) -> None:
        super().clear()
        with self._lock:
            self._alive.clear()  # what is made from here on is new


_CACHES: WeakSet[Cache[Any]] = WeakSet()
_TABLES: dict[str, tuple[MutableMapping[Any, Any], int]] = {}


def bounded(name: str, bound: int, table: Table) -> Table:
    """List a dict among the caches under this name; its user empties it before it has more than `bound` entries."""
    _TABLES[name] = table, bound
    return table


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """A cache: how many values it holds now, how many it holds at most, and `clear()`, which forgets them."""

    name: str
    count: int
    bound: int
    clear: Callable[[], None]


class Caches(dict[str, CacheInfo]):
    """Caches by name; printed as a table."""

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{c.name:<{width}}  {c.count:>6} of {c.bound}" for c in self.values())

    __repr__ = __str__

    def clear(self) -> None:
        """Empty all caches; what they held is made again when it is needed."""
        for cache in self.values():
            cache.clear()


def caches() -> Caches:
    """The caches of this process, with their sizes of now.

    >>> all(cache.count <= cache.bound for cache in caches().values())
    True
    """
    infos: dict[str, CacheInfo] = {}
    by_name: dict[str, list[Cache[Any]]] = {}
    for cache in list(_CACHES):  # each device has one of its own
        by_name.setdefault(cache.name, []).append(cache)
    for name, alike in by_name.items():
        infos[name] = CacheInfo(name, sum(map(len, alike)), sum(c.bound for c in alike), _clearing(alike))
    for name, (table, bound) in list(_TABLES.items()):
        infos[name] = CacheInfo(name, len(table), bound, table.clear)
    for name, function in _functions().items():
        info = function.cache_info()
        infos[name] = CacheInfo(name, info.currsize, info.maxsize, function.cache_clear)
    return Caches(sorted(infos.items()))


OPS.redefined.append(lambda: caches().clear())  # what was prepared has the former reference in it


def _clearing(alike: list[Cache[Any]]) -> Callable[[], None]:
    def clear() -> None:
        for cache in alike:
            cache.clear()

    return clear


def _functions() -> dict[str, Any]:
    """Functions of our modules with a bounded `functools.lru_cache`, by dotted name."""
    top = f"{__name__.partition('.')[0]}."
    functions: dict[str, Any] = {}
    for module in [m for n, m in list(sys.modules.items()) if n.startswith(top)]:
        for value in list(vars(module).values()):
            parameters = getattr(value, "cache_parameters", None)
            if (
                parameters is not None
                and getattr(value, "__module__", "") == module.__name__
                and parameters()["maxsize"]
            ):
                functions[f"{module.__name__.removeprefix(top)}.{value.__qualname__}"] = value
    return functions
