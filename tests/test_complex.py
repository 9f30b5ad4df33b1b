"""Complex numbers: carried, or refused; no operator loses an imaginary part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import OPS, DType, MezzoError, Op, Tensor, pointwise
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.tools.retype import BODIES

from .graphs import sample_graph


def complexes(given: Any) -> Any:
    """The input of a sample with complex elements in place of floats."""
    if isinstance(given, Tensor) and given.dtype.floating:
        return Tensor(DType.COMPLEX128 if given.dtype is DType.DOUBLE else DType.COMPLEX64, given.dims)
    if isinstance(given, np.ndarray) and given.dtype.kind == "f":
        return (given + 1j).astype(np.complex64)
    return given


@pytest.mark.filterwarnings("error::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("record", OPS.values(), ids=lambda o: f"{o.domain}-{o.name}")
def test_no_imaginary_part_is_lost(record: Op) -> None:
    for sample in record.samples[:2]:
        inputs = [complexes(x) for x in sample.inputs]
        for given in [inputs, *([*sample.inputs[:i], x, *sample.inputs[i + 1 :]] for i, x in enumerate(inputs))]:
            if all(a is b for a, b in zip(given, sample.inputs, strict=True)):
                continue
            try:
                graph, feeds = sample_graph(record, replace(sample, inputs=given), fed="all")
                with np.errstate(all="ignore"):
                    Session(graph).run(feeds)
            except MezzoError as error:
                if isinstance(error.__cause__, Warning):
                    raise error.__cause__ from None


def test_what_is_carried_and_what_is_refused() -> None:
    g = GraphBuilder()
    x, y = (g.input(n, Tensor(DType.COMPLEX64, (2,))) for n in "xy")
    session = Session(g.graph([g.Concat(g.Mul(x, y), g.Neg(x), axis=0)]))
    a, b = np.array([1 + 2j, 3], np.complex64), np.array([1j, -1], np.complex64)
    assert session(a, b).tolist() == [*(a * b), *-a]
    g = GraphBuilder()
    rate, update, value = g.input("r", f32()), g.const(0), g.input("x", Tensor(DType.COMPLEX64, (2,)))
    step = g.op("Momentum", rate, update, value, value, value, outputs=2, domain="ai.onnx.preview.training",
                alpha=0.9, beta=0.1, mode="standard", norm_coefficient=0.0)  # fmt: skip
    with pytest.raises(MezzoError, match="Momentum takes no complex numbers there"):
        Session(g.graph(step))
    g = GraphBuilder()
    with pytest.raises(MezzoError, match="Cast takes no complex numbers there"):
        Session(g.graph([g.Cast(g.input("x", Tensor(DType.COMPLEX64, (2,))), to=DType.FLOAT.onnx)]))


@pytest.mark.parametrize("name", BODIES)
def test_operators_with_bodies_hand_complex_numbers_on(name: str) -> None:
    x = np.array([1 + 2j, 3j], np.complex64)
    record = next(o for o in OPS.values() if o.name == name)
    graph, feeds = sample_graph(record, BODIES[name](x), fed="all")
    for y in Session(graph).run(feeds).values():
        found = np.stack(list(y)) if not isinstance(y, np.ndarray) else y
        assert found.ravel()[:2].tolist() == x.tolist()


def test_an_operator_of_ones_own_says_what_it_makes_of_complex_numbers() -> None:
    try:
        square = pointwise("Square", domain="acme", complex_numbers="holomorphic")(lambda e, X: X * X)
        square.grad(lambda g, dys, ys, xs: (g.Mul(g.Mul(dys[0], xs[0]), g.const(2, g.type_of(xs[0]).dtype)),))
        z = mz.nd.asarray([1 + 2j, 3j])
        z.attach_grad()
        with mz.autograd.record():
            y = mz.nd.Square(z)
        y.backward(mz.nd.asarray([1 + 0j, 1j]))
        assert z.grad.asnumpy().tolist() == [2 - 4j, 6]  # the arriving gradient times the conjugate of 2 z
    finally:
        del OPS["acme", "Square"]
