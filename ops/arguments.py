"""Arguments that a function or class has not: refused with the name that ours has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from .errors import InputError


def strange_argument(owner: str, name: str, known: Iterable[str], ours: Mapping[str, str]) -> InputError:
    """The error for an argument that `owner` has not: `ours` has what other libraries call so, here.

    >>> print(strange_argument("softmax", "dim", ["axis"], {"dim": "axis="}))
    softmax: softmax has no argument 'dim'
      hint: it is axis= here
    """
    there = [*dict.fromkeys(known)]
    near = get_close_matches(name, there, 1)
    meant = ours.get(name, "")
    if meant.endswith("=") and meant[:-1] not in there:
        meant = ""
    meant = meant or (f"{near[0]}=" if near else "")
    hint = meant or (f"there are {', '.join(there)}" if there else "there are none")
    hint = f"it is {meant} here" if meant.endswith("=") else hint
    return InputError(f"{owner} has no argument {name!r}", where=owner, hint=hint)


def check_arguments(cls: type, given: Iterable[str], ours: Mapping[str, str]) -> None:
    """Refuse arguments that no constructor of a class and its bases names. Raises InputError with the name here."""
    known = [name for base in cls.__mro__ for name in _named(base)]
    strange = next((name for name in given if name not in known), None)
    if strange is not None:
        raise strange_argument(cls.__name__, strange, known, ours)


def _named(cls: type) -> tuple[str, ...]:
    """The arguments of a constructor that have names."""
    code = getattr(vars(cls).get("__init__"), "__code__", None)
    return () if code is None else code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
