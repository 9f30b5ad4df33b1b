"""What a second run meets: inputs that nobody reads, of every size."""

from __future__ import annotations

import pytest

from mezzo.ops import DType, Tensor
from mezzo.ops.errors import MezzoError
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

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
