"""Recurrent cells: steps and sequences as in PyTorch, modifiers by their definitions, eager = hybridized = exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon import rnn
from mezzo.gluon.hybrid import HybridBlock
from mezzo.nd import autograd, random
from mezzo.nd.array import Array
from mezzo.ops.errors import InputError
from mezzo.tools.load import load

from .models import ort_run, referee
from .peers import peer

RNG = np.random.default_rng(0)


def close(a: Any, b: Any, tolerance: float = 1e-6) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-12)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape)


class Unrolled(HybridBlock):
    """A cell over sequences, as a block."""

    def __init__(self, cell: rnn.RecurrentCell, layout: str = "NTC") -> None:
        super().__init__()
        self.cell, self.layout = cell, layout

    def forward(self, x: Array, valid: Array | None = None) -> Any:
        length = x.shape[self.layout.index("T")]
        y, states = self.cell.unroll(length, x, layout=self.layout, valid_length=valid)
        return (y, *states)


THEIRS = {"RNN": rnn.RNNCell, "LSTM": rnn.LSTMCell, "GRU": rnn.GRUCell}


@pytest.mark.parametrize("kind", THEIRS)
def test_cells_are_those_of_pytorch(kind: str) -> None:
    """Weights in the same order; a sequence, gradients of all."""
    torch = peer("torch")
    theirs = getattr(torch.nn, kind)(3, 5, batch_first=True).double()
    cell = THEIRS[kind](5).initialize().cast("float64")
    net, x = Unrolled(cell), numbers(2, 4, 3)
    net(nd.asarray(x))
    names = {"i2h_weight": "weight_ih_l0", "h2h_weight": "weight_hh_l0", "i2h_bias": "bias_ih_l0",
             "h2h_bias": "bias_hh_l0"}  # fmt: skip
    for ours, name in names.items():
        cell.collect_params()[ours].set_data(getattr(theirs, name).detach().numpy())
    given = torch.tensor(x, requires_grad=True)
    want, last = theirs(given)
    (want * torch.arange(5.0)).sum().backward()
    for hybrid in (False, True):
        net.hybridize(hybrid)
        mine = nd.asarray(x)
        mine.attach_grad()
        with autograd.record():
            y, *states = net(mine)
            loss = (y * nd.asarray(np.arange(5.0))).sum()
        loss.backward()
        close(y.asnumpy(), want.detach().numpy(), 1e-12)
        for a, b in zip(states, last if kind == "LSTM" else [last], strict=True):
            close(a.asnumpy(), b.detach().numpy()[0], 1e-12)
        assert mine.grad is not None
        close(mine.grad.asnumpy(), given.grad.numpy(), 1e-12)
        for ours, name in names.items():
            close(cell.collect_params()[ours].grad().asnumpy(), getattr(theirs, name).grad.numpy(), 1e-11)


def stacked() -> rnn.RecurrentCell:
    cell = rnn.SequentialRNNCell(
        rnn.BidirectionalCell(rnn.LSTMCell(3), rnn.GRUCell(3)),
        rnn.ResidualCell(rnn.RNNCell(6)),
        rnn.DropoutCell(0.5),
        rnn.ZoneoutCell(rnn.LSTMCell(4), 0.3, 0.3),
    )
    random.seed(3)
    return cell.initialize("xavier").cast("float64")


@pytest.mark.parametrize("valid", [None, [2, 4, 1]])
def test_layouts_lists_and_lengths(valid: list[int] | None) -> None:
    cell, x = stacked(), nd.asarray(numbers(3, 4, 2))
    length = None if valid is None else nd.asarray(np.array(valid))
    y, states = cell.unroll(4, x, valid_length=length)
    assert y.shape == (3, 4, 4)
    assert [s.shape[1] for s in states] == [3, 3, 3, 6, 4, 4, 4]
    other, others = cell.unroll(4, nd.permute_dims(x, (1, 0, 2)), layout="TNC", valid_length=length)
    listed, _ = cell.unroll(4, [x[:, t] for t in range(4)], valid_length=length)
    assert isinstance(listed, list)
    close(other.asnumpy().swapaxes(0, 1), y.asnumpy(), 1e-12)
    close(nd.stack(listed, axis=1).asnumpy(), y.asnumpy(), 1e-12)
    for a, b in zip(others, states, strict=True):
        close(a.asnumpy(), b.asnumpy(), 1e-12)
    for row, count in enumerate(valid or []):  # each example as if it were alone, and no longer
        alone, ends = cell.unroll(count, x[row : row + 1, :count])
        close(y.asnumpy()[row, :count], alone.asnumpy()[0], 1e-12)
        assert not y.asnumpy()[row, count:].any()
        for a, b in zip(ends, states, strict=True):
            close(b.asnumpy()[row], a.asnumpy()[0], 1e-12)


def test_two_directions_are_those_of_pytorch() -> None:
    torch = peer("torch")
    theirs = torch.nn.LSTM(3, 4, batch_first=True, bidirectional=True).double()
    cell = rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.LSTMCell(4)).initialize().cast("float64")
    x = numbers(2, 5, 3)
    cell.unroll(5, nd.asarray(x))
    for side, end in (("l_cell", ""), ("r_cell", "_reverse")):
        for ours, name in (("i2h", "ih"), ("h2h", "hh")):
            for part in ("weight", "bias"):
                cell.collect_params()[f"{side}.{ours}_{part}"].set_data(
                    getattr(theirs, f"{part}_{name}_l0{end}").detach().numpy()
                )
    lengths = np.array([5, 3])
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(x), lengths, batch_first=True)
    want, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    y, _ = cell.unroll(5, nd.asarray(x), valid_length=nd.asarray(lengths))
    close(y.asnumpy(), want.detach().numpy(), 1e-12)
    with pytest.raises(InputError, match="both ways has no single step"):
        cell(nd.asarray(x[:, 0]), cell.begin_state(2))


@pytest.mark.parametrize("kind", ["stack", "lengths"])
def test_eager_hybridized_and_exported_are_one(kind: str, tmp_path: Path) -> None:
    net = Unrolled(stacked().cast("float32"))
    for batch in (3, 2):
        x = nd.asarray(numbers(batch, 4, 2).astype(np.float32))
        more = [nd.asarray(np.array([2, 4, 1][:batch]))] if kind == "lengths" else []
        net.hybridize(False)
        want = [y.asnumpy() for y in net(x, *more)]
        net.hybridize()
        for _ in range(2):
            for a, b in zip(net(x, *more), want, strict=True):
                close(a.asnumpy(), b, 1e-5)
        assert net.report() == "everything is traced"
    if kind == "stack":
        referee()
        net.export(tmp_path / "cells.onnx", x)
        found = load(tmp_path / "cells.onnx").run({"x0": x.asnumpy()})
        theirs = ort_run(tmp_path / "cells.onnx", {"x0": x.asnumpy()})
        for a, b, c in zip(found.values(), theirs.values(), want, strict=True):
            close(a, c, 1e-5)
            close(b, c, 1e-5)


@pytest.mark.parametrize("hybrid", [False, True])
def test_zoneout_keeps_a_share_of_what_was(hybrid: bool) -> None:
    base = rnn.RNNCell(400, input_size=3).initialize("xavier")
    cell = rnn.ZoneoutCell(base, zoneout_outputs=0.25, zoneout_states=0.5)
    x, states = nd.asarray(numbers(2, 3).astype(np.float32)), [nd.full((2, 400), 5.0), nd.full((2, 400), 7.0)]
    new = base(x, states[:1])[0].asnumpy()
    cell.hybridize(hybrid)
    with autograd.record():
        other = cell(x, states)[0].asnumpy()
        y, (h, answered) = cell(x, states)
    assert not np.array_equal(other == 7, y.asnumpy() == 7), "drawn anew"
    close(answered.asnumpy(), y.asnumpy())
    for found, old, share in ((y.asnumpy(), 7.0, 0.25), (h.asnumpy(), 5.0, 0.5)):
        stays = found == old
        assert abs(stays.mean() - share) < 0.08
        close(found[~stays], new[~stays])
    y, after = cell(x, states)
    close(y.asnumpy(), new)
    close(after[0].asnumpy(), new)


def test_the_same_draws_eager_and_hybridized() -> None:
    """Dropout and zoneout in training, and the gradients behind them."""
    net, x, found = Unrolled(stacked()), nd.asarray(numbers(3, 4, 2)), []
    net(x)
    for hybrid in (False, True):
        net.hybridize(hybrid)
        random.seed(9)
        with autograd.record():
            y, *_ = net(x)
            loss = (y * y).sum()
        loss.backward()
        found.append([y.asnumpy(), *(p.grad().asnumpy() for p in net.collect_params().values())])
    for a, b in zip(*found, strict=True):
        close(b, a, 1e-9)


def test_what_cells_refuse() -> None:
    cell = rnn.LSTMCell(2).initialize()
    with pytest.raises(InputError, match="4 steps of inputs for length=3"):
        cell.unroll(3, nd.ones((1, 4, 2)))
    with pytest.raises(InputError, match="layout"):
        cell.unroll(4, nd.ones((1, 4, 2)), layout="CTN")
    with pytest.raises(InputError, match="zoneout"):
        rnn.ZoneoutCell(rnn.BidirectionalCell(cell, cell), 0.5)
    assert cell.state_info(3) == [{"shape": (3, 2), "__layout__": "NC"}] * 2
