"""mezzo: the front door. Everything a user needs, nothing of its own."""

from .ops.errors import MezzoError

__version__ = "0.1.0"
__all__ = ["MezzoError", "__version__"]
