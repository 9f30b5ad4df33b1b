"""Constants that several sessions work out alike, kept once: what folding and packing make of the weights of one model
is the same for each session, and often for each signature."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ..ops.types import Array

SMALL = 4096  # bytes: below, looking for an equal one costs more than it saves

_kept: WeakValueDictionary[Any, Array] = WeakValueDictionary()
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
    digest = hashlib.blake2b(np.ascontiguousarray(made).reshape(-1).view(np.uint8).data).digest()
    with _lock:
        found: Array = _kept.setdefault((digest, made.dtype, made.shape, made.strides), made)
    found.flags.writeable = False
    return found
