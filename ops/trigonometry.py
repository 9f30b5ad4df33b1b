"""Trigonometric and hyperbolic functions, element by element.

https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

import numpy as np

from .expr import Expr, Expressions
from .op import Op, Sample, pointwise
from .types import f32

ANYWHERE = [Sample([f32(2, 3)]), Sample([f32()]), Sample([f32(0, 2)])]
UNIT = [Sample([np.linspace(-0.9, 0.9, 6, dtype=np.float32)]), Sample([np.array([-1, 0, 1], np.float32)])]
FROM_ONE = [Sample([np.array([1, 1.5, 4, 30], np.float32)])]


def function(name: str, since: int, primitive: str, samples: list[Sample]) -> Op:
    """An operator that is one primitive of one operand."""

    def rule(e: Expressions, input: Expr) -> Expr:
        return e.make(primitive, input)

    return pointwise(name, since=since, output="output", samples=samples)(rule)


sin = function("Sin", 22, "sin", ANYWHERE)
cos = function("Cos", 22, "cos", ANYWHERE)
tan = function("Tan", 22, "tan", UNIT)
asin = function("Asin", 22, "asin", UNIT)
acos = function("Acos", 22, "acos", UNIT)
atan = function("Atan", 22, "atan", ANYWHERE)
sinh = function("Sinh", 22, "sinh", ANYWHERE)
cosh = function("Cosh", 22, "cosh", ANYWHERE)
tanh = function("Tanh", 13, "tanh", ANYWHERE)
asinh = function("Asinh", 22, "asinh", ANYWHERE)
acosh = function("Acosh", 22, "acosh", FROM_ONE)
atanh = function("Atanh", 22, "atanh", UNIT[:1])
