"""Blocks of arguments: the words that each kernel is given, in their order. Emitters and callers share them."""

from __future__ import annotations

from enum import IntEnum


class Chunked(IntEnum):
    """The words with which the block of a kernel begins whose chunks threads share (emit/team.py)."""

    NEXT = 0
    CHUNKS = 1
    THREADS = 2
    PARALLEL = 3


class NBits(IntEnum):
    """The block of a product with weights of few bits, behind the words of `Chunked`."""

    X = 4
    BITS = 5
    SCALES = 6
    ZEROS = 7
    BIAS = 8
    Y = 9
    WORK = 10
    M = 11
    N = 12
    K = 13
    BLOCK = 14
    ROW = 15
    ZERO_ROW = 16
    VECTORS = 17
    STRIDE = 18
    CHUNK = 19


class Trees(IntEnum):
    """The block of a walk through trees, behind the words of `Chunked`."""

    X = 4
    KEYS = 5
    SCORES = 6
    SEEN = 7
    NODES = 8
    ROOTS = 9
    VOTES = 10
    TARGETS = 11
    WEIGHTS = 12
    BASE = 13
    ROWS = 14
    FEATURES = 15
    COUNT = 16
    TREES = 17
    DEPTH = 18
    CHUNK = 19
    DIVISOR = 20


class RmsNorm(IntEnum):
    """The block of a normalisation by the root mean square, behind the words of `Chunked`; EPSILON holds a float32."""

    X = 4
    SCALE = 5
    SKIP = 6
    BIAS = 7
    Y = 8
    SUM = 9
    ROWS = 10
    WIDTH = 11
    SKIP_ROWS = 12
    EPSILON = 13
    CHUNK = 14


def words(values: dict[IntEnum, int]) -> list[int]:
    """The words of a block; those without a value are 0."""
    numbers = [0] * (max(values) + 1)
    for word, value in values.items():
        numbers[word] = value
    return numbers
