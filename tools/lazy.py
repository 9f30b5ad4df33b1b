"""Names of the front door that bring another package when they are used, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .backend import Backend


def backend(name: str) -> type[Backend]:
    """`__getattr__` of `mezzo.onnx` (PEP 562): `Backend` imports onnx, which `import mezzo` does not need.

    Raises AttributeError for any other name.
    """
    if name != "Backend":
        raise AttributeError(f"module 'mezzo.onnx' has no attribute {name!r}")
    from .backend import Backend

    return Backend
