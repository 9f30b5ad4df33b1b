"""`TypeHelper`, by the name of ONNX Runtime's module of it."""

from ...tools.ort.type_helper import TypeHelper

__all__ = ["TypeHelper"]
