"""The alarm of a step that may have lost a NaN: exact kernels repeat the run, unless the thread has muted it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from ..ir.interpreter import InvalidOperation
from ..memory.executable_code import ExecutableCode

_HERE: Final = threading.local()


@cache
def readable() -> bool:
    """True if the processor's flag for invalid operations can be read on this machine: by machine code, for which the
    system may refuse memory."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return False
    try:
        ExecutableCode(bytes(1))
    except OSError:
        return False
    return True


def raise_alarm() -> None:
    """Raise InvalidOperation, unless this thread is in `muted`."""
    if not is_muted():
        raise InvalidOperation


def is_muted() -> bool:
    """True if this thread raises no alarm: threads that compute for it have to be muted, too."""
    return bool(getattr(_HERE, "muted", False))


@contextmanager
def muted() -> Iterator[None]:
    """A context in which this thread raises no alarm."""
    before, _HERE.muted = is_muted(), True
    try:
        yield
    finally:
        _HERE.muted = before
