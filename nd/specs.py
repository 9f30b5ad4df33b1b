"""Specs of arrays (element type, shape) and constants, one object of each; promotion of element types.

There is one object for each spec, so that looking up what was prepared for specs is quick.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ops import DType, Tensor
from ..ops.errors import InputError, ShapeError
from ..runtime.caches import bounded

Scalar = bool | int | float | complex

MOST = 1 << 14  # specs that are kept; a program that goes on making new shapes makes them anew


class TensorSpec:
    """Element type and shape of an array; `tensor` is the same as operators use it."""

    __slots__ = ("dtype", "shape", "size", "tensor")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape
        self.tensor = Tensor(DType.of(dtype), shape)
        self.size = math.prod(shape)

    def __str__(self) -> str:
        return str(self.tensor)


_SPECS: dict[tuple[np.dtype[Any], tuple[int, ...]], TensorSpec] = bounded("arrays: types", MOST, {})


def spec_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> TensorSpec:
    """Return the spec of an element type and a shape. Raises ShapeError for element types that ONNX lacks.

    >>> print(spec_of(np.dtype("float32"), (2, 3)))
    float32[2,3]
    """
    spec = _SPECS.get((dtype, shape))
    if spec is None:
        if len(_SPECS) >= MOST:
            _SPECS.clear()
        spec = _SPECS[dtype, shape] = TensorSpec(dtype, shape)
    return spec


def spec_of_value(value: np.ndarray[Any, Any]) -> TensorSpec:
    """Return the spec of a NumPy array. Raises InputError for text and objects."""
    if value.dtype.hasobject or (value.dtype.kind in "USV" and not value.dtype.isbuiltin == 2):
        raise InputError(f"an array of {value.dtype}", where="mezzo.nd", hint="arrays hold numbers")
    return spec_of(value.dtype, value.shape)


class Constant:
    """A small operand that is known beforehand (axes, a shape) and part of the prepared operator; one object for
    each."""

    __slots__ = ("tensor", "value")

    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        value.flags.writeable = False
        self.value = value
        self.tensor = Tensor(DType.of(value.dtype), value.shape, value)


_KNOWN: dict[object, Constant] = bounded("arrays: constants", MOST, {})


def checked_sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple. Raises ShapeError for fractions: half of a size is `n // 2`, and 2.7 is no size."""
    sizes = tuple(shape)
    if any(isinstance(n, float | np.floating) for n in sizes):
        raise ShapeError(f"{sizes} is no shape", where="mezzo.nd", hint="sizes are integers: n // 2")
    return sizes


def known(value: float | Sequence[float], dtype: Any = np.int64) -> Constant:
    """A scalar or a list as an operand, int64 unless said otherwise."""
    hashable = tuple(value) if isinstance(value, list) else value
    key = (hashable, type(hashable), dtype)
    constant = _KNOWN.get(key)
    if constant is None:
        if len(_KNOWN) >= MOST:
            _KNOWN.clear()
        try:
            constant = _KNOWN[key] = Constant(np.array(hashable, dtype))
        except OverflowError as error:
            raise InputError(f"{value} does not fit {np.dtype(dtype)}", where="mezzo.nd") from error
    return constant


def dtype_of(given: Any) -> np.dtype[Any]:
    """The NumPy dtype of whatever names an element type. Raises InputError.

    >>> dtype_of("bfloat16"), dtype_of(float)
    (dtype(bfloat16), dtype('float32'))
    """
    plain = _PLAIN.get(given) if isinstance(given, type) else None
    if plain is not None:
        return plain
    if isinstance(given, DType):
        return given.numpy
    try:
        dtype: np.dtype[Any] = np.dtype(given)
        return dtype if dtype.isnative else np.dtype(dtype.type)
    except TypeError:
        named = next((d for d in DType if str(d) == given), None)
        if named is None:
            raise InputError(
                f"{given!r} is no element type",
                where="mezzo.nd",
                hint="give a name such as 'float32', or mz.nd.float32",
            ) from None
        return named.numpy


FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
_PLAIN: dict[type, np.dtype[Any]] = {
    bool: np.dtype(np.bool_),
    int: INT,
    float: FLOAT,
    complex: np.dtype(np.complex64),
}


def together(*given: np.dtype[Any] | Scalar) -> np.dtype[Any]:
    """The element type that operands are brought to: as NumPy does it; Python's numbers only decide the sort.

    Raises ShapeError where there is none.

    >>> together(np.dtype("int8"), np.dtype("uint8")), together(np.dtype("float32"), 1)
    (dtype('int16'), dtype('float32'))
    """
    try:
        return np.result_type(*given)
    except TypeError as error:
        listed = " and ".join(str(g) for g in given)
        raise ShapeError(f"{listed} have no common element type", hint="cast one of them with astype") from error
