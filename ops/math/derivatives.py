"""Derivatives of pointwise operators, each one expression: an operator of the domain mezzo that runs in one pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.expr import Expr, Expressions
from ..op import Builder, Op, Sample, Value, pointwise
from ..types import DType, Tensor, type_of

if TYPE_CHECKING:
    from typing import Unpack

    from ..traits import Traits


def derivative(of: Op) -> Callable[[Callable[..., Expr]], Op]:
    """Define `mezzo.<NAME>Grad`, the gradient of a pointwise operator of one input, from its expression.

    The rule is `(e, dY, X, **attrs)` or `(e, dY, Y, **attrs)`: the second operand is the input or the output, whichever
    it is named for; attributes are those of the operator that it names.

    >>> from mezzo.ops.nn.activations import relu
    >>> from mezzo.ops.op import OPS
    >>> print(OPS["mezzo", "ReluGrad"])
    mezzo::ReluGrad-1(dY, Y; ) -> dX
    """

    def define(rule: Callable[..., Expr]) -> Op:
        names = list(inspect.signature(rule).parameters)
        samples = [
            Sample([Tensor(DType.FLOAT, t.dims), s.inputs[0]], {a: v for a, v in s.attrs.items() if a in names})
            for s in of.samples
            if isinstance(t := s.inputs[0] if isinstance(s.inputs[0], Tensor) else type_of(s.inputs[0]), Tensor)
            and t.dtype is DType.FLOAT
        ]
        gradient = pointwise(f"{of.name}Grad", domain="mezzo", output="dX", samples=samples)(rule)

        @of.grad
        def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value, ...]:
            read = ys[0] if names[2] == "Y" else xs[0]
            used = {a: v for a, v in attrs.items() if a in gradient.attrs}
            return (getattr(g, gradient.name)(dys[0], read, domain="mezzo", **used),)

        return gradient

    return define


def primitive(
    name: str,
    since: int,
    of: str,
    samples: Sequence[Sample],
    grad: Callable[..., Value] | None = None,
    *,
    operands: str = "X",
    output: str = "Y",
    **traits: Unpack[Traits],
) -> Op:
    """Define an operator that is the primitive `of` its operands, which have these names; of one operand `grad` makes
    the gradient as `(g, dy, y, x)`."""

    def of_x(e: Expressions, X: Expr) -> Expr:
        return e.make(of, X)

    def of_input(e: Expressions, input: Expr) -> Expr:
        return e.make(of, input)

    def of_two(e: Expressions, A: Expr, B: Expr) -> Expr:
        return e.make(of, A, B)

    rules: dict[str, Callable[..., Expr]] = {"X": of_x, "input": of_input, "A B": of_two}
    record = pointwise(name, since=since, output=output, samples=samples, **traits)(rules[operands])
    if grad is not None:
        record.grad(lambda g, dys, ys, xs: (grad(g, dys[0], ys[0], xs[0]),))
    return record


def flat(*ops: Op) -> None:
    """Register operators with a derivative of zero wherever it exists: no gradient passes through them."""

    def rule(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[None, ...]:
        return (None,) * len(xs)

    for op in ops:
        op.grad(rule)
