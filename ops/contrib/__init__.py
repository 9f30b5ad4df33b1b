"""Operators of the domain com.microsoft, which ONNX Runtime's tools write into models."""
