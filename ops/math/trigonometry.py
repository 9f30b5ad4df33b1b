"""Trigonometric and hyperbolic functions, element by element.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..core.expr import Expr, Expressions
from ..op import Op, Sample
from ..types import f32
from .derivatives import derivative, primitive

if TYPE_CHECKING:
    from typing import Unpack

    from ..traits import Traits

OPERATORS = """
    Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh mezzo::SinGrad mezzo::CosGrad mezzo::TanGrad
    mezzo::AsinGrad mezzo::AcosGrad mezzo::AtanGrad mezzo::SinhGrad mezzo::CoshGrad mezzo::TanhGrad mezzo::AsinhGrad
    mezzo::AcoshGrad mezzo::AtanhGrad
"""
ANYWHERE = [Sample([f32(2, 3)]), Sample([f32()]), Sample([f32(0, 2)])]
UNIT = [Sample([np.linspace(-0.9, 0.9, 6, dtype=np.float32)]), Sample([np.array([-1, 0, 1], np.float32)])]
FROM_ONE = [Sample([np.array([1, 1.5, 4, 30], np.float32)])]


def function(
    name: str, since: int, of: str, samples: list[Sample], slope: Callable[..., Expr], **traits: Unpack[Traits]
) -> Op:
    """An operator that is the primitive `of` one operand; `slope` is the expression of its gradient."""
    record = primitive(name, since, of, samples, operands="input", output="output", **traits)
    record.complex_numbers = "holomorphic"
    derivative(record)(slope)
    return record


def _beside_one(e: Expressions, x: Expr) -> Expr:
    """The root of x*x - 1; of complex numbers the one on the side that the principal value of acosh is on."""
    return e.sqrt(x * x - 1) if x.dtype.floating else e.sqrt(x - 1) * e.sqrt(x + 1)


sin = function("Sin", 22, "sin", ANYWHERE, lambda e, dY, X: dY * e.cos(X))
cos = function("Cos", 22, "cos", ANYWHERE, lambda e, dY, X: -(dY * e.sin(X)))
tan = function("Tan", 22, "tan", UNIT, lambda e, dY, Y: dY * (Y * Y + 1), mixed="wide")
asin = function("Asin", 22, "asin", UNIT, lambda e, dY, X: dY / e.sqrt(1 - X * X))
acos = function("Acos", 22, "acos", UNIT, lambda e, dY, X: -(dY / e.sqrt(1 - X * X)))
atan = function("Atan", 22, "atan", ANYWHERE, lambda e, dY, X: dY / (X * X + 1))
sinh = function("Sinh", 22, "sinh", ANYWHERE, lambda e, dY, X: dY * e.cosh(X), mixed="wide")
cosh = function("Cosh", 22, "cosh", ANYWHERE, lambda e, dY, X: dY * e.sinh(X), mixed="wide")
tanh = function("Tanh", 13, "tanh", ANYWHERE, lambda e, dY, Y: dY * (1 - Y * Y), follows=True)
asinh = function("Asinh", 22, "asinh", ANYWHERE, lambda e, dY, X: dY / e.sqrt(X * X + 1))
acosh = function("Acosh", 22, "acosh", FROM_ONE, lambda e, dY, X: dY / _beside_one(e, X))
atanh = function("Atanh", 22, "atanh", UNIT[:1], lambda e, dY, X: dY / (1 - X * X))
