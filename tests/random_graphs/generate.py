"""A valid graph of 1 to 60 nodes from a seed; the same for ever, as long as neither moves nor references change."""

from __future__ import annotations

from functools import cache

import numpy as np

from . import elementwise, further, layouts, products
from .maker import BATCHES, Case, Maker, Unfit
from .moves import MOVES, Step

__all__ = ["FOCI", "elementwise", "further", "generate", "layouts", "products"]
FOCI = ("", *sorted({m.focus for m in MOVES}))
SHORT = 0.75  # of the graphs have few nodes: most defects need two or three, and are found sooner the more graphs run
FOCUSED = 6.0  # how much more often the moves of a focus are taken


@cache
def table(focus: str) -> tuple[tuple[Step, ...], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    weights = np.array([m.weight * (FOCUSED if m.focus == focus else 1.0) for m in MOVES])
    return tuple(m.step for m in MOVES), np.cumsum(weights) / weights.sum()


def generate(seed: int, focus: str = "", *, most: int = 60, prefix: str = "") -> Case:
    """The graph of a seed, of `most` nodes and few more. `focus` takes some moves more often; without one, the seed
    chooses none or one. `prefix` begins every name."""
    rng = np.random.default_rng((seed, FOCI.index(focus)))
    chosen = focus or str(rng.choice(FOCI)) if rng.random() < 0.5 else focus
    steps, shares = table(chosen)
    batch = int(rng.choice(BATCHES)) if rng.random() < 0.6 else 0
    m = Maker(seed, rng, batch, prefix)
    nodes = min(most, int(rng.integers(1, 7)) if rng.random() < SHORT else int(rng.integers(7, 61)))
    for _ in range(int(rng.choice((1, 1, 1, 2, 3)))):
        m.new()
    tries = 0
    while len(m.nodes) < nodes and tries < 6 * nodes + 40:
        tries += 1
        try:
            steps[int(np.searchsorted(shares, rng.random()))](m)
        except Unfit:
            continue
    if rng.random() < 0.05:
        m.input(m.numbers(tuple(rng.choice((8, 64, 64, 300), 2))))  # nothing reads it
    return m.case()
