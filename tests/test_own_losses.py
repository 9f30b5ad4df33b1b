"""Losses written as plain functions of arrays: the same steps as the losses that have a name, at every batch size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo import nd
from mezzo.gluon.loss import L2Loss, SoftmaxCELoss
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.optimizer import SGD
from mezzo.train.loss import custom
from mezzo.train.trainer import Trainer

from .networks import batch_for, mlp
from .peers import peer
from .test_losses import batch, heads

SCALE = nd.asarray(np.arange(1, 6, dtype=np.float64))


def norms(y: Any, t: Any) -> Any:
    """A class with a method, to be one of several forms."""
    return nd.linalg.vector_norm(y - t, axis=1) ** 2 / y.shape[1]


# Each is the mean of squares, written otherwise.
SQUARES: dict[str, Callable[[Any, Any], Any]] = {
    "functions": lambda y, t: nd.mean((y - t) ** 2),
    "methods": lambda y, t: ((y - t) ** 2).mean(),
    "of each element": lambda y, t: nd.square(y - t),
    "of each sample": norms,
    "sizes": lambda y, t: ((y - t) ** 2).sum() / (y.shape[0] * y.shape[1]),
    "len": lambda y, t: ((y - t) ** 2).sum() / 5 / len(y),
    "reshaped": lambda y, t: ((y - t).reshape((y.shape[0] * y.shape[1],)) ** 2).mean(),
    "views": lambda y, t: nd.concat([(y - t)[:1], (y - t)[1:]], axis=0) ** 2,
    "outside": lambda y, t: ((y * SCALE - t * SCALE) ** 2 / SCALE**2).mean(),
    "where": lambda y, t: nd.mean(nd.where(y > t, y - t, t - y) ** 2),
    "namespace": lambda y, t: y.__array_namespace__().mean((y - t) ** 2),
    "symbols": lambda y, t: mz.sym.mean((y - t) ** 2),
    "methods of symbols": lambda y, t: (y - t).Pow(np.float64(2)),
}


def steps(loss: Any, **how: Any) -> list[float]:
    """The losses of steps on batches of three sizes, and of an evaluation."""
    graph, rng = mlp(DType.DOUBLE), np.random.default_rng(0)
    trainer = Trainer(graph, loss=loss, optimizer=SGD(rate=0.1), **how)
    feeds = [{"x": rng.standard_normal((n, 12)), "target": rng.standard_normal((n, 5))} for n in (8, 1, 3)]
    return [*(trainer.step(f) for f in feeds * 2), trainer.evaluate(feeds).loss]


@pytest.mark.parametrize("form", SQUARES)
def test_forms_of_the_mean_square(form: str) -> None:
    np.testing.assert_allclose(steps(SQUARES[form]), steps("mse"), rtol=1e-12)


def test_losses_of_gluon_and_of_classes() -> None:
    graph, feeds = mlp(DType.DOUBLE), batch_for(mlp(DType.DOUBLE), 0)
    half = custom(lambda y, t: mz.sym.mean((y - t) ** 2) / 2)
    np.testing.assert_allclose(steps(L2Loss()), steps(half), rtol=1e-12)
    forms: list[Callable[..., Any]] = [
        SoftmaxCELoss(),
        lambda y, t: -nd.mean(nd.pick(nd.log_softmax(y, axis=1), t, axis=1)),
        lambda y, t: -(nd.one_hot(t, 5) * nd.log_softmax(y, axis=-1)).sum(axis=1),
    ]
    want = [(trainer := Trainer(graph)).step(feeds), trainer.step(feeds)]
    for form in forms:
        trainer = Trainer(graph, loss=custom(form, "classes"))
        np.testing.assert_allclose([trainer.step(feeds), trainer.step(feeds)], want, rtol=1e-6)


def test_several_outputs_are_those_of_pytorch(tmp_path: Path) -> None:
    torch = peer("torch")

    def triple(kind: Any, where: Any, there: Any, target: Any) -> Any:
        near = nd.sum((where - target) ** 2, axis=1, keepdims=True)
        return nd.mean(nd.sigmoid(there) * near) + nd.log(nd.sum(nd.exp(kind), axis=1)).mean() / 10

    graph, feeds = heads(), batch()
    trainer = Trainer(
        graph,
        loss={("kind", "where", "there"): custom(triple, Tensor(DType.DOUBLE, ("n", 2)))},
        optimizer=SGD(rate=0.1),
    )
    weights = {n: torch.tensor(a.copy(), requires_grad=True) for n, a in trainer.parameters.items()}
    body, *ends = weights.values()
    x, target = torch.tensor(feeds["x"]), torch.tensor(feeds["where_target"])
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        kind, where, there = (torch.tanh(x @ body) @ end for end in ends)
        near = ((where - target) ** 2).sum(1, keepdim=True)
        want = (torch.sigmoid(there) * near).mean() + torch.logsumexp(kind, 1).mean() / 10
        want.backward()
        optimizer.step()
        found = trainer.step({"x": feeds["x"], "kind_where_there_target": feeds["where_target"]})
        assert found == pytest.approx(want.item(), rel=1e-12)
    trainer.export(tmp_path / "net.onnx")
    assert len(mz.load(tmp_path / "net.onnx").outputs) == 3


def test_samples_weigh_in_functions_of_arrays() -> None:
    graph, feeds = mlp(DType.DOUBLE), batch_for(mlp(DType.DOUBLE), 0)
    feeds |= {"target": np.ones((8, 5)), "sample_weight": np.arange(8.0)}
    one, other = (Trainer(graph, loss=f, sample_weights=True) for f in ("mse", SQUARES["of each element"]))
    np.testing.assert_allclose([one.step(feeds) for _ in range(3)], [other.step(feeds) for _ in range(3)], rtol=1e-12)


def alike(y: Any, t: Any) -> Any:
    """The cross-entropy of each sample's likeness to the others, of which it is to be most like itself."""
    near = nd.matmul(y, nd.matrix_transpose(y)) - 3 * nd.eye(len(y))
    return -nd.mean(nd.pick(nd.log_softmax(near, axis=1), nd.arange(len(y)), axis=1))


def spread(y: Any, t: Any) -> Any:
    """What takes arrays that are as large as the batch: equal numbers, ranges, and a mask."""
    place = nd.reshape(nd.arange(1, 2 * len(y) + 1, 2, dtype="float64"), (-1, 1))
    kept = nd.where(y > t, y, nd.zeros_like(y)) + nd.ones((len(y), 1))
    return nd.sum(kept * place * nd.full((1, 5), 0.5)) + nd.sum(nd.eye(len(y), dtype="bool"))


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_arrays_as_large_as_the_batch(n: int) -> None:
    """They are made anew for each batch, whatever the sizes were that the function was traced at."""
    x, t = (np.random.default_rng(n).standard_normal((n, size)) for size in (12, 5))
    (y,) = mz.Session(mlp(DType.DOUBLE)).run({"x": x}).values()
    near = y @ y.T - 3 * np.eye(n)
    want = -np.mean(np.diag(near) - np.log(np.exp(near).sum(1)))
    assert Trainer(mlp(DType.DOUBLE), loss=alike).step({"x": x, "target": t}) == pytest.approx(want, rel=1e-9)
    kept = (np.where(y > t, y, 0) + 1) * np.arange(1, 2 * n + 1, 2)[:, None] / 2
    assert Trainer(mlp(DType.DOUBLE), loss=spread).step({"x": x, "target": t}) == pytest.approx(
        kept.sum() + n, rel=1e-9
    )


def test_a_trainer_keeps_the_constants_that_it_began_with() -> None:
    scale = nd.ones(5)
    loss = custom(lambda y, t: scale * (y - t) ** 2)
    feeds = batch_for(mlp(DType.DOUBLE), 0) | {"target": np.ones((8, 5))}
    one, other = (Trainer(mlp(DType.DOUBLE), loss=loss, optimizer=SGD(rate=0.0)) for _ in range(2))
    first = one.step(feeds)
    scale[:] = 2.0
    assert other.evaluate([feeds]).loss == pytest.approx(first)
    assert Trainer(mlp(DType.DOUBLE), loss=loss).step(feeds) == pytest.approx(2 * first)


def test_noise_of_the_batchs_size() -> None:
    """A target that is drawn anew in each step, for batches of any size: rate 0 leaves what the model says."""
    far: list[float] = []
    trainer = Trainer(
        mlp(), loss=lambda y, t: ((t - 0 * y + nd.random.normal(y.shape)) ** 2).mean(), optimizer=SGD(rate=0.0)
    )
    for size in (8, 2000, 3, 2000):
        feeds = batch_for(mlp(), 0, size) | {"target": np.zeros((size, 5), np.float32)}
        far.append(float(trainer.step(feeds)))
    assert [far[1], far[3]] == pytest.approx([1, 1], abs=0.1)
    assert len({*far}) == 4


def branch(y: Any, t: Any) -> Any:
    return y.mean() if (y - t).mean() > 0 else t.mean()


def loop(y: Any, t: Any) -> Any:
    return sum(((a - b) ** 2).sum() for a, b in zip(y, t, strict=True))


def change(y: Any, t: Any) -> Any:
    y[0] = 0
    return (y - t).mean()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (branch, r"test_own_losses.py:\d+ in branch: branch: the numbers of an array are read(.|\n)*nd.where makes"),
        (lambda y, t: float(nd.mean(y)), r"test_own_losses.py:\d+.*the numbers of an array are read"),
        (lambda y, t: y.asnumpy().mean(), r"test_own_losses.py:\d+.*the numbers of an array are read"),
        (loop, r"(?s)at n=\d+ loop does something else.*reshapes and slices"),
        (change, r"test_own_losses.py:\d+ in change: change: an array from outside .* is changed in place"),
        (lambda y, t: nd.reshape(y, (7, 3)), r"test_own_losses.py:\d+.*cannot reshape"),
        (lambda y, t: 3.0, "returns float"),
        (lambda y, t: (y, t), "returns tuple"),
        (lambda y, t: y.nothing(), "'Array' object has no attribute 'nothing'"),
        (lambda y, t: mz.sym.mean(nd.square(y)), "fails on symbols(.|\n)*mz.nd alone, or of mz.sym alone"),
        (lambda y, t: mz.sym.mean(y) if mz.sym.mean(y) else t, "a symbol has no numbers"),
    ],
)
def test_what_no_graph_does_is_told(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Trainer(mlp(), loss=function)
    nd.waitall()


def unknown() -> Graph:
    """A linear model whose output has a rank that nobody knows."""
    g = GraphBuilder()
    x, shape = g.input("x", Tensor(DType.FLOAT, ("n", 4))), g.input("shape", Tensor(DType.INT64, (None,)))
    return g.graph([g.Reshape(g.MatMul(x, g.const(np.ones((4, 2), np.float32))), shape)])


def test_an_output_of_unknown_rank_is_given_as_a_symbol() -> None:
    feeds = {"x": np.ones((3, 4), np.float32), "shape": np.array([6]), "target": np.zeros(6, np.float32)}
    assert Trainer(unknown(), loss=lambda y, t: mz.sym.mean((y - t) ** 2)).step(feeds) == 16
    with pytest.raises(InputError, match="a rank is not known: declare the model's shapes"):
        Trainer(unknown(), loss=SQUARES["functions"])


def test_a_loss_of_arrays_is_a_metric_too() -> None:
    """It is computed where no graph is built: by metrics, and by the check of what `mezzo train` writes."""
    from mezzo.train.metrics import LossOf

    y, t = np.full((4, 2), 3, np.float32), np.ones((4, 2), np.float32)
    for function in (lambda y, t: mz.nd.mean((y - t) ** 2), lambda y, t: mz.sym.mean((y - t) ** 2)):
        assert LossOf(mz.loss.custom(function)).sums(y, t).tolist() == [16.0, 4.0]
