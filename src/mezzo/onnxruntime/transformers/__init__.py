"""The one module of ONNX Runtime's package of this name that programs read at run time."""

from . import io_binding_helper

__all__ = ["io_binding_helper"]
