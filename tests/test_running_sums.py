"""Running sums and products along any axis: the same bits whether whole rows are combined or single elements."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops.math.reduce import LONG_ROW, running

SHAPES = [
    ((5, 3, LONG_ROW), 0), ((5, 7, LONG_ROW), 1), ((5, 7, LONG_ROW), 2), ((1, 100), 0), ((0, 100), 0), ((3, 0, 80), 1),
    ((4, 0), 0), ((2, 300, 9, 8), 1), ((40, LONG_ROW - 1), 0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8", "u4", "c8"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_rows_and_elements_agree(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(shape) * 3).astype(dtype)
    if x.dtype.kind in "fc" and x.size:
        x.reshape(-1)[:: max(1, x.size // 5)] = np.inf
        x.reshape(-1)[-1] = np.nan
    with np.errstate(all="ignore"):
        for given in (x, x[..., ::-1], np.asfortranarray(x)):
            for name in ("cumsum", "cumprod"):
                made = running(np, given, axis, name)
                wanted = getattr(given, name)(axis, dtype=given.dtype)
                assert made.dtype == wanted.dtype
                assert np.ascontiguousarray(made).tobytes() == np.ascontiguousarray(wanted).tobytes()
