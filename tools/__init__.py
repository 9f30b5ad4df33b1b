"""Jobs around the runtime: loading, checking, explaining, the `mezzo` command."""
