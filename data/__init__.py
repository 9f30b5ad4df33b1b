"""`mz.data`: datasets, samplers, loaders that make batches ahead, record files, images and readers of formats.

>>> import numpy as np
>>> import mezzo as mz
>>> data = mz.data.ArrayDataset(np.arange(6), np.arange(6) % 2)
>>> [labels.tolist() for _, labels in mz.data.DataLoader(data, batch_size=4)]
[[0, 1, 0, 1], [0, 1]]
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

HOMES: Final[dict[str, str]] = {  # of names that are imported when they are used
    name: module
    for module, names in {
        "arrow": "ArrowDataset ParquetDataset",
        "batchify": "Append AsList Group Pad Stack",
        "classic": "CIFAR10 CIFAR100 MNIST Packaged read_idx",
        "csv_table": "CSVDataset",
        "dataset": "ArrayDataset Dataset Joined SimpleDataset",
        "draws": "drawing generator",
        "image_records": "IRHeader pack unpack",
        "image_sets": "ImageFolderDataset ImageListDataset ImageRecordDataset RecordFileDataset",
        "loader": "DataLoader",
        "making": "BadSample",
        "packing": "Recipe pack_images verify_records",
        "record_writer": "RecordWriter",
        "records": "BadRecord RecordFile rebuild_index",
        "samplers": "BatchSampler Batches BucketSampler FilterSampler IntervalSampler RandomSampler Sampler "
        "SequentialSampler ShardSampler WeightedSampler",
        "sources": "RemoteFile fetched",
        "tars": "WebDataset",
    }.items()
    for name in names.split()
}
MODULES = ("images", "transforms")
__all__ = sorted([*HOMES, *MODULES])


def __getattr__(name: str) -> Any:
    """Names that are imported when they are first used (PEP 562)."""
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    member = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    setattr(sys.modules[__name__], name, member)
    return member


def __dir__() -> list[str]:
    return __all__
