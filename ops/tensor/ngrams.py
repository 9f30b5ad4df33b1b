"""TfIdfVectorizer: counts of known n-grams (https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..core.rules import has_rank
from ..errors import ShapeError
from ..op import Context, Sample, op
from ..types import Array, DType, Tensor
from .strings import text

Pool = dict[tuple[Any, ...], int]  # n-gram -> its place among all n-grams


@lru_cache(maxsize=32)
def pool_of(counts: tuple[int, ...], tokens: tuple[Any, ...]) -> Pool:
    """The known n-grams. `counts[n - 1]` is where the n-grams of length n begin among the tokens."""
    pool: Pool = {}
    ends = (*counts[1:], len(tokens))
    for length, (start, end) in enumerate(zip(counts, ends, strict=True), start=1):
        if not 0 <= start <= end <= len(tokens) or (end - start) % length:
            raise ShapeError(f"ngram_counts {list(counts)} do not divide {len(tokens)} tokens into n-grams")
        for at in range(start, end, length):
            gram = tokens[at : at + length]
            if gram in pool:
                raise ShapeError(f"the n-gram {' '.join(map(str, gram))!r} is in the pool twice", hint="list it once")
            pool[gram] = len(pool)
    return pool


WORDS = {
    "mode": "TF",
    "min_gram_length": 2,
    "max_gram_length": 2,
    "max_skip_count": 0,
    "ngram_counts": (0, 4),
    "ngram_indexes": (0, 1, 2, 3, 4, 5, 6),
    "pool_int64s": (2, 3, 5, 4, 5, 6, 7, 8, 6, 7),
}


@op(
    "TfIdfVectorizer",
    since=9,
    samples=[
        Sample([np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8], np.int32)], WORDS),
        Sample([np.zeros(0, np.int64)], WORDS),
        Sample([np.array([[1, 3, 5, 7, 8], [6, 7, 5, 6, 5]])], {**WORDS, "max_skip_count": 3, "min_gram_length": 1}),
        Sample(
            [text(["a", "b", "a", "b"], ["b", "c", "", "c"])],
            {
                "mode": "TFIDF",
                "min_gram_length": 1,
                "max_gram_length": 2,
                "max_skip_count": 0,
                "ngram_counts": (0, 2),
                "ngram_indexes": (2, 0, 1),
                "pool_strings": ("a", "c", "a", "b"),
                "weights": (0.5, 2.0, 3.0),
            },
        ),
        Sample([np.array([5, 5, 4, 5, 5])], {**WORDS, "mode": "IDF", "min_gram_length": 1, "weights": (0.5,) * 7}),
        *(
            Sample([x], {**WORDS, "min_gram_length": 1, "pool_strings": tuple("pqrstuvwxy")})
            for x in (np.array([1, 5, 6, 5]), text("p", "t", "u", "q"))
        ),
    ],
)
def tf_idf_vectorizer(
    k: Context,
    X: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Array:
    if mode not in ("TF", "IDF", "TFIDF"):
        raise ShapeError(f"mode {mode!r} is none of TF, IDF, TFIDF")
    of_texts = X.dtype == object if pool_strings and pool_int64s else bool(pool_strings)  # of two, the one of X's type
    pool = pool_of(tuple(ngram_counts), tuple((pool_strings if of_texts else pool_int64s) or ()))
    rows = X.reshape(math.prod(X.shape[:-1]), X.shape[-1]).tolist()
    width = max(ngram_indexes) + 1
    counts = np.zeros((len(rows), width), np.float32)
    scale = np.ones(len(ngram_indexes), np.float32) if weights is None else np.asarray(weights, np.float32)
    for row, tokens in zip(counts, rows, strict=True):
        times = np.zeros(len(ngram_indexes), np.float32)
        for length in range(max(min_gram_length, 1), min(max_gram_length, len(ngram_counts), len(tokens)) + 1):
            furthest = (len(tokens) - 1) // (length - 1) if length > 1 else 1  # one token alone skips nothing
            for step in range(1, min(max_skip_count + 1, furthest) + 1):
                for start in k.each(range(len(tokens) - (length - 1) * step)):
                    at = pool.get(tuple(tokens[start : start + (length - 1) * step + 1 : step]))
                    if at is not None:
                        times[at] += 1
        if mode == "IDF":
            times = np.minimum(times, 1)
        np.add.at(row, list(ngram_indexes), times if mode == "TF" else times * scale)
    return counts.reshape(*X.shape[:-1], width)


@tf_idf_vectorizer.infer
def _(X: Tensor, *, ngram_indexes: Sequence[int]) -> Tensor:
    has_rank(X, 1, 2)
    counts = X.to(DType.FLOAT)
    return counts.of(None if X.dims is None else (*X.dims[:-1], max(ngram_indexes) + 1))
