"""Batch normalisation over the batches of all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...kvstore.protocol.keys import OWN
from ...nd import autograd
from ...nd import functions as nd
from ...nd.array import Array
from ...nd.recording import RECORDING
from ...ops.errors import InputError
from ...train.exchange import prefix_of_next
from ..trace import move
from .norm import BatchNorm

if TYPE_CHECKING:
    from ...kvstore.store import KVStore


class SyncBatchNorm(BatchNorm):
    """BatchNorm with training statistics over all workers of a store together (Peng et al. 2018), as if one process had
    the whole batch, whatever the sizes of the shares. Without a store, or with one worker, it is BatchNorm.

    All workers run it equally often, forwards and backwards. The store sums (a sequential one without an optimizer).
    Statistics are exchanged twice forwards, means before variances, and once more for each backwards; a block that does
    so is not traced in training, but in prediction, and so exported.
    """

    def __init__(self, kvstore: KVStore | None = None, in_channels: int = 0, **options: Any) -> None:
        """`options` are those of BatchNorm. Raises InputError for a store that does not sum."""
        super().__init__(in_channels=in_channels, **options)
        if kvstore is not None and set(kvstore.consistency) != {"sequential"}:
            raise InputError(f"a store of the kind {kvstore.kind!r}", where="SyncBatchNorm", hint="dist_sync sums")
        self._together = None if kvstore is None or kvstore.num_workers == 1 else _Sums(kvstore)

    @property
    def _imperative(self) -> str:
        """Why no trace goes through this block now."""
        exchanges = getattr(self, "_together", None) is not None and RECORDING.training
        return "the statistics of all workers are exchanged" if exchanges else self._why

    @_imperative.setter
    def _imperative(self, why: str) -> None:
        self._why = why

    def forward(self, x: Array) -> Array:
        if self._together is None or not RECORDING.training or self._global:
            return super().forward(x)
        weights = self._weights(x.shape[1])
        for p in (self.running_mean, self.running_var):
            if not p.known:
                p.finish((x.shape[1],))
        axes = tuple(i for i in range(x.ndim) if i != 1)
        shape = (1, -1, *(1,) * (x.ndim - 2))
        own = nd.full((1,), float(x.size // x.shape[1]), dtype=x.dtype, device=x.device)
        sums = self._together(nd.concat([nd.sum(x, axis=axes), own], axis=0))
        count = sums[-1:].detach()
        mean = sums[:-1] / count
        off = x - nd.reshape(mean, shape)
        var = self._together(nd.sum(off * off, axis=axes)) / count
        for running, batch in ((self.running_mean, mean), (self.running_var, var)):
            with autograd.pause():
                move(running, running.data() * self._momentum + batch.detach() * (1 - self._momentum))
        gamma, beta = (nd.reshape(w, shape) for w in weights)
        return off / nd.sqrt(nd.reshape(var, shape) + self._epsilon) * gamma + beta


class _Sums:
    """Differentiable sums of vectors over all workers: their gradients are such sums too."""

    def __init__(self, kvstore: KVStore) -> None:
        self._store, self._prefix = kvstore, f"{OWN}{prefix_of_next(kvstore)}statistics/"
        self._keys: set[str] = set()

    def __call__(self, x: Array) -> Array:
        total: Array = _Sum(self)(x)
        return total

    def exchange(self, x: Array, way: str) -> Array:
        """Return the sum of a vector over all workers, added in the order of their ranks."""
        key = f"{self._prefix}{way}/{x.shape[0]}"
        if key not in self._keys:
            self._store._init(key, np.zeros(x.shape, x.dtype))
            self._keys.add(key)
        out = nd.zeros_like(x)
        self._store.pushpull(key, x, out)
        return out


class _Sum(autograd.Function):
    def __init__(self, sums: _Sums) -> None:
        self._sums = sums

    def forward(self, x: Array) -> Array:
        return self._sums.exchange(x, "forward")

    def backward(self, dy: Array) -> Array:
        return self._sums.exchange(dy, "backward")
