"""Others' protocols: NumPy's functions on our arrays, and DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from .array import Array
from .recording import RECORDING
from .running import assign, fetched

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
    from . import functions

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


NEWER = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # knows the options of DLPack 1.0
HOST = (1, 0)  # DLPack's number of the memory of the host


def dlpack(
    x: Array,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A capsule over the memory of an array, once it is computed, or over a copy on the host.

    Raises BufferError where a copy is needed and `copy` forbids it, for other devices, and for a stream on the host.
    """
    own = x.__dlpack_device__()
    wanted = own if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if wanted not in (own, HOST):
        raise BufferError(f"{x.where}: DLPack hands it over there, or on the host, not on device {wanted}")
    if wanted != own and copy is False:
        raise BufferError(f"{x.where}: its memory is not the host's, and copy=False forbids a copy")
    if wanted == HOST and stream is not None:
        raise BufferError(f"stream={stream!r} of memory on the host, which has none: leave it out")
    if RECORDING.trace is not None:
        RECORDING.trace.read(x)
    x.wait_to_read()
    memory = x._look(x._var._value)
    if wanted != own or (copy and not NEWER):
        memory, copy = fetched(memory), None
    options = {"stream": stream, "max_version": max_version if NEWER else None, "copy": copy if NEWER else None}
    return memory.__dlpack__(**{name: value for name, value in options.items() if value is not None})
