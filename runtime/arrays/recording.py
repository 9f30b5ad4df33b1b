"""Whether operations on arrays are remembered; runtime/autograd does the remembering, and is imported with its first
use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Recording(threading.local):
    """Whether this thread records, whether it trains, in which `record()` it is, and what is called, where it traces a
    block, when the program looks at numbers that a trace does not have: with the reason and the remedy."""

    on = False
    training = False
    scope = 0
    broke: Callable[[str, str], None] | None = None


RECORDING = Recording()
run: Callable[..., Any]  # in the place of running.run while recording: set by runtime/autograd/tape.py
