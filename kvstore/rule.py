"""An updater as scalar expressions: a text that travels to whoever holds the values, as code does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from ..ops import DType
from ..ops.core.expr import E, Expr, inputs
from ..ops.errors import InputError
from ..ops.training.update import names_of, text_of
from ..ops.types import Array
from ..runtime.optimizer.record import Rules

Updater = Callable[[str | int, Array, Array], None]  # (key, what was received, what is stored): changes the latter


@dataclass(frozen=True, slots=True)
class Rule:
    """An updater that every kind of store takes: the expressions of a function as a text."""

    name: str
    text: str
    slots: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The rule as stores, servers and files of states have it: as the data of an optimizer."""
        rules = Rules(((0.0, self.text),), text_of((), ("t",)), self.slots, 0.0, 0)
        common = {"rate": 0.0, "weight_decay": 0.0, "groups": []}
        return {"kind": f"rule {self.name}", **common, "rules": rules.to_dict()}


def rule(function: Callable[..., Any]) -> Rule:
    """Make an updater of `function(e, stored, received, *states)`, which returns the expression of the new value, then
    those of its states (of the shape of the value, 0 at first). `e` builds expressions (`e.sqrt`, `e.sign`,
    `e.where`...), beside the operators of Python. It is called once, here. Raises InputError where it gives no such
    expressions.

    >>> import numpy as np
    >>> from mezzo.kvstore import create
    >>> @rule
    ... def halfway(e, stored, received):
    ...     return (stored + received) / 2
    >>> with create("local") as kv:
    ...     kv.init("a", np.zeros(2))
    ...     kv.set_updater(halfway)
    ...     kv.push("a", np.array([2.0, 4.0]))
    ...     kv.pull("a").tolist()
    [1.0, 2.0]
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        _, _, _, *slots = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise _wrong(name, "it does not take (e, stored, received)") from error
    names = names_of(0, 0, len(slots))
    stored, received, _, *states = inputs([DType.DOUBLE] * len(names))
    try:
        results = function(E, stored, received, *states)
        results = results if isinstance(results, tuple) else (results,)
        if len(results) != 1 + len(slots):
            raise _wrong(name, f"it returns {len(results)} expressions for the value and {len(slots)} states")
        return Rule(name, text_of([_expression(name, result) for result in results], names), tuple(slots))
    except (TypeError, ValueError, AttributeError) as error:
        raise _wrong(name, str(error)) from error


def by_names(function: Updater, names: Mapping[str, str | int]) -> Updater:
    """An updater in code that is called with keys as users have them, by the names that backends have."""

    @wraps(function, updated=())
    def called(name: str | int, received: Array, stored: Array) -> None:
        function(names[str(name)], received, stored)

    return called


def _expression(name: str, result: Any) -> Expr:
    if isinstance(result, Expr):
        return result
    raise _wrong(name, f"{type(result).__name__} is no expression")


def _wrong(name: str, why: str) -> InputError:
    hint = "compute with e and the operators of Python alone, element by element, and return the new value"
    return InputError(f"{name} gives no expressions: {why}", where="kv.rule", hint=hint)
