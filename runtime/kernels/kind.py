"""Questions of one kind have one answer: a network asks the same of many of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np

from ...ops import Tensor, Type
from .kernel import Ask

MOST = 512  # a network has some tens of kinds; changing sizes must not pile them up
FEW = 16  # elements of which kernels look at the values
T = TypeVar("T")


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


def kind(ask: Ask) -> Hashable | None:
    """What a choice depends on: everything but the names of values and the elements of large ones. None where that
    cannot be compared: operators of others, whose records change, and nodes with bodies or arrays."""
    node = ask.node
    if node.domain not in ("", "mezzo"):
        return None
    known = (*ask.inputs, *ask.outputs)
    found = (
        node.domain,
        node.op,
        tuple(sorted(node.attrs.items())),
        tuple(map(node.inputs.index, node.inputs)),
        node.wanted,
        tuple(t.forget() if isinstance(t, Tensor) and t.value is not None else t for t in known),
        tuple(map(_value, ask.inputs)),
        tuple(ask.constants),
        ask.target,
    )
    try:
        hash(found)
    except TypeError:
        return None
    return found


def _value(type: Type | None) -> bytes | bool:
    """The elements of a small value; of others, whether they are known."""
    value = type.value if isinstance(type, Tensor) else None
    if value is None:
        return False
    return np.asarray(value).tobytes() if np.size(value) <= FEW else True
