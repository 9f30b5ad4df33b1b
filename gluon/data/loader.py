"""Gluon's DataLoader: that of `mz.data`, whose batches become arrays of `mz.nd`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...data import loader as plain
from ...nd.place import Place, place_of
from ...nd.running import as_array
from ...ops.errors import InputError


class DataLoader(plain.DataLoader):
    """A `mz.data.DataLoader` under Gluon's names of arguments: `num_workers`, `thread_pool`, `pin_memory`.

    `device` is where arrays lie: copies to a GPU go through page-locked memory while the step before computes (so that
    `pin_memory` changes nothing). Everything else is as there.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Any = None,
        last_batch: Any = None,
        batch_sampler: Any = None,
        batchify_fn: Any = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        prefetch: int | None = None,
        thread_pool: bool = False,
        timeout: float = 120,
        *,
        device: Place | str | None = None,
        workers: int | None = None,
        **how: Any,
    ) -> None:
        if workers is not None and num_workers:
            raise InputError("workers= and num_workers=", where="DataLoader", hint="they are the same: give one")
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            last_batch,
            batch_sampler,
            batchify_fn,
            workers=num_workers if workers is None else workers,
            threads=how.pop("threads", thread_pool),
            prefetch=prefetch,
            timeout=timeout,
            **how,
        )
        self.device = None if device is None else place_of(device)

    def __iter__(self) -> Iterator[Any]:
        return (self._arrays(batch) for batch in super().__iter__())

    def _arrays(self, batch: Any) -> Any:
        if isinstance(batch, dict):
            return {k: self._arrays(v) for k, v in batch.items()}
        if isinstance(batch, list | tuple):
            return type(batch)(self._arrays(v) for v in batch)
        if isinstance(batch, np.ndarray) and batch.dtype.kind in "biufcV":
            return as_array(batch, self.device)
        return batch
