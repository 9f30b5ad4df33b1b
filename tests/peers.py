"""The packages that answers are compared with, and that make models to test with. The tests run without.

A test asks for one inside itself or in a fixture, and is skipped without it. Who asks at the top of a module takes all
of the module's tests away (tests/test_layers.py). Modules named after one, such as torch_networks.py, import it at
their top, and are imported inside tests.
"""

from __future__ import annotations

from typing import Any

import pytest

PEERS = (
    *("onnxruntime", "onnxscript", "skl2onnx", "sklearn", "torch"),
    *("magika", "nudenet", "rapidocr_onnxruntime", "silero_vad"),  # only for the models that they carry
    "cupy",  # only for its binding of NVRTC, which compiles kernels for GPUs without one
)


def peer(name: str) -> Any:
    """One of them, or a module inside; skips the test where it is not installed."""
    return pytest.importorskip(name, reason=f"{name} is a peer that is not installed: make install PEERS=1")
