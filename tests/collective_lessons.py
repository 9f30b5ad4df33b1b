"""Trainings over communicators, and one process that does the same in turn: for test_collective_training.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Any

import numpy as np

import mezzo as mz
from mezzo.kvstore.collective.communicator import Communicator
from mezzo.kvstore.collective.threads import team
from mezzo.ops import DType, Tensor
from mezzo.ops.types import type_of
from mezzo.runtime.ir.autodiff import grad
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.runtime.optimizer import SGD, Adam, AdamW, Group, Optimizer
from mezzo.train.building import Step
from mezzo.train.shares import Share
from mezzo.train.step import update_graph

Array = np.ndarray[Any, Any]
WEIGHT = "weight of the share"
SIZE = 2  # samples of a rank in a batch

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(rate=0.05, momentum=0.9),
    "adam": Adam(rate=0.01),
    "adamw": AdamW(rate=0.01, weight_decay=0.1, groups=(Group(("*bias*",), scale=0.5, weight_decay=0.0),)),
}


def network(dtype: DType = DType.DOUBLE) -> Graph:
    """A perceptron whose parameters have 15, 5, 35, 7, 21 and 3 elements: no part ends where one does."""
    g = GraphBuilder()
    rng = np.random.default_rng(7)
    x = g.input("x", Tensor(dtype, ("n", 3)))
    first: dict[str, Array] = {}
    for number, (inside, outside) in enumerate([(3, 5), (5, 7), (7, 3)]):
        first[f"{number}.weight"] = rng.standard_normal((inside, outside)).astype(dtype.numpy)
        first[f"{number}.bias"] = rng.standard_normal(outside).astype(dtype.numpy)
        weight, bias = (g.input(f"{number}.{n}", type_of(first[f"{number}.{n}"])) for n in ("weight", "bias"))
        x = g.Add(g.MatMul(x, weight), bias)
        if number < 2:
            x = g.Tanh(x)
    graph = g.graph([x])
    return graph.but(inputs=("x",), initializers={**graph.initializers, **first})


def gradients_of(trainer: mz.Trainer) -> Graph:
    """The graph that computes gradients alone; its parameters are inputs, and so is what a share's loss counts."""
    with_loss, loss = trainer._judged(trainer.source)
    kind = with_loss.types[loss]
    weighed = with_loss.but(
        nodes=(*with_loss.nodes, Node("Mul", (loss, WEIGHT), ("weighed",), {})),
        inputs=(*with_loss.inputs, *trainer.trained, WEIGHT),
        outputs=(loss,),
        states=(),
        initializers={n: a for n, a in with_loss.initializers.items() if n not in trainer.trained},
        types={**with_loss.types, WEIGHT: kind},
    )
    return grad(weighed, "weighed", trainer.trained)


@dataclass(frozen=True, slots=True)
class Course:
    """A training of two epochs: by which optimizer, over how many ranks, and what is shared out."""

    optimizer: str = "adam"
    ranks: int = 4
    zero: int = 0
    gather: int = 1
    buckets: bool | int = True
    wire: str | None = None
    clip_norm: float | None = None
    dtype: DType = DType.DOUBLE
    hosts: tuple[int, ...] = ()  # ranks on each of several hosts, whose sums are added in their order

    def trainer(self, kvstore: Any = None, **how: Any) -> mz.Trainer:
        about: dict[str, Any] = {} if kvstore is None else {
            "kvstore": kvstore, "zero": self.zero, "buckets": self.buckets, "wire": self.wire,
        }  # fmt: skip
        return mz.Trainer(
            network(self.dtype), optimizer=OPTIMIZERS[self.optimizer], gather=self.gather, clip_norm=self.clip_norm,
            threads=1, **about, **how,
        )  # fmt: skip

    @property
    def data(self) -> tuple[Array, Array]:
        """Samples of an epoch: two batches, and a last one of which rank 0 has more than the others."""
        rng, samples = np.random.default_rng(3), self.ranks * (2 * SIZE + 1) + 1
        return rng.standard_normal((samples, 3)).astype(self.dtype.numpy), rng.integers(0, 3, samples)

    def batches(self, epochs: int = 2) -> list[list[dict[str, Array]]]:
        """The shares of each step, by rank."""
        x, target = self.data
        made = []
        for epoch in range(epochs):
            order = np.random.default_rng(epoch).permutation(len(x))
            for number in range(3):
                shares = [Share(r, self.ranks, uneven=True).rows(order, SIZE, number) for r in range(self.ranks)]
                made.append([{"x": x[rows], "target": target[rows]} for rows in shares])
        return made


def learned(trainer: mz.Trainer, batches: list[dict[str, Array]]) -> dict[str, Array]:
    losses = [trainer.step(batch) for batch in batches]
    return {**{n: np.array(a) for n, a in trainer.parameters.items()}, "losses": np.array(losses)}


def together(ranks: list[Any], do: Callable[[Communicator], Any]) -> list[Any]:
    """What each rank's thread returns. Raises the first error."""
    found: list[Any] = [None] * len(ranks)
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = do(ranks[rank])
        except BaseException as error:
            errors.append(error)
            ranks[rank].abort(f"{type(error).__name__}: {error}")

    threads = [Thread(target=run, args=(r,), daemon=True) for r in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    return found


def by_threads(course: Course, ranks: Any = team) -> list[dict[str, Array]]:
    """What each rank learns, as a thread of this process."""
    batches = course.batches()
    return together(ranks(course.ranks, 60), lambda c: learned(course.trainer(c), [b[c.rank] for b in batches]))


def in_turn(course: Course, device: str = "cpu", epochs: int = 2) -> dict[str, Array]:
    """The parameters that one process learns which computes the shares in turn, and adds them in the order of ranks.

    Of several hosts the sums of each are added. It knows nothing of buckets: gradients come from a graph that only
    computes them, whole tensors are added, and the update is a graph of its own. What is gathered is added in each rank
    first, but with zero=2 over the ranks first.
    """
    alone = course.trainer()
    graph, loss, names = gradients_of(alone), alone.loss, alone.trained
    parameters = {n: np.array(alone.states[n]) for n in names}
    optimizer = OPTIMIZERS[course.optimizer]
    step = update_graph(parameters, Step(optimizer, course.clip_norm), "gradient of {}".format)
    update = mz.Session(step, threads=1, device=device)
    session = mz.Session(graph, threads=1, device=device)
    wire = {None: None, "bf16": DType.BFLOAT16.numpy, "fp16": np.float16}[course.wire]

    def added(parts: list[Array]) -> Array:
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        return total

    def summed(parts: list[Array]) -> Array:
        if wire is not None:
            parts = [p.astype(wire).astype(np.float32) for p in parts]
        ends = np.cumsum(course.hosts)[:-1]
        total = added([added([parts[r] for r in own]) for own in np.split(np.arange(len(parts)), ends)])
        return total.astype(wire).astype(course.dtype.numpy) if wire is not None else total

    held: list[list[dict[str, Array]]] = []
    for batch in course.batches(epochs):
        sizes = [len(share["x"]) for share in batch]
        parts = []
        for share, size in zip(batch, sizes, strict=True):
            weight = 1 / len(batch) if len(set(sizes)) == 1 else size / sum(sizes)
            answer = session.run({**share, **parameters, WEIGHT: np.array(weight, course.dtype.numpy)})
            parts.append({n: np.array(answer[f"{n}_grad"]) for n in names})
        held.append(parts)
        if len(held) < course.gather:
            continue
        for n in names:
            if course.zero == 2:
                total = np.zeros_like(parameters[n])
                for micro in held:
                    total = total + summed([part[n] for part in micro])
                total = total * parameters[n].dtype.type(1 / course.gather) if course.gather > 1 else total
            else:
                mine = []
                for r in range(len(batch)):
                    sum_of_rank = held[0][r][n]
                    if course.gather > 1:
                        sum_of_rank = np.zeros_like(sum_of_rank)
                        for micro in held:
                            sum_of_rank = sum_of_rank + micro[r][n]
                        sum_of_rank = sum_of_rank * sum_of_rank.dtype.type(1 / course.gather)
                    mine.append(sum_of_rank)
                total = summed(mine)
            update.states[f"gradient of {n}"][...] = total
        fed = {"scale": np.array(1.0)}
        if "rate" in update.signature.inputs:
            fed["rate"] = np.array(optimizer.rate, np.float64)
        update.run(fed)
        held = []
        parameters = {n: np.array(update.states[n]) for n in names}
    assert loss
    return parameters
