"""Functions of symbols under the names of the array API standard and of `mz.nd`: expressions that read like those of
arrays. `symbol.__array_namespace__()` is this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ops import DType
from .symbol import Symbol, use

Axis = int | Sequence[int] | None


def _of_one(op: str) -> Callable[[Symbol], Symbol]:
    def function(x: Symbol) -> Symbol:
        return use(op, x)

    function.__doc__ = f"{op} of every element."
    return function


def _of_two(op: str) -> Callable[[Any, Any], Symbol]:
    def function(x1: Any, x2: Any) -> Symbol:
        return use(op, x1, x2)

    function.__doc__ = f"{op} of two operands, which are broadcast."
    return function


def _reducing(op: str) -> Callable[..., Symbol]:
    def function(x: Symbol, *, axis: Axis = None, keepdims: bool = False) -> Symbol:
        axes = None if axis is None else np.atleast_1d(np.asarray(axis, np.int64))
        return use(op, x, axes, keepdims=int(keepdims))

    function.__doc__ = f"{op} over some axes, or over all."
    return function


abs = _of_one("Abs")
exp = _of_one("Exp")
log = _of_one("Log")
sqrt = _of_one("Sqrt")
tanh = _of_one("Tanh")
sin = _of_one("Sin")
cos = _of_one("Cos")
erf = _of_one("Erf")
sign = _of_one("Sign")
floor = _of_one("Floor")
round = _of_one("Round")
relu = _of_one("Relu")
sigmoid = _of_one("Sigmoid")
softplus = _of_one("Softplus")
negative = _of_one("Neg")
add = _of_two("Add")
subtract = _of_two("Sub")
multiply = _of_two("Mul")
divide = _of_two("Div")
pow = _of_two("Pow")
matmul = _of_two("MatMul")
maximum = _of_two("Max")
minimum = _of_two("Min")
equal = _of_two("Equal")
less = _of_two("Less")
less_equal = _of_two("LessOrEqual")
greater = _of_two("Greater")
greater_equal = _of_two("GreaterOrEqual")
mean = _reducing("ReduceMean")
sum = _reducing("ReduceSum")
max = _reducing("ReduceMax")
min = _reducing("ReduceMin")
prod = _reducing("ReduceProd")
logsumexp = _reducing("ReduceLogSumExp")


def square(x: Symbol) -> Symbol:
    """The square of every element."""
    return use("Mul", x, x)


def where(condition: Symbol, x1: Any, x2: Any) -> Symbol:
    """Elements of `x1` where the condition holds, of `x2` elsewhere."""
    return use("Where", condition, x1, x2)


def clip(x: Symbol, min: float | None = None, max: float | None = None) -> Symbol:
    """Limit every element to a range."""
    return use("Clip", x, min, max)


def softmax(x: Symbol, *, axis: int = -1) -> Symbol:
    """Shares along an axis."""
    return use("Softmax", x, axis=axis)


def log_softmax(x: Symbol, *, axis: int = -1) -> Symbol:
    """The logarithms of `softmax`."""
    return use("LogSoftmax", x, axis=axis)


def reshape(x: Symbol, shape: Sequence[int]) -> Symbol:
    """The same elements in another shape; -1 is what is left."""
    return use("Reshape", x, np.asarray(shape, np.int64))


def take(x: Symbol, indices: Any, *, axis: int = 0) -> Symbol:
    """The entries of these numbers along an axis."""
    return use("Gather", x, indices, axis=axis)


def astype(x: Symbol, dtype: Any) -> Symbol:
    """The elements in another type."""
    return use("Cast", x, to=DType.of(np.dtype(dtype)).onnx)


NAMES = frozenset({
    "abs", "add", "astype", "clip", "cos", "divide", "equal", "erf", "exp", "floor", "greater", "greater_equal", "less",
    "less_equal", "log", "log_softmax", "logsumexp", "matmul", "max", "maximum", "mean", "min", "minimum", "multiply",
    "negative", "pow", "prod", "relu", "reshape", "round", "sigmoid", "sign", "sin", "softmax", "softplus", "sqrt",
    "square", "subtract", "sum", "take", "tanh", "where",
})  # fmt: skip
