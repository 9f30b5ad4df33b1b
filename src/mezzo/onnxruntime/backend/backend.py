"""The same, by the name of the module inside."""

from ...tools.ort.backend import OnnxRuntimeBackend, is_compatible, prepare, run, supports_device

__all__ = ["OnnxRuntimeBackend", "is_compatible", "prepare", "run", "supports_device"]
