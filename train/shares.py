"""Shares of each batch for the workers, equal by construction; the axes along which a batch is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..ops import Tensor, Type
from ..ops.errors import InputError
from ..ops.types import Array


@dataclass(frozen=True, slots=True)
class Share:
    """The share of worker `rank` of `count`: `size` of every `count * size` successive samples.

    What is left of an epoch is shared out too, as a smaller batch. Where it does not divide, `pad=False` leaves the
    last few samples out, and `pad=True` takes as many from the epoch's beginning a second time; `told` says so. With
    `uneven` some workers have a sample more than others, and perhaps a step more; where all make each step together,
    `common` says how many steps all of them have.

    >>> order = np.arange(10)
    >>> [Share(rank, 2).rows(order, 2, number).tolist() for number in range(3) for rank in (0, 1)]
    [[0, 1], [2, 3], [4, 5], [6, 7], [8], [9]]
    >>> Share(1, 4).steps(10, 2), Share(1, 4, pad=True).rows(order, 2, 1).tolist()
    (1, [9])
    """

    rank: int = 0
    count: int = 1
    pad: bool = False
    uneven: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.count:
            raise InputError(f"there is no worker {self.rank} of {self.count}", where="Share")

    def last(self, samples: int, size: int, *, whole: bool = False) -> int:
        """Return the number of samples of each worker in the last step of an epoch; 0 if the steps before take all. A
        `whole` batch has `size` or none."""
        left = samples % (size * self.count)
        if whole:
            return size if left and self.pad else 0
        if self.uneven:
            return left // self.count + (self.rank < left % self.count)
        return -(-left // self.count) if self.pad else left // self.count

    def steps(self, samples: int, size: int, *, whole: bool = False) -> int:
        """Return the number of steps in an epoch, the same for each worker.

        >>> Share().steps(10, 4), Share().steps(10, 4, whole=True), Share(0, 2).steps(10, 4)
        (3, 2, 2)
        """
        return samples // (size * self.count) + bool(self.last(samples, size, whole=whole))

    def common(self, samples: int, size: int) -> int:
        """Return the number of steps in an epoch in which every worker has a sample. Fewer samples than workers, which
        `uneven` gives to some of them at the end, are left out.

        >>> [(Share(rank, 4, uneven=True).steps(10, 2), Share(rank, 4, uneven=True).common(10, 2)) for rank in (0, 3)]
        [(2, 1), (1, 1)]
        """
        last = replace(self, rank=self.count - 1)  # who has least
        return last.steps(samples, size)

    def rows(self, order: Array, size: int, number: int, *, whole: bool = False, over: int = 0) -> Array:
        """Return this worker's samples of step `number` of an epoch in this order, of which `over` samples were over
        before step 0."""
        full = (len(order) - over) // (size * self.count)
        begin, each = over + number * size * self.count, size
        if number >= full:
            left = order[begin:]
            if not whole:
                return self.rest(left, order)
            order = np.concatenate([left, np.resize(order, self.last(len(left), size, whole=True) * self.count)])
            begin = 0
        begin += self.rank * each
        return order[begin : begin + each]

    def rest(self, left: Array, order: Array | None = None) -> Array:
        """Return this worker's part of what is left of an epoch; a pad is taken from `order`, or the rest itself.

        >>> [Share(rank, 2, uneven=True).rest(np.arange(5)).tolist() for rank in (0, 1)]
        [[0, 1, 2], [3, 4]]
        """
        if self.uneven:
            return np.array_split(left, self.count)[self.rank]
        each = -(-len(left) // self.count) if self.pad else len(left) // self.count
        if self.pad and len(left):
            left = np.concatenate([left, np.resize(left if order is None else order, each * self.count)])
        return left[self.rank * each :][:each]

    def told(self, samples: int, size: int, *, whole: bool = False) -> str:
        """Return a sentence about the samples that do not divide; empty where all do.

        >>> Share(0, 4).told(10, 2), Share(0, 4, pad=True).told(10, 2), Share(0, 2).told(10, 2)
        ('2 of 10 samples are left out of each epoch', '2 of 10 samples are learned twice in each epoch', '')
        """
        full = samples // (size * self.count) * size * self.count
        if self.uneven and not whole:
            return ""
        more = full + self.last(samples, size, whole=whole) * self.count - samples
        if more < 0:
            return f"{-more} of {samples} samples are left out of each epoch"
        return f"{more} of {samples} samples are learned twice in each epoch" if more else ""


@dataclass(frozen=True, slots=True)
class Samples:
    """The `batch` dim, and the axis along which each input that has samples is split; all others are whole in each
    part. `counted` is the state that adds up what the loss is a mean over, where that is not the samples."""

    batch: Any
    axes: Mapping[str, int]
    counted: str = ""

    def check(self, feeds: Mapping[str, Any], size: int) -> None:
        """Raise InputError for a feed that has another number of samples than the batch."""
        for name, axis in self.axes.items():
            shape = np.shape(feeds[name]) if name in feeds else None
            if shape is not None and (len(shape) <= axis or shape[axis] != size):
                raise InputError(
                    f"its shape is {list(shape)}, and the batch of {size} is split along axis {axis}",
                    where=f"feeds[{name!r}]",
                    hint="give all feeds as many samples, or name the batch's dim alike in all inputs of the model",
                )


def batch_axis(type: Type, batch: Any) -> int | None:
    """The axis of a tensor along which samples lie: that with the name of the `batch` dim, or else the first one,
    unless that is of another fixed size; None where it has none."""
    dims = type.dims if isinstance(type, Tensor) else None
    if not dims:
        return None
    if isinstance(batch, str) and batch in dims:
        return dims.index(batch)
    return 0 if not isinstance(dims[0], int) or dims[0] == batch else None
