"""Random numbers of a sample: a function of a seed, the epoch and the sample's place in it, and of nothing else.

Who makes a sample, in which process or thread and after which others, does not change what it draws. The generator is
NumPy's of Philox (https://doi.org/10.1145/2063384.2063405), with a key that ours stirs together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..ops.math.random import mix


class _Drawing(threading.local):
    """The generator of the sample that this thread makes."""

    generator: np.random.Generator | None = None


_NOW = _Drawing()


def generator() -> np.random.Generator:
    """The generator to draw with: that of the sample being made, or one of this thread outside of any."""
    if _NOW.generator is None:
        _NOW.generator = generator_of(0)
    return _NOW.generator


def generator_of(*key: int) -> np.random.Generator:
    """A generator with a key of any number of integers.

    >>> float(generator_of(7, 1).random()) == float(generator_of(7, 1).random()) != float(generator_of(7, 2).random())
    True
    """
    low, high = mix(key)
    return np.random.Generator(np.random.Philox(key=low | high << 32))


@contextmanager
def drawing(*key: int) -> Iterator[np.random.Generator]:
    """Whatever draws inside of the block does so with the generator of this key.

    >>> with drawing(3):
    ...     first = float(generator().random())
    >>> with drawing(3):
    ...     first == float(generator().random())
    True
    """
    before, _NOW.generator = _NOW.generator, generator_of(*key)
    try:
        yield _NOW.generator
    finally:
        _NOW.generator = before
