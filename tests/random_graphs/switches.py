"""The switches of a session, and combinations of them: eight that cover all pairs, or all there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

STRATEGIES = ("none", "inplace", "sharing", "both")


@dataclass(frozen=True)
class Switches:
    """What a session is opened with. bfloat16 is asked for only where oneDNN computes it here."""

    onednn: bool = True
    strategy: str = "both"
    fuse: bool = False
    threads: int = 1
    bf16: bool = False

    @property
    def narrow(self) -> bool:
        return self.bf16 and self.onednn and computes_bf16()

    @property
    def given(self) -> Mapping[str, Any]:
        """As arguments, without those that a session has by itself (but for threads, which hang on the machine)."""
        found: dict[str, Any] = {"threads": self.threads}
        if not self.onednn:
            found["onednn"] = False
        if self.strategy != "both":
            found["strategy"] = self.strategy
        if self.fuse:
            found["fuse"] = True
        if self.narrow:
            found["precision"] = "bf16"
        return found

    def simpler(self) -> Iterator[Switches]:
        """The same with one switch as it is by default."""
        plain = Switches()
        for name in ("bf16", "fuse", "strategy", "threads", "onednn"):
            if getattr(self, name) != getattr(plain, name):
                yield Switches(**{**vars(self), name: getattr(plain, name)})


@cache
def computes_bf16() -> bool:
    from mezzo.runtime.backends.onednn.library import library

    found = library()
    return found is not None and bool(found.bf16)


def every() -> list[Switches]:
    """The full product."""
    two = (True, False)
    return [Switches(o, s, f, t, b) for o, s, f, t, b in product(two, STRATEGIES, two, (1, 2), two)]


def sample(rng: np.random.Generator) -> list[Switches]:
    """Eight in random order, in which every pair of values of two switches stands together: an orthogonal array of one
    switch with four values and four with two."""
    strategies = [STRATEGIES[i] for i in rng.permutation(4)]
    flip = rng.integers(0, 2, 4)
    rows = []
    for a, b, c in product((0, 1), repeat=3):
        onednn, fuse, threads, bf16 = (v ^ int(f) for v, f in zip((c, a ^ c, b ^ c, a ^ b ^ c), flip, strict=True))
        rows.append(Switches(bool(onednn), strategies[2 * a + b], bool(fuse), 1 + threads, bool(bf16)))
    return [rows[i] for i in rng.permutation(8)]
