"""Embeddings whose gradients are rows: in array code, in traced blocks, and in the trainer of blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo import nd
from mezzo.gluon import Trainer, loss, nn
from mezzo.gluon.hybrid import HybridBlock
from mezzo.nd import autograd
from mezzo.nd.array import Array
from mezzo.nd.sparse import RowSparse
from mezzo.ops.errors import InputError, MezzoError, ShapeError
from mezzo.runtime.optimizer import SGD, Adagrad, Adam, Optimizer

from .peers import peer

SIZE, WIDTH, BATCH, LENGTH = 40, 3, 4, 5


class Words(HybridBlock):
    """The mean of a text's words, and a layer; with `tied` the table is multiplied with, too."""

    def __init__(self, sparse: bool, tied: bool = False, twice: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(SIZE, WIDTH, dtype="float64", sparse_grad=sparse)
        self.out = nn.Dense(6, in_units=WIDTH, dtype="float64")
        self.tied, self.twice = tied, twice

    def forward(self, text: Array) -> Array:
        mean = self.words(text).mean(axis=1)
        if self.twice:
            mean = mean * self.words(text[:, 0])
        if self.tied:
            return nd.matmul(mean, self.words.weight.data().T)
        made: Array = self.out(mean)
        return made


def words(sparse: bool, hybrid: bool = False, **how: bool) -> Words:
    net = Words(sparse, **how)
    net.initialize()
    rng = np.random.default_rng(0)
    for p in net.collect_params().values():
        p.set_data(rng.standard_normal(p.shape))
    return net.hybridize() if hybrid else net


def batch(number: int, size: int = BATCH) -> tuple[Array, Array]:
    rng = np.random.default_rng([1, number])
    text = rng.integers(0, 9, (size, LENGTH)) * 4
    return nd.asarray(np.where(rng.random(text.shape) < 0.3, text - SIZE, text)), nd.asarray(rng.integers(0, 6, size))


def gradients(net: Words, number: int, size: int = BATCH) -> Any:
    text, label = batch(number, size)
    with autograd.record():
        value = loss.SoftmaxCELoss()(net(text), label)
    value.backward()
    return value


def train(net: Words, trainer: Trainer, steps: int = 6, size: int = BATCH) -> dict[str, Any]:
    for i in range(steps):
        gradients(net, i, size + i % 2)
        trainer.step(size + i % 2)
    return {n: p.data().asnumpy() for n, p in net.collect_params().items()}


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_gradient_is_the_rows_that_were_read(hybrid: bool, twice: bool) -> None:
    dense, sparse = words(False, hybrid, twice=twice), words(True, hybrid, twice=twice)
    for number in range(3):
        gradients(dense, number, BATCH + number)
        gradients(sparse, number, BATCH + number)
        whole, rows = dense.words.weight.grad(), sparse.words.weight.grad()
        assert isinstance(rows, RowSparse)
        assert (rows.stype, rows.shape, rows.dtype.name) == ("row_sparse", (SIZE, WIDTH), "float64")
        read = np.unique(batch(number, BATCH + number)[0].asnumpy() % SIZE)
        assert rows.indices.tolist() == read.tolist()
        assert len(rows.data) == len(read) < SIZE
        assert np.abs(rows.asnumpy() - whole.asnumpy()).max() <= (1e-15 if twice else 0)
        np.testing.assert_array_equal(rows.asnumpy()[read], rows.data.asnumpy())
    assert isinstance(sparse.out.weight.grad(), Array)


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_tied_table_has_all_rows(hybrid: bool) -> None:
    dense, sparse = words(False, hybrid, tied=True), words(True, hybrid, tied=True)
    for net in (dense, sparse):
        with autograd.record():
            value = (net(batch(0)[0]) ** 2).sum()
        value.backward()
    rows = sparse.words.weight.grad()
    assert rows.indices.tolist() == list(range(SIZE))
    np.testing.assert_array_equal(rows.asnumpy(), dense.words.weight.grad().asnumpy())


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    "optimizer", [SGD(rate=0.5), Adagrad(rate=0.1), Adam(rate=0.01, weight_decay=0.1), SGD(momentum=0.9)]
)
def test_what_a_gradient_is_changes_no_step(optimizer: Optimizer, hybrid: bool) -> None:
    """Without lazy_update the numbers are those of dense gradients, to the bit, whatever the optimizer."""
    nets = words(False, hybrid), words(True, hybrid)
    dense, sparse = (train(net, Trainer(net.collect_params(), optimizer, clip_value=0.5)) for net in nets)
    for name, learned in dense.items():
        np.testing.assert_array_equal(sparse[name], learned)
    clipped = [train(net, Trainer(net.collect_params(), optimizer, clip_norm=0.1)) for net in nets]
    for name, learned in clipped[0].items():
        assert np.abs(clipped[1][name] - learned).max() <= 1e-12


def test_a_lazy_step_moves_what_was_read_alone() -> None:
    net = words(True)
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.01, "wd": 0.1, "lazy_update": True})
    before = net.words.weight.data().asnumpy()
    gradients(net, 0)
    trainer.step(BATCH)
    read = np.unique(batch(0)[0].asnumpy() % SIZE)
    assert np.unique(np.nonzero(net.words.weight.data().asnumpy() != before)[0]).tolist() == read.tolist()


@pytest.mark.parametrize("hybrid", [False, True])
def test_thirty_steps_end_where_pytorch_s_do(hybrid: bool) -> None:
    torch = peer("torch")
    net, cases = words(True, hybrid), []
    for name, ours, settings in (
        ("SGD", SGD(rate=0.3), {"lr": 0.3}),
        ("Adagrad", Adagrad(rate=0.1), {"lr": 0.1}),
        ("SparseAdam", Adam(rate=0.01, epsilon=1e-30, lazy_update=True), {"lr": 0.01, "eps": 1e-30}),
    ):
        net = words(True, hybrid)
        table = torch.nn.Embedding(SIZE, WIDTH, sparse=True, dtype=torch.float64)
        table.weight.data = torch.tensor(net.words.weight.data().asnumpy())
        held = net.collect_params()
        weight, bias = (torch.tensor(held[f"out.{n}"].data().asnumpy()) for n in ("weight", "bias"))
        theirs = getattr(torch.optim, name)(table.parameters(), **settings)
        trainer = Trainer([net.words.weight], ours)
        for i in range(30):
            value = gradients(net, i)
            text, label = (torch.tensor(x.asnumpy()) for x in batch(i))
            theirs.zero_grad()
            out = table(text % SIZE).mean(1) @ weight.T + bias
            torch.nn.functional.cross_entropy(out, label).backward()
            with torch.sparse.check_sparse_tensor_invariants():
                theirs.step()
            assert value.shape == (BATCH,)
            trainer.step(BATCH)
        learned = table.weight.detach().numpy()
        cases.append(np.abs(net.words.weight.data().asnumpy() - learned).max() / np.abs(learned).max())
    assert max(cases) <= 1e-9


@pytest.mark.parametrize("request_", ["gather", "add"])
def test_gradients_of_several_batches_are_rows_of_all(request_: str) -> None:
    dense, sparse = words(False), words(True)
    found = []
    for net in (dense, sparse):
        if request_ == "add":
            net.words.weight.grad_req = "add"
        trainer = Trainer(net.collect_params(), Adam(rate=0.1), gather=2 if request_ == "gather" else 1)
        for i in range(4):
            gradients(net, i)
            if request_ == "gather" or i % 2:
                trainer.step(BATCH)
                if request_ == "add":
                    net.zero_grad()
        found.append(net.words.weight.data().asnumpy())
    assert np.abs(found[0] - found[1]).max() <= 1e-12
    if request_ == "add":
        assert sparse.words.weight.grad().indices.shape == (0,)
        assert not sparse.words.weight.grad().asnumpy().any()


def test_float16_leaves_out_what_overflows() -> None:
    net = words(True)
    trainer = Trainer(net.collect_params(), Adam(rate=0.01, lazy_update=True), scaling=True)
    before = net.words.weight.data().asnumpy()
    gradients(net, 0)
    rows = net.words.weight.grad()
    rows.assign(rows * float("inf"))
    trainer.step(BATCH)
    np.testing.assert_array_equal(net.words.weight.data().asnumpy(), before)
    assert trainer.updates == 0
    gradients(net, 1)
    trainer.step(BATCH)
    assert trainer.updates == 1
    assert (net.words.weight.data().asnumpy() != before).any()


def test_states_are_kept_and_taken_up(tmp_path: Path) -> None:
    once, twice = words(True), words(True)
    straight = train(once, Trainer(once.collect_params(), Adam(lazy_update=True)), 4)
    trainer = Trainer(twice.collect_params(), Adam(lazy_update=True))
    for i in range(4):
        if i == 2:
            trainer.save_states(tmp_path / "states.npz")
            trainer = Trainer(twice.collect_params(), Adam(lazy_update=True))
            trainer.load_states(tmp_path / "states.npz")
        gradients(twice, i, BATCH + i % 2)
        trainer.step(BATCH + i % 2)
    for name, p in twice.collect_params().items():
        np.testing.assert_array_equal(p.data().asnumpy(), straight[name])


def test_rows_by_themselves() -> None:
    x = nd.row_sparse_array((np.array([[1.0, 2], [3, 4], [5, 6]]), [3, 0, 3]), (5, 2))
    y = nd.row_sparse_array((np.array([[1.0, 1]]), np.array([4], np.int32)), (5, 2))
    assert (x.indices.tolist(), x.data.tolist()) == ([0, 3], [[3, 4], [6, 8]])
    np.testing.assert_array_equal((x + y).asnumpy(), x.asnumpy() + y.asnumpy())
    assert (x + y).indices.tolist() == [0, 3, 4]
    np.testing.assert_array_equal((x + nd.ones((5, 2), dtype="float64")).asnumpy(), x.asnumpy() + 1)
    np.testing.assert_array_equal((x * 2 / 4).asnumpy(), x.asnumpy() / 2)
    assert x.tostype("row_sparse") is x
    assert "of at most 3 rows" in repr(x)
    with pytest.raises(InputError, match="stype 'csr'"):
        x.tostype("csr")
    with pytest.raises(ShapeError, match="differ"):
        x + nd.row_sparse_array((np.zeros((1, 2)), [0]), (4, 2))
    with pytest.raises(MezzoError, match="outside an axis of 2"):
        nd.row_sparse_array((np.zeros((1, 2)), [7]), (2, 2)).wait_to_read()
    with pytest.raises(InputError, match="stype 'csr'"):
        nd.ones((2, 2)).attach_grad(stype="csr")
    z = nd.ones((5, 2))
    z.attach_grad(stype="row_sparse")
    with autograd.record():
        value = (nd.take(z, nd.asarray([1, 1]), axis=0) * 2).sum()
        (asked,) = autograd.grad([value], [z], retain_graph=True)
    value.backward()
    assert z.grad.data.tolist() == [[4, 4]]
    assert isinstance(asked, Array)  # what is asked for by itself may be differentiated again: it is an array
    np.testing.assert_array_equal(asked.asnumpy(), z.grad.asnumpy())


def test_an_export_has_the_table(tmp_path: Path) -> None:
    net = words(True, True)
    train(net, Trainer(net.collect_params(), Adam(lazy_update=True)), 2)
    net.export(tmp_path / "words.onnx", batch(0)[0])
    graph = mz.onnx.load(tmp_path / "words.onnx")
    assert any(np.array_equal(a, net.words.weight.data().asnumpy()) for a in graph.initializers.values())
