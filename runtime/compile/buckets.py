"""Bucketing: open dims are padded up to one of a few sizes, and the results cut back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...ops import Tensor
from ...ops.errors import InputError
from .program import Port

Buckets = Mapping[str, Sequence[int]]


def check_buckets(buckets: Buckets, inputs: Sequence[Port]) -> dict[str, tuple[int, ...]]:
    """Buckets by dim name, each in order; InputError for a dim that no input has, or for sizes that are none."""
    known = {d for p in inputs if isinstance(p.type, Tensor) for d in p.type.dims or () if isinstance(d, str)}
    unknown = [name for name in buckets if name not in known]
    if unknown:
        raise InputError(
            f"no input has a dim {unknown[0]!r}", where="buckets", hint=f"the open dims are {', '.join(sorted(known))}"
        )
    empty = [name for name, sizes in buckets.items() if not sizes or min(sizes) < 1]
    if empty:
        raise InputError(f"the buckets of {empty[0]!r} are not sizes", where="buckets", hint="give for example (1, 8)")
    return {name: tuple(sorted(sizes)) for name, sizes in buckets.items()}


def padded(
    buckets: Mapping[str, tuple[int, ...]], inputs: Sequence[Port], arrays: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, int]]:
    """The arrays with zeros up to the next bucket of each dim, and the sizes that the dims had.

    A size above the largest bucket stays as it is.
    """
    had: dict[str, int] = {}
    made = dict(arrays)
    for port in inputs:
        array = arrays[port.name]
        if not isinstance(port.type, Tensor) or not port.type.dims:
            continue
        wide = [(0, 0)] * array.ndim
        for axis, dim in enumerate(port.type.dims):
            if isinstance(dim, str) and dim in buckets:
                size = array.shape[axis]
                up = next((b for b in buckets[dim] if b >= size), size)
                had[dim] = size
                wide[axis] = (0, up - size)
        if any(more for _, more in wide):
            made[port.name] = np.pad(array, wide)
    return made, had


def cut(outputs: Sequence[Port], results: Mapping[str, Any], had: Mapping[str, int]) -> dict[str, Any]:
    """The results with their named dims at the sizes that the inputs had."""

    def one(port: Port, result: Any) -> Any:
        if not isinstance(port.type, Tensor) or not port.type.dims:
            return result
        where = tuple(slice(had[d]) if isinstance(d, str) and d in had else slice(None) for d in port.type.dims)
        return np.ascontiguousarray(result[where])

    return {p.name: one(p, results[p.name]) for p in outputs if p.name in results}
