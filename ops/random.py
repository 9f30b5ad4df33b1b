"""Philox4x32-10: random numbers as a pure function of a key and a position.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011),
https://doi.org/10.1145/2063384.2063405. The same key gives the same numbers on every device, in any thread order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .op import Context
from .types import Array

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key after each round
WORD = 0xFFFFFFFF


def philox(xp: Any, key: tuple[int, int], counter: Sequence[Array]) -> tuple[Array, Array, Array, Array]:
    """Ten rounds over four arrays of 32-bit words (held in uint64): four arrays of random words.

    >>> [hex(int(w)) for w in philox(np, (0, 0), [np.zeros((), np.uint64)] * 4)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    word = np.uint64(WORD)
    half = np.uint64(32)
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        left, right = a * np.uint64(MULTIPLIERS[0]), c * np.uint64(MULTIPLIERS[1])
        a, b, c, d = (right >> half) ^ b ^ np.uint64(k0), right & word, (left >> half) ^ d ^ np.uint64(k1), left & word
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return a, b, c, d


def mix(key: Sequence[int]) -> tuple[int, int]:
    """Two key words out of any number of integers, each stirred in by the generator itself."""
    words = (0, 0)
    for number in key:
        parts = [np.array(number >> shift & WORD, np.uint64) for shift in (0, 32)]
        made = philox(np, words, [*parts, np.zeros((), np.uint64), np.zeros((), np.uint64)])
        words = (int(made[0]), int(made[1]))
    return words


def _number(seed: float) -> int:
    """A seed as an integer for the key: itself where it is whole, its bits otherwise."""
    return int(seed) if float(seed).is_integer() else int(np.float64(seed).view(np.uint64))


def seeded(key: Sequence[int], seed: float | None) -> tuple[int, ...]:
    """The key with its first entry, the program's seed, replaced by an operator's own seed where it has one."""
    return tuple(key) if seed is None else (_number(seed), *key[1:])


def uniform(xp: Any, key: Sequence[int], shape: Sequence[int]) -> Array:
    """float32 numbers in [0, 1), multiples of 2**-24."""
    size = math.prod(shape)
    blocks = xp.arange(-(-size // 4), dtype=np.uint64)
    zero = xp.zeros_like(blocks)
    words = philox(xp, mix(key), [blocks & np.uint64(WORD), blocks >> np.uint64(32), zero, zero])
    flat = xp.stack(words, axis=-1).reshape(-1)[:size] >> np.uint64(8)
    return (flat.astype(np.float32) * np.float32(2.0**-24)).reshape(tuple(shape))


def draw(k: Context, seed: float | None, shape: Sequence[int]) -> Array:
    """Numbers in [0, 1) for an operator with this seed."""
    if k.numpy_random and seed is not None:
        return k.xp.asarray(np.random.RandomState(int(seed)).uniform(0, 1, tuple(shape)))
    return uniform(k.xp, seeded(k.key, seed), shape)


def normal(k: Context, seed: float | None, shape: Sequence[int]) -> Array:
    """float64 numbers of the standard normal distribution, two from each pair of even ones (Box and Muller 1958)."""
    if k.numpy_random and seed is not None:
        return k.xp.asarray(np.random.RandomState(int(seed)).normal(0, 1, tuple(shape)))
    size = math.prod(shape)
    pairs = uniform(k.xp, seeded(k.key, seed), (-(-size // 2), 2)).astype(np.float64)
    radius, angle = k.xp.sqrt(-2 * k.xp.log1p(-pairs[:, 0])), 2 * math.pi * pairs[:, 1]
    both = k.xp.stack([radius * k.xp.cos(angle), radius * k.xp.sin(angle)], axis=1)
    return both.reshape(-1)[:size].reshape(tuple(shape))
