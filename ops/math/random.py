"""Philox4x32-10: random numbers as a pure function of a key and a position.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011),
https://doi.org/10.1145/2063384.2063405. The same key gives the same numbers on every device, in any thread order. So do
normal numbers: their logarithm, sine and cosine are series of sums, products and one quotient, each of which IEEE 754
rounds in one way. Libraries' functions differ in the last bit from processor to processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..op import Context
from ..types import Array

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key after each round
WORD = 0xFFFFFFFF
ROUNDS = 10
PIECE = 1 << 15  # numbers that are drawn at once: what they are made of stays in the cache
# series in powers of x * x; what is left out is below the last bit
LOG = tuple(2 / (2 * k + 1) for k in range(11))  # log((1 + x) / (1 - x)) / x, up to 0.172
SIN = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(9))  # sin(x) / x, up to a quarter of pi
COS = tuple((-1) ** k / math.factorial(2 * k) for k in range(10))


def philox(key: tuple[int, int], counter: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Ten rounds over four words of 32 bits, as numbers of Python or arrays of uint64: four random words.

    >>> [hex(w) for w in philox((0, 0), [0, 0, 0, 0])]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = (right >> 32) ^ b ^ k0, right & WORD, (left >> 32) ^ d ^ k1, left & WORD
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return a, b, c, d


def mix(key: Sequence[int]) -> tuple[int, int]:
    """Two key words out of any number of integers, each stirred in by the generator itself."""
    words = (0, 0)
    for number in key:
        words = philox(words, [int(number) & WORD, int(number) >> 32 & WORD, 0, 0])[:2]
    return words


def _number(seed: float) -> int:
    """A seed as an integer for the key: itself where it is whole, its bits otherwise."""
    return int(seed) if float(seed).is_integer() else int(np.float64(seed).view(np.uint64))


def seeded(key: Sequence[int], seed: float | None) -> tuple[int, ...]:
    """The key with its first entry, the program's seed, replaced by an operator's own seed where it has one."""
    return tuple(key) if seed is None else (_number(seed), *key[1:])


def words_of(key: Sequence[int], seed: float | None) -> tuple[int, int]:
    """The two words that an operator draws with: of the key of its node in a run, and its own seed."""
    return mix(seeded(key, seed))


def uniform(xp: Any, words: tuple[int, int], shape: Sequence[int]) -> Array:
    """float32 numbers in [0, 1), multiples of 2**-24."""
    numbers = xp.empty(math.prod(shape), np.float32)
    for begin in range(0, numbers.size, PIECE):
        piece = numbers[begin : begin + PIECE]
        piece[...] = _drawn(xp, words, begin, piece.size)
    return numbers.reshape(tuple(shape))


def _drawn(xp: Any, words: tuple[int, int], begin: int, count: int) -> Array:
    """Numbers of a draw from `begin` on, a multiple of 4."""
    blocks = xp.arange(begin // 4, -(-(begin + count) // 4), dtype=np.uint64)
    zero = xp.zeros_like(blocks)
    random_words = philox(words, [blocks & WORD, blocks >> 32, zero, zero])
    flat = xp.stack(random_words, axis=-1).reshape(-1)[:count] >> 8
    return flat.astype(np.float32) * np.float32(2.0**-24)


def draw(k: Context, seed: float | None, shape: Sequence[int]) -> Array:
    """Numbers in [0, 1) for an operator with this seed."""
    if k.numpy_random and seed is not None:
        return k.xp.asarray(np.random.RandomState(int(seed)).uniform(0, 1, tuple(shape)))
    return uniform(k.xp, words_of(k.key, seed), shape)


def normal(k: Context, seed: float | None, shape: Sequence[int]) -> Array:
    """float64 numbers of the standard normal distribution, two from each pair of even ones (Box and Muller 1958)."""
    if k.numpy_random and seed is not None:
        return k.xp.asarray(np.random.RandomState(int(seed)).normal(0, 1, tuple(shape)))
    return normal_from(k.xp, words_of(k.key, seed), 0, math.prod(shape)).reshape(tuple(shape))


def normal_from(xp: Any, words: tuple[int, int], begin: int, count: int) -> Array:
    """Return `count` float64 numbers of a draw from the standard normal distribution, from number `begin` on."""
    numbers = xp.empty(count, np.float64)
    for at in range(begin - begin % 4, begin + count, PIECE):
        size = min(PIECE, begin + count - at)
        pairs = _drawn(xp, words, at, size + size % 2).astype(np.float64).reshape(-1, 2)
        radius = xp.sqrt(-2 * _log(xp, 1 - pairs[:, 0]))
        cosine, sine = _turn(xp, pairs[:, 1])
        values = xp.stack([radius * cosine, radius * sine], axis=1).reshape(-1)[:size]
        numbers[max(at - begin, 0) : at - begin + size] = values[max(begin - at, 0) :]
    return numbers


def _log(xp: Any, x: Array) -> Array:
    """Natural logarithms of float64 numbers above 0. runtime/backends/cuda/random.py takes the same steps."""
    part, exponent = xp.frexp(x)
    low = part < math.sqrt(0.5)
    part, exponent = xp.where(low, 2 * part, part), exponent - low
    s = (part - 1) / (part + 1)
    return exponent * math.log(2) + s * _series(s * s, LOG)


def _turn(xp: Any, turns: Array) -> tuple[Array, Array]:
    """Cosine and sine of parts of a whole turn, in [0, 1). runtime/backends/cuda/random.py takes the same steps."""
    quarter = xp.rint(4 * turns)
    x = (4 * turns - quarter) * (math.pi / 2)
    cosine, sine = _series(x * x, COS), x * _series(x * x, SIN)
    odd = quarter % 2 == 1
    across, up = xp.where(odd, sine, cosine), xp.where(odd, cosine, sine)
    left, down = (quarter == 1) | (quarter == 2), (quarter == 2) | (quarter == 3)
    return xp.where(left, -across, across), xp.where(down, -up, up)


def _series(x: Array, coefficients: Sequence[float]) -> Array:
    """A polynomial, from its highest power on."""
    total = x * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        total += c
        total *= x
    total += coefficients[0]
    return total
