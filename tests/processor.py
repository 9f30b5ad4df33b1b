"""What the processor of the tests computes."""

from __future__ import annotations

import pytest

from mezzo.runtime.backends.onednn.library import library


def computes_bfloat16() -> bool:
    """Return True if oneDNN computes bfloat16 natively here: from AVX-512 on."""
    loaded = library()
    return loaded is not None and loaded.bf16


native_bfloat16 = pytest.mark.skipif(not computes_bfloat16(), reason="this machine computes no bfloat16")
