"""Lines of the user's program: where an operation was asked for, as errors say it."""

from __future__ import annotations

import sys
from types import CodeType

from ..runtime.engine.work import OURS


def site(above: int = 1) -> tuple[CodeType, int]:
    """The code outside of this package that calls, and the instruction; so many frames `above` are looked for there."""
    frame = sys._getframe(above)
    while frame.f_code.co_filename.startswith(OURS) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def line_of(code: CodeType, at: int) -> str:
    """File, line and function of an instruction."""
    number = next((n for a, b, n in code.co_lines() if a <= at < b and n), code.co_firstlineno)
    return f"{code.co_filename}:{number} in {code.co_name}"
