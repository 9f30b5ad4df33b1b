"""Operators in NumPy's style that compute element by element or reduce, of gluon models since 1.6.

They differ from the legacy ones in their types: comparisons and tests answer truths, operands of two element types meet
in one, quotients are floats, positions are int64, and a reduction of all axes leaves no axis.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ....ops import DType
from ....ops.errors import UnsupportedModel
from ..converter import Converter, Value, element_type
from ..rules import rule as general_rule
from .elementwise import mod
from .reductions import ordered

rule = partial(general_rule, keeps_axes=True)
Two = Callable[[Converter, str, str], Any]
DEFAULT = DType.FLOAT


def common(c: Converter, x: str, y: str) -> tuple[Value, Value]:
    """Operands in one element type: floating before whole, whole before truths, then the wider."""
    a, b = c.dtype(x), c.dtype(y)
    order = (a.floating, a is not DType.BOOL, a.bits), (b.floating, b is not DType.BOOL, b.bits)
    kind = a if order[0] >= order[1] else b
    return c.cast(x, kind), c.cast(y, kind)


def floating(c: Converter, x: str) -> Value:
    return x if c.dtype(x).floating else c.cast(x, DEFAULT)


def _divided(c: Converter, x: str, y: str) -> Value:
    x, y = common(c, x, y)
    return c.Div(floating(c, x), floating(c, y))


def _power(c: Converter, x: str, y: str) -> Value:
    return c.Pow(*common(c, x, y))


def _copysign(c: Converter, x: str, y: str) -> Value:
    """The size of one with the sign of the other, of -0 too."""
    x, y = common(c, floating(c, x), floating(c, y))
    below = c.Or(c.Less(y, c.number(0, y)), c.Less(c.Div(c.number(1, y), y), c.number(0, y)))
    size = c.Abs(x)
    return c.Where(below, c.Neg(size), size)


def _ldexp(c: Converter, x: str, y: str) -> Value:
    x, y = common(c, floating(c, x), floating(c, y))
    return c.Mul(x, c.Pow(c.number(2, y), y))


def _lcm(c: Converter, x: str, y: str) -> Value:
    """Euclid's algorithm on both, as many steps as 64 bits can take."""
    x, y = common(c, x, y)
    a, b = c.Abs(x), c.Abs(y)
    product = c.Mul(a, b)
    one, zero = c.number(1, a), c.number(0, a)
    for _ in range(STEPS_OF_EUCLID[c.dtype(a).bits]):
        done = c.Equal(b, zero)
        a, b = c.Where(done, a, b), c.Where(done, b, c.Mod(a, c.Where(done, one, b)))
    return c.Where(c.Equal(a, zero), zero, c.Div(product, c.Where(c.Equal(a, zero), one, a)))


STEPS_OF_EUCLID = {8: 12, 16: 23, 32: 46, 64: 92}  # Lame: Fibonacci numbers take the most steps


def _bits(bitwise: str, logical: str) -> Two:
    def write(c: Converter, x: str, y: str) -> Any:
        x, y = common(c, x, y)
        return c.op(logical if c.dtype(x) is DType.BOOL else bitwise, x, y)

    return write


def _compared(op: str, *, negate: bool = False) -> Two:
    def write(c: Converter, x: str, y: str) -> Any:
        x, y = common(c, x, y)
        if c.dtype(x) is DType.BOOL and op != "Equal":
            x, y = c.cast(x, DType.INT32), c.cast(y, DType.INT32)
        result = c.op(op, x, y)
        return c.Not(result) if negate else result

    return write


def _plain(op: str) -> Two:
    return lambda c, x, y: c.op(op, *common(c, x, y))


def _float_only(op: str) -> Two:
    return lambda c, x, y: c.op(op, *common(c, floating(c, x), floating(c, y)), domain="mezzo")


PAIRS: dict[str, Two] = {
    "add": _plain("Add"), "subtract": _plain("Sub"), "multiply": _plain("Mul"), "true_divide": _divided,
    "power": _power, "mod": lambda c, x, y: mod(c, *common(c, x, y)), "arctan2": _float_only("Atan2"),
    "copysign": _copysign, "ldexp": _ldexp, "lcm": _lcm,
    "bitwise_and": _bits("BitwiseAnd", "And"), "bitwise_or": _bits("BitwiseOr", "Or"),
    "bitwise_xor": _bits("BitwiseXor", "Xor"), "equal": _compared("Equal"),
    "not_equal": _compared("Equal", negate=True), "greater": _compared("Greater"),
    "greater_equal": _compared("GreaterOrEqual"), "less": _compared("Less"), "less_equal": _compared("LessOrEqual"),
}  # fmt: skip
TURNED = ("subtract", "true_divide", "power", "mod", "arctan2", "copysign", "ldexp")  # `_npi_rsubtract_scalar`


def _of_two(c: Converter, lhs: str, rhs: str, *, write: Two) -> Any:
    return write(c, lhs, rhs)


def _of_scalar(
    c: Converter, data: str, *, scalar: float = 1.0, is_int: bool = True, write: Two, swapped: bool = False
) -> Any:
    """Whole numbers and a fraction meet in float64; their quotients are float32."""
    if not is_int and not c.dtype(data).floating:
        data = c.cast(data, DEFAULT if write is _divided else DType.DOUBLE)
    other = c.number(scalar, data)
    return write(c, other, data) if swapped else write(c, data, other)


for _name, _write in PAIRS.items():
    rule(f"_npi_{_name}", write=_write)(_of_two)
    rule(f"_npi_{_name}_scalar", write=_write)(_of_scalar)
    if _name in TURNED:
        rule(f"_npi_r{_name}_scalar", write=_write, swapped=True)(_of_scalar)


def _infinite(negative: int, positive: int) -> Callable[[Converter, str], Any]:
    return lambda c, x: c.IsInf(floating(c, x), detect_negative=negative, detect_positive=positive)


TESTS: dict[str, Callable[[Converter, str], Any]] = {
    "isnan": lambda c, x: c.IsNaN(floating(c, x)), "isinf": _infinite(1, 1), "isposinf": _infinite(0, 1),
    "isneginf": _infinite(1, 0),
    "isfinite": lambda c, x: c.Not(c.Or(c.IsNaN(floating(c, x)), c.IsInf(floating(c, x)))),
    "logical_not": lambda c, x: c.Not(c.truth(x)),
    "bitwise_not": lambda c, x: c.Not(x) if c.dtype(x) is DType.BOOL else c.BitwiseNot(x),
}  # fmt: skip


def _test(c: Converter, x: str, *, write: Callable[[Converter, str], Any]) -> Any:
    return write(c, x)


for _name, _of in TESTS.items():
    rule(f"_npi_{_name}", write=_of)(_test)
rule("_np_copy")(lambda c, a: c.Identity(a))


@rule("_npi_around")
def around(c: Converter, x: str, *, decimals: int = 0) -> Any:
    """Halves to the even one."""
    if not c.dtype(x).floating and decimals >= 0:
        return c.Identity(x)
    wide = floating(c, x)
    factor = c.number(10.0 ** abs(decimals), wide)
    if decimals == 0:
        return c.Round(wide)
    scaled = c.Round(c.Mul(wide, factor) if decimals > 0 else c.Div(wide, factor))
    return c.cast(c.Div(scaled, factor) if decimals > 0 else c.Mul(scaled, factor), c.dtype(x))


@rule("_npi_nan_to_num")
def nan_to_num(
    c: Converter, data: str, *, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    if not c.dtype(data).floating:
        return c.Identity(data)
    edge = float(np.finfo(c.dtype(data).numpy).max)
    high, low = (v if v is not None else sign * edge for v, sign in ((posinf, 1), (neginf, -1)))
    result = c.Where(c.IsNaN(data), c.number(nan, data), data)
    result = c.Where(c.IsInf(data, detect_negative=0), c.number(high, data), result)
    return c.Where(c.IsInf(data, detect_positive=0), c.number(low, data), result)


@rule("_npi_where_lscalar")
def where_left(c: Converter, condition: str, x: str, *, scalar: float = 0.0) -> Any:
    return c.Where(c.truth(condition), c.number(scalar, x), x)


@rule("_npi_where_rscalar")
def where_right(c: Converter, condition: str, y: str, *, scalar: float = 0.0) -> Any:
    return c.Where(c.truth(condition), y, c.number(scalar, y))


@rule("_npi_where_scalar2")
def where_scalars(c: Converter, condition: str, *, x: float = 0.0, y: float = 0.0) -> Any:
    return c.Where(c.truth(condition), c.const(x, DEFAULT), c.const(y, DEFAULT))


@rule("_npx_constraint_check")
def constraint_check(c: Converter, input: str, *, msg: str = "Constraint violated.") -> Any:
    """True where all hold; what does not hold is told by the result, not by an error."""
    return c.cast(c.ReduceMin(c.cast(c.truth(input), DType.INT32), keepdims=0), DType.BOOL)


# Reductions


def _reduced(
    c: Converter,
    a: str,
    *,
    op: str,
    axis: Any = None,
    dtype: Any = None,
    keepdims: bool = False,
    initial: Any = None,
) -> Any:
    if initial is not None:
        raise UnsupportedModel("a reduction with `initial` is not carried")
    if dtype is not None:
        a = c.cast(a, element_type(dtype))
    elif op == "ReduceMean":
        a = floating(c, a)
    elif c.dtype(a) is DType.BOOL:
        a = c.cast(a, DType.INT64)
    axes = c.axes(a, axis)
    return c.op(op, a, c.ints(*axes), keepdims=int(keepdims)) if axes else c.Identity(a)


for _row in "Sum _np_sum|Prod _np_prod _np_product|Mean _npi_mean|Max _np_max _np_amax|Min _np_min _np_amin".split("|"):
    _op, *_names = _row.split()
    general_rule(*_names, op=f"Reduce{_op}")(_reduced)


def _spread(
    c: Converter,
    a: str,
    *,
    root: bool,
    axis: Any = None,
    dtype: Any = None,
    ddof: int = 0,
    keepdims: bool = False,
) -> Any:
    a = c.cast(a, element_type(dtype)) if dtype is not None else floating(c, a)
    axes = c.ints(*c.axes(a, axis))
    centred = c.Sub(a, c.ReduceMean(a, axes, keepdims=1))
    squares = c.Mul(centred, centred)
    variance = c.ReduceMean(squares, axes, keepdims=int(keepdims))
    if ddof:
        count = c.cast(c.ReduceProd(c.Gather(c.shape_of(a), axes), keepdims=0), c.dtype(a))
        variance = c.Mul(variance, c.Div(count, c.Sub(count, c.number(ddof, a))))
    return c.Sqrt(variance) if root else variance


general_rule("_npi_std", root=True)(_spread)
general_rule("_npi_var", root=False)(_spread)


def _whether(c: Converter, data: str, *, op: str, axis: Any = None, keepdims: bool = False) -> Any:
    truths = c.cast(c.truth(data), DType.INT32)
    return c.cast(c.op(op, truths, c.ints(*c.axes(data, axis)), keepdims=int(keepdims)), DType.BOOL)


general_rule("_np_any", "_np_sometrue", op="ReduceMax")(_whether)
general_rule("_np_all", op="ReduceMin")(_whether)


def _position(c: Converter, data: str, *, op: str, axis: Any = None, keepdims: bool = False) -> Any:
    if axis is not None:
        return c.op(op, data, axis=c.axis(data, axis), keepdims=int(keepdims))
    flat = c.op(op, c.reshape(data, [-1]), axis=0, keepdims=0)
    return c.reshape(flat, [1] * c.rank(data)) if keepdims else flat


general_rule("_npi_argmax", op="ArgMax")(_position)
general_rule("_npi_argmin", op="ArgMin")(_position)


@general_rule("_npi_average")
def average(
    c: Converter,
    a: str,
    weights: str | None = None,
    *,
    axis: Any = None,
    returned: bool = False,
    weighted: bool = True,
) -> Any:
    axes = c.axes(a, axis)
    over = c.ints(*axes)
    if not weighted or weights is None:
        mean = c.ReduceMean(floating(c, a), over, keepdims=0)
        total = c.cast(c.ReduceProd(c.Gather(c.shape_of(a), over), keepdims=0), c.dtype(mean))
        return (mean, c.Expand(total, c.shape_of(mean))) if returned else mean
    a, weights = common(c, floating(c, a), weights)
    if c.rank(weights) < c.rank(a):
        weights = c.reshape(weights, [-1 if i == axes[0] else 1 for i in range(c.rank(a))])
    total = c.ReduceSum(c.Expand(weights, c.shape_of(a)), over, keepdims=0)
    mean = c.Div(c.ReduceSum(c.Mul(a, weights), over, keepdims=0), total)
    return (mean, total) if returned else mean


@general_rule("_npi_norm")
def norm(c: Converter, data: str, *, axis: Any = None, ord: Any = 2.0, keepdims: bool = False, flag: int = 0) -> Any:
    if ord not in (2, 1, None) or flag > 1 or (flag == -1 and isinstance(axis, tuple) and len(axis) > 1):
        raise UnsupportedModel(f"the norm {ord!r} of axes {axis!r} is not carried")
    return c.op("ReduceL1" if ord == 1 else "ReduceL2", data, c.ints(*c.axes(data, axis)), keepdims=int(keepdims))


@general_rule("_np_cumsum", "cumsum")
def cumsum(c: Converter, a: str, *, axis: Any = None, dtype: Any = None) -> Any:
    if dtype is not None:
        a = c.cast(a, element_type(dtype))
    if axis is None:
        a, axis = c.reshape(a, [-1]), 0
    return c.CumSum(a, c.const(c.axis(a, axis)))


@general_rule("_npi_percentile")
def percentile(
    c: Converter,
    a: str,
    q: str | None = None,
    *,
    axis: Any = None,
    interpolation: str = "linear",
    keepdims: bool = False,
    q_scalar: Any = None,
) -> Any:
    """Elements of the sorted axes, or between two of them. Percentiles that are an operand come as a first axis."""
    a = floating(c, a)
    axes = c.axes(a, axis)
    other_axes = [i for i in range(c.rank(a)) if i not in axes]
    count = 1
    for i in axes:
        count *= c.size(a, i, "to take a percentile of it")
    moved = c.transpose(a, [*axes, *other_axes])
    flat = c.Reshape(moved, c.shape_with([count, *(c.dim(a, i) for i in other_axes)]))
    up = ordered(c, flat, 0, largest=False)[0]
    wanted = c.const(float(q_scalar), DType.DOUBLE) if q is None else c.cast(q, DType.DOUBLE)
    place = c.Mul(c.Div(wanted, c.const(100.0, DType.DOUBLE)), c.const(float(count - 1), DType.DOUBLE))
    low, high = c.whole(c.Floor(place)), c.whole(c.Ceil(place))
    part = c.cast(c.Sub(place, c.Floor(place)), c.dtype(a))
    many = 0 if q is None else c.rank(q)
    if interpolation in ("lower", "higher"):
        result = c.Gather(up, low if interpolation == "lower" else high, axis=0)
    elif interpolation == "nearest":
        result = c.Gather(up, c.whole(c.Round(place)), axis=0)
    elif interpolation in ("linear", "midpoint"):
        first, second = c.Gather(up, low, axis=0), c.Gather(up, high, axis=0)
        if interpolation == "midpoint":
            result = c.Mul(c.Add(first, second), c.number(0.5, a))
        else:
            share = c.reshape(part, [-1, *[1] * len(other_axes)]) if many else part
            result = c.Add(first, c.Mul(c.Sub(second, first), share))
    else:
        raise UnsupportedModel(f"percentiles by {interpolation!r} are not known")
    if keepdims:
        result = c.unsqueeze(result, *(many + i for i in axes))
    return result


@general_rule("_npi_bincount")
def bincount(
    c: Converter, data: str, weights: str | None = None, *, minlength: int = 0, has_weights: bool = False
) -> Any:
    """Count each number, or the sum of its weights; as many as the largest number needs."""
    whole = c.whole(data)
    size = c.Max(c.Add(c.ReduceMax(whole, keepdims=0), c.const(1)), c.const(minlength))
    kind = c.dtype(data if weights is None else weights)
    zeros = c.full(c.reshape(size, [1]), 0, kind)
    ones = weights if weights is not None else c.like(whole, 1, kind)
    return c.ScatterElements(zeros, whole, ones, axis=0, reduction="add")


@general_rule("_npi_polyval")
def polyval(c: Converter, p: str, x: str) -> Any:
    """Coefficients from the highest power down."""
    count = c.size(p, 0, "for a polynomial")
    result = c.like(x, 0)
    for i in range(count):
        result = c.Add(c.Mul(result, x), c.squeeze(c.slice(p, 0, i, i + 1), 0))
    return result
