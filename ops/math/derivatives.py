"""Derivatives of pointwise operators, each one expression: an operator of the domain mezzo that runs in one pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..core.expr import Expr
from ..op import Builder, Op, Sample, Value, pointwise
from ..types import DType, Tensor, type_of


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
        made = pointwise(f"{of.name}Grad", domain="mezzo", output="dX", samples=samples)(rule)

        @of.grad
        def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value, ...]:
            read = ys[0] if names[2] == "Y" else xs[0]
            used = {a: v for a, v in attrs.items() if a in made.attrs}
            return (getattr(g, made.name)(dys[0], read, domain="mezzo", **used),)

        return made

    return define


def flat(*ops: Op) -> None:
    """Register operators with a derivative of zero wherever it exists: no gradient passes through them."""

    def rule(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[None, ...]:
        return (None,) * len(xs)

    for op in ops:
        op.grad(rule)
