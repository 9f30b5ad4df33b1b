"""Philox against the known answers that its authors publish (Random123, kat_vectors), and what is made of it."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops.random import WORD, mix, philox, seeded, uniform

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
    made = philox(np, key, [np.array([c], np.uint64) for c in counter])
    assert [int(w[0]) for w in made] == words


def test_numbers_depend_on_key_and_position_alone() -> None:
    few, many = uniform(np, (1, 2, 3), (2, 3)), uniform(np, (1, 2, 3), (100,))
    np.testing.assert_array_equal(few.ravel(), many[:6])
    assert not np.array_equal(many, uniform(np, (1, 2, 4), (100,)))
    assert uniform(np, (0,), (0, 3)).shape == (0, 3)
    assert mix((1, 2)) != mix((2, 1))
    assert seeded((1, 2, 3), None) == (1, 2, 3)
    assert seeded((1, 2, 3), 7) == (7, 2, 3)


def test_numbers_are_even() -> None:
    made = uniform(np, (5,), (1 << 16,))
    assert made.dtype == np.float32
    assert made.min() >= 0
    assert made.max() < 1
    counts, _ = np.histogram(made, 64, (0, 1))  # 1024 expected in each, standard deviation 32
    assert abs(counts - 1024).max() < 160
