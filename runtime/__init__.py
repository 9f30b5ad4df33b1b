"""Graph, passes, plan, program, devices; engine, arrays, autograd."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`Features` (PEP 562): what it looks at is imported when it is asked for."""
    if name == "Features":
        from .features import Features

        return Features
    raise AttributeError(f"module 'mezzo.runtime' has no attribute {name!r}")
