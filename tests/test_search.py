"""Searches for NaN, infinities and lowest numbers by bits, beside NumPy's own answers; by machine code and without."""

from __future__ import annotations

from typing import Any, get_args

import ml_dtypes
import numpy as np
import pytest

from mezzo.runtime.backends.onednn import search
from mezzo.runtime.backends.onednn.search import Odd, Search, searches
from mezzo.runtime.execution.alarm import readable

LIMITS: Any = ml_dtypes.finfo
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def expected(odd: Odd, x: Any) -> bool:
    match odd:
        case "nan":
            return bool(np.isnan(x).any())
        case "not finite":
            return not np.isfinite(x).all()
        case "lowest":
            return bool((x <= LIMITS(x.dtype).min).any())


@pytest.mark.parametrize("native", [True, False], ids=["machine code", "numpy"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_kind_of_number_at_each_place(dtype: np.dtype[Any], native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if native and not readable():
        pytest.skip("no memory may be executed here")
    monkeypatch.setattr(search, "readable", lambda: native)
    limits = LIMITS(dtype)
    tiny = limits.smallest_subnormal
    numbers: list[Any] = [0, -0.0, 1, -1, tiny, -tiny, limits.max, limits.min, np.inf, -np.inf, np.nan, -np.nan]
    for odd in get_args(Odd):
        one = Search(odd, dtype)
        for count in (0, 1, 2, 3, 7, 8, 9, 19):
            x = np.linspace(-3, 5, count + 2).astype(dtype)[1:-1]
            one.bind(x)
            assert not one()
            for place in range(count):
                for number in numbers:
                    if odd == "lowest" and np.isnan(number):
                        continue  # said not to be there
                    x[place] = number
                    assert bool(one()) == expected(odd, x), (odd, count, place, number)
                x[place] = 1
        one.let_go()
        assert not one()


def test_integers_have_no_such_numbers() -> None:
    assert searches(("nan", "lowest"), np.dtype(np.int8)) == []
    assert len(searches(("nan", "lowest"), np.dtype(np.float32))) == 2
