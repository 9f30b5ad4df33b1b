"""What a second run meets: inputs that nobody reads, of every size."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.exporters import to_onnx
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import MezzoError
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.tools.load import load

from .cases import check, fed, numbers


@pytest.mark.parametrize("unread", [(), (3,), (100, 100), (0, 5), (5000,)], ids=str)
@pytest.mark.parametrize("read", [(2,), (5000,)], ids=str)
def test_an_input_that_nobody_reads(unread: tuple[int, ...], read: tuple[int, ...]) -> None:
    g = GraphBuilder()
    g.input("unread", f32(*unread))
    check(g.graph([g.Relu(g.input("x", f32(*read)))]))


def test_an_input_that_nobody_reads_at_other_sizes() -> None:
    g = GraphBuilder()
    g.input("unread", Tensor(DType.FLOAT, ("n", 100)))
    graph = g.graph([g.Relu(g.input("x", Tensor(DType.FLOAT, ("n", 2))))])
    check(graph, *(fed(graph, n=n) for n in (3, 100, 2000)))


def test_an_input_of_any_rank() -> None:
    """Sizes of another rank were put into the graph that earlier ones had left."""
    g = GraphBuilder()
    graph = g.graph([g.Softmax(g.MatMul(g.input("x", Tensor(DType.FLOAT, None)), numbers(3, 5)))])
    sizes = [(2, 3), (4, 3), (5, 3, 3), (4, 2, 3), (3,), (1, 3), (2, 3, 2, 3), (7, 3)]
    check(graph, *({"x": numbers(*s)} for s in sizes))
    rounded = Session(graph, buckets="auto")
    for s in sizes:
        assert np.allclose(rounded(numbers(*s)), Session(graph)(numbers(*s)), atol=1e-6)


def test_an_input_without_a_shape_in_a_file() -> None:
    """ONNX's checker has them refused; other runtimes take them, and exporters write them."""
    g = GraphBuilder()
    model = to_onnx(g.graph([g.Relu(g.input("x", f32("n", 3)))]))
    model.graph.input[0].type.tensor_type.ClearField("shape")
    session = load(model.SerializeToString())
    for sizes in [(2, 3), (4,), (2, 2, 2), ()]:
        assert session(numbers(*sizes)).shape == sizes


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("onednn", [True, False])
def test_a_first_state_of_another_batch_was_read_in_part(op: str, gates: int, onednn: bool) -> None:
    """A model whose first state was stored for two sequences, fed with one of them, or three."""
    g = GraphBuilder()
    x = g.input("x", f32("steps", "batch", 3))
    first = numbers(1, 2, 4)
    y = g.op(op, x, numbers(1, gates * 4, 3), numbers(1, gates * 4, 4), None, None, first, hidden_size=4)
    session = Session(g.graph([y]), onednn=onednn)
    assert session(numbers(5, 2, 3)).shape == (5, 1, 2, 4)
    for batch in (1, 3):
        with pytest.raises(MezzoError, match=r"the first state .* does not fit the batch"):
            session(numbers(5, batch, 3))
