"""Training data in memory or on disk as numbered samples, and the batches of an epoch.

An epoch's order is a permutation of the samples that follows from the seed and the epoch's number alone, so that a
training can go on at any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ..data.samplers import permutation
from ..ops import Tensor
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.engine.future import ahead
from ..train.shares import Share

TARGET = "target"  # what a Trainer calls it
ALL = Share()
SPLIT = 1 << 32  # the number of the permutation that sets samples aside; no epoch has it

Take = Callable[[Array], dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Reading:
    """The way to read data for a model: its inputs, and the type of its targets (None: classes).

    `target` names arrays or columns, `sources` those of an input that are not called like it; `names` are the classes
    of data that were read before. The rest is for images: the size where the model leaves it open, what pixels are
    multiplied by (1 / 255 unless given), and mean and standard deviation of each channel after that.
    """

    inputs: Mapping[str, Tensor]
    asked: Tensor | None = None
    target: tuple[str, ...] = ()
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    names: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    scale: float | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """Numbered samples: their targets, the names of their classes where they have names, and `take`, which returns the
    inputs of some of them. `ahead` batches are read while another one trains."""

    place: str
    target: Array
    names: tuple[str, ...]
    take: Take
    ahead: int = 0

    def __len__(self) -> int:
        return len(self.target)

    @property
    def classes(self) -> int:
        """Number of classes: that of their names, or the largest target plus one."""
        return len(self.names) or int(self.target.max()) + 1

    def feeds(self, chosen: Array) -> dict[str, Array]:
        """The feeds of some samples."""
        return {**self.take(chosen), TARGET: self.target[chosen]}

    def part(self, chosen: Array) -> Data:
        """Return the data of the chosen samples."""
        return replace(self, target=self.target[chosen], take=lambda some: self.take(chosen[some]))

    def split(self, share: float, seed: int) -> tuple[Data, Data]:
        """A random share apart: the others, and these."""
        apart = round(len(self) * share)
        if not 0 < apart < len(self):
            raise InputError(
                f"{share:.0%} of {len(self)} samples to validate with leaves nothing on one side",
                where=self.place,
                hint="change --validate (0 trains with all), or give --validation",
            )
        order = permutation(len(self), seed, SPLIT)
        return self.part(np.sort(order[apart:])), self.part(np.sort(order[:apart]))

    def batches(self, size: int, *, whole: bool = False, first: int = 0, step: int = 1) -> Iterator[dict[str, Array]]:
        """Yield the batches of all samples in order; the last one may be smaller, unless batches have to be `whole`.
        Begin at number `first`, and take every `step`-th."""
        return self._in_order(np.arange(len(self)), size, range(first, ALL.steps(len(self), size, whole=whole), step))

    def shuffled(
        self, size: int, seed: int, epoch: int, *, first: int = 0, whole: bool = False, share: Share = ALL
    ) -> Iterator[dict[str, Array]]:
        """The batches of an epoch from number `first` on, or one worker's share of each."""
        numbers = range(first, share.steps(len(self), size, whole=whole))
        return self._in_order(permutation(len(self), seed, epoch), size, numbers, share, whole)

    def _in_order(
        self, order: Array, size: int, numbers: Sequence[int], share: Share = ALL, whole: bool = False
    ) -> Iterator[dict[str, Array]]:
        rows = (share.rows(order, size, number, whole=whole) for number in numbers)
        return ahead((partial(self.feeds, chosen) for chosen in rows), self.ahead)


def numbered(texts: Sequence[str], names: tuple[str, ...], where: str) -> tuple[Array, tuple[str, ...]]:
    """The number of each class that is named, and the names.

    >>> numbered(["cat", "ant", "cat"], (), "here")[0].tolist()
    [1, 0, 1]
    """
    known = names or tuple(sorted(set(texts)))
    number = {name: i for i, name in enumerate(known)}
    for text in texts:
        if text not in number:
            raise InputError(f"an unknown class {text!r}", where=where, hint=f"the classes are {', '.join(known[:20])}")
    return np.array([number[t] for t in texts], np.int64), known
