"""Optional libraries: the module is cached if found, else the reason why it is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ....ops import MezzoError
from ....ops.errors import MissingPackage

T = TypeVar("T")


def tried(what: str, hint: str, load: Callable[[], T]) -> T | str:
    """Return the result of `load`, or its error as text.

    >>> tried("the moon", "pip install moon", lambda: 1 / 0)
    'the moon cannot be loaded: division by zero; pip install moon'
    """
    try:
        return load()
    except Exception as error:  # bindings raise errors of many kinds where the library or the driver behind is missing
        return f"{what} cannot be loaded: {error}; {hint}"


def needed(library: T | str, hint: str = "", error: type[MezzoError] = MissingPackage) -> T:
    """Return the library. Raises `error` with the reason if it is missing."""
    if isinstance(library, str):
        raise error(library, hint=hint)
    return library
