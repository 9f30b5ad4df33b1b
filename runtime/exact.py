"""The session that makes a run again whose steps may have lost a NaN."""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from typing import TYPE_CHECKING

from ..ops.dataclasses import replace

if TYPE_CHECKING:
    from .session import Session


FEW = 16  # runs made again that say nothing of the next ones


def again(session: Session) -> Session:
    """The session to make a run again with. Where that is so every other time (data with NaN, or a kernel that raises
    the flag for no reason), it makes the next runs at once."""
    session._alarms += 1
    runs = session._seats.counts()[0]  # both runs of each alarm are counted
    session._often = session._alarms > FEW and session._alarms * 3 > runs
    return exact(session)


def exact(session: Session) -> Session:
    """The session with programs that keep NaN and infinities in each step, in the same arenas; made once."""
    with session._planning:
        if session._exact is None:
            made = session._exact = copy(session)
            made._options, made._stored = replace(session._options, nan="exact"), None
            made._compiled, made._bound, made._known = {}, OrderedDict(), {}
            made._latest, made._again, made._direct, made._often = None, None, None, False
        return session._exact
