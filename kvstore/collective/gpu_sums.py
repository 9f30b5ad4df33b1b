"""Sums of the ranks' parts on a GPU, in the order of the ranks: the bits of `sums.py`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...ops import DType
from ...runtime.backends.cuda import driver
from ...runtime.backends.cuda.launch import In, Out, Source
from ...runtime.backends.cuda.text import THREADS, element, launch, reads, writes


def add_up(parts: Any, out: int, ranks: int, device: int) -> None:
    """Launch the sum of the parts of `ranks` ranks, which lie behind each other in the flat array `parts`, on the
    current stream of the current device. It is written to the address `out`, outside of `parts`."""
    count = parts.size // ranks
    kernel = driver.LOADED.function(summing(str(parts.dtype), ranks), device, _sm(device))
    operands = np.uint64(parts.data.ptr), np.uint64(out), np.int64(count)
    kernel((-(-count // THREADS), 1, 1), (THREADS, 1, 1), operands)


@cache
def summing(dtype: str, ranks: int) -> Source:
    """The kernel that adds the parts of `ranks` ranks in their order; floats of 16 bits in float32, rounded once."""
    e = element(DType.of(np.dtype(DType.BFLOAT16.numpy if dtype == "bfloat16" else dtype)))
    assert e is not None
    first, *others = (f"({e.sums}){e.read(f'x[i + {q} * count]')}" for q in range(ranks))
    lines = [
        f"const long long i = (long long)blockIdx.x * {THREADS} + threadIdx.x;",
        "if (i >= count) return;",
        f"{e.sums} sum = {first};",
        *(f"sum += {other};" for other in others),
        f"y[i] = {e.write('sum')};",
    ]
    parameters = [reads(e, "x", In(0)), writes(e, "y", Out(0)), ("const long long", "count", np.int64(0))]
    return launch("sum_of_ranks", parameters, "\n".join(lines), 1).source


@cache
def _sm(device: int) -> int:
    return driver.described(device).sm
