"""Operators of the domain ai.onnx.ml: trees, linear models, feature maps."""
