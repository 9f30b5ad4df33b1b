"""Lowered expressions as CUDA C++ statements for one element; the counterpart of ops/core/evaluate.py for NumPy.

Whole numbers go round, divisions are floored where the primitive says so, extremes keep NaN, shifts are total, and
numbers that fit no integer become what they become on x86-64, where NumPy leaves it to the processor: the smallest
number of 32 bits (64 for 64-bit and unsigned 32-bit types), cut to the type.

Floats of 16 bits are held as float and rounded where they are stored; so are intermediate results of chains, which
saves their rounding. `rounded` marks the casts that round: those that a model asks for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....ops import DType
from ....ops.core.expr import PRIMITIVES, Expr
from ....ops.core.lowered import Instruction, Lowered
from ....ops.dataclasses import dataclass
from .text import Element, element


class Unwritten(Exception):
    """An expression without CUDA source, with the reason."""


@dataclass(frozen=True, slots=True)
class CudaSource:
    """Statements, the names of their results, and the functions before the kernel."""

    lines: tuple[str, ...]
    results: tuple[str, ...]
    functions: str


def rounded(x: Expr, dtype: DType) -> Expr:
    """A cast that a model asks for: floats of 16 bits are rounded there and then."""
    return x if x.dtype is dtype else Expr("cast", (x,), dtype, True)


def element_of(dtype: DType) -> Element:
    """Return the C++ form of an element type. Raises Unwritten for those without one."""
    form = element(dtype)
    if form is None:
        raise Unwritten(f"no kernel of ours computes with {dtype}")
    return form


def write(code: Lowered, operands: Sequence[str], prefix: str = "t") -> CudaSource:
    """Statements that compute the results of code from C++ expressions for its inputs, which are of the computed type
    (float for floats of 16 bits). Names begin with `prefix`. Raises Unwritten for what has no source.

    >>> from mezzo.ops.core.expr import E, inputs
    >>> from mezzo.ops.core.lowered import lower
    >>> x, n = inputs([DType.FLOAT, DType.INT8])
    >>> for line in write(lower([E.max(x, 0) + E.cast(n, DType.FLOAT)], 2), ["x", "n"]).lines:
    ...     print(line)
    const float t0 = (x > 0.0f || x != x) ? x : 0.0f;
    const float t1 = (float)n;
    const float t2 = t0 + t1;
    """
    lines: list[str] = []
    names = [*operands]
    functions: dict[str, str] = {}

    def named(text: str, dtype: DType) -> str:
        name = f"{prefix}{len(lines)}"
        lines.append(f"const {element_of(dtype).wide} {name} = {text};")
        return name

    for instruction in code.code:
        if instruction.kind == "const":
            names.append(literal(instruction))
            continue
        args, of = [names[a] for a in instruction.args], code.dtype(instruction.args[0])
        if instruction.kind == "where":
            text = "{} ? {} : {}".format(*args)
        elif instruction.kind == "cast":
            text = cast(args[0], of, instruction.dtype, functions, bool(instruction.value))
        elif instruction.kind == "pow" and (power := _power(code, instruction)):  # a twentieth of the cost
            if power == 3:
                args = [named(_FLOATS["mul"].format(args[0], args[0]), of), args[0]]
            kind, args = ("reciprocal", args) if power == -1 else ("mul", [args[0], names[instruction.args[0]]])
            text = primitive(kind, of, instruction.dtype, functions).format(*args)
        else:
            text = primitive(instruction.kind, of, instruction.dtype, functions).format(*args)
        names.append(args[0] if instruction.kind == "cast" and text == args[0] else named(text, instruction.dtype))
    return CudaSource(tuple(lines), tuple(names[r] for r in code.roots), "".join(functions.values()))


def _power(code: Lowered, instruction: Instruction) -> int:
    """The exponent of a power of floats that is a product of few factors or a reciprocal; else 0."""
    exponent = instruction.args[1] - len(code.inputs)
    if not instruction.dtype.floating or exponent < 0 or code.code[exponent].kind != "const":
        return 0
    return next((n for n in (2, 3, -1) if code.code[exponent].value == n), 0)


def literal(constant: Instruction) -> str:
    """A constant in its element type, as NumPy makes it."""
    e = element_of(constant.dtype)
    value = np.asarray(constant.value, constant.dtype.numpy).item()
    if constant.dtype is DType.BOOL:
        return "true" if value else "false"
    if not constant.dtype.floating:
        return f"({e.wide}){e.integer(int(value))}"
    if not math.isfinite(value):
        return f"({e.number(value)})"
    shown = repr(value) if e.wide == "double" else f"{np.float32(value)!s}f"
    return f"({shown})" if shown.startswith("-") else shown


# Casts


def cast(x: str, of: DType, to: DType, functions: dict[str, str], rounds: bool = False) -> str:
    """`x` as another element type, both in the types that are computed with."""
    source, target = element_of(of), element_of(to)
    if to is DType.BOOL:
        return f"{x} != 0"
    if to.narrow:
        if of is DType.DOUBLE and to is DType.FLOAT16:
            return target.read(f"__double2half({x})")  # rounded once
        single = x if source.wide == "float" else f"(float){x}"
        return target.read(target.write(single)) if rounds or of is DType.DOUBLE else single
    if of.floating and to.integer:
        wide = "to_int32" if to.bits < 32 or to is DType.INT32 else "to_uint64" if to is DType.UINT64 else "to_int64"
        function(wide, functions)
        return f"({target.wide}){wide}({x})"
    return x if source.wide == target.wide else f"({target.wide}){x}"


# Primitives

_FLOATS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "floor_div": "floored({0}, {1})", "mod": "remainder_of({0}, {1})", "fmod": "fmod~({0}, {1})",
    "pow": "pow~({0}, {1})", "neg": "-{0}", "abs": "fabs~({0})",
    "max": "({0} > {1} || {0} != {0}) ? {0} : {1}", "min": "({0} < {1} || {0} != {0}) ? {0} : {1}",
    "sign": "{0} > 0 ? 1 : {0} < 0 ? -1 : {0} == 0 ? 0 : {0}", "reciprocal": "1 / {0}",
    "isnan": "{0} != {0}", "isinf": "fabs~({0}) > FINITE",
}  # fmt: skip
_WHOLE = {
    "add": "(T)((U){0} + (U){1})", "sub": "(T)((U){0} - (U){1})", "mul": "(T)((U){0} * (U){1})",
    "floor_div": "whole_floored<T>({0}, {1})", "mod": "whole_remainder<T>({0}, {1})", "fmod": "whole_rest<T>({0}, {1})",
    "pow": "whole_power<T, U>({0}, {1})", "neg": "(T)(0 - (U){0})", "abs": "{0} < 0 ? (T)(0 - (U){0}) : {0}",
    "max": "{0} < {1} ? {1} : {0}", "min": "{1} < {0} ? {1} : {0}", "sign": "(T)(({0} > 0) - ({0} < 0))",
    "floor": "{0}", "ceil": "{0}", "isnan": "false", "isinf": "false",
    "bit_and": "(T)({0} & {1})", "bit_or": "(T)({0} | {1})", "bit_xor": "(T)({0} ^ {1})", "bit_not": "(T)(~{0})",
    "shift_left": "shifted_left<T, U>({0}, {1})", "shift_right": "shifted_right<T>({0}, {1})",
}  # fmt: skip
_TRUTHS = {
    "add": "{0} || {1}", "mul": "{0} && {1}", "max": "{0} || {1}", "min": "{0} && {1}", "abs": "{0}",
    "bit_and": "{0} && {1}", "bit_or": "{0} || {1}", "bit_xor": "{0} != {1}", "bit_not": "!{0}",
    "isnan": "false", "isinf": "false",
}  # fmt: skip
_TESTS = {
    "equal": "{0} == {1}", "less": "{0} < {1}", "less_equal": "{0} <= {1}", "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}", "and": "{0} != 0 && {1} != 0", "or": "{0} != 0 || {1} != 0",
    "xor": "({0} != 0) != ({1} != 0)", "not": "{0} == 0",
}  # fmt: skip
_LIBRARY = set(
    "exp expm1 log log1p sqrt floor ceil rint sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh".split()
)

_FUNCTIONS = {
    "to_int32": "template <class F> KERNEL_FN int to_int32(F x) "
    "{ return x > (F)-2147483649.0 && x < (F)2147483648.0 ? (int)x : -2147483647 - 1; }",
    "to_int64": "template <class F> KERNEL_FN long long to_int64(F x) { return x >= (F)-9223372036854775808.0 && "
    "x < (F)9223372036854775808.0 ? (long long)x : -9223372036854775807ll - 1; }",
    "to_uint64": "template <class F> KERNEL_FN unsigned long long to_uint64(F x) "
    "{ return x >= (F)9223372036854775808.0 ? (unsigned long long)to_int64(x - (F)9223372036854775808.0) ^ (1ull << 63)"
    " : (unsigned long long)to_int64(x); }",
    # as NumPy has it: the remainder has the sign of the divisor, and the quotient is what goes with it
    "remainder_of": "template <class F> KERNEL_FN F remainder_of(F a, F b) { F r = fmod(a, b); "
    "return b == 0 ? r : r != 0 ? ((b < 0) != (r < 0) ? r + b : r) : copysign((F)0, b); }",
    "floored": "template <class F> KERNEL_FN F floored(F a, F b) { if (b == 0) return a / b; F r = fmod(a, b); "
    "F q = (a - r) / b; if (r != 0 && (b < 0) != (r < 0)) q -= 1; if (q == 0) return copysign((F)0, a / b); "
    "F f = floor(q); return q - f > (F)0.5 ? f + 1 : f; }",
    "whole_rest": "template <class T> KERNEL_FN T whole_rest(T a, T b) "
    "{ return b == 0 || b == (T)-1 && (T)-1 < 0 ? (T)0 : (T)(a % b); }",
    "whole_remainder": "template <class T> KERNEL_FN T whole_remainder(T a, T b) "
    "{ T r = whole_rest<T>(a, b); return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r; }",
    "whole_floored": "template <class T> KERNEL_FN T whole_floored(T a, T b) { if (b == 0) return 0; "
    "if (b == (T)-1 && (T)-1 < 0) return (T)(0ull - (unsigned long long)a); "
    "T q = (T)(a / b), r = (T)(a % b); return r != 0 && (r < 0) != (b < 0) ? (T)(q - 1) : q; }",
    "whole_power": "template <class T, class U> KERNEL_FN T whole_power(T a, T n) { if (n < 0) "
    "return a == 1 ? (T)1 : a == (T)-1 ? (n & 1 ? a : (T)1) : (T)0; "
    "U r = 1, x = (U)a; for (U k = (U)n; k; k >>= 1, x *= x) if (k & 1) r *= x; return (T)r; }",
    "shifted_left": "template <class T, class U> KERNEL_FN T shifted_left(T a, T n) "
    "{ return n >= 0 && n < (T)(8 * sizeof(T)) ? (T)((U)a << n) : (T)0; }",
    "shifted_right": "template <class T> KERNEL_FN T shifted_right(T a, T n) "
    "{ return n >= 0 && n < (T)(8 * sizeof(T)) ? (T)(a >> n) : a < 0 ? (T)-1 : (T)0; }",
}
_NEEDS = {"to_uint64": "to_int64", "whole_remainder": "whole_rest"}


def function(name: str, functions: dict[str, str]) -> None:
    """See that a function stands before the kernel."""
    if name in _NEEDS:
        function(_NEEDS[name], functions)
    functions[name] = _FUNCTIONS[name].replace("KERNEL_FN", "__device__ __forceinline__") + "\n"


def primitive(kind: str, of: DType, to: DType, functions: dict[str, str]) -> str:
    """The form of a primitive over operands of an element type, with {0} and {1} in their places."""
    e = element_of(of)
    if kind in _TESTS:
        return _TESTS[kind]
    if of.floating:
        form = f"{kind}~({{0}})" if kind in _LIBRARY else _FLOATS.get(kind)
        wide = e.wide == "double"
        if form:
            form = form.replace("~", "" if wide else "f")
            form = form.replace("FINITE", "1.7976931348623157e308" if wide else "3.402823466e38f")
    elif of is DType.BOOL:
        form = _TRUTHS.get(kind)
    elif kind == "div":  # NumPy divides integers as float64, and the result becomes whole again
        return cast("((double){0} / (double){1})", DType.DOUBLE, to, functions)
    else:
        form = "{0}" if kind == "abs" and not of.signed else _WHOLE.get(kind)
        if form:
            # T and U stand alone in the forms
            form = form.replace("(T)", f"({e.wide})").replace("<T", f"<{e.wide}").replace("T>", f"{e.wide}>")
            form = form.replace("(U)", f"({_round(of)})").replace(", U>", f", {_round(of)}>")
    if form is None:
        raise Unwritten(f"{PRIMITIVES[kind][0]} of {of} has no kernel of ours")
    for name in _FUNCTIONS:
        if form.startswith(name):
            function(name, functions)
    return form


def _round(dtype: DType) -> str:
    """The type without a sign in which integers of an element type go round."""
    return "unsigned long long" if dtype.bits == 64 else "unsigned int"
