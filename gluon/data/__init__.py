"""`mz.gluon.data`: Gluon's names of `mz.data`. Batches of its DataLoader are arrays of `mz.nd`.

>>> import numpy as np
>>> from mezzo import gluon
>>> loader = gluon.data.DataLoader(gluon.data.ArrayDataset(np.arange(4), np.arange(4)), batch_size=2)
>>> [type(x).__name__ for x, y in loader]
['Array', 'Array']
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...data.dataset import ArrayDataset, Dataset, SimpleDataset
from ...data.image_sets import RecordFileDataset
from ...data.samplers import (
    BatchSampler,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    ShardSampler,
)
from .loader import DataLoader

__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "FilterSampler",
    "IntervalSampler",
    "RandomSampler",
    "RecordFileDataset",
    "Sampler",
    "SequentialSampler",
    "ShardSampler",
    "SimpleDataset",
]


def __getattr__(name: str) -> Any:
    """`vision` and `batchify`, imported when they are first used (PEP 562)."""
    if name == "vision":
        return import_module("mezzo.gluon.data.vision")
    if name == "batchify":
        return import_module("mezzo.data.batchify")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
