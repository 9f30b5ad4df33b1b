"""State machines without I/O: events in, instructions out (decision 6)."""
