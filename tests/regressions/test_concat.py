"""Concat of what lies in a layout of its own."""

from __future__ import annotations

import pytest

from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import GraphBuilder

from .cases import check, numbers


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
def test_constants_beside_channels_last_parts(batch: int, last: bool) -> None:
    """A constant part was to be packed by a primitive, and parts that follow one another are copied without one."""
    g = GraphBuilder()
    x = g.Transpose(g.input("x", f32(3, 4, 3, 5)), perm=[0, 3, 1, 2])
    c = g.const(numbers(batch, 5, 4, 3))
    check(g.graph([g.Concat(*((x, x, c) if last else (c, x)), axis=0)]))
