"""Kernels by library: NumPy (cpu), oneDNN (onednn), CUDA (cuda)."""
