"""The version of Mezzo. Programs in files belong to the version that planned them."""

__version__ = "0.1.0"  # as pyproject.toml has it; a test compares the two
