"""Operators of Python on arrays, attached to the class by `nd/methods.py`.

Each is an operator of ONNX, or a function of the standard; those in place write into the memory of the first operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ops.errors import ShapeError
from .elementwise import (
    abs,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    divide,
    floor_divide,
    not_equal,
    remainder,
)
from .products import matmul
from .running import apply, assign, binary, inplace, unary

if TYPE_CHECKING:
    from .array import Array

Operand = Any  # an Array, a number of Python or NumPy, or what NumPy makes an array of


class ArrayOperators:
    """Python's operators of `Array`. `self` is an array; it is Any where a function asks for one."""

    def __add__(self, other: Operand) -> Array:
        return binary("Add", self, other)

    def __radd__(self, other: Operand) -> Array:
        return binary("Add", other, self)

    def __iadd__(self: Any, other: Operand) -> Array:
        return inplace("Add", self, other)

    def __sub__(self, other: Operand) -> Array:
        return binary("Sub", self, other)

    def __rsub__(self, other: Operand) -> Array:
        return binary("Sub", other, self)

    def __isub__(self: Any, other: Operand) -> Array:
        return inplace("Sub", self, other)

    def __mul__(self, other: Operand) -> Array:
        return binary("Mul", self, other)

    def __rmul__(self, other: Operand) -> Array:
        return binary("Mul", other, self)

    def __imul__(self: Any, other: Operand) -> Array:
        return inplace("Mul", self, other)

    def __truediv__(self, other: Operand) -> Array:
        return divide(self, other)

    def __rtruediv__(self, other: Operand) -> Array:
        return divide(other, self)

    def __itruediv__(self: Any, other: Operand) -> Array:
        return inplace("Div", self, other, floating=True)

    def __floordiv__(self, other: Operand) -> Array:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Operand) -> Array:
        return floor_divide(other, self)

    def __ifloordiv__(self: Any, other: Operand) -> Array:
        return _become(self, floor_divide(self, other))

    def __mod__(self, other: Operand) -> Array:
        return remainder(self, other)

    def __rmod__(self, other: Operand) -> Array:
        return remainder(other, self)

    def __imod__(self: Any, other: Operand) -> Array:
        whole = self._spec.dtype.kind in "iu"
        return inplace("Mod" if whole else "Remainder", self, other, domain="" if whole else "mezzo")

    def __pow__(self, other: Operand) -> Array:
        return binary("Pow", self, other)

    def __rpow__(self, other: Operand) -> Array:
        return binary("Pow", other, self)

    def __ipow__(self: Any, other: Operand) -> Array:
        return inplace("Pow", self, other)

    def __matmul__(self, other: Operand) -> Array:
        return matmul(self, other)

    def __rmatmul__(self, other: Operand) -> Array:
        return matmul(other, self)

    def __imatmul__(self: Any, other: Operand) -> Array:
        return _become(self, matmul(self, other))

    def __and__(self, other: Operand) -> Array:
        return bitwise_and(self, other)

    def __rand__(self, other: Operand) -> Array:
        return bitwise_and(other, self)

    def __iand__(self: Any, other: Operand) -> Array:
        return _become(self, bitwise_and(self, other))

    def __or__(self, other: Operand) -> Array:
        return bitwise_or(self, other)

    def __ror__(self, other: Operand) -> Array:
        return bitwise_or(other, self)

    def __ior__(self: Any, other: Operand) -> Array:
        return _become(self, bitwise_or(self, other))

    def __xor__(self, other: Operand) -> Array:
        return bitwise_xor(self, other)

    def __rxor__(self, other: Operand) -> Array:
        return bitwise_xor(other, self)

    def __ixor__(self: Any, other: Operand) -> Array:
        return _become(self, bitwise_xor(self, other))

    def __lshift__(self, other: Operand) -> Array:
        return bitwise_left_shift(self, other)

    def __rlshift__(self, other: Operand) -> Array:
        return bitwise_left_shift(other, self)

    def __ilshift__(self: Any, other: Operand) -> Array:
        return _become(self, bitwise_left_shift(self, other))

    def __rshift__(self, other: Operand) -> Array:
        return bitwise_right_shift(self, other)

    def __rrshift__(self, other: Operand) -> Array:
        return bitwise_right_shift(other, self)

    def __irshift__(self: Any, other: Operand) -> Array:
        return _become(self, bitwise_right_shift(self, other))

    def __neg__(self) -> Array:
        return unary("Neg", self)

    def __pos__(self: Any) -> Array:
        return apply("Identity", self)

    def __abs__(self) -> Array:
        return abs(self)

    def __invert__(self) -> Array:
        return bitwise_invert(self)

    def __eq__(self, other: Operand) -> Array:  # type: ignore[override]
        return binary("Equal", self, other)

    def __ne__(self, other: Operand) -> Array:  # type: ignore[override]
        return not_equal(self, other)

    def __lt__(self, other: Operand) -> Array:
        return binary("Less", self, other)

    def __le__(self, other: Operand) -> Array:
        return binary("LessOrEqual", self, other)

    def __gt__(self, other: Operand) -> Array:
        return binary("Greater", self, other)

    def __ge__(self, other: Operand) -> Array:
        return binary("GreaterOrEqual", self, other)


def _become(target: Array, result: Array) -> Array:
    """Write a result of the kind of the target into it: an operation in place that has several steps."""
    if result._spec is not target._spec:
        raise ShapeError(
            f"{result._spec} does not fit in place of {target._spec}", where="mezzo.nd", hint="write a = a + b"
        )
    assign(target, result)
    return target
