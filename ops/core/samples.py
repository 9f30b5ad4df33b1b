"""Pseudo-random inputs for the test samples of operator records, the same in every process.

Loading numpy.random for them would cost each start 20 ms."""

from __future__ import annotations

from typing import Any

import numpy as np


def scattered(low: int, high: int, *shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Whole numbers from `low` up to but not including `high`.

    >>> scattered(0, 256, 2, 3).tolist()
    [[125, 108, 91], [74, 57, 40]]
    """
    count = int(np.prod(shape))
    return (low + (np.arange(count) * 7919 + 104729 * (sum(shape) + seed)) % (high - low)).reshape(shape)
