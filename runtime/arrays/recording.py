"""Whether operations on arrays are remembered; runtime/autograd does the remembering, and is imported with its first
use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Recording(threading.local):
    """Whether this thread records, whether it trains, and in which `record()` it is."""

    on = False
    training = False
    scope = 0


RECORDING = Recording()
run: Callable[..., Any]  # in the place of running.run while recording: set by runtime/autograd/tape.py
