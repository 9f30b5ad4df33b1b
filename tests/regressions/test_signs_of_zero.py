"""-0 that became 0, whose reciprocal is infinity of the other sign: once wrong, and rows of one element beside it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mezzo.ops.types import f32
from mezzo.runtime.backends.onednn.postops import operators
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

from .cases import check, numbers

ZEROS = np.array([[0.0, -0.0, 1.0, -1.0, 0.0, -0.5] + [-0.0] * 11], np.float32)

Made = Callable[[GraphBuilder, str], str]
KEEPING: dict[str, Made] = {
    "Elu": lambda g, x: g.Elu(x),
    "Elu of a small slope": lambda g, x: g.Elu(x, alpha=0.5),
    "Elu of a steep slope": lambda g, x: g.Elu(x, alpha=2.0),
    "Elu behind Mul": lambda g, x: g.Elu(g.Mul(x, g.const(np.float32(3)))),
    "a sum of none": lambda g, x: g.ReduceSum(x, noop_with_empty_axes=1),
    "a mean of none": lambda g, x: g.ReduceMean(x, noop_with_empty_axes=1),
}


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("form", KEEPING)
def test_zeros_keep_their_signs(form: str, onednn: bool) -> None:
    """Elu of oneDNN made 0 of -0 and sums began with 0 although they added nothing."""
    g = GraphBuilder()
    session = Session(g.graph([KEEPING[form](g, g.input("x", f32(1, 17)))]), onednn=onednn)
    y = session(ZEROS)
    assert (np.signbit(y) == np.signbit(ZEROS)).all()
    assert ((y == 0) == (ZEROS == 0)).all()


@pytest.mark.parametrize("turned", [False, True])
def test_elu_behind_a_convolution(turned: bool) -> None:
    """A sum begins with 0 and is never -0, so that Elu is part of its primitive; times -1 it may be, and Elu is not."""
    g = GraphBuilder()
    y = g.Conv(g.input("x", f32(1, 4, 9, 9)), g.const(numbers(8, 4, 3, 3)))
    factor = g.input("factor", f32(1, 1, 1, 1))
    session = Session(g.graph([g.Elu(g.Mul(y, factor) if turned else y)]))
    y = session(np.zeros((1, 4, 9, 9), np.float32), np.full((1, 1, 1, 1), -1, np.float32))
    assert (np.signbit(y) == turned).all()
    assert any(operators(step.node) == ["Elu"] for step in session.program.steps) == turned


def test_a_sum_over_no_axes_is_an_array_of_its_own() -> None:
    """What is changed in the sum stays there."""
    from mezzo import nd

    x = nd.asarray(ZEROS)
    y = nd.ReduceSum(x, noop_with_empty_axes=1)
    y += 1
    assert (x.asnumpy() == ZEROS).all()


@pytest.mark.parametrize("op", ["SoftmaxFlattened", "LogSoftmaxFlattened", "HardmaxFlattened"])
@pytest.mark.parametrize("dims", [(4,), (2, 3)])
def test_rows_of_one_element(op: str, dims: tuple[int, ...]) -> None:
    """Softmax before opset 13 with an axis behind the last: read as the axis 0, it was a softmax of the vector."""
    g = GraphBuilder()
    graph = g.graph([g.op(op, g.input("x", f32(*dims)), domain="mezzo", axis=len(dims))])
    check(graph)
    assert (Session(graph)(numbers(*dims)) == (0 if op.startswith("Log") else 1)).all()
