"""ONNX's backend API, by the name of ONNX Runtime's module of it."""

from ...tools.ort.backend import is_compatible, prepare, run, supports_device

__all__ = ["is_compatible", "prepare", "run", "supports_device"]
