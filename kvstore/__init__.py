"""The KVStore: values of many workers, combined by key (decision 6). `mezzo.kv` is this package."""

from .async_handle import Handle
from .create import KINDS, create
from .drift import Drift
from .store import KVStore, Stats

__all__ = ["KINDS", "Drift", "Handle", "KVStore", "Stats", "create"]
