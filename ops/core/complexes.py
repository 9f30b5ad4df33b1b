"""Complex numbers in operators: which take them is said by the trait `complex_numbers`. Others are refused by type,
before an imaginary part is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError
from ..registry import OPSETS
from ..types import DType, Tensor, Type

if TYPE_CHECKING:
    from ..op import Builder, Op, Value

COMPLEX = frozenset((DType.COMPLEX64, DType.COMPLEX128))


def is_complex(type: Type | None) -> bool:
    """True if a type is a tensor of complex numbers."""
    return isinstance(type, Tensor) and type.dtype in COMPLEX


def check_complex(op: Op, inputs: Sequence[Type | None], results: Sequence[Type]) -> None:
    """Raise ShapeError where an operator is given complex numbers and would lose their imaginary parts, or has nothing
    to do with them."""
    takes = op.takes_complex
    if op.domain not in OPSETS or takes in ("measured", "unchecked"):  # somebody's own says for itself what it takes
        return
    given = [i for i, t in enumerate(inputs) if isinstance(t, Tensor) and t.dtype in COMPLEX]
    if takes and given == {"first": [0], "last": [len(inputs) - 1]}.get(takes, given):
        first = results[0]
        if not isinstance(first, Tensor) or first.dtype in COMPLEX or first.dtype is DType.BOOL:
            return
    shown = ", ".join("-" if t is None else str(t) for t in inputs)
    raise ShapeError(
        f"{op.name} takes no complex numbers there, and is given ({shown})",
        hint="feed real and imaginary parts as two values",
    )


def derived(
    record: Op,
    g: Builder,
    dys: Sequence[Value | None],
    ys: Sequence[Value | None],
    xs: Sequence[Value | None],
    **attrs: Any,
) -> Sequence[Value | None]:
    """The gradients that a record's rule gives (see Op.grad), of complex numbers too."""
    assert record.grad_rule is not None
    if record.complex_numbers != "holomorphic" or not any(y is not None and is_complex(g.type_of(y)) for y in ys):
        return record.grad_rule(g, dys, ys, xs, **attrs)
    turned = [dy if dy is None else g.Conj(dy, domain="mezzo") for dy in dys]
    return [dx if dx is None else g.Conj(dx, domain="mezzo") for dx in record.grad_rule(g, turned, ys, xs, **attrs)]


def part_of(g: Builder, x: Value, which: int) -> Value:
    """The real (0) or imaginary (1) parts of complex numbers."""
    return g.Gather(g.RealImag(x, domain="mezzo"), g.const(which), axis=-1)


def real_part(g: Builder, x: Value) -> Value:
    """The real parts of complex numbers."""
    return part_of(g, x, 0)
