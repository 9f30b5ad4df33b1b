"""Batches as a step takes them: arrays by name, from what a user or a loader gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..ops.errors import InputError

GIVE_BATCHES = "give a list of batches, each {name: array} or a tuple, or mz.data.DataLoader(dataset, batch_size)"


def by_name(batch: Any, names: Sequence[str]) -> dict[str, Any]:
    """A batch as arrays by name: a mapping as it is, a tuple or list in the order of these names.

    >>> by_name((1, 2), ("image", "target"))
    {'image': 1, 'target': 2}

    Raises InputError for anything else, a whole dataset in the place of its batches among them.
    """
    if isinstance(batch, Mapping):
        return dict(batch)
    expected = ", ".join(names)
    if isinstance(batch, str):
        raise InputError(f"one batch, or the arrays of a dataset ({batch!r}, ...)", where="batches", hint=GIVE_BATCHES)
    if not isinstance(batch, tuple | list):
        hint = f"{GIVE_BATCHES}, with {expected}"
        raise InputError(f"{type(batch).__name__} alone is no batch", where="batches", hint=hint)
    if len(batch) != len(names):
        raise InputError(f"a batch of {len(batch)} arrays", where="batches", hint=f"there are {len(names)}: {expected}")
    return dict(zip(names, batch, strict=True))


def fed(batch: Any, names: Sequence[str], first: Sequence[str], classes: Collection[str]) -> tuple[dict[str, Any], int]:
    """A batch by name, whose `classes` are int64 as losses take them, and how many samples it has: that of the first
    array that is fed, in the order `first`. Raises InputError for no samples."""
    feeds = by_name(batch, names)
    for name in classes:
        if name in feeds:
            target = np.asarray(feeds[name])
            if target.dtype != np.int64 and target.dtype.kind in "iu":
                feeds[name] = target.astype(np.int64)
    for name in first:
        if name in feeds:
            sizes = np.shape(feeds[name])
            if sizes and not sizes[0]:
                raise InputError(
                    "a batch without samples", where=f"feeds[{name!r}]", hint="leave it out: its mean loss is NaN"
                )
            return feeds, sizes[0] if sizes else 1
    return feeds, 1
