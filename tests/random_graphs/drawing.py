"""The properties, and how often each is drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mezzo.runtime.execution.session import Session

from .properties import (
    Asked,
    asked,
    batches,
    differentiated,
    exported,
    into_buffers,
    not_numbers,
    some,
    stored,
    strided,
    threads,
    trained,
)
from .rounded import rounded

Property = Callable[[Asked, Session], None]
# With how often each is drawn: what costs most is drawn less.
PROPERTIES: dict[Property, float] = {
    batches: 3, asked: 3, stored: 2, exported: 2, not_numbers: 2, threads: 1.5, trained: 1.5, some: 1.5, strided: 1,
    into_buffers: 1, differentiated: 0.7, rounded: 2,
}  # fmt: skip


def drawn(rng: np.random.Generator, count: int) -> list[Property]:
    """As many properties, none of them twice before all are there."""
    shares = np.array([*PROPERTIES.values()])
    found: list[Property] = []
    while len(found) < count:
        order = rng.choice(len(shares), len(shares), replace=False, p=shares / shares.sum())
        found += [list(PROPERTIES)[i] for i in order]
    return found[:count]
