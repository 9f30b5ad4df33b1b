"""Constants shared between sessions: results of folding and packing the weights of one model are the same for each
session, and often for each signature."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np

from ...ops.types import Array
from .model_file import give_back, in_memory, model_file

SMALL = 4096  # bytes: below, looking for an equal one costs more than it saves
CHUNK = 1 << 20  # bytes that are compared at once

_kept: WeakValueDictionary[Any, Array] = WeakValueDictionary()
_derived: dict[int, WeakValueDictionary[str, Array]] = {}  # by the source's id, as long as it lives
_lock = threading.Lock()


def shared(array: Any, sources: Iterable[Any]) -> Any:
    """An array with these elements that is in use already, or this one, read-only from now on.

    What lies in the bytes of a source takes none of its own, and is left as it is; so are small arrays and whatever
    is no array of numbers.
    """
    if not isinstance(array, np.ndarray) or array.nbytes < SMALL or array.dtype == object:
        return array
    if any(isinstance(s, np.ndarray) and np.may_share_memory(array, s) for s in sources):
        return array
    kind = (zlib.crc32(_sample(array)), array.dtype, array.shape, array.strides)
    with _lock:
        for number in count():  # arrays that differ elsewhere only
            kept: Array = _kept.setdefault((*kind, number), array)
            if kept is array or _alike(kept, array):
                break
    kept.flags.writeable = False
    return kept


def _sample(array: Array) -> bytes:
    """Some of the bytes of an array, from all over it: what tells most arrays apart."""
    flat = _flat(array)
    return bytes(flat[:: max(1, flat.size // 1024)])


def _alike(a: Array, b: Array) -> bool:
    """True if two arrays of one type and shape have the same bytes."""
    x, y = _flat(a), _flat(b)
    return all(np.array_equal(x[i : i + CHUNK], y[i : i + CHUNK]) for i in range(0, x.size, CHUNK))


def _flat(array: Array) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def derived(source: Array, how: str, make: Callable[[], Array]) -> Array:
    """Return the form of an array that `make` computes and `how` names; it is shared as long as anyone uses it."""
    with _lock:
        forms = _derived.get(id(source))
        if forms is None:
            forms = _derived[id(source)] = WeakValueDictionary()
            finalize(source, _derived.pop, id(source)).atexit = False
    form = forms.get(how)
    if form is None:
        if (file := model_file(source)) is not None:
            file.check()
        form = forms[how] = shared(make(), (source,))
        give_back(source)
    return form


def constant(array: Array) -> Array:
    """An array as programs read it: its elements side by side, and none of them in a model's file."""
    if not isinstance(array, np.ndarray) or array.dtype == object:
        return array
    if array.flags.c_contiguous and model_file(array) is None:
        return array
    if array.nbytes < SMALL:
        return in_memory(array)
    return derived(array, "constant", lambda: in_memory(array))


def known(source: Array, how: str) -> Any:
    """Return the form of an array that `how` names if it is in use, else None."""
    with _lock:
        forms = _derived.get(id(source))
        return None if forms is None else forms.get(how)
