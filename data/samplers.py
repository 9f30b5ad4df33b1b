"""Samplers: the order of an epoch's samples, as a function of the epoch's number. Gluon's names, shards and buckets.

>>> BatchSampler(SequentialSampler(5), 2, "keep").lists(0)
[[0, 1], [2, 3], [4]]
>>> one, other = (ShardSampler(5, rank, 2, remainder="pad") for rank in range(2))
>>> list(one), list(other)
([0, 2, 4], [1, 3, 0])
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from ..ops.types import Array
from ..train.shares import Share
from .draws import generator_of

Remainder = Literal["pad", "drop", "uneven"]
Last = Literal["keep", "discard", "rollover"]
ALL = Share()


def permutation(count: int, seed: int, epoch: int) -> Array:
    """The order of an epoch: the same for the same seed and number.

    >>> permutation(5, 0, 1).tolist() == permutation(5, 0, 1).tolist() != permutation(5, 0, 2).tolist()
    True
    """
    return np.random.default_rng((seed, epoch)).permutation(count)


class Sampler:
    """The order of samples. One of your own has `order(epoch)`, or is anything that can be iterated."""

    share = ALL
    _epoch = 0

    def order(self, epoch: int) -> Array:
        """The numbers of an epoch's samples, of all ranks."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.order(0))

    def __iter__(self) -> Iterator[int]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        order = self.order(epoch)
        for step in range(self.share.steps(len(order), 1)):
            yield from self.share.rows(order, 1, step).tolist()


class SequentialSampler(Sampler):
    """Numbers in order, from `start` on."""

    def __init__(self, length: int, start: int = 0) -> None:
        self.length, self.start = length, start

    def order(self, epoch: int) -> Array:
        return np.arange(self.start, self.start + self.length)


class RandomSampler(Sampler):
    """Numbers in an order that follows from the seed and the epoch."""

    def __init__(self, length: int, seed: int = 0) -> None:
        self.length, self.seed = length, seed

    def order(self, epoch: int) -> Array:
        return permutation(self.length, self.seed, epoch)

    def __len__(self) -> int:
        return self.length


class WeightedSampler(Sampler):
    """`count` numbers drawn with the probabilities of their weights, again and again the same ones perhaps."""

    def __init__(self, weights: Sequence[float], count: int, seed: int = 0) -> None:
        self.weights, self.count, self.seed = np.asarray(weights, np.float64), count, seed
        if self.weights.ndim != 1 or not np.isfinite(self.weights).all() or (self.weights < 0).any():
            raise InputError("weights are numbers from 0 on, one for each sample", where="WeightedSampler")
        if not self.weights.sum() > 0:
            raise InputError("all weights are 0", where="WeightedSampler")

    def order(self, epoch: int) -> Array:
        edges = np.cumsum(self.weights)
        drawn = generator_of(self.seed, epoch).random(self.count) * edges[-1]
        return np.minimum(np.searchsorted(edges, drawn, side="right"), len(edges) - 1)


class FilterSampler(Sampler):
    """The numbers of the samples for which a function is true."""

    def __init__(self, keep: Callable[[Any], bool], dataset: Any) -> None:
        self.numbers = np.array([i for i in range(len(dataset)) if keep(dataset[i])], np.int64)

    def order(self, epoch: int) -> Array:
        return self.numbers


class IntervalSampler(Sampler):
    """Every `interval`-th number; `rollover` goes on with those that were passed over."""

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        if not 1 <= interval <= max(length, 1):
            raise InputError(f"an interval of {interval} in {length} samples", where="IntervalSampler")
        self.length, self.interval, self.rollover = length, interval, rollover

    def order(self, epoch: int) -> Array:
        starts = range(self.interval if self.rollover else 1)
        return np.concatenate([np.arange(s, self.length, self.interval) for s in starts])


class Listed(Sampler):
    """A sampler of the caller's, of which an epoch takes what it yields then."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers, self._known = numbers, dict[int, Array]()

    def order(self, epoch: int) -> Array:
        if epoch not in self._known:
            self._known = {epoch: np.fromiter(self.numbers, np.int64)}
        return self._known[epoch]


class ShardSampler(Sampler):
    """The share of worker `rank` of `count` in the order of another sampler (or in that of so many samples).

    A DataLoader takes `count * batch_size` successive samples for a step, of which each rank has as many. Of what is
    left of an epoch `remainder` says the rest: "drop" leaves out what does not divide, "pad" takes as many again, and
    "uneven" gives some ranks a sample more, and perhaps a step more, which only evaluation bears.
    """

    def __init__(self, sampler: Sampler | int, rank: int, count: int, *, remainder: Remainder) -> None:
        if remainder not in ("pad", "drop", "uneven"):
            raise InputError(f"remainder={remainder!r}", where="ShardSampler", hint="'pad', 'drop' or 'uneven'")
        self.sampler = SequentialSampler(sampler) if isinstance(sampler, int) else sampler
        if self.sampler.share.count > 1:
            raise InputError("a share of a share", where="ShardSampler", hint="count all workers of all ranks in one")
        self.share = Share(rank, count, remainder == "pad", uneven=remainder == "uneven")

    def order(self, epoch: int) -> Array:
        return self.sampler.order(epoch)

    def __len__(self) -> int:
        return self.share.steps(len(self.sampler), 1)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One rank's part of a step: places in the epoch's order of all ranks, and numbers of samples. `after` is how many
    places are over after it."""

    places: Array
    numbers: Array
    after: int


class Batches:
    """A rule for the steps of an epoch. One of your own has `steps(epoch)`: the numbers of each step's samples, of all
    ranks."""

    share = ALL

    def steps(self, epoch: int) -> Sequence[Array]:
        raise NotImplementedError

    def rows(self, epoch: int, begin: int) -> Iterator[Rows]:
        """This rank's part of each step, from where `begin` places are over."""
        at = 0
        for numbers in self.steps(epoch):
            if at >= begin:
                mine = self.share.rest(np.arange(len(numbers)))
                if len(mine):
                    yield Rows(at + mine, numbers[mine], at + len(numbers))
            elif at + len(numbers) > begin:
                raise InputError(
                    f"{begin} samples are over, which is no end of a batch",
                    where="load_state",
                    hint="give batches of the size that they had, over all ranks",
                )
            at += len(numbers)

    def digest(self, epoch: int) -> str:
        """Digest of an epoch's order over all ranks."""
        order = np.concatenate([np.zeros(0, np.int64), *self.steps(epoch)])
        return hashlib.blake2b(order.astype("<i8").tobytes(), digest_size=8).hexdigest()

    def count(self, epoch: int) -> int:
        """Number of this rank's steps in an epoch."""
        return sum(1 for _ in self.rows(epoch, 0))


class BatchSampler(Batches):
    """Batches of `batch_size` successive samples. The last one of an epoch, if it is smaller, is a batch ("keep"), left
    out ("discard"), or the beginning of the next epoch's first ("rollover")."""

    def __init__(self, sampler: Sampler | Iterable[int], batch_size: int, last_batch: Last = "keep") -> None:
        if last_batch not in ("keep", "discard", "rollover"):
            raise InputError(f"last_batch={last_batch!r}", where="BatchSampler", hint="keep, discard or rollover")
        if batch_size < 1:
            raise InputError(f"batches of {batch_size}", where="BatchSampler", hint="from 1 on")
        ours = isinstance(sampler, Sampler) and type(sampler).order is not Sampler.order
        given: Sampler = sampler if ours and isinstance(sampler, Sampler) else Listed(sampler)
        self.sampler = given
        if last_batch == "rollover" and not ours and not isinstance(sampler, Sequence):
            raise InputError(
                "a batch of two epochs, of an order that may differ each time it is asked for", where="BatchSampler",
                hint="give one of the samplers of mz.data, which keep to an epoch's order, or keep or discard",
            )  # fmt: skip
        self.size, self.last, self.share = batch_size, last_batch, self.sampler.share
        if last_batch == "rollover" and self.share.count > 1:
            raise InputError("a batch of two epochs for several ranks", where="BatchSampler", hint="keep or discard")
        self._epoch = 0

    def rows(self, epoch: int, begin: int) -> Iterator[Rows]:
        if self.last == "rollover":
            yield from self._rolling(epoch, begin)
            return
        order = self.sampler.order(epoch)
        places, whole = np.arange(len(order)), self.last == "discard"
        each = self.size * self.share.count
        for step in range(self.share.steps(len(order) - begin, self.size, whole=whole)):
            mine = self.share.rows(places, self.size, step, whole=whole, over=begin)
            yield Rows(mine, order[mine], min(begin + (step + 1) * each, len(order)))

    def _rolling(self, epoch: int, begin: int) -> Iterator[Rows]:
        """Batches of one stream of all epochs: those that begin before this one ends and end in it."""
        order, each = self.sampler.order(epoch), self.size
        length = len(order)
        carried = epoch * length % each
        before = np.zeros(0, np.int64)
        back = 1
        while len(before) < carried:  # epochs that are smaller than a batch
            before = np.concatenate([self.sampler.order(epoch - back), before])
            back += 1
        stream = np.concatenate([before[len(before) - carried :], order])
        for at in range(0, len(stream) - each + 1, each):
            after = at + each - carried
            if after > begin:
                yield Rows(np.arange(at - carried, after), stream[at : at + each], after)

    def digest(self, epoch: int) -> str:
        return hashlib.blake2b(self.sampler.order(epoch).astype("<i8").tobytes(), digest_size=8).hexdigest()

    def count(self, epoch: int) -> int:
        length = len(self.sampler.order(epoch)) if isinstance(self.sampler, Listed) else len_of(self.sampler)
        if self.last == "rollover":
            return (epoch + 1) * length // self.size - epoch * length // self.size
        return self.share.steps(length, self.size, whole=self.last == "discard")

    def lists(self, epoch: int) -> list[list[int]]:
        """The numbers of each batch of an epoch."""
        return [rows.numbers.tolist() for rows in self.rows(epoch, 0)]

    def __iter__(self) -> Iterator[list[int]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return iter(self.lists(epoch))

    def __len__(self) -> int:
        return self.count(self._epoch)


def len_of(sampler: Sampler) -> int:
    """Number of samples of an epoch, of all ranks."""
    return len(sampler.sampler if isinstance(sampler, ShardSampler) else sampler)


class BucketSampler(Batches):
    """Batches of samples of like lengths, which padding makes little longer (GluonNLP's FixedBucketSampler).

    Samples go to the first of `buckets` (largest lengths, or how many to make of equal numbers of samples) that they
    fit into. Each bucket gives batches of `batch_size` for each rank, in an order that follows from seed and epoch;
    with `shuffle=False` shortest first. `share` is that of a ShardSampler.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        buckets: int | Sequence[int] = 10,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        count: int = 1,
        remainder: Remainder = "uneven",
    ) -> None:
        self.lengths = np.asarray(lengths, np.int64)
        if not len(self.lengths) or self.lengths.ndim != 1:
            raise InputError("no lengths", where="BucketSampler", hint="one for each sample")
        if isinstance(buckets, int):
            ends = np.quantile(self.lengths, np.linspace(0, 1, buckets + 1)[1:], method="higher")
        else:
            ends = np.sort(np.asarray(buckets, np.int64))
        self.ends = np.unique(ends)
        if self.lengths.max() > self.ends[-1]:
            raise InputError(
                f"a sample of length {self.lengths.max()}, and buckets up to {self.ends[-1]}",
                where="BucketSampler",
                hint="give a larger last one",
            )
        self.size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.share = Share(rank, count, remainder == "pad", uneven=remainder == "uneven")
        self._of = np.searchsorted(self.ends, self.lengths)

    def steps(self, epoch: int) -> list[Array]:
        count = len(self.lengths)
        order = permutation(count, self.seed, epoch) if self.shuffle else np.argsort(self.lengths, kind="stable")
        each = self.size * self.share.count
        batches: list[Array] = []
        for bucket in range(len(self.ends)):
            mine = order[self._of[order] == bucket]
            batches += [mine[i : i + each] for i in range(0, len(mine), each)]
        if self.shuffle:
            batches = [batches[i] for i in generator_of(self.seed, epoch, 1).permutation(len(batches))]
        return batches

    def __len__(self) -> int:
        return self.count(0)


class ListedBatches(Batches):
    """A batch sampler of the caller's, of which an epoch takes what it yields then."""

    def __init__(self, batches: Iterable[Sequence[int]]) -> None:
        self.batches, self._known = batches, dict[int, list[Array]]()

    def steps(self, epoch: int) -> list[Array]:
        if epoch not in self._known:
            self._known = {epoch: [np.asarray(b, np.int64) for b in self.batches]}
        return self._known[epoch]
