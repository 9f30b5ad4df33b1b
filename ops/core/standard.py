"""Scalar expressions written out as standard operators: the body of each pointwise operator that ONNX lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..types import DType
from .expr import Expr

# primitive -> standard operator
STANDARD = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "max": "Max", "min": "Min", "neg": "Neg",
    "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "reciprocal": "Reciprocal",
    "floor": "Floor", "ceil": "Ceil", "rint": "Round", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "isnan": "IsNaN", "isinf": "IsInf", "and": "And", "or": "Or", "xor": "Xor",
    "not": "Not", "where": "Where",
}  # fmt: skip
# Standard operators of one input whose own expressions are recognised in larger ones.
NAMED = ("Sigmoid", "Softplus", "Erf")


def written(
    g: Any, roots: Sequence[Expr], xs: Sequence[Any], expression_of: Callable[[str, DType], Expr]
) -> tuple[Any, ...] | None:
    """Expressions over values as standard operators, equal parts once; None where one of them has no such form."""
    done: dict[Expr, Any] = {}

    def write(e: Expr) -> Any:
        if e not in done:
            done[e] = operator_of(e)
        return done[e]

    def operator_of(e: Expr) -> Any:
        if e.kind == "input":
            return xs[int(e.value or 0)]
        if e.kind == "const":
            return g.const(e.value, e.dtype)
        if e.kind == "cast":
            return g.Cast(write(e.args[0]), to=e.dtype.onnx)
        if e.kind in ("expm1", "log1p"):
            one, x = g.const(1, e.dtype), write(e.args[0])
            return g.Sub(g.Exp(x), one) if e.kind == "expm1" else g.Log(g.Add(x, one))
        for name in NAMED:
            operand = _operand(expression_of(name, e.dtype), e)
            if operand is not None:
                return getattr(g, name)(write(operand))
        return getattr(g, STANDARD[e.kind])(*map(write, e.args))

    try:
        return tuple(map(write, roots))
    except KeyError:
        return None


def _operand(pattern: Expr, e: Expr) -> Expr | None:
    """Return the part of `e` that stands in the place of the pattern's operand; None if `e` is not of this form."""
    operand: Expr | None = None

    def fits(p: Expr, e: Expr) -> bool:
        nonlocal operand
        if p.kind == "input":
            operand = operand or e
            return operand == e
        alike = (p.kind, p.value, p.dtype) == (e.kind, e.value, e.dtype)
        return alike and all(map(fits, p.args, e.args))

    return operand if fits(pattern, e) else None
