"""Ranges of a graph's values over given data: the whole of it, or without rare extremes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from ..runtime.execution.functions import compiled
from ..runtime.execution.session import Session
from ..runtime.ir.graph import Graph

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
Method = Literal["minmax", "percentile", "entropy"]
Range = tuple[float, float]

BINS: Final = 8192
SHARES: Final = np.linspace(0.2, 1.0, 81)  # of the whole range, that entropy chooses among


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of numbers in bins of equal width between two bounds."""

    low: float
    high: float
    counts: Array

    def percentile(self, share: float) -> Range:
        """The range without the rarest numbers at each end, of which `100 - share` in a hundred are cut in all."""
        total = np.cumsum(self.counts)
        cut = total[-1] * (100 - share) / 200
        first, last = np.searchsorted(total, cut, "right"), np.searchsorted(total, total[-1] - cut)
        width = (self.high - self.low) / BINS
        return self.low + first * width, self.low + min(last + 1, BINS) * width

    def entropy(self, levels: int = 256) -> Range:
        """The range whose steps, so many, tell most of the distribution: least divergence of the cut one from the
        stepped."""
        width = (self.high - self.low) / BINS
        if not width:  # one number, such as the zeros of a Relu that nothing reaches
            return self.low, self.high
        best: tuple[float, Range] | None = None
        for share in SHARES:
            first = round(max((self.low * share - self.low) / width, 0))
            last = round(min((self.high * share - self.low) / width, BINS))
            if last - first < levels:
                continue
            lost = divergence(self.counts, first, last, levels)
            if best is None or lost < best[0]:
                best = lost, (self.low + first * width, self.low + last * width)
        return best[1] if best else (self.low, self.high)


def divergence(counts: Array, first: int, last: int, levels: int = 256) -> float:
    """Return the divergence when the bins from `first` to `last` become `levels` steps and the others fall on the outer
    ones.

    >>> round(divergence(np.ones(512), 0, 512), 6)
    0.0
    """
    kept = counts[first:last].astype(np.float64)
    cut = kept.copy()
    cut[0] += counts[:first].sum()
    cut[-1] += counts[last:].sum()
    edges = np.arange(levels) * (last - first) // levels
    there = (kept > 0).astype(np.float64)
    filled = np.add.reduceat(there, edges)
    each = np.add.reduceat(kept, edges) / np.maximum(filled, 1)
    stepped = np.repeat(each, np.diff(np.append(edges, last - first))) * there
    if not stepped.any():
        return np.inf
    p, q = cut / cut.sum(), stepped / stepped.sum()
    both = (p > 0) & (q > 0)
    # what only the cut distribution has: numbers beyond the range where no number of the range was
    missing = p[(p > 0) & (q == 0)].sum()
    return float((p[both] * np.log(p[both] / q[both])).sum() + missing * np.log(BINS))


def ranges(
    graph: Graph,
    values: Sequence[str],
    data: Sequence[Feeds],
    method: Method = "minmax",
    percentile: float = 99.99,
    levels: int = 256,
) -> dict[str, Range]:
    """The range of each value over the data, 0 always within it, for so many steps; InputError if there is none, or no
    such method."""
    if method not in ("minmax", "percentile", "entropy"):
        raise InputError(f"method={method!r} is unknown", hint="give minmax, percentile or entropy")
    if not 50 < percentile <= 100:
        raise InputError(f"percentile={percentile} is not above 50 and at most 100")
    if not data:
        raise InputError("there is no data to calibrate with", hint="give some inputs that are typical of the model")
    session = compiled(graph.but(outputs=tuple(dict.fromkeys(values))))
    bounds = dict.fromkeys(values, (0.0, 0.0))

    def widen(value: str, array: Array) -> None:
        low, high = bounds[value]
        bounds[value] = float(np.minimum(array.min(initial=low), low)), float(np.maximum(array.max(initial=high), high))

    _run(session, data, widen)
    bad = [v for v, (low, high) in bounds.items() if not (np.isfinite(low) and np.isfinite(high))]
    if bad:
        raise InputError(f"{bad[0]} is not finite on the data", hint="calibrate with data that the model can take")
    if method == "minmax":
        return bounds
    counts = {v: np.zeros(BINS, np.int64) for v in bounds}

    def count(value: str, array: Array) -> None:
        low, high = bounds[value]
        if high > low:
            # every scale has 0 exactly, so that zeros, which are many behind a Relu, tell nothing of a good one
            counts[value] += np.histogram(array[array != 0], BINS, (low, high))[0]

    _run(session, data, count)
    cuts = {}
    for value, (low, high) in bounds.items():
        histogram = Histogram(low, high, counts[value])
        cut = histogram.entropy(levels) if method == "entropy" else histogram.percentile(percentile)
        cuts[value] = (min(cut[0], 0.0), max(cut[1], 0.0)) if high > low else (low, high)
    return cuts


def _run(session: Session, data: Sequence[Feeds], see: Callable[[str, Array], None]) -> None:
    for feeds in data:
        for value, array in session.run(feeds).items():
            see(value, np.asarray(array))
