"""Log messages with ONNX Runtime's severities: to standard error, or to a callback.

Sessions say at INFO what they planned and at VERBOSE how long each run took; what fails is raised, and not logged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ...ops.dataclasses import dataclass
from ...ops.errors import ArgumentError

VERBOSE, INFO, WARNING, ERROR, FATAL = range(5)
Callback = Callable[[int, str, str, str, str], None]  # severity, category, log id, place in the code, message


class Default:
    """Settings of this process."""

    severity = WARNING
    verbosity = 0
    callback: Callback | None = None


def check_severity(severity: int, where: str) -> int:
    """Raises ArgumentError for what is no severity."""
    if type(severity) is not int or not VERBOSE <= severity <= FATAL:
        hint = "0 verbose, 1 info, 2 warning, 3 error, 4 fatal"
        raise ArgumentError(f"{severity!r} is no severity", where=where, hint=hint)
    return severity


def set_default_logger_severity(severity: int) -> None:
    """The least severity that is logged where a session or run does not say another."""
    Default.severity = check_severity(severity, "set_default_logger_severity")


def set_default_logger_verbosity(level: int) -> None:
    """The level of verbose messages that are logged: 1 and above times each run.

    Raises ArgumentError for what is no number."""
    if type(level) is not int:
        raise ArgumentError(f"{level!r} is no level", where="set_default_logger_verbosity", hint="give 0, 1, ...")
    Default.verbosity = level


def set_default_logger_callback(callback: Callback | None, severity: int = WARNING) -> None:
    """Give messages to a function instead of standard error; None: to standard error again."""
    check_severity(severity, "set_default_logger_callback")
    if callback is not None and not callable(callback):
        raise ArgumentError(f"{callback!r} is no function", where="set_default_logger_callback", hint="or None")
    Default.callback = callback
    if callback is not None:
        Default.severity = severity


@dataclass(frozen=True, slots=True)
class Log:
    """Log of a session or a run: its own least severity (-1: the default) and identity."""

    severity: int = -1
    identity: str = ""

    def wants(self, severity: int) -> bool:
        return severity >= (Default.severity if self.severity < 0 else self.severity)

    def say(self, severity: int, place: str, message: str) -> None:
        if not self.wants(severity):
            return
        if Default.callback is not None:
            try:
                Default.callback(severity, "mezzo", self.identity, place, message)
            except Exception as error:
                message = f"{message} (the callback raised {error!r})"
            else:
                return
        from datetime import datetime  # of a start, a millisecond

        letter = "VIWEF"[severity]
        print(f"{datetime.now():%Y-%m-%d %H:%M:%S.%f} [{letter}:mezzo:{self.identity}, {place}] {message}",
              file=sys.stderr)  # fmt: skip
