"""Batchify rules: how samples become a batch. Gluon's names, and rules of padding.

>>> import numpy as np
>>> Stack()([np.ones(2), np.zeros(2)]).shape
(2, 2)
>>> Pad(value=-1)([np.array([1]), np.array([1, 2, 3])]).tolist()
[[1, -1, -1], [1, 2, 3]]
>>> texts, labels = Group(Pad(), Stack())([(np.array([1, 2]), 0), (np.array([5]), 1)])
>>> texts.tolist(), labels.tolist()
([[1, 2], [5, 0]], [0, 1])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array
from .arena import empty

Batchify = Callable[[Sequence[Any]], Any]


def as_numpy(sample: Any) -> Array:
    """The array of one field of a sample. Raises InputError for what has no element type of its own."""
    if hasattr(sample, "asnumpy"):
        sample = sample.asnumpy()
    array = np.asarray(sample)
    if array.dtype.hasobject:
        raise InputError(
            f"a {type(sample).__name__} is no array", where="batchify", hint="Pad joins arrays of unequal lengths"
        )
    if type(sample) is float:  # Python's own, as everywhere in `mz.nd`
        return array.astype(np.float32)
    return array


class Stack:
    """Arrays of one shape along a new first axis. Raises InputError where shapes or element types differ."""

    def __init__(self, dtype: Any = None) -> None:
        self.dtype = dtype

    def __call__(self, samples: Sequence[Any]) -> Array:
        arrays = [as_numpy(s) for s in samples]
        shape, kind = arrays[0].shape, self.dtype or np.result_type(*{a.dtype for a in arrays})
        for number, array in enumerate(arrays):
            if array.shape != shape:
                raise InputError(
                    f"sample {number} of the batch has shape {list(array.shape)}, the first {list(shape)}",
                    where="Stack",
                    hint="Pad() joins arrays of unequal lengths; resize images",
                )
        batch = empty((len(arrays), *shape), kind)
        for row, array in zip(batch, arrays, strict=True) if shape else ():
            row[...] = array
        if not shape:
            batch[...] = arrays
        return batch


class Pad:
    """Arrays whose sizes differ, filled up with `value` behind.

    `axis` (an integer or several; all if not given) is what may differ; `length` is the least size there, and
    `multiple` what sizes are rounded up to, which keeps the number of shapes small. With `lengths=True` the result is a
    pair: the batch, and the sizes along the first of these axes.
    """

    def __init__(
        self,
        axis: int | Sequence[int] | None = None,
        value: float = 0,
        *,
        length: int = 0,
        multiple: int = 1,
        lengths: bool = False,
        dtype: Any = None,
    ) -> None:
        self.axis = (axis,) if isinstance(axis, int) else None if axis is None else tuple(axis)
        self.value, self.length, self.multiple, self.lengths, self.dtype = value, length, multiple, lengths, dtype
        if multiple < 1:
            raise InputError(f"multiple={multiple}", where="Pad", hint="a size, from 1 on")

    def __call__(self, samples: Sequence[Any]) -> Any:
        arrays = [as_numpy(s) for s in samples]
        ranks = {a.ndim for a in arrays}
        if len(ranks) > 1 or 0 in ranks:
            raise InputError(f"arrays of ranks {sorted(ranks)}", where="Pad", hint="all have the same rank, from 1 on")
        (rank,) = ranks
        axes = range(rank) if self.axis is None else [a % rank for a in self.axis]
        sizes = [max(a.shape[i] for a in arrays) for i in range(rank)]
        for i in range(rank):
            if i in axes:
                sizes[i] = -(-max(sizes[i], self.length) // self.multiple) * self.multiple
            elif len({a.shape[i] for a in arrays}) > 1:
                raise InputError(f"sizes differ on axis {i}", where="Pad", hint=f"axis={(*axes, i)} pads it too")
        batch = empty((len(arrays), *sizes), self.dtype or np.result_type(*{a.dtype for a in arrays}))
        batch[...] = self.value
        for row, array in zip(batch, arrays, strict=True):
            row[tuple(slice(size) for size in array.shape)] = array
        if not self.lengths:
            return batch
        told = empty((len(arrays),), np.int64)
        told[...] = [a.shape[next(iter(axes))] for a in arrays]
        return batch, told


class Group:
    """A rule for each field of a sample: the batch is a tuple."""

    def __init__(self, *rules: Batchify) -> None:
        listed: Any = rules[0] if len(rules) == 1 else None  # Gluon takes a list as well
        self.rules = tuple(listed) if isinstance(listed, list | tuple) else rules

    def __call__(self, samples: Sequence[Any]) -> Any:
        if any(len(s) != len(self.rules) for s in samples):
            raise InputError(f"samples do not have {len(self.rules)} fields", where="Group", hint="one rule for each")
        return tuple(rule(field) for rule, field in zip(self.rules, zip(*samples, strict=True), strict=True))


class Append:
    """Samples as they are, in a list: each an array with a first axis of 1 (`expand=False`: without)."""

    def __init__(self, *, expand: bool = True) -> None:
        self.expand = expand

    def __call__(self, samples: Sequence[Any]) -> list[Array]:
        return [as_numpy(s)[None] if self.expand else as_numpy(s) for s in samples]


class AsList:
    """Samples as they are, in a list: texts, too."""

    def __call__(self, samples: Sequence[Any]) -> list[Any]:
        return list(samples)


class Default:
    """Arrays and numbers are stacked, texts listed; tuples, lists and dicts of them field by field."""

    def __call__(self, samples: Sequence[Any]) -> Any:
        first = samples[0]
        if isinstance(first, str | bytes) or first is None:
            return list(samples)
        if isinstance(first, dict):
            return {key: self([s[key] for s in samples]) for key in first}
        if isinstance(first, tuple | list):
            if len({len(s) for s in samples}) > 1:
                raise InputError(
                    "samples have different numbers of fields",
                    where="batchify",
                    hint="lists of unequal lengths are arrays for Pad()",
                )
            return tuple(self(field) for field in zip(*samples, strict=True))
        return STACK(samples)


STACK = Stack()
default = Default()
