"""The dependency engine."""
