"""An architecture as data: what builds it, what it reads, which dims are free, and the sizes it is tried with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
EXPORTERS = ("dynamo", "torchscript")
BATCHES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Read:
    """An input: its dims (names are free, in every export), and whole numbers below `below` instead of floats. A `mask`
    hides a few elements at the end of every second row."""

    name: str
    dims: tuple[int | str, ...]
    below: int = 0
    mask: bool = False

    def draw(self, sizes: Sizes, rng: np.random.Generator) -> Array:
        shape = [sizes[d] if isinstance(d, str) else d for d in self.dims]
        if self.mask:
            seen = np.ones(shape, np.int64)
            seen[1::2, shape[-1] - shape[-1] // 3 :] = 0
            return seen
        if self.below:
            return rng.integers(0, self.below, shape)
        return rng.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Architecture:
    """A module that `build` makes (small, its weights drawn by `exports.weights`), what it reads and what it returns.

    `sizes` gives the free dims other than "batch" a size, three times; a dim that the architecture needs in a certain
    ratio to another is there too. `exporters` are those of PyTorch that can write it, and `excused` says why another
    cannot. `named` is whether the module names what it reads, or takes it all by position."""

    name: str
    build: Callable[[], Any]
    reads: tuple[Read, ...]
    returns: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    exporters: tuple[str, ...] = EXPORTERS
    excused: str = ""
    named: bool = False

    def feeds(self, sizes: Sizes) -> dict[str, Array]:
        """Inputs that depend on the sizes alone."""
        rng = np.random.default_rng([len(self.name), *sizes.values()])
        return {read.name: read.draw(sizes, rng) for read in self.reads}

    def tried(self, batches: tuple[int, ...] = BATCHES) -> Iterator[Sizes]:
        """Every batch at every size, and the first again."""
        for sizes in self.sizes:
            for batch in batches:
                yield {"batch": batch, **sizes}
        yield {"batch": batches[0], **self.sizes[0]}
