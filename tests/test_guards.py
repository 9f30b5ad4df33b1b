"""Guards of a trace: what a block reads is compared with what it was, whoever changes it meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from mezzo.gluon.guards import snapshot


def test_what_changes_while_it_is_looked_at_is_guarded_all_the_same() -> None:
    """Another thread, or a finalizer, may change a dictionary meanwhile: here it is one of its values."""
    held: dict[str, Any] = {}

    class Odd(np.ndarray):
        def tobytes(self, *args: Any) -> bytes:
            held[f"more {len(held)}"] = 1
            return bytes(super().tobytes(*args))

    held |= {"a": np.zeros(2).view(Odd), "b": 2}
    assert len(snapshot(held)[1]) == 2
    outer = SimpleNamespace(a=np.zeros(2).view(Odd), b=2)
    held = vars(outer)
    assert len(snapshot(outer)[2]) == 2
