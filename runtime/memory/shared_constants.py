"""Constants shared between sessions: results of folding and packing the weights of one model are the same for each
session, and often for each signature."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np

from ...ops.types import Array
from ..digests import blake2b

SMALL = 4096  # bytes: below, looking for an equal one costs more than it saves

_kept: WeakValueDictionary[Any, Array] = WeakValueDictionary()
_derived: dict[int, WeakValueDictionary[str, Array]] = {}  # by the source's id, as long as it lives
_lock = threading.Lock()


def shared(made: Any, sources: Iterable[Any]) -> Any:
    """An array with these elements that is in use already, or this one, read-only from now on.

    What lies in the bytes of a source takes none of its own, and is left as it is; so are small arrays and whatever
    is no array of numbers.
    """
    if not isinstance(made, np.ndarray) or made.nbytes < SMALL or made.dtype == object:
        return made
    if any(isinstance(s, np.ndarray) and np.may_share_memory(made, s) for s in sources):
        return made
    digest = blake2b(np.ascontiguousarray(made).reshape(-1).view(np.uint8).data).digest()
    with _lock:
        found: Array = _kept.setdefault((digest, made.dtype, made.shape, made.strides), made)
    found.flags.writeable = False
    return found


def derived(source: Array, how: str, make: Callable[[], Array]) -> Array:
    """Return the form of an array that `make` computes and `how` names; it is shared as long as anyone uses it."""
    with _lock:
        forms = _derived.get(id(source))
        if forms is None:
            forms = _derived[id(source)] = WeakValueDictionary()
            finalize(source, _derived.pop, id(source)).atexit = False
    found = forms.get(how)
    if found is None:
        found = forms[how] = shared(make(), (source,))
    return found


def known(source: Array, how: str) -> Any:
    """Return the form of an array that `how` names if it is in use, else None."""
    with _lock:
        forms = _derived.get(id(source))
        return None if forms is None else forms.get(how)
