"""Questions of one kind have one answer: a network asks the same of many of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np

from ...ops import Tensor, Type
from ..compile.kernel import KernelRequest

MOST = 512  # a network has some tens of kinds; changing sizes must not pile them up
FEW = 16  # elements of which kernels look at the values
T = TypeVar("T")


class CacheKey:
    """The parts of a question, hashed once: a question is looked up in several tables, and most of it are types."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Hashable) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheKey) and self._hash == other._hash and self._parts == other._parts


class Answers(Generic[T]):
    """What was answered before. Too many are forgotten all at once."""

    def __init__(self) -> None:
        self._found: dict[Hashable, T] = {}

    def get(self, kind: Hashable, ask: Callable[[], T]) -> T:
        """The answer to this kind of question, asked for if it was not given before."""
        found = self._found.get(kind)
        if found is None:
            found = ask()
            if len(self._found) >= MOST:
                self._found.clear()
            self._found[kind] = found
        return found

    def forget(self) -> None:
        """Ask all anew."""
        self._found.clear()


def kind(ask: KernelRequest) -> CacheKey | None:
    """What a choice depends on: everything but the names of values and the elements of large ones. None where that
    cannot be compared: operators of others, whose records change, and nodes with bodies or arrays."""
    if not ask.asked:
        ask.asked.append(_kind(ask))
    found: CacheKey | None = ask.asked[0]
    return found


def _kind(ask: KernelRequest) -> CacheKey | None:
    node = ask.node
    if node.domain not in ("", "mezzo"):
        return None
    try:
        return CacheKey(
            node.domain,
            node.op,
            tuple(sorted(node.attrs.items())),
            tuple(map(node.inputs.index, node.inputs)),
            node.wanted,
            *(t.forget() if isinstance(t, Tensor) and t.value is not None else t for t in (*ask.inputs, *ask.outputs)),
            *map(_value, ask.inputs),
            tuple(ask.constants),
            ask.target,
        )
    except TypeError:
        return None


def _value(type: Type | None) -> bytes | bool:
    """The elements of a small value; of others, whether they are known."""
    if type is None or not isinstance(type, Tensor) or (value := type.value) is None:
        return False
    return np.asarray(value).tobytes() if np.size(value) <= FEW else True
