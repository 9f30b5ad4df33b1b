"""Recomputation: the same training in fewer bytes, and only where the plan shrinks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.models.convnets import mlp, random_weights, resnet18
from mezzo.ops.errors import InputError
from mezzo.runtime.ir.graph import AGAIN, Graph
from mezzo.runtime.optimizer import SGD
from mezzo.train.trainer import Trainer

SHAPE = (8, 3, 96, 96)
SIZES = (8, random_weights(), 96)


def trainers(graph: Graph, **options: Any) -> tuple[Trainer, Trainer]:
    how: dict[str, Any] = {"optimizer": SGD(rate=0.01, momentum=0.9), "threads": 1}
    return Trainer(graph, **how), Trainer(graph, recompute=options.pop("shapes", True), **how, **options)


def again(trainer: Trainer) -> int:
    """How many nodes run a second time."""
    return sum(n.name.endswith(AGAIN) for n in trainer.graph_of_step.nodes)


def test_the_same_steps_in_less_memory() -> None:
    graph = resnet18(*SIZES, classes=10)
    plain, less = trainers(graph)
    assert again(less)
    assert not again(plain)
    rng = np.random.default_rng(0)
    feeds = {"data": rng.standard_normal(SHAPE, np.float32), "target": rng.integers(0, 10, SHAPE[0])}
    for _ in range(2):
        assert less.step(feeds) == pytest.approx(plain.step(feeds), rel=1e-4)
    sizes = [t._update.program.plan.size for t in (plain, less)]
    assert sizes[1] < 0.9 * sizes[0]


def test_nothing_runs_twice_where_nothing_is_won() -> None:
    plain, same = trainers(mlp(8, random_weights()))
    assert not again(same)
    assert [str(n) for n in same.graph_of_step.nodes] == [str(n) for n in plain.graph_of_step.nodes]


def test_open_sizes_are_given_or_asked_for() -> None:
    graph = resnet18("n", *SIZES[1:], classes=10)
    with pytest.raises(InputError, match="sizes of data, target are open"):
        trainers(graph)
    _, less = trainers(graph, shapes={"data": SHAPE})
    assert again(less)
    with pytest.raises(InputError, match="'image' is no input"):
        trainers(graph, shapes={"image": SHAPE})
