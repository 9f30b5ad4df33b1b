"""Operators that compute element by element: unary ones, of two operands, with a scalar, comparisons, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ....ops import DType
from ....ops.errors import UnsupportedModel
from ..converter import Converter, Value, element_type
from ..rules import rule as general_rule

rule = partial(general_rule, keeps_axes=True)  # results have the axes of the first operand
Write = Callable[[Converter, str], str]


def _sign_times(c: Converter, x: str, magnitude: str) -> Value:
    return c.Mul(c.Sign(x), magnitude)


def _cbrt(c: Converter, x: str) -> Value:
    return _sign_times(c, x, c.Pow(c.Abs(x), c.number(1 / 3, x)))


def _trunc(c: Converter, x: str) -> Value:
    return _sign_times(c, x, c.Floor(c.Abs(x))) if c.dtype(x).floating else x


def _round(c: Converter, x: str) -> Value:
    """Halves away from 0."""
    if not c.dtype(x).floating:
        return x
    whole = c.Floor(c.Abs(x))
    up = c.cast(c.GreaterOrEqual(c.Sub(c.Abs(x), whole), c.number(0.5, x)), c.dtype(x))
    return _sign_times(c, x, c.Add(whole, up))


def _rint(c: Converter, x: str) -> Value:
    """Halves down."""
    if not c.dtype(x).floating:
        return x
    low, high = c.Floor(x), c.Ceil(x)
    return c.Where(c.LessOrEqual(c.Sub(x, low), c.Sub(high, x)), low, high)


def _as_is(name: str) -> Write:
    """An operator that takes integers too."""
    return lambda c, x: c.op(name, x)


def _mezzo(name: str) -> Write:
    return lambda c, x: c.op(name, x, domain="mezzo")


def _times(factor: float) -> Write:
    return lambda c, x: c.Mul(x, c.number(factor, x))


# Those of ONNX's name in capitals, and arcsin, arccosh, ...: Asin, Acosh.
SAME = "ceil floor exp log relu reciprocal sigmoid softsign sqrt erf sin cos tan sinh cosh tanh".split()
ARCS = "arcsin arccos arctan arcsinh arccosh arctanh".split()
UNARY: dict[str, str | Write] = {
    **{name: name.capitalize() for name in SAME}, **{name: f"A{name[3:]}" for name in ARCS},
    "abs": _as_is("Abs"), "negative": _as_is("Neg"), "sign": _as_is("Sign"),
    "log10": _mezzo("Log10"), "log2": _mezzo("Log2"), "log1p": _mezzo("Log1p"), "expm1": _mezzo("Expm1"),
    "square": lambda c, x: c.Mul(x, x), "rsqrt": lambda c, x: c.Reciprocal(c.Sqrt(x)),
    "cbrt": _cbrt, "rcbrt": lambda c, x: c.Reciprocal(_cbrt(c, x)),
    "trunc": _trunc, "fix": _trunc, "round": _round, "rint": _rint,
    "degrees": _times(180 / math.pi), "radians": _times(math.pi / 180),
    "_copy": _as_is("Identity"), "identity": _as_is("Identity"), "_copyto": _as_is("Identity"),
    "make_loss": _as_is("Identity"), "_CrossDeviceCopy": _as_is("Identity"),
    "BlockGrad": lambda c, x: c.constant(x),
    "_contrib_div_sqrt_dim": lambda c, x: c.Div(x, c.number(math.sqrt(c.size(x, -1, "to divide by its root")), x)),
    "_contrib_round_ste": _round, "_contrib_sign_ste": _as_is("Sign"),
}  # fmt: skip
# Those that are registered again, for sparse arrays and for arrays in the manner of NumPy.
SPARSE = set(
    "abs ceil floor exp log negative relu sigmoid sqrt sign sin cos tan sinh cosh tanh arcsin arccos "
    "arctan arcsinh arccosh arctanh log10 log2 log1p expm1 square rsqrt cbrt trunc fix round rint degrees "
    "radians _contrib_round_ste _contrib_sign_ste".split()
)
NUMPY = set(
    "abs ceil floor exp log negative reciprocal sqrt sign sin cos tan sinh cosh tanh arcsin arccos arctan "
    "arcsinh arccosh arctanh log10 log2 log1p expm1 square cbrt trunc fix rint degrees radians".split()
)
ALIASES = {
    "BlockGrad": ("stop_gradient", "_sparse_stop_gradient"), "abs": ("_npi_absolute",), "_copyto": ("_npi_copyto",),
    "_contrib_round_ste": ("_sparse__contrib_round_ste",), "_contrib_sign_ste": ("_sparse__contrib_sign_ste",),
    "relu": ("_npx_relu",), "sigmoid": ("_npx_sigmoid",), "erf": ("_npx_erf",), "make_loss": ("_sparse_make_loss",),
}  # fmt: skip


def _unary(name: str, write: str | Write) -> None:
    def written(c: Converter, data: str) -> Any:
        if not isinstance(write, str):
            return write(c, data)
        if c.dtype(data).floating:
            return c.op(write, data)
        return c.cast(c.op(write, c.cast(data, DType.FLOAT)), c.dtype(data))

    more = [f"_sparse_{name}"] if name in SPARSE else []
    more += [f"_npi_{name}"] if name in NUMPY else []
    rule(name, *more, *ALIASES.get(name, ()))(written)


for _name, _write in UNARY.items():
    _unary(_name, _write)


def mod(c: Converter, x: str, y: str) -> Value:
    """The remainder with the sign of the divisor; 0 where that is 0."""
    zero = c.number(0, y)
    none = c.Equal(y, zero)
    remainder = c.Mod(x, c.Where(none, c.number(1, y), y), fmod=int(c.dtype(x).floating))
    if c.dtype(x).floating:
        apart = c.And(c.Not(c.Equal(remainder, zero)), c.Xor(c.Less(remainder, zero), c.Less(y, zero)))
        remainder = c.Add(remainder, c.Where(apart, y, zero))
    return c.Where(none, zero, remainder)


def compared(c: Converter, op: str, x: str, y: str, *, negate: bool = False) -> Value:
    """1 and 0 in the element type of the operands, as MXNet's legacy operators answer."""
    result = c.op(op, x, y)
    return c.cast(c.Not(result) if negate else result, c.dtype(x))


def logical(c: Converter, op: str, x: str, y: str) -> Value:
    return c.cast(c.op(op, c.truth(x), c.truth(y)), c.dtype(x))


BINARY: dict[str, Callable[[Converter, str, str], str]] = {
    "add": lambda c, x, y: c.Add(x, y), "sub": lambda c, x, y: c.Sub(x, y), "mul": lambda c, x, y: c.Mul(x, y),
    "div": lambda c, x, y: c.Div(x, y), "power": lambda c, x, y: c.Pow(x, y),
    "maximum": lambda c, x, y: c.Max(x, y), "minimum": lambda c, x, y: c.Min(x, y), "mod": mod,
    "hypot": lambda c, x, y: c.op("Hypot", x, y, domain="mezzo"),
    "equal": lambda c, x, y: compared(c, "Equal", x, y),
    "not_equal": lambda c, x, y: compared(c, "Equal", x, y, negate=True),
    "greater": lambda c, x, y: compared(c, "Greater", x, y),
    "greater_equal": lambda c, x, y: compared(c, "GreaterOrEqual", x, y),
    "lesser": lambda c, x, y: compared(c, "Less", x, y),
    "lesser_equal": lambda c, x, y: compared(c, "LessOrEqual", x, y),
    "logical_and": lambda c, x, y: logical(c, "And", x, y),
    "logical_or": lambda c, x, y: logical(c, "Or", x, y),
    "logical_xor": lambda c, x, y: logical(c, "Xor", x, y),
}  # fmt: skip
TWO = {
    "add": "elemwise_add _plus _Plus _add _grad_add _sparse_elemwise_add broadcast_plus _sparse_broadcast_add "
    "_sparse_broadcast_plus",
    "sub": "elemwise_sub _minus _Minus _sub _sparse_elemwise_sub broadcast_minus _sparse_broadcast_sub "
    "_sparse_broadcast_minus",
    "mul": "elemwise_mul _mul _Mul _sparse_elemwise_mul _sparse_broadcast_mul",
    "div": "elemwise_div _div _Div _sparse_elemwise_div _sparse_broadcast_div _scatter_elemwise_div",
    "power": "_power _Power",
    "maximum": "_maximum _Maximum _npi_maximum",
    "minimum": "_minimum _Minimum _npi_minimum",
    "hypot": "_hypot _Hypot _npi_hypot",
    "mod": "_mod _Mod",
}
SCALAR = {
    "add": "_plus_scalar _PlusScalar _scatter_plus_scalar",
    "sub": "_minus_scalar _MinusScalar _scatter_minus_scalar",
    "mul": "_mul_scalar _MulScalar",
    "div": "_div_scalar _DivScalar",
    "hypot": "_hypot_scalar _HypotScalar _npi_hypot_scalar",
    "maximum": "_maximum_scalar _MaximumScalar _npi_maximum_scalar",
    "minimum": "_minimum_scalar _MinimumScalar _npi_minimum_scalar",
}
REVERSED = {"sub": "rminus RMinus", "div": "rdiv RDiv", "power": "rpower RPower", "mod": "rmod RMod"}


def _camel(name: str) -> Value:
    return "".join(part.capitalize() for part in name.split("_"))


def _with_scalar(c: Converter, data: str, *, scalar: float = 1.0, write: Any, swapped: bool = False) -> Any:
    other = c.number(scalar, data)
    return write(c, other, data) if swapped else write(c, data, other)


def _binary(c: Converter, lhs: str, rhs: str, *, write: Any) -> Any:
    return write(c, lhs, rhs)


for _name, _both in BINARY.items():
    _names = [f"broadcast_{_name}", *TWO.get(_name, f"_{_name}").split()]
    if _name not in TWO:  # the capitals of MXNet's first releases: _Greater_Equal
        _names.append("_" + "_".join(p.capitalize() for p in _name.split("_")))
    rule(*_names, write=_both)(_binary)
    _names = SCALAR.get(_name, f"_{_name}_scalar _{_camel(_name)}Scalar").split()
    rule(*_names, write=_both)(_with_scalar)
for _name, _texts in REVERSED.items():
    _low, _high = _texts.split()
    rule(f"_{_low}_scalar", f"_{_high}Scalar", write=BINARY[_name], swapped=True)(_with_scalar)


@rule("logical_not")
def logical_not(c: Converter, data: str) -> Any:
    return c.cast(c.Not(c.truth(data)), c.dtype(data))


@rule("add_n", "ElementWiseSum", "_sparse_ElementWiseSum", "_sparse_add_n")
def add_n(c: Converter, *args: str) -> Any:
    return c.Sum(*args)


@rule("clip", "_sparse_clip", "_npi_clip")
def clip(c: Converter, data: str, *, a_min: Any, a_max: Any) -> Any:
    low, high = (None if v is None else c.number(v, data) for v in (a_min, a_max))
    return c.Clip(data, low, high)


@rule("smooth_l1", "_npx_smooth_l1")
def smooth_l1(c: Converter, data: str, *, scalar: float = 1.0) -> Any:
    """0.5 (sx)^2 within 1/s^2, else |x| - 0.5/s^2."""
    square, size = scalar * scalar, c.Abs(data)
    inside = c.Mul(c.Mul(data, data), c.number(0.5 * square, data))
    outside = c.Sub(size, c.number(0.5 / square, data))
    return c.Where(c.Less(size, c.number(1 / square, data)), inside, outside)


@rule("_contrib_gradientmultiplier")
def gradient_multiplier(c: Converter, data: str, *, scalar: float = 1.0) -> Any:
    """The operand itself, of which the gradient is multiplied: a part learns, the rest does not."""
    if scalar == 1:
        return c.Identity(data)
    part = c.Mul(data, c.number(scalar, data))
    return c.Add(part, c.constant(c.Sub(data, part)))


@rule("hard_sigmoid")
def hard_sigmoid(c: Converter, data: str, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return c.HardSigmoid(data, alpha=alpha, beta=beta)


@rule("_contrib_quadratic")
def quadratic(g: Converter, data: str, *, a: float = 0.0, b: float = 0.0, c: float = 0.0) -> Any:
    square = g.Mul(g.Mul(data, data), g.number(a, data))
    return g.Add(g.Add(square, g.Mul(data, g.number(b, data))), g.number(c, data))


@rule("Cast", "cast", "amp_cast", "_npi_cast", "_npx_cast")
def cast(c: Converter, data: str, *, dtype: Any) -> Any:
    return c.cast(data, element_type(dtype)) if element_type(dtype) is not c.dtype(data) else c.Identity(data)


@rule("amp_multicast")
def amp_multicast(c: Converter, *data: str, num_outputs: int, cast_narrow: bool = False) -> Any:
    """All operands in the widest of their element types, or in the narrowest."""
    width = (min if cast_narrow else max)((c.dtype(x) for x in data), key=lambda d: d.bits)
    return tuple(c.Identity(x) if c.dtype(x) is width else c.cast(x, width) for x in data[:num_outputs])


@rule("cast_storage", "_sparse_cast_storage")
def cast_storage(c: Converter, data: str, *, stype: str) -> Any:
    return c.Identity(data)


@rule("_identity_with_attr_like_rhs")
def identity_like(c: Converter, lhs: str, rhs: str) -> Any:
    return c.Identity(lhs)


ACTIVATIONS: dict[str, Write] = {
    "relu": lambda c, x: c.Relu(x), "sigmoid": lambda c, x: c.Sigmoid(x), "tanh": lambda c, x: c.Tanh(x),
    "softrelu": lambda c, x: c.Softplus(x), "softsign": lambda c, x: c.Softsign(x),
    "log_sigmoid": lambda c, x: c.Neg(c.Softplus(c.Neg(x))), "mish": lambda c, x: c.Mish(x),
}  # fmt: skip


@rule("Activation", "_npx_activation")
def activation(c: Converter, data: str, *, act_type: str) -> Any:
    if act_type not in ACTIVATIONS:
        raise UnsupportedModel(f"the activation {act_type!r} is not known")
    return ACTIVATIONS[act_type](c, data)


@rule("LeakyReLU", "_npx_leaky_relu")
def leaky_relu(
    c: Converter,
    data: str,
    gamma: str | None = None,
    *,
    act_type: str = "leaky",
    slope: float = 0.25,
    lower_bound: float = 0.125,
    upper_bound: float = 0.334,
) -> Any:
    """`rrelu` multiplies by the mean of its bounds, as it does outside of training."""
    if act_type == "prelu":
        assert gamma is not None
        rank, sizes = c.rank(data), c.dims(gamma)
        if rank > 1 and len(sizes) == 1 and sizes != (1,):
            gamma = c.unsqueeze(gamma, *range(1, rank - 1))
        return c.PRelu(data, gamma)
    if act_type in ("leaky", "rrelu"):
        alpha = slope if act_type == "leaky" else (lower_bound + upper_bound) / 2
        return c.LeakyRelu(data, alpha=alpha)
    if act_type == "elu":
        return c.Elu(data, alpha=slope)
    if act_type == "selu":
        return c.Selu(data, alpha=1.6732632423543772848170429916717, gamma=1.0507009873554804934193349852946)
    if act_type == "gelu":
        return c.Gelu(data)
    raise UnsupportedModel(f"the activation {act_type!r} is not known")


@rule("all_finite")
def all_finite(c: Converter, data: str, *, init_output: bool = True) -> Any:
    odd = c.Or(c.IsNaN(data), c.IsInf(data))
    return c.Reshape(c.Sub(c.const(1.0, DType.FLOAT), c.ReduceMax(c.cast(odd, DType.FLOAT), keepdims=0)), c.ints(1))


@rule("_contrib_allclose")
def allclose(c: Converter, a: str, b: str, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = True) -> Any:
    near = c.LessOrEqual(c.Abs(c.Sub(a, b)), c.Add(c.number(atol, a), c.Mul(c.number(rtol, a), c.Abs(b))))
    near = c.Or(near, c.Equal(a, b))
    if equal_nan:
        near = c.Or(near, c.And(c.IsNaN(a), c.IsNaN(b)))
    return c.cast(c.ReduceMin(c.cast(near, DType.FLOAT), keepdims=0), DType.UINT8)
