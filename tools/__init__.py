"""Tools on top of the runtime: loading, checking and explaining models, and the `mezzo` command."""
