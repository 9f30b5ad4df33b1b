"""The way of a repeated run is short: what a run may need is decided when its program is instantiated."""

from __future__ import annotations

import pytest

from mezzo.runtime.backends.onednn.library import library

from .paths import tenth_run


@pytest.mark.skipif(library() is None, reason="NumPy's kernels are calls of the product's own")
def test_the_tenth_run_is_at_most_five_calls() -> None:
    assert len(tenth_run().calls) <= 5, tenth_run().calls
