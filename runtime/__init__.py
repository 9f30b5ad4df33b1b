"""The runtime: intermediate representation, passes, compilation, memory, execution, kernels by library, engine."""

from typing import Any

from . import renamed  # noqa: F401 (it answers to former names)


def __getattr__(name: str) -> Any:
    """`Features` (PEP 562): what it looks at is imported when it is asked for."""
    if name == "Features":
        from .features import Features

        return Features
    raise AttributeError(f"module 'mezzo.runtime' has no attribute {name!r}")
