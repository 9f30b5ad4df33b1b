"""The import surface of Apache MXNet, each name a thin line over ours: what `mezzo.compat.mxnet` re-exports."""
