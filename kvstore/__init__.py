"""The KVStore: values of many workers, joined by key (decision 6)."""
