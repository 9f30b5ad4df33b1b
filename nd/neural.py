"""Neural network functions on arrays, under MXNet's names: activations, choices along an axis, joins.

They stand beside the standard's functions, and are made of the same operators of ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ops.core.rules import axis_of
from ..ops.errors import InputError, ShapeError
from .array import Array
from .creation import arange
from .elementwise import (
    add,
    clip,
    divide,
    equal,
    floats,
    greater,
    greater_equal,
    less,
    less_equal,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    pow,
    reciprocal,
    sqrt,
    square,
    subtract,
)
from .products import matmul
from .reducing import cumulative_sum, reduced, sum
from .running import alike, apply, cast
from .shaping import (
    broadcast_to,
    expand_dims,
    flip,
    matrix_transpose,
    permute_dims,
    reshape,
    squeeze,
    take_along_axis,
)
from .specs import INT, dtype_of, known


def relu(x: Array, /) -> Array:
    """max(x, 0): `Relu`."""
    return apply("Relu", x)


def sigmoid(x: Array, /) -> Array:
    """1 / (1 + exp(-x)): `Sigmoid`."""
    return apply("Sigmoid", x)


def hard_sigmoid(x: Array, /, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """alpha x + beta between 0 and 1: `HardSigmoid`."""
    return apply("HardSigmoid", x, alpha=alpha, beta=beta)


def softsign(x: Array, /) -> Array:
    """x / (1 + |x|): `Softsign`."""
    return apply("Softsign", x)


def softrelu(x: Array, /) -> Array:
    """log(1 + exp(x)): `Softplus`."""
    return apply("Softplus", x)


def gelu(x: Array, /, approximate: str = "none") -> Array:
    """x times the normal distribution's share below x, by the error function or (`approximate="tanh"`) near it."""
    return apply("Gelu", x, approximate=approximate)


def erf(x: Array, /) -> Array:
    """The error function: `Erf`."""
    return apply("Erf", x)


def softmax(x: Array, /, axis: int = -1, temperature: float | None = None) -> Array:
    """Shares that add up to 1 along an axis: `Softmax` of x, divided by the temperature where there is one."""
    return apply("Softmax", _tempered(x, temperature), axis=axis_of(axis, x.ndim))


def log_softmax(x: Array, /, axis: int = -1, temperature: float | None = None) -> Array:
    """The logarithm of `softmax`: `LogSoftmax`."""
    return apply("LogSoftmax", _tempered(x, temperature), axis=axis_of(axis, x.ndim))


def _tempered(x: Array, temperature: float | None) -> Array:
    return x if temperature is None else divide(x, temperature)


def softmin(x: Array, /, axis: int = -1, temperature: float | None = None) -> Array:
    """`softmax` of -x."""
    return softmax(negative(x), axis, temperature)


def logsumexp(x: Array, /, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """The logarithm of the sum of exp(x) over axes, all by default, without overflow: `ReduceLogSumExp`.

    >>> from mezzo import nd
    >>> nd.logsumexp(nd.array([[1000.0, -1000.0], [0.0, -1000.0]]), axis=1).tolist()
    [1000.0, 0.0]
    """
    return reduced("ReduceLogSumExp", floats(x), axis, keepdims)


def one_hot(
    indices: Array, /, depth: int, on_value: float = 1.0, off_value: float = 0.0, dtype: Any = np.float32
) -> Array:
    """A new last axis of `depth` numbers, `on_value` at each index and `off_value` elsewhere; an index that is below 0,
    or not below `depth`, has no place on it.

    >>> from mezzo import nd
    >>> nd.one_hot(nd.array([0, 2], dtype="int32"), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    element = np.dtype(dtype_of(dtype))
    same = equal(expand_dims(cast(indices, INT), axis=-1), arange(depth, dtype=INT, device=indices.device))
    return apply("Where", same, known(on_value, element), known(off_value, element))


def pick(x: Array, index: Array, /, axis: int = -1, keepdims: bool = False, mode: str = "clip") -> Array:
    """Return, for each place of the other axes, the element at that index along `axis`. Indices out of range are
    clipped (`mode="clip"`) or wrapped around (`"wrap"`).

    `index` has the shape of `x` without the axis, or with size 1 there. Raises InputError for another mode.
    """
    at = axis_of(axis, x.ndim)
    size = x.shape[at]
    numbers = cast(index, INT)
    numbers = numbers if numbers.ndim == x.ndim else expand_dims(numbers, axis=at)
    if mode == "clip":
        numbers = clip(numbers, 0, size - 1)
    elif mode == "wrap":
        numbers = apply("Mod", numbers, known(size))
    else:
        raise InputError(f"mode {mode!r}", where="mezzo.nd.pick", hint="give 'clip' or 'wrap'")
    result = take_along_axis(x, numbers, axis=at)
    return result if keepdims else squeeze(result, at)


def topk(
    x: Array, /, axis: int = -1, k: int = 1, ret_typ: str = "indices", is_ascend: bool = False, dtype: Any = INT
) -> Any:
    """The k largest elements along an axis, or (`is_ascend`) the smallest: their places as `dtype` ("indices"), the
    elements ("value"), both as (elements, places) ("both"), or 1 where one stands and 0 elsewhere ("mask"): `TopK`.

    Raises InputError for another `ret_typ`.
    """
    if ret_typ not in ("indices", "value", "both", "mask"):
        raise InputError(
            f"ret_typ {ret_typ!r}", where="mezzo.nd.topk", hint="give 'indices', 'value', 'both' or 'mask'"
        )
    at = axis_of(axis, x.ndim)
    values, places = apply("TopK", x, known((k,)), outputs=2, axis=at, largest=int(not is_ascend))
    if ret_typ == "mask":
        last = permute_dims(places, (*(a for a in range(x.ndim) if a != at), at))
        marks = sum(one_hot(last, x.shape[at], dtype=x.dtype), axis=-2)
        order = list(range(x.ndim - 1))
        order.insert(at, x.ndim - 1)
        return permute_dims(marks, order)
    counted = cast(places, np.dtype(dtype_of(dtype)))
    return {"indices": counted, "value": values, "both": (values, counted)}[ret_typ]


def split(x: Array, /, num_outputs: int, axis: int = 1, squeeze_axis: bool = False) -> Any:
    """Equal parts along an axis, views of it, without it where `squeeze_axis` and each has size 1; one array for one
    part.

    Raises ShapeError where the axis does not divide.
    """
    at = axis_of(axis, x.ndim)
    if num_outputs < 1 or x.shape[at] % num_outputs:
        raise ShapeError(f"axis {at} of {x.where} does not divide into {num_outputs} parts", where="mezzo.nd.split")
    each = x.shape[at] // num_outputs
    if squeeze_axis and each != 1:
        told = f"parts of {each} along axis {at} of {x.where} cannot lose it"
        raise ShapeError(told, where="mezzo.nd.split", hint="leave out squeeze_axis")
    parts = [x[(slice(None),) * at + (slice(i * each, (i + 1) * each),)] for i in range(num_outputs)]
    parts = [squeeze(p, at) for p in parts] if squeeze_axis else parts
    return parts if num_outputs > 1 else parts[0]


def flatten(x: Array, /) -> Array:
    """A matrix whose rows are the first axis: `Flatten`."""
    return apply("Flatten", x, axis=1)


def transpose(x: Array, /, *order: Any, axes: Sequence[int] | None = None) -> Array:
    """The axes in another order, given as a tuple or as numbers, or backwards: `Transpose`."""
    given = axes or (order[0] if len(order) == 1 and not isinstance(order[0], int) else order)
    return permute_dims(x, tuple(given) if given else tuple(range(x.ndim))[::-1])


def swapaxes(x: Array, /, dim1: int, dim2: int) -> Array:
    """Two axes in each other's place: `Transpose`."""
    order = list(range(x.ndim))
    a, b = axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)
    order[a], order[b] = b, a
    return permute_dims(x, order)


def slice_axis(x: Array, /, axis: int, begin: int, end: int | None) -> Array:
    """The elements from `begin` to before `end` along an axis; both may count from its end: `Slice`."""
    return x[(slice(None),) * axis_of(axis, x.ndim) + (slice(begin, end),)]


def gather_nd(x: Array, indices: Array, /) -> Array:
    """The elements or parts of `x` at places whose coordinates are the first axis of `indices`: `GatherND`."""
    order = (*range(1, indices.ndim), 0)
    return apply("GatherND", x, permute_dims(cast(indices, INT), order))


def broadcast_like(x: Array, like: Array, /) -> Array:
    """Sizes of 1 stretched to the shape of another array: `Expand`."""
    return broadcast_to(x, like.shape)


def reshape_like(x: Array, like: Array, /) -> Array:
    """The elements in the shape of another array: `Reshape`."""
    return reshape(x, like.shape)


def cumsum(x: Array, /, axis: int | None = None) -> Array:
    """The sums so far along an axis, or of the array as one list: `CumSum`."""
    return cumulative_sum(reshape(x, (-1,)) if axis is None else x, axis=0 if axis is None else axis)


def reverse(x: Array, /, axis: int | Sequence[int]) -> Array:
    """`flip`."""
    return flip(x, axis=axis)


def batch_dot(a: Array, b: Array, /, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    """The products of matrices, one for each place of the axes before the last two: `MatMul`."""
    return matmul(matrix_transpose(a) if transpose_a else a, matrix_transpose(b) if transpose_b else b)


def einsum(equation: str | Array, /, *operands: Array) -> Array:
    """The sums of products that an equation tells, as NumPy's: `Einsum`. Raises ShapeError for sizes that do not fit,
    InputError where the equation does not come first."""
    if not isinstance(equation, str) or not operands:
        raise InputError("an equation, then its arrays", where="mezzo.nd.einsum", hint='nd.einsum("ij,jk->ik", a, b)')
    return apply("Einsum", *alike(*operands), equation=equation)


def add_n(*arrays: Array) -> Array:
    """The sum of all: `Sum`."""
    return apply("Sum", *arrays)


def rsqrt(x: Array, /) -> Array:
    """1 / sqrt(x)."""
    return reciprocal(sqrt(x))


def smooth_l1(x: Array, /, scalar: float = 1.0) -> Array:
    """(scalar x)^2 / 2 where |x| < 1 / scalar^2, else |x| - 1 / (2 scalar^2)."""
    edge = 1.0 / scalar**2
    size: Array = apply("Abs", x)
    inner = multiply(square(x), 0.5 * scalar**2)
    return apply("Where", apply("Less", size, known(edge, x.dtype)), inner, add(size, -0.5 * edge))


broadcast_add = elemwise_add = add
broadcast_sub = elemwise_sub = subtract
broadcast_mul = elemwise_mul = multiply
broadcast_div = elemwise_div = divide
broadcast_maximum, broadcast_minimum, broadcast_power, power = maximum, minimum, pow, pow
broadcast_equal, broadcast_not_equal = equal, not_equal
broadcast_greater, broadcast_greater_equal, broadcast_lesser, broadcast_lesser_equal = (
    greater, greater_equal, less, less_equal,
)  # fmt: skip

__all__ = [
    "add_n", "batch_dot", "broadcast_add", "broadcast_div", "broadcast_equal", "broadcast_greater",
    "broadcast_greater_equal", "broadcast_lesser", "broadcast_lesser_equal", "broadcast_like", "broadcast_maximum",
    "broadcast_minimum", "broadcast_mul", "broadcast_not_equal", "broadcast_power", "broadcast_sub", "cumsum",
    "einsum", "elemwise_add", "elemwise_div", "elemwise_mul", "elemwise_sub", "erf", "flatten", "gather_nd", "gelu",
    "hard_sigmoid", "log_softmax", "logsumexp", "one_hot", "pick", "power", "relu", "reshape_like", "reverse", "rsqrt",
    "sigmoid", "slice_axis", "smooth_l1", "softmax", "softmin", "softrelu", "softsign", "split", "swapaxes", "topk",
    "transpose",
]  # fmt: skip
