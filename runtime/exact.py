"""The session that makes a run again whose steps may have lost a NaN."""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from typing import TYPE_CHECKING

from ..ops.dataclasses import replace

if TYPE_CHECKING:
    from .session import Session


def exact(session: Session) -> Session:
    """The session with programs that keep NaN and infinities in each step, in the same arenas; made once."""
    with session._planning:
        if session._exact is None:
            made = session._exact = copy(session)
            made._options, made._stored = replace(session._options, nan="exact"), None
            made._compiled, made._bound, made._known = {}, OrderedDict(), {}
            made._latest, made._again, made._direct = None, None, None
        return session._exact
