"""Machines without I/O: events in, instructions out (decision 6)."""
