"""Names of variables and outputs: those that are unknown or missing, with the nearest ones that there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from ..ops.errors import InputError


def nearest(name: str, names: Iterable[str]) -> str:
    """A note on the names that are like this one; empty if none is."""
    near = get_close_matches(name, list(names), 2)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def check_names(given: Iterable[str], names: Sequence[str], what: str, where: str, *, complete: bool) -> None:
    """Raise InputError naming all that is unknown, with the nearest name that is known, and if they are to be complete
    all that is missing."""
    unknown = [n for n in given if n not in names]
    missing = [n for n in names if n not in given] if complete else []
    told = [f"there is no {n!r}{nearest(n, names)}" for n in unknown]
    told += [f"{n!r} is missing" for n in missing]
    if told:
        raise InputError("; ".join(told), where=f"{what} of {where}", hint=f"the names are {', '.join(names)}")
