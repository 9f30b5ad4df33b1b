"""Philox against the known answers that its authors publish (Random123, kat_vectors), and what is made of it."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops import Context
from mezzo.ops.math.random import PIECE, WORD, _log, _turn, mix, normal, philox, seeded, uniform, words_of

KNOWN = [  # counter, key -> words
    ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([WORD] * 4, (WORD, WORD), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: list[int], key: tuple[int, int], words: list[int]) -> None:
    made = philox(key, [np.array([c], np.uint64) for c in counter])
    assert [int(w[0]) for w in made] == words


def test_numbers_depend_on_key_and_position_alone() -> None:
    few, many = uniform(np, (1, 2), (2, 3)), uniform(np, (1, 2), (100,))
    np.testing.assert_array_equal(few.ravel(), many[:6])
    assert not np.array_equal(many, uniform(np, (1, 3), (100,)))
    assert uniform(np, (0, 0), (0, 3)).shape == (0, 3)
    assert mix((1, 2)) != mix((2, 1))
    assert seeded((1, 2, 3), None) == (1, 2, 3)
    assert seeded((1, 2, 3), 7) == (7, 2, 3)
    assert words_of((1, 2, 3), 7) == mix((7, 2, 3))
    k = Context(key=(4, 5))
    long = normal(k, None, (PIECE + 7,))
    np.testing.assert_array_equal(long[:9].reshape(3, 3), normal(k, None, (3, 3)))
    np.testing.assert_array_equal(uniform(np, (1, 2), (PIECE + 5,))[:100], many)


def test_numbers_are_even() -> None:
    made = uniform(np, (5, 6), (1 << 16,))
    assert made.dtype == np.float32
    assert made.min() >= 0
    assert made.max() < 1
    counts, _ = np.histogram(made, 64, (0, 1))  # 1024 expected in each, standard deviation 32
    assert abs(counts - 1024).max() < 160


def test_logarithms_and_turns_are_those_of_the_library_but_for_the_last_bits() -> None:
    """So that numbers are normal; they are our own so that they are the same everywhere."""
    near = 2.0**-24 * np.arange(1, 3000)
    x = np.concatenate([near, 1 - near, 1 - uniform(np, (1, 1), (20_000,)).astype(np.float64), [1.0]])
    assert np.all(np.abs(_log(np, x) - np.log(x)) <= 1e-15 * np.abs(np.log(x)))
    turns = np.concatenate([uniform(np, (1, 2), (20_000,)).astype(np.float64), near, 1 - near, np.arange(8) / 8])
    cosine, sine = _turn(np, turns)
    np.testing.assert_allclose(cosine, np.cos(2 * np.pi * turns), rtol=0, atol=1e-15)
    np.testing.assert_allclose(sine, np.sin(2 * np.pi * turns), rtol=0, atol=1e-15)
    made = normal(Context(key=(7,)), None, (1 << 16,))
    assert abs(made.mean()) < 0.02
    assert abs(made.std() - 1) < 0.02
    assert abs((made**4).mean() - 3) < 0.15
