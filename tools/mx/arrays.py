"""`mx.nd`: arrays under MXNet's names. Functions are those here, then ours where both mean the same, then the operators
of MXNet (tools/mx/operators.py); what is none of them is a function of `mz.nd`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ... import nd as ours
from ...importers.mxnet import read_arrays
from ...nd import linalg, random
from ...nd.array import Array
from ...nd.place import place_of
from ...nd.recording import RECORDING
from ...nd.running import assign
from ...ops.errors import InputError
from ...runtime.files import replace_file
from . import operators
from .files import write_arrays
from .ndarray import NDArray, dense_only, own, owned, quotient, remainder

# Functions of ours that answer as MXNet's do.
SAME = """
abs arccos arccosh arcsin arcsinh arctan arctanh ceil cos cosh degrees erf exp expm1 floor log log10 log1p log2
negative radians reciprocal relu rsqrt sigmoid sign sin sinh softsign sqrt square tan tanh trunc zeros_like ones_like
batch_dot elemwise_add elemwise_sub elemwise_mul broadcast_add broadcast_sub broadcast_mul maximum minimum add
subtract multiply power
""".split()
NAMES = {  # MXNet's names of functions that ours call otherwise
    "broadcast_plus": "broadcast_add", "broadcast_minus": "broadcast_sub", "fix": "trunc", "broadcast_power": "power",
    "broadcast_maximum": "maximum", "broadcast_minimum": "minimum",
    "identity": "positive", "stop_gradient": "stop_gradient", "BlockGrad": "stop_gradient", "arctan2": "atan2",
}  # fmt: skip
TRUTHS = {
    "equal": "equal", "not_equal": "not_equal", "greater": "greater", "greater_equal": "greater_equal",
    "lesser": "less", "lesser_equal": "less_equal", "logical_and": "logical_and", "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}  # fmt: skip
# Operators that are methods of an array.
METHODS = """
abs arccos arccosh arcsin arcsinh arctan arctanh argmax argmax_channel argmin argsort broadcast_like cbrt ceil
clip cos cosh degrees diag exp expand_dims expm1 fix flatten flip floor log log10 log1p log2 log_softmax max mean min
nanprod nansum norm one_hot ones_like pad pick prod radians rcbrt reciprocal relu repeat reshape_like rint round rsqrt
sigmoid sign sin sinh slice slice_axis slice_like softmax softmin sort split sqrt square squeeze sum swapaxes take tan
tanh tile topk trunc zeros_like broadcast_axes depth_to_space space_to_depth shape_array size_array
""".split()


def array(source_array: Any, ctx: Any = None, dtype: Any = None) -> Array:
    """An array of what NumPy takes for one; float32 unless it says, or is an array, of another type."""
    kind = dtype or (source_array.dtype if isinstance(source_array, Array) else np.float32)
    values = source_array.asnumpy() if isinstance(source_array, Array) else _values(source_array)
    return own(ours.array(np.asarray(values, kind), ctx=ctx))


def _values(x: Any) -> Any:
    """Lists of arrays as lists of numbers."""
    return [_values(v) for v in x] if isinstance(x, list | tuple) and any(isinstance(v, Array) for v in x) else (
        x.asnumpy() if isinstance(x, Array) else x)  # fmt: skip


def zeros(shape: Any, ctx: Any = None, dtype: Any = None, stype: str | None = None, **_: Any) -> Array:
    if stype not in (None, "default"):
        raise dense_only(stype)
    return own(ours.zeros(shape, dtype or np.float32, ctx=ctx))


def ones(shape: Any, ctx: Any = None, dtype: Any = None, **_: Any) -> Array:
    return own(ours.ones(shape, dtype or np.float32, ctx=ctx))


def full(shape: Any, val: Any, ctx: Any = None, dtype: Any = np.float32, out: Any = None) -> Array:
    return own(ours.full(shape, val, dtype=dtype or np.float32, ctx=ctx))


def empty(shape: Any, ctx: Any = None, dtype: Any = None) -> Array:
    return zeros(shape, ctx, dtype)


def eye(N: int, M: int = 0, k: int = 0, ctx: Any = None, dtype: Any = None, **_: Any) -> Array:
    return array(np.eye(N, M or N, k), ctx, dtype)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: Any = None,
    ctx: Any = None,
    dtype: Any = np.float32,
) -> Array:
    """Numbers in float32, each `repeat` times."""
    first, last = (0, start) if stop is None else (start, stop)
    return array(np.repeat(np.arange(first, last, step), repeat), ctx, dtype)


def linspace(start: float, stop: float, num: int, endpoint: bool = True, ctx: Any = None, dtype: Any = None) -> Array:
    return array(np.linspace(start, stop, num, endpoint), ctx, dtype)


def concat(*data: Any, dim: int = 1, num_args: int = 0, out: Any = None, name: str = "") -> Any:
    return _into(out, own(ours.concat(list(data), axis=dim)))


Concat = concat


def concatenate(arrays: Sequence[Array], axis: int = 0, always_copy: bool = True) -> Any:
    return own(ours.concat(list(arrays), axis=axis))


def stack(*data: Array, axis: int = 0, num_args: int = 0, out: Any = None, name: str = "") -> Any:
    return _into(out, own(ours.stack(list(data), axis=axis)))


def _into(out: Any, result: Any) -> Any:
    if out is not None:
        assign(out, result)
    return result if out is None else out


def onehot_encode(indices: Array, out: Array) -> Array:
    out[:] = ours.one_hot(indices.astype("int64"), out.shape[1]).astype(out.dtype)
    return out


def moveaxis(tensor: Array, source: Any, destination: Any) -> Any:
    return own(ours.moveaxis(tensor, source, destination))


def split_v2(ary: Array, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
    """Parts between places, or so many of one size."""
    if isinstance(indices_or_sections, int):
        how: dict[str, Any] = {"sections": indices_or_sections, "indices": ()}
    else:
        how = {"sections": 0, "indices": (0, *indices_or_sections)}
    function = operators.function("_split_v2")
    assert function is not None
    return function(ary, axis=axis, squeeze_axis=squeeze_axis, **how)


def waitall() -> None:
    ours.waitall()


def divide(lhs: Any, rhs: Any) -> Any:
    return quotient(lhs, rhs)


true_divide = broadcast_div = elemwise_div = divide


def modulo(lhs: Any, rhs: Any) -> Any:
    return remainder(lhs, rhs)


broadcast_mod = modulo


def logical_not(data: Array, out: Any = None) -> Any:
    return _into(out, own(ours.astype(ours.equal(data, 0), data.dtype)))


def Dropout(  # noqa: N802
    data: Array, p: float = 0.5, mode: str = "training", axes: Sequence[int] = (), **_: Any
) -> Any:
    """Elements that are dropped in training, or (`mode="always"`) always."""
    from ...gluon import nn
    from ...nd import autograd

    drop = nn.Dropout(p, tuple(axes))
    if mode == "always" and not RECORDING.training:
        with autograd.train_mode():
            return own(drop(data))
    return own(drop(data))


def BatchNorm(  # noqa: N802
    data: Array, gamma: Array, beta: Array, moving_mean: Array, moving_var: Array, eps: float = 1e-3,
    momentum: float = 0.9, fix_gamma: bool = True, use_global_stats: bool = False, output_mean_var: bool = False,
    axis: int = 1, **_: Any,
) -> Any:  # fmt: skip
    """Normalisation of each channel: in training by the batch, whose statistics move the running ones."""
    axis %= data.ndim
    others = tuple(i for i in range(data.ndim) if i != axis)
    shape = tuple(n if i == axis else 1 for i, n in enumerate(data.shape))
    if RECORDING.training and not use_global_stats:
        mean = ours.mean(data, axis=others)
        away = data - ours.reshape(mean, shape)
        var = ours.mean(away * away, axis=others)
        for moving, now in ((moving_mean, mean), (moving_var, var)):
            assign(moving, moving.detach() * momentum + now.detach() * (1 - momentum))
    else:
        mean, var = moving_mean, moving_var
        away = data - ours.reshape(mean, shape)
    scaled = away / ours.sqrt(ours.reshape(var, shape) + eps)
    if not fix_gamma:
        scaled = scaled * ours.reshape(gamma, shape)
    y = own(scaled + ours.reshape(beta, shape))
    return [y, own(mean), own(1 / ours.sqrt(var + eps))] if output_mean_var else y


def save(fname: str | os.PathLike[str], data: Any) -> None:
    """Write arrays, a list or a dict of them, as MXNet does: `load` here and there reads it."""
    if isinstance(data, Mapping):
        named = {str(k): np.asarray(v.asnumpy()) for k, v in data.items()}
        content = write_arrays(named)
    else:
        arrays = [data] if isinstance(data, Array) else list(data)
        content = write_arrays([np.asarray(v.asnumpy()) for v in arrays])
    replace_file(fname, [content])


def load(fname: str | os.PathLike[str], ctx: Any = None) -> Any:
    """The arrays of a file: a dict, or a list where they have no names."""
    arrays = read_arrays(fname)
    values = {k: ours.asarray(v, device=None if ctx is None else place_of(ctx)) for k, v in arrays.items()}
    own(values)
    return list(values.values()) if list(values) == [str(i) for i in range(len(values))] else values


def _compared(name: str) -> Any:
    def compared(lhs: Any, rhs: Any, out: Any = None) -> Any:
        like = next(x for x in (lhs, rhs) if isinstance(x, Array))
        if name.startswith("logical"):
            lhs, rhs = (ours.not_equal(x, 0) if isinstance(x, Array) else bool(x) for x in (lhs, rhs))
        return _into(out, own(ours.astype(getattr(ours, name)(lhs, rhs), like.dtype)))

    return compared


def _same(name: str) -> Any:
    function = getattr(ours, name)

    def called(*args: Any, out: Any = None, name: str = "", **named: Any) -> Any:
        args = (*args, *(named.pop(n) for n in ("data", "lhs", "rhs") if n in named))
        return _into(out, own(function(*args, **named)))

    called.__name__, called.__doc__ = name, function.__doc__
    return called


def _found(name: str) -> Any:
    if name.startswith("__"):
        return None
    for whole in (name, f"broadcast_{name.removeprefix('broadcast_')}"):
        if whole.removeprefix("broadcast_") in TRUTHS:
            return _compared(TRUTHS[whole.removeprefix("broadcast_")])
    if name in SAME or name in NAMES:
        return _same(NAMES.get(name, name))
    return operators.function(name)


def __getattr__(name: str) -> Any:
    """The operators of MXNet, and what `mz.nd` has beyond (PEP 562)."""
    value = globals()[name] = _found(name) or owned_of_ours(name)
    return value


def owned_of_ours(name: str) -> Any:
    value = getattr(ours, name)
    return owned(value) if callable(value) and not isinstance(value, type) else value


def _reshaped(self: Any, *shape: Any, **settings: Any) -> Any:
    """Another shape, with MXNet's codes from 0 to -4."""
    sizes = settings.pop("shape", shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
    return __getattr__("reshape")(self, shape=sizes, **settings)


def _transposed(self: Any, *axes: Any, **settings: Any) -> Any:
    """Axes in another order; without one, the other way round."""
    order = settings.pop("axes", axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)
    return __getattr__("transpose")(self, axes=tuple(order or ()))


def _attach() -> None:
    for name, method in (("reshape", _reshaped), ("transpose", _transposed)):
        setattr(NDArray, name, method)
    for name in METHODS:
        method = globals().get(name) or _found(name)
        if method is not None:
            setattr(NDArray, name, lambda self, *a, _method=method, **k: _method(self, *a, **k))


_attach()
__all__ = ["NAMES", "InputError", "NDArray", "linalg", "random"]
