"""Quantization, dequantization, and products of quantized operands."""
