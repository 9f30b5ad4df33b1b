"""The standard's elementwise functions: each is one operator, or a few.

https://data-apis.org/array-api/2024.12/API_specification/elementwise_functions.html
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..ops import DType
from ..ops.errors import ShapeError
from .array import Array
from .creation import zeros_like
from .running import SCALARS, alike, apply, as_array, binary, cast, pair, run, scalar, unary
from .shaping import stack

DOUBLE = np.dtype(np.float64)


def floats(x: Any) -> Array:
    """The operand in floats: integers become float64."""
    one = as_array(x)
    return cast(one, DOUBLE) if one.dtype.kind in "iub" else one


def _real(name: str, record: str) -> Callable[[Any], Array]:
    def function(x: Any, /) -> Array:
        return unary(record, floats(x))

    return _called(function, name, f"`{record}` of ONNX; integers become float64.")


def _any(name: str, record: str) -> Callable[[Any], Array]:
    def function(x: Any, /) -> Array:
        return unary(record, x)

    return _called(function, name, f"`{record}` of ONNX.")


def _pair(name: str, record: str) -> Callable[[Any, Any], Array]:
    def function(x1: Any, x2: Any, /) -> Array:
        return binary(record, x1, x2)

    return _called(function, name, f"`{record}` of ONNX, the operands brought to one element type.")


F = TypeVar("F", bound=Callable[..., Array])


def _called(function: F, name: str, doc: str) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


acos = _real("acos", "Acos")
acosh = _real("acosh", "Acosh")
asin = _real("asin", "Asin")
asinh = _real("asinh", "Asinh")
atan = _real("atan", "Atan")
atanh = _real("atanh", "Atanh")
cos = _real("cos", "Cos")
cosh = _real("cosh", "Cosh")
exp = _real("exp", "Exp")
log = _real("log", "Log")
reciprocal = _real("reciprocal", "Reciprocal")
sin = _real("sin", "Sin")
sinh = _real("sinh", "Sinh")
sqrt = _real("sqrt", "Sqrt")
tan = _real("tan", "Tan")

negative = _any("negative", "Neg")
sign = _any("sign", "Sign")

add = _pair("add", "Add")
subtract = _pair("subtract", "Sub")
multiply = _pair("multiply", "Mul")
pow = _pair("pow", "Pow")
equal = _pair("equal", "Equal")
less = _pair("less", "Less")
less_equal = _pair("less_equal", "LessOrEqual")
greater = _pair("greater", "Greater")
greater_equal = _pair("greater_equal", "GreaterOrEqual")
maximum = _pair("maximum", "Max")
minimum = _pair("minimum", "Min")


def not_equal(x1: Any, x2: Any, /) -> Array:
    """`Equal`, the other way round."""
    return unary("Not", binary("Equal", x1, x2))


def abs(x: Any, /) -> Array:
    """`Abs`; of complex numbers the length, as real numbers: `mezzo.Hypot` of their parts."""
    one = as_array(x)
    if one.dtype.kind != "c":
        return unary("Abs", one)
    return hypot(*_real_imag(one))


def _pairs(x: Array) -> Array:
    """Real and imaginary parts on a last axis of two: `mezzo.RealImag`."""
    return apply("RealImag", x, domain="mezzo")


def positive(x: Any, /) -> Array:
    """A copy."""
    return as_array(x).copy()


def divide(x1: Any, x2: Any, /) -> Array:
    """`Div`; integers become float64."""
    a, b = x1, x2
    if a.__class__ is not Array or b.__class__ is not Array or a.dtype is not b.dtype or a.dtype.kind != "f":
        a, b = alike(x1, x2, floating=True)
    return binary("Div", a, b)


def floor_divide(x1: Any, x2: Any, /) -> Array:
    """The quotient rounded down: `mezzo.FloorDiv`. Raises ShapeError for booleans."""
    a, b = alike(x1, x2)
    if _dtype(a).kind == "b":
        raise ShapeError("floor_divide of booleans", where="mezzo.nd", hint="cast them to integers")
    quotient: Array = run(pair("FloorDiv", a, b, domain="mezzo"), (a, b))
    return quotient


def remainder(x1: Any, x2: Any, /) -> Array:
    """Return the remainder of a division, with the sign of `x2`: `Mod` of integers, `mezzo.Remainder` of floats."""
    a, b = alike(x1, x2)
    whole = _dtype(a).kind in "iu"
    result: Array = run(pair("Mod", a, b) if whole else pair("Remainder", a, b, domain="mezzo"), (a, b))
    return result


def _dtype(x: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = x.dtype
    return dtype


def square(x: Any, /) -> Array:
    """x times x."""
    one = as_array(x)
    return binary("Mul", one, one)


def _whole_or(record: str) -> Callable[[Array], Array]:
    def function(x: Any, /) -> Array:
        one = as_array(x)
        return one.copy() if one.dtype.kind in "iub" else unary(record, one)

    return _called(function, record.lower(), f"`{record}`; integers stay as they are.")


ceil = _whole_or("Ceil")
floor = _whole_or("Floor")
round = _whole_or("Round")


def trunc(x: Any, /) -> Array:
    """Towards zero; integers stay as they are, and a negative zero keeps its sign."""
    one = as_array(x)
    if one.dtype.kind in "iub":
        return one.copy()
    return copysign(unary("Floor", unary("Abs", one)), one)


def isnan(x: Any, /) -> Array:
    """`IsNaN`; never so for integers."""
    return unary("IsNaN", x)


def isinf(x: Any, /) -> Array:
    """`IsInf`; never so for integers."""
    return unary("IsInf", x)


def isfinite(x: Any, /) -> Array:
    """Return where elements are neither infinite nor NaN."""
    return unary("Not", binary("Or", unary("IsNaN", x), unary("IsInf", x)))


def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """`Where`, the choices brought to one element type."""
    chosen = as_array(condition)
    a, b = alike(*(x if isinstance(x, (Array, *SCALARS)) else as_array(x, chosen.device) for x in (x1, x2)))
    return apply("Where", cast(chosen, np.dtype(np.bool_)), a, b)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """Limit elements to a range, whose bounds may be arrays; the result has the element type of `x`."""
    one = as_array(x)
    low, high = (v if v is None else _limit(v, one) for v in (min, max))
    if (low is not None or high is not None) and not isinstance(low, Array) and not isinstance(high, Array):
        limited: Array = apply("Clip", one, low, high)  # whose gradient is whole at the limits, too
        return limited
    result = one
    if low is not None:
        result = binary("Max", result, low)
    if high is not None:
        result = binary("Min", result, high)
    return result.copy() if result is one else result


def _limit(v: Any, like: Array) -> Any:
    if isinstance(v, SCALARS):
        return scalar(v, like.dtype)
    return cast(as_array(v, like.device), like.dtype)


def conj(x: Any, /) -> Array:
    """Complex conjugates; of real numbers a copy."""
    one = as_array(x)
    return apply("Conj", one, domain="mezzo") if one.dtype.kind == "c" else one.copy()


def real(x: Any, /) -> Array:
    """The real parts; of real numbers a copy."""
    one = as_array(x)
    return _pairs(one)[..., 0] if one.dtype.kind == "c" else one.copy()


def imag(x: Any, /) -> Array:
    """The imaginary parts; of real numbers zeros."""
    one = as_array(x)
    return _pairs(one)[..., 1] if one.dtype.kind == "c" else zeros_like(one)


# -- logic and bits ---------------------------------------------------------------------------------------------------


def _logic(name: str, record: str) -> Callable[[Any, Any], Array]:
    def function(x1: Any, x2: Any, /) -> Array:
        return binary(record, *(cast(as_array(x), np.dtype(np.bool_)) for x in _beside(x1, x2)))

    return _called(function, name, f"`{record}`; numbers are true unless they are zero.")


def _beside(x1: Any, x2: Any) -> tuple[Array, Array]:
    place = next((x.device for x in (x1, x2) if isinstance(x, Array)), None)
    return as_array(x1, place), as_array(x2, place)


logical_and = _logic("logical_and", "And")
logical_or = _logic("logical_or", "Or")
logical_xor = _logic("logical_xor", "Xor")


def logical_not(x: Any, /) -> Array:
    """`Not`; numbers are true unless they are zero."""
    return unary("Not", cast(as_array(x), np.dtype(np.bool_)))


def _bits(name: str, record: str) -> Callable[[Any, Any], Array]:
    logic = record.removeprefix("Bitwise")

    def function(x1: Any, x2: Any, /) -> Array:
        a, b = alike(x1, x2)
        return binary(logic if _dtype(a).kind == "b" else record, a, b)

    return _called(function, name, f"`{record}` of integers, `{logic}` of booleans.")


bitwise_and = _bits("bitwise_and", "BitwiseAnd")
bitwise_or = _bits("bitwise_or", "BitwiseOr")
bitwise_xor = _bits("bitwise_xor", "BitwiseXor")


def bitwise_invert(x: Any, /) -> Array:
    """`BitwiseNot` of integers, `Not` of booleans."""
    one = as_array(x)
    return unary("Not" if one.dtype.kind == "b" else "BitwiseNot", one)


def bitwise_left_shift(x1: Any, x2: Any, /) -> Array:
    """`BitShift` to the left."""
    return binary("BitShift", x1, x2, direction="LEFT")


def bitwise_right_shift(x1: Any, x2: Any, /) -> Array:
    """`BitShift` to the right; the sign is kept."""
    return binary("BitShift", x1, x2, direction="RIGHT")


_WHOLE = {np.dtype(f"float{n}"): DType[f"INT{n}"] for n in (16, 32)} | {DOUBLE: DType.INT64}


def _as_bits(x: Array) -> Array:
    return apply("BitCast", x, to=_WHOLE[x.dtype].onnx)


def signbit(x: Any, /) -> Array:
    """Return where the sign is negative, also of zeros and NaN."""
    one = as_array(x)
    if one.dtype.kind == "c":
        raise ShapeError(f"{one.where} has no sign", where="mezzo.nd.signbit", hint="take real or imag")
    return binary("Less", _as_bits(one) if one.dtype in _WHOLE else one, 0)


def copysign(x1: Any, x2: Any, /) -> Array:
    """x1 with the sign of x2."""
    a, b = _arrays(*_reals("copysign", x1, x2))
    return where(binary("Equal", signbit(a), signbit(b)), a, unary("Neg", a))


def _arrays(*xs: Any) -> list[Array]:
    place = next(x.device for x in xs if isinstance(x, Array))
    return [as_array(x, place) for x in xs]


def nextafter(x1: Any, x2: Any, /) -> Array:
    """The next float from x1 towards x2: one more or less in the bits, which order floats of one sign."""
    a, b = _arrays(*_reals("nextafter", x1, x2))
    bits = _as_bits(a)
    grows = binary("Equal", binary("Less", a, b), unary("Not", signbit(a)))
    steps = where(grows, binary("Add", bits, 1), binary("Sub", bits, 1))
    moved: Array = apply("BitCast", steps, to=DType.of(a.dtype).onnx)
    tiny: Array = apply("BitCast", where(signbit(b), _least(bits), _one(bits)), to=DType.of(a.dtype).onnx)
    result = where(binary("Equal", a, 0), tiny, moved)
    result = where(binary("Equal", a, b), b, result)
    return where(binary("Or", unary("IsNaN", a), unary("IsNaN", b)), binary("Add", a, b), result)


def _reals(name: str, *xs: Any) -> list[Any]:
    """Operands of one element type, integers as float64. Raises ShapeError for complex numbers, which have no
    order and no sign."""
    found = alike(*xs, floating=True)
    if found[0].dtype.kind == "c":
        raise ShapeError(
            "complex numbers, for which it means nothing", where=f"mezzo.nd.{name}", hint="take real or imag"
        )
    return found


def _one(bits: Array) -> Array:
    return as_array(np.ones((), bits.dtype), bits.device)


def _least(bits: Array) -> Array:
    return as_array(np.array(np.iinfo(bits.dtype).min + 1, bits.dtype), bits.device)


# -- functions that ONNX has under no name -----------------------------------------------------------------------------


def _ours(name: str, record: str, operands: int) -> Callable[..., Array]:
    def function(*xs: Any) -> Array:
        given = _reals(name, *xs) if operands > 1 else [floats(xs[0])]
        return apply(record, *given, domain="mezzo")

    def one(x: Any, /) -> Array:
        return function(x)

    def two(x1: Any, x2: Any, /) -> Array:
        return function(x1, x2)

    chosen: Callable[..., Array] = one if operands == 1 else two
    return _called(chosen, name, f"`mezzo.{record}`, an operator of ours.")


_real_expm1 = _ours("expm1", "Expm1", 1)
log1p = _ours("log1p", "Log1p", 1)
log2 = _ours("log2", "Log2", 1)
log10 = _ours("log10", "Log10", 1)
atan2 = _ours("atan2", "Atan2", 2)
hypot = _ours("hypot", "Hypot", 2)
logaddexp = _ours("logaddexp", "LogAddExp", 2)


# -- complex numbers at special values, which the standard has otherwise than C ----------------------------------------


def tanh(x: Any, /) -> Array:
    """`Tanh` of ONNX; integers become float64. Of complex numbers at infinity the imaginary part is a zero with
    the sign that it had."""
    result = unary("Tanh", floats(x))
    if result.dtype.kind != "c":
        return result
    a, b = _real_imag(floats(x))
    ends = binary("And", isinf(a), isfinite(b))
    re, im = _real_imag(result)
    return _complex(where(ends, sign(a), re), where(ends, copysign(0.0, b), im))


def expm1(x: Any, /) -> Array:
    """`mezzo.Expm1`, an operator of ours; integers become float64. Of complex numbers by sine, cosine and
    exponential of their parts, exact near 0 as well."""
    one = floats(x)
    if one.dtype.kind != "c":
        return _real_expm1(one)
    a, b = _real_imag(one)
    half, endless = sin(b * 0.5), isinf(a)
    lost = binary("And", endless, unary("Not", isfinite(b)))  # where the angle says nothing
    low = binary("And", endless, a < 0)
    near = _real_expm1(a) * cos(b) - half * half * 2.0 + 0.0  # of zeros the one above
    re = where(low, -1.0, where(lost, math.inf, near))
    im = where(binary("Equal", b, 0), b, where(binary("And", low, lost), 0.0, exp(a) * sin(b)))
    return _complex(re, im)


def _real_imag(x: Array) -> tuple[Array, Array]:
    pairs = _pairs(x)
    return pairs[..., 0], pairs[..., 1]


def _complex(re: Array, im: Array) -> Array:
    """Complex numbers of their parts: `mezzo.Complex`."""
    return apply("Complex", stack([re, im], axis=-1), domain="mezzo")
