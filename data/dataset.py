"""Datasets: numbered samples, and what makes others of them. Gluon's names.

>>> numbers = SimpleDataset(range(6)).filter(lambda x: x % 2 == 0).transform(lambda x: x * 10)
>>> list(numbers)
[0, 20, 40]
>>> ArrayDataset([1, 2, 3], ["a", "b", "c"])[1]
(2, 'b')
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array
from .arena import empty
from .clock import stage


class Dataset:
    """Samples by number. A dataset of your own has `__len__` and `__getitem__`, and perhaps `name`, which messages
    call a sample. Worker processes get a copy, so that it holds paths rather than open files."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, number: int) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def name(self, number: int) -> str:
        """The name of a sample in messages."""
        return f"sample {number}"

    def transform(self, function: Callable[..., Any], lazy: bool = True) -> Dataset:
        """The dataset with a function on each sample; fields of a tuple are its arguments. `lazy=False` calls it
        now."""
        transformed = Transformed(self, function)
        return transformed if lazy else SimpleDataset([*transformed])

    def transform_first(self, function: Callable[[Any], Any], lazy: bool = True) -> Dataset:
        """The dataset with a function on the first field of each sample."""
        return self.transform(OnFirst(function), lazy)

    def filter(self, keep: Callable[[Any], bool]) -> Dataset:
        """The samples of which `keep` is true. Each is read now."""
        return Chosen(self, [i for i in range(len(self)) if keep(self[i])])

    def shard(self, num_shards: int, index: int) -> Dataset:
        """One of several parts in order, of which none has more than one sample more than another."""
        if not 0 <= index < num_shards:
            raise InputError(f"there is no part {index} of {num_shards}", where="shard")
        each, more = divmod(len(self), num_shards)
        begin = each * index + min(index, more)
        return Chosen(self, range(begin, begin + each + (index < more)))

    def take(self, count: int | None) -> Dataset:
        """The first samples, or all."""
        return Chosen(self, range(len(self) if count is None else min(count, len(self))))

    def sample(self, sampler: Sequence[int]) -> Dataset:
        """The samples that a sampler names, in its order."""
        return Chosen(self, list(sampler))


class SimpleDataset(Dataset):
    """A sequence as a dataset."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Any:
        return self.data[number]


class ArrayDataset(Dataset):
    """Arrays and other sequences of one length; a sample has a field of each, or is the element of the only one."""

    def __init__(self, *arrays: Any) -> None:
        if not arrays:
            raise InputError("no arrays", where="ArrayDataset", hint="give one or several")
        self.arrays = [a.asnumpy() if hasattr(a, "asnumpy") else a for a in arrays]
        lengths = [len(a) for a in self.arrays]
        if len({*lengths}) > 1:
            raise InputError(f"unequal numbers of samples: {lengths}", where="ArrayDataset")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, number: int) -> Any:
        fields = tuple(a[number] for a in self.arrays)
        return fields if len(fields) > 1 else fields[0]

    def batch(self, numbers: Array) -> Any:
        """The batch of some samples at once; None where a field is no array."""
        if not all(isinstance(a, np.ndarray) and not a.dtype.hasobject for a in self.arrays):
            return None
        columns = []
        for array in self.arrays:
            rows = empty((len(numbers), *array.shape[1:]), array.dtype)
            np.take(array, numbers, 0, out=rows, mode="raise")
            columns.append(rows)
        return tuple(columns) if len(columns) > 1 else columns[0]


class Joined(Dataset):
    """Several datasets one behind the other, such as the parts of a packed one."""

    def __init__(self, *parts: Dataset) -> None:
        self.parts = parts
        self._ends = list(accumulate(len(p) for p in parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _where(self, number: int) -> tuple[Dataset, int]:
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        part = bisect_right(self._ends, number)
        return self.parts[part], number - (self._ends[part - 1] if part else 0)

    def __getitem__(self, number: int) -> Any:
        part, within = self._where(number)
        return part[within]

    def name(self, number: int) -> str:
        part, within = self._where(number)
        return part.name(within)


class Chosen(Dataset):
    """Some samples of a dataset, in an order of their own."""

    def __init__(self, data: Dataset, numbers: Sequence[int]) -> None:
        self.data, self.numbers = data, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> Any:
        return self.data[self.numbers[number]]

    def name(self, number: int) -> str:
        return self.data.name(self.numbers[number])


class Transformed(Dataset):
    """A dataset with a function on each sample."""

    def __init__(self, data: Dataset, function: Callable[..., Any]) -> None:
        self.data, self.function = data, function

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Any:
        sample = self.data[number]
        with stage("augment"):
            return self.function(*sample) if isinstance(sample, tuple) else self.function(sample)

    def name(self, number: int) -> str:
        return self.data.name(number)


class OnFirst:
    """A function on the first of its arguments; the others are returned beside its result."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, first: Any, *rest: Any) -> Any:
        return (self.function(first), *rest) if rest else self.function(first)


def dataset_of(data: Any) -> Dataset:
    """A dataset of whatever has samples by number."""
    if isinstance(data, Dataset):
        return data
    if hasattr(data, "asnumpy") or isinstance(data, np.ndarray):
        return ArrayDataset(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return SimpleDataset(data)
    raise InputError(
        f"a {type(data).__name__} is no dataset", where="DataLoader", hint="it has no length or no numbers"
    )
