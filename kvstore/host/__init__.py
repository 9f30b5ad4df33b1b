"""Level 1: the workers of one host, over shared memory (decision 6)."""
