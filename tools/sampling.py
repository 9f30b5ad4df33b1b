"""Drawing of tokens from logits: temperature, top_k and top_p as transformers defines them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..ops.errors import ExecutionError, InputError
from ..ops.types import Array


def least_logit(logits: Array, top_k: int | None = None, top_p: float | None = None) -> float:
    """The least of some logits (vocabulary,) that is still drawn: all from it on are.

    `top_k` keeps so many of the largest; of these, `top_p` keeps the fewest largest whose probabilities sum up to so
    much, at least one. Of equal logits, all are kept or none.
    """
    least = -math.inf
    if top_k is not None and top_k < len(logits):
        least = np.partition(logits, -top_k)[-top_k]
    if top_p is not None and top_p < 1:
        kept = np.sort(logits[logits >= least])
        chances = np.exp(kept - kept[-1], dtype=np.float64)
        sums = np.cumsum(chances / chances.sum())
        least = kept[min(int(np.searchsorted(sums, 1 - top_p, side="right")), len(kept) - 1)]
    return float(least)


class Sampler:
    """Draws of a token for each row of logits (batch, vocabulary): the largest where `temperature` is 0.

    Each row draws by a Philox generator of its own, whose key is the seed and the number of the row: it draws the same
    whatever other rows there are. Raises InputError for settings outside of their range.
    """

    def __init__(
        self, batch: int, temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None, seed: int = 0
    ) -> None:
        def check(fits: bool, name: str, value: object, range: str) -> None:
            if not fits:
                raise InputError(f"{name}={value!r}", where="generate", hint=f"give {range}")

        def whole(value: object) -> bool:
            return isinstance(value, int | np.integer)

        check(0 <= temperature < math.inf, "temperature", temperature, "0 (the most probable token) or more")
        check(top_k is None or (whole(top_k) and top_k > 0), "top_k", top_k, "an integer from 1 on, or None")
        check(top_p is None or 0 < top_p <= 1, "top_p", top_p, "a probability above 0, up to 1, or None")
        check(whole(seed) and 0 <= seed < 1 << 64, "seed", seed, "an integer from 0 on, below 2**64")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        keys = [np.array([seed, row], np.uint64) for row in range(batch)]
        self._rows = [np.random.Generator(np.random.Philox(key=key)) for key in keys]

    def __call__(self, logits: Array) -> Array:
        """A token for each row, int64 (batch,). Raises ExecutionError where a logit is NaN, or none is finite."""
        largest = logits.argmax(1)
        if not np.isfinite(logits[range(len(largest)), largest]).all():
            raise ExecutionError(
                "the logits are NaN or infinite",
                where="generate",
                hint="run the model without a conversation, and look for NaN with `mezzo check --against steps`",
            )
        if not self.temperature:
            return largest
        rows: Sequence[Array] = logits
        return np.array([self._drawn(row, draws) for row, draws in zip(rows, self._rows, strict=True)], np.int64)

    def _drawn(self, logits: Array, draws: np.random.Generator) -> int:
        with np.errstate(over="ignore"):  # a temperature of next to nothing leaves the largest alone
            scaled = (logits.astype(np.float64) - float(logits.max())) / self.temperature
        tokens = np.flatnonzero(scaled >= least_logit(scaled, self.top_k, self.top_p))
        sums = np.cumsum(np.exp(scaled[tokens]))
        at = int(np.searchsorted(sums, draws.random() * sums[-1], side="right"))
        return int(tokens[min(at, len(tokens) - 1)])
