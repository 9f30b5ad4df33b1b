"""Architectures as PyTorch exports them, with random weights: ONNX Runtime and Mezzo have to say the same of them."""
