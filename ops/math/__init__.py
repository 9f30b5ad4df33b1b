"""Arithmetic, linear algebra, reductions, signals and random numbers."""
