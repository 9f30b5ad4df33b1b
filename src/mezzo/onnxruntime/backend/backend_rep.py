"""The class of a model that is ready to run, by the name of ONNX Runtime's module of it."""

from ...tools.ort.backend import OnnxRuntimeBackendRep

__all__ = ["OnnxRuntimeBackendRep"]
