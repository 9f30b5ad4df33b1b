"""Reports of memory leaks in training loops: the variable and the line that keep a tape alive."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from ...runtime.engine.work import OURS
from ..array import Array

if TYPE_CHECKING:
    from .tape import Entry


class HeldTape(UserWarning):
    """Warning: an old recording is still alive, since an array that leads to it is kept."""


def tell(entries: Sequence[Entry], now: int) -> None:
    """Warn of entries that are still alive, naming the arrays that hold them and who holds those."""
    wanted = {id(e) for e in entries}
    holders = [x for x in gc.get_objects() if type(x) is Array and _leads_to(x, wanted)]
    if not holders:
        return
    told = []
    for x in holders[:3]:
        names = ", ".join(dict.fromkeys(_names(x))) or "something"
        told.append(f"{names} holds {x.where}")
    more = f" and {len(holders) - 3} arrays more" if len(holders) > 3 else ""
    age = now - min(e.scope for e in entries)
    warnings.warn(
        f"what was recorded {age} record() ago is still kept: {'; '.join(told)}{more}. "
        "Keep numbers, x.detach() or x.item(), in the place of recorded arrays",
        HeldTape,
        stacklevel=6,
    )


def _leads_to(x: Array, wanted: set[int]) -> bool:
    return isinstance(x._origin, tuple) and id(x._origin[0]) in wanted


def _names(x: Any, depth: int = 2) -> Iterator[str]:
    """Yield the names, as the user knows them, of the objects that refer to an object."""
    for holder in gc.get_referrers(x):
        if isinstance(holder, FrameType):
            continue
        if isinstance(holder, dict):
            for key, value in holder.items():
                if value is x and isinstance(key, str):
                    yield _of_whom(holder, key)
        elif isinstance(holder, list | tuple | set) and depth:
            yield from (f"{name}[...]" for name in _names(holder, depth - 1))
        elif not isinstance(holder, Array | list | tuple | set):
            named = [key for key, value in getattr(holder, "__dict__", {}).items() if value is x]
            yield from (f"{type(holder).__name__}.{key}" for key in named)
    for frame in _frames():
        for key, value in frame.f_locals.items():
            if value is x:
                yield f"{key!r} of {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _of_whom(namespace: dict[str, Any], key: str) -> str:
    for owner in gc.get_referrers(namespace):
        if isinstance(owner, ModuleType) and owner.__dict__ is namespace:
            return f"{owner.__name__}.{key}"
        if getattr(owner, "__dict__", None) is namespace:
            return f"{type(owner).__name__}.{key}"
    return repr(key)


def _frames() -> Iterator[FrameType]:
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if not frame.f_code.co_filename.startswith(OURS):
                yield frame
            frame = frame.f_back
