"""Damaged copies of a file: bits flipped, the end cut off, bytes put in, others in their place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Draw = Callable[[np.random.Generator], bytes]


def damage(content: bytes, rng: np.random.Generator, tail: bytes, inserted: Draw, written: Draw) -> bytes:
    """The content with one to three damages; what is cut ends with `tail`."""
    made = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(made)))
        match int(rng.integers(4)):
            case 0:
                made[at] ^= 1 << int(rng.integers(8))
            case 1:
                del made[at:]
                made += tail
            case 2:
                made[at:at] = inserted(rng)
            case _:
                new = written(rng)
                made[at : at + len(new)] = new
    return bytes(made)
