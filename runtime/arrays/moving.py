"""Operators that only move elements, on large arrays: the copies of graphs, into memory of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..fresh import LEAST, fresh
from ..graph import Node
from ..kernels.kernel import Ask, Choice, Work
from ..kernels.movement import MOVES, Movement
from .kinds import Kind, Known

KERNEL = Movement()


class Moved:
    """An operator on operands of one sort, as a call: every result is a fresh array."""

    __slots__ = ("_ask", "_choice", "_fixed", "_name", "_outs")

    def __init__(self, ask: Ask, choice: Choice, fixed: tuple[Any, ...], outs: tuple[Kind, ...]) -> None:
        self._ask, self._choice, self._fixed, self._outs = ask, choice, fixed, outs
        self._name = ask.node.op

    def __call__(self, *xs: Any) -> Any:
        given = iter(xs)
        inputs = [next(given) if f is ... else f for f in self._fixed]
        made = [fresh(k.shape, k.dtype, self._name) for k in self._outs]
        KERNEL.prepare(Work(self._ask, self._choice, inputs, made, _no_scratch))()
        return made[0] if len(made) == 1 else tuple(made)


def moves(
    domain: str,
    name: str,
    template: tuple[Kind | Known | None, ...],
    attrs: Mapping[str, Any],
    outs: tuple[Kind | None, ...],
) -> Moved | None:
    """The call for operands of these kinds; None where the operator does more, or its results are small."""
    if domain or name not in MOVES or None in outs:
        return None
    kinds = tuple(k for k in outs if k is not None)
    if sum(k.tensor.nbytes for k in kinds) < LEAST:
        return None
    names = tuple("" if t is None else f"i{i}" for i, t in enumerate(template))
    node = Node(name, names, tuple(f"o{i}" for i in range(len(outs))), attrs)
    ask = Ask(node, [None if t is None else t.tensor for t in template], [k.tensor for k in kinds])
    choice = KERNEL.select(ask)
    if not isinstance(choice, Choice):
        return None
    fixed = tuple(None if t is None else t.value if isinstance(t, Known) else ... for t in template)
    return Moved(ask, choice, fixed, kinds)


def _no_scratch(*_: Any) -> Any:
    raise AssertionError("copies need no workspace")
