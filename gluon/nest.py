"""Arrays in nested lists, tuples and dicts: extraction and replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..nd.array import Array


class Slot(int):
    """A placeholder for an array, by its number."""


def numbers(value: Any) -> bool:
    """True if a value is a NumPy array that can become one of ours."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"


def flat(value: Any, *, numpys: bool = False) -> tuple[list[Any], Any]:
    """The arrays in a value (with `numpys` those of NumPy too), and the value with a Slot for each.

    >>> from mezzo import nd
    >>> arrays, shell = flat((nd.ones(2), [nd.zeros(1), "text"]))
    >>> len(arrays), shell
    (2, (0, [1, 'text']))
    """
    arrays: list[Any] = []

    def taken(part: Any) -> Any:
        if isinstance(part, Array) or (numpys and numbers(part)):
            arrays.append(part)
            return Slot(len(arrays) - 1)
        if isinstance(part, list | tuple):
            return _like(part, [taken(v) for v in part])
        if isinstance(part, dict):
            return {k: taken(v) for k, v in part.items()}
        return part

    return arrays, taken(value)


def filled(shell: Any, arrays: Sequence[Any]) -> Any:
    """A value again, with these arrays."""
    if isinstance(shell, Slot):
        return arrays[shell]
    if isinstance(shell, list | tuple):
        return _like(shell, [filled(v, arrays) for v in shell])
    if isinstance(shell, dict):
        return {k: filled(v, arrays) for k, v in shell.items()}
    return shell


def _like(several: Any, values: list[Any]) -> Any:
    """A list or a tuple of other values; one with names for its places too."""
    kind = type(several)
    return kind(*values) if hasattr(kind, "_fields") else kind(values)
