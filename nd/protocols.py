"""NumPy's functions on our arrays: `np.add(a, b)`, `np.sum(a)`."""

from __future__ import annotations

from typing import Any

from . import functions
from .array import Array
from .running import assign

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
    ours = _named(given.__name__, FUNCTIONS)
    if ours is None:
        return NotImplemented
    if given.__name__ == "transpose" and len(args) == 1 and not kwargs:
        args = (args[0], tuple(range(args[0].ndim))[::-1])
    try:
        return ours(*args, **kwargs)
    except TypeError:
        return NotImplemented
