"""`.mezzo` files: a graph with its weights, and planned programs for specific machines.

`encode` makes the bytes of a file, `open_file` reads one; neither needs onnx. docs/mezzo.fbs declares every field.
"""

from .store import About, Opened, encode, is_mezzo, open_file
from .variants import VariantKey, key_here

__all__ = ["About", "Opened", "VariantKey", "encode", "is_mezzo", "key_here", "open_file"]
