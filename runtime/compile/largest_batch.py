"""Search for the largest batch whose arena fits: plans one size after the other, and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...ops import Tensor
from ...ops.errors import InputError

if TYPE_CHECKING:
    from ..execution.session import Session


def largest_batch(session: Session, sizes: Mapping[str, tuple[int, ...]], budget: int) -> tuple[str, int, int]:
    """The dim that is the batch, the largest size of it whose arena fits `budget` bytes, and that arena.

    The batch is the named first dim of the first input that has one. Raises InputError where no input has one, or
    where not even one fits.
    """
    batches = [
        (port.name, port.type.dims[0])
        for port in session.inputs
        if isinstance(port.type, Tensor) and port.type.dims and not isinstance(port.type.dims[0], int)
    ]
    if not batches:
        raise InputError("no input has a first dim of open size", hint="a model of fixed sizes has one arena")
    first, dim = batches[0]
    together = {n for n, d in batches if d == dim and (d is not None or n == first)}

    def arena(batch: int) -> int:
        return session.warmup({n: (batch, *s[1:]) if n in together else s for n, s in sizes.items()}).arena_bytes

    if arena(1) > budget:
        raise InputError(f"one needs an arena of {arena(1)} bytes, more than {budget}", hint="give a larger --budget")
    low, high = 1, 2
    while arena(high) <= budget and high < 1 << 24:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if arena(middle) <= budget else (low, middle)
    return str(dim or first), low, arena(low)
