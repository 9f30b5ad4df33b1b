"""Activations and small layers on arrays, under PyTorch's names (`torch.nn.functional`), and some of MXNet's.

>>> from mezzo import nd
>>> nd.leaky_relu(nd.array([-2.0, 1.0]), 0.5).tolist()
[-1.0, 1.0]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ops.core.rules import axis_of
from ..ops.errors import InputError, ShapeError
from .array import Array
from .elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    clip,
    divide,
    maximum,
    multiply,
    negative,
    round,
    subtract,
    tanh,
    trunc,
)
from .neural import sigmoid, softrelu, split
from .products import matmul, vector_norm
from .reducing import sum
from .running import apply
from .shaping import broadcast_arrays, matrix_transpose, reshape, take
from .specs import known


def elu(x: Array, /, alpha: float = 1.0) -> Array:
    """x where it is above 0, else alpha (exp(x) - 1): `Elu`."""
    return apply("Elu", x, alpha=float(alpha))


def selu(x: Array, /) -> Array:
    """`elu` with a slope and a scale that keep mean and variance: `Selu`."""
    return apply("Selu", x)


def celu(x: Array, /, alpha: float = 1.0) -> Array:
    """max(x, 0) + min(0, alpha (exp(x / alpha) - 1)): `Celu`."""
    return apply("Celu", x, alpha=float(alpha))


def leaky_relu(x: Array, /, negative_slope: float = 0.01) -> Array:
    """x where it is above 0, else negative_slope x: `LeakyRelu`."""
    return apply("LeakyRelu", x, alpha=float(negative_slope))


def prelu(x: Array, weight: Array, /) -> Array:
    """`leaky_relu` with a slope for all channels, which are axis 1, or one for each: `PRelu`. Raises ShapeError for
    another number of slopes."""
    channels = x.shape[1] if x.ndim > 1 else 1
    if weight.size not in (1, channels):
        told, hint = f"{weight.size} slopes for {channels} channels of {x.where}", "give one for all, or one for each"
        raise ShapeError(told, where="mezzo.nd.prelu", hint=hint)
    return apply("PRelu", x, reshape(weight, (-1, *(1,) * max(x.ndim - 2, 0))))


def silu(x: Array, /) -> Array:
    """x times `sigmoid` of x: `Swish`."""
    return apply("Swish", x)


def mish(x: Array, /) -> Array:
    """x times the tanh of `softplus` of x: `Mish`."""
    return apply("Mish", x)


def hardswish(x: Array, /) -> Array:
    """x min(max(x + 3, 0), 6) / 6: `HardSwish`."""
    return apply("HardSwish", x)


def hardtanh(x: Array, /, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    """x between two bounds: `Clip`."""
    return clip(x, min_val, max_val)


def relu6(x: Array, /) -> Array:
    """x between 0 and 6: `Clip`."""
    return clip(x, 0, 6)


def logsigmoid(x: Array, /) -> Array:
    """The logarithm of `sigmoid`."""
    return negative(softrelu(negative(x)))


def softshrink(x: Array, /, lambd: float = 0.5) -> Array:
    """x, nearer to 0 by `lambd`, or 0 where it was nearer than that."""
    return subtract(x, clip(x, -lambd, lambd))  # Shrink makes 0 of NaN


def hardshrink(x: Array, /, lambd: float = 0.5) -> Array:
    """x, or 0 where it is no further from 0 than `lambd`."""
    return apply("Where", apply("LessOrEqual", abs(x), known(lambd, x.dtype)), known(0, x.dtype), x)


def tanhshrink(x: Array, /) -> Array:
    """x - tanh(x)."""
    return subtract(x, tanh(x))


def threshold(x: Array, /, threshold: float, value: float) -> Array:
    """The value where x is not above the threshold, else x."""
    return apply("Where", apply("LessOrEqual", x, known(threshold, x.dtype)), known(value, x.dtype), x)


def glu(x: Array, /, axis: int = -1) -> Array:
    """The first half along an axis times `sigmoid` of the second."""
    first, second = split(x, 2, axis)
    return multiply(first, sigmoid(second))


def normalize(x: Array, /, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Array:
    """x divided by its p-norm along an axis, or by `eps` where that is larger."""
    size = vector_norm(x, axis=axis_of(axis, x.ndim), keepdims=True, ord=p)
    return divide(x, maximum(size, eps))


def cosine_similarity(a: Array, b: Array, /, axis: int = 1, eps: float = 1e-8) -> Array:
    """The cosines of the angles between vectors along an axis, none of which counts as shorter than `eps`."""
    a, b = broadcast_arrays(a, b)
    at = axis_of(axis, a.ndim)
    return sum(multiply(normalize(a, 2.0, at, eps), normalize(b, 2.0, at, eps)), axis=at)


def embedding(indices: Array, weight: Array, /) -> Array:
    """The rows of a table with these numbers: `Gather`."""
    return take(weight, indices, axis=0)


def linear(x: Array, weight: Array, bias: Array | None = None, /) -> Array:
    """x times the transposed weight, plus the bias where there is one."""
    product = matmul(x, matrix_transpose(weight))
    return product if bias is None else add(product, bias)


def pad(x: Array, /, pad_width: Sequence[int], mode: str = "constant", constant_value: float = 0.0) -> Array:
    """More elements on both ends of each axis: `Pad`. `pad_width` has two numbers for each axis, from the first on;
    `mode` is constant, edge, reflect or wrap.

    Raises ShapeError for another count of numbers, InputError for another mode.

    >>> from mezzo import nd
    >>> nd.pad(nd.array([[1.0, 2.0]]), (0, 0, 1, 2), constant_value=9).tolist()
    [[9.0, 1.0, 2.0, 9.0, 9.0]]
    """
    if len(pad_width) != 2 * x.ndim:
        raise ShapeError(
            f"{len(pad_width)} numbers for {x.where}",
            where="mezzo.nd.pad",
            hint="give two for each axis, the first first",
        )
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise InputError(f"mode {mode!r}", where="mezzo.nd.pad", hint="give 'constant', 'edge', 'reflect' or 'wrap'")
    widths = known((*map(int, pad_width[::2]), *map(int, pad_width[1::2])))
    return apply("Pad", x, widths, known(constant_value, x.dtype), mode=mode)


def depth_to_space(x: Array, /, block_size: int) -> Array:
    """Channels as blocks of an image, the places in a block first: `DepthToSpace`."""
    return apply("DepthToSpace", x, blocksize=block_size)


def space_to_depth(x: Array, /, block_size: int) -> Array:
    """Blocks of an image as channels: `SpaceToDepth`."""
    return apply("SpaceToDepth", x, blocksize=block_size)


def pixel_shuffle(x: Array, /, upscale_factor: int) -> Array:
    """Channels as blocks of an image, the channels first: `DepthToSpace`."""
    return apply("DepthToSpace", x, blocksize=upscale_factor, mode="CRD")


def stop_gradient(x: Array, /) -> Array:
    """The same numbers, through which no gradient goes."""
    return x.detach()


def degrees(x: Array, /) -> Array:
    """Angles in degrees."""
    return multiply(x, 180 / math.pi)


def radians(x: Array, /) -> Array:
    """Angles that are given in degrees."""
    return multiply(x, math.pi / 180)


arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh = acos, acosh, asin, asinh, atan, atan2, atanh
fix, rint, softplus = trunc, round, softrelu

__all__ = [
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "celu", "cosine_similarity", "degrees",
    "depth_to_space", "elu", "embedding", "fix", "glu", "hardshrink", "hardswish", "hardtanh", "leaky_relu", "linear",
    "logsigmoid", "mish", "normalize", "pad", "pixel_shuffle", "prelu", "radians", "relu6", "rint", "selu", "silu",
    "softplus", "softshrink", "space_to_depth", "stop_gradient", "tanhshrink", "threshold",
]  # fmt: skip
