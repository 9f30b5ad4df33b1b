"""Statistics and sums over axes.

https://data-apis.org/array-api/2024.12/API_specification/statistical_functions.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ops.core.rules import axes_of, axis_of
from ..ops.errors import ShapeError
from ..runtime.caches import bounded
from .array import Array
from .creation import full
from .elementwise import floats
from .prepared import Prepared
from .running import apply, as_array, binary, cast, ready, run, unary
from .shaping import concat, reshape
from .specs import MOST, dtype_of, known

Axis = int | Sequence[int] | None
BOOL, INT, UINT = np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.uint64)


def _axes(x: Array, axis: Axis) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    return axes_of((axis,) if isinstance(axis, int) else tuple(axis), x.ndim)


def reduced(name: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    """One of ONNX's reductions; over no axes it is the identity."""
    key = name, x._spec, axis if axis is None or isinstance(axis, int) else tuple(axis), keepdims
    prepared = _PREPARED.get(key)
    if prepared is None:
        if len(_PREPARED) >= MOST:
            _PREPARED.clear()
        attrs = (("keepdims", int(keepdims)), ("noop_with_empty_axes", 1))
        prepared = _PREPARED[key] = ready(name, (x._spec, known(_axes(x, axis))), attrs)
    result: Array = run(prepared, (x,))
    return result


_PREPARED: dict[tuple[Any, ...], Prepared] = bounded("arrays: prepared reductions", MOST, {})


def _summed(x: Array, dtype: Any) -> Array:
    """Sums of integers are taken in 64 bits."""
    if dtype is not None:
        return cast(x, dtype_of(dtype))
    if x.dtype.kind in "bi":
        return cast(x, INT)
    return cast(x, UINT) if x.dtype.kind == "u" else x


def sum(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """`ReduceSum`; integers are summed in 64 bits unless `dtype` says otherwise."""
    return reduced("ReduceSum", _summed(as_array(x), dtype), axis, keepdims)


def prod(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """`ReduceProd`; integers in 64 bits unless `dtype` says otherwise."""
    return reduced("ReduceProd", _summed(as_array(x), dtype), axis, keepdims)


def mean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """`ReduceMean`; integers become float64."""
    return reduced("ReduceMean", floats(x), axis, keepdims)


def _extreme(name: str, x: Any, axis: Axis, keepdims: bool) -> Array:
    one = as_array(x)
    if not math.prod(one.shape[a] for a in _axes(one, axis)):
        raise ShapeError(f"{name} of no elements: axes {axis} of {one.where}", where="mezzo.nd")
    return reduced(name, one, axis, keepdims)


def max(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """`ReduceMax`. Raises ShapeError for the largest of nothing."""
    return _extreme("ReduceMax", x, axis, keepdims)


def min(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """`ReduceMin`. Raises ShapeError for the least of nothing."""
    return _extreme("ReduceMin", x, axis, keepdims)


def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The mean of the squared distances from the mean; over `count - correction`."""
    one = floats(x)
    apart = binary("Sub", one, reduced("ReduceMean", one, axis, True))
    total = reduced("ReduceSumSquare", apart, axis, keepdims)
    count = math.prod(one.shape[a] for a in _axes(one, axis)) - correction
    return binary("Div", total, count if count > 0 else 0.0)


def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The root of `var`."""
    return unary("Sqrt", var(x, axis=axis, correction=correction, keepdims=keepdims))


def all(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Test whether all elements along axes are true: `ReduceMin` of booleans."""
    return reduced("ReduceMin", cast(as_array(x), BOOL), axis, keepdims)


def any(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Test whether any element along axes is true: `ReduceMax` of booleans."""
    return reduced("ReduceMax", cast(as_array(x), BOOL), axis, keepdims)


def count_nonzero(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Count the elements that are not zero."""
    return reduced("ReduceSum", cast(cast(as_array(x), BOOL), INT), axis, keepdims)


def _place(name: str, x: Any, axis: int | None, keepdims: bool) -> Array:
    one = as_array(x)
    if not (one.size if axis is None else one.shape[axis_of(axis, one.ndim)]):
        raise ShapeError(f"{name} of no elements: axis {axis} of {one.where}", where="mezzo.nd")
    if axis is None:
        flat = apply(name, reshape(one, (-1,)), axis=0, keepdims=0)
        return reshape(flat, (1,) * one.ndim) if keepdims else flat
    return apply(name, one, axis=axis_of(axis, one.ndim), keepdims=int(keepdims))


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the index of the first largest element: `ArgMax`."""
    return _place("ArgMax", x, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the index of the first smallest element: `ArgMin`."""
    return _place("ArgMin", x, axis, keepdims)


def _running(name: str, x: Any, axis: int | None, dtype: Any, first: int, include_initial: bool) -> Array:
    one = _summed(as_array(x), dtype)
    if axis is None and one.ndim != 1:
        raise ShapeError(f"which axis of {one.where}?", where="mezzo.nd", hint="give axis=")
    at = axis_of(0 if axis is None else axis, one.ndim)
    result: Array = apply(name, one, known(at))
    if include_initial:
        start = full((*one.shape[:at], 1, *one.shape[at + 1 :]), first, dtype=one.dtype, device=one.device)
        result = concat([start, result], axis=at)
    return result


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """`CumSum`, with a zero before it if asked for."""
    return _running("CumSum", x, axis, dtype, 0, include_initial)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """`CumProd`, with a one before it if asked for."""
    return _running("CumProd", x, axis, dtype, 1, include_initial)


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None) -> Array:
    """Return the difference of each element from the one before it, `n` times."""
    one = as_array(x)
    at = axis_of(axis, one.ndim)
    parts = [p for p in (prepend, one, append) if p is not None]
    one = concat(parts, axis=at) if len(parts) > 1 else one
    lead = (slice(None),) * at
    for _ in range(n):
        high, low = one[(*lead, slice(1, None))], one[(*lead, slice(None, -1))]
        one = binary("Xor" if one.dtype.kind == "b" else "Sub", high, low)
    return one
