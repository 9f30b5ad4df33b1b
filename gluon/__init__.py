"""Networks written in Python: symbols that compose graphs, and blocks."""
