"""Programs on NVIDIA GPUs: our own kernels, cuDNN's and cuBLASLt's, one arena, one captured graph.

Nothing here imports CuPy before a device is asked for; see docs/decisions/0009-gpu.md.
"""
