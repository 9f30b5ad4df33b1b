"""The KVStore: values of many workers, combined by key (decision 6). `mezzo.kv` is this package."""

from .async_handle import Handle
from .create import KINDS, create
from .drift import Drift
from .epochs import Epochs
from .launching import launch
from .rule import rule
from .stats import Stats
from .store import KVStore
from .watching import merge_traces

__all__ = ["KINDS", "Drift", "Epochs", "Handle", "KVStore", "Stats", "create", "launch", "merge_traces", "rule"]
