"""NumPy's functions on our arrays: `np.add(a, b)`, `np.sum(a)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import functions, linalg
from .array import Array
from .running import as_arrays, assign
from .shaping import moveaxis

# ufuncs of NumPy that the standard calls by another name
UFUNCS = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "invert": "bitwise_invert", "left_shift": "bitwise_left_shift",
    "power": "pow", "right_shift": "bitwise_right_shift", "rint": "round", "true_divide": "divide",
}  # fmt: skip
FUNCTIONS = {
    "amax": "max", "amin": "min", "concatenate": "concat", "cumsum": "cumulative_sum", "cumprod": "cumulative_prod",
    "transpose": "permute_dims", "around": "round",
}  # fmt: skip


def _dot(a: Any, b: Any) -> Array:
    """NumPy's `dot`: over the last axis of one array and the last but one of the other."""
    x, y = as_arrays([a, b])
    if not (x.ndim and y.ndim):
        return functions.multiply(x, y)
    return functions.tensordot(x, y, axes=((-1,), (-2,))) if y.ndim > 2 else functions.matmul(x, y)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """NumPy's `linalg.norm`: of matrices, where there are two axes and an order is named, else of vectors."""
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if axis is None and ord is None:
        return linalg.vector_norm(x, keepdims=keepdims)
    if len(axes) == 1:
        return linalg.vector_norm(x, axis=axes, ord=2 if ord is None else ord, keepdims=keepdims)
    if len(axes) != 2:
        raise TypeError("a norm of more than two axes")
    last = moveaxis(x, axes, (-2, -1))
    found = linalg.matrix_norm(last, ord="fro" if ord is None else ord, keepdims=keepdims)
    return moveaxis(found, (-2, -1), axes) if keepdims else found


def _size(a: Array, axis: int | None = None) -> int:
    return a.size if axis is None else a.shape[axis]


OWN: dict[Any, Any] = {  # whose names say something else among ours, or nothing
    np.dot: _dot, np.linalg.norm: _norm, np.size: _size,
    np.shape: lambda a: a.shape, np.ndim: lambda a: a.ndim,
}  # fmt: skip


def _named(name: str, other: dict[str, str]) -> Any:
    return getattr(functions, other.get(name, name), None)


def ufunc(given: Any, method: str, inputs: tuple[Any, ...], out: Any, options: dict[str, Any]) -> Any:
    """`np.add(a, b)` where one of them is ours: the function of that name; NotImplemented where there is none."""
    function = _named(given.__name__, UFUNCS)
    if method != "__call__" or options or function is None:
        return NotImplemented
    result = function(*inputs)
    if out is None:
        return result
    (into,) = out
    if not isinstance(into, Array):
        return NotImplemented
    assign(into, result)
    return into


def function(given: Any, args: Any, kwargs: Any) -> Any:
    """`np.sum(a)`: the function of that name; NotImplemented where there is none, or it takes other arguments."""
    ours = OWN.get(given) or _named(given.__name__, FUNCTIONS)
    if ours is None:
        return NotImplemented
    if given.__name__ == "transpose" and len(args) == 1 and not kwargs:
        args = (args[0], tuple(range(args[0].ndim))[::-1])
    try:
        return ours(*args, **kwargs)
    except TypeError:
        return NotImplemented
