"""What a worker of a job does in test_kv_training.py: lessons, one after the other, over one store.

`python -m tests.kv_lessons FOLDER LESSON...` writes `FOLDER/RANK.npz` with what came of each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mezzo import gluon, nd
from mezzo.gluon import nn
from mezzo.gluon.loss import SoftmaxCrossEntropyLoss
from mezzo.kvstore.create import create
from mezzo.kvstore.store import KVStore
from mezzo.nd import autograd
from mezzo.ops import DType
from mezzo.ops.errors import InputError
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.optimizer import SGD, Adam, Optimizer
from mezzo.runtime.optimizer.schedule import Cosine
from mezzo.train.agree import common_facts
from mezzo.train.loss import cross_entropy
from mezzo.train.shares import Share
from mezzo.train.trainer import Trainer

from .networks import batch_for, lenet, noisy

Array = np.ndarray[Any, Any]
MOMENTUM = SGD(rate=0.02, momentum=0.9)
SIZE = 4  # samples of one worker's share


def _lenet64() -> Graph:
    return lenet(DType.DOUBLE)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A training: of what, how long, and how."""

    network: Callable[[], Graph] = lenet
    steps: int = 5
    optimizer: Optimizer = MOMENTUM
    on_store: bool = False
    gather: int = 1
    clip_norm: float | None = None
    amp: str | None = None

    def trainer(self, kvstore: KVStore | None = None, **how: Any) -> Trainer:
        return Trainer(
            self.network(),
            **{"optimizer": self.optimizer, "gather": self.gather, "clip_norm": self.clip_norm, "amp": self.amp, **how},
            kvstore=kvstore,
            update_on_kvstore=self.on_store if kvstore else None,
        )

    def learn(self, trainer: Trainer, share: Share, workers: int) -> dict[str, Array]:
        """The states that so many steps lead to, and the losses."""
        losses = []
        for number in range(self.steps):
            batch = batch_for(trainer.source, number, SIZE * workers)
            rows = share.rows(np.arange(SIZE * workers), SIZE * workers // share.count, 0)
            losses.append(trainer.step({n: a[rows] for n, a in batch.items()}))
        return {**{n: np.array(a) for n, a in trainer.states.items()}, "losses": np.array(losses)}


LESSONS = {
    "float32": Lesson(),
    "again": Lesson(),
    "float64": Lesson(_lenet64, 50),
    "adam": Lesson(optimizer=Adam(rate=0.003)),
    "clipped": Lesson(steps=6, gather=2, clip_norm=0.5),
    "dropout": Lesson(noisy, 2),
    "narrow": Lesson(amp="bf16"),
    "on_store": Lesson(optimizer=Adam(rate=0.003), on_store=True),  # the last: the optimizer is the whole store's
}


def blocks(share: Share, workers: int, kvstore: KVStore | None = None) -> dict[str, Array]:
    """The parameters and mean losses of a network of blocks, whose gradients are arrays of the engine."""
    net = nn.HybridSequential(nn.Dense(8, "tanh", in_units=5), nn.Dense(3, in_units=8))
    nd.random.seed(1 + share.rank)  # the weights of rank 0 are to take the place of others
    net.initialize("xavier").cast("float64")
    trainer, measure = gluon.Trainer(net.collect_params(), MOMENTUM, kvstore=kvstore), SoftmaxCrossEntropyLoss()
    losses = []
    for number in range(5):
        rng = np.random.default_rng(number)
        x, label = rng.standard_normal((SIZE * workers, 5)), rng.integers(0, 3, SIZE * workers)
        rows = share.rows(np.arange(SIZE * workers), SIZE * workers // share.count, 0)
        with autograd.record():
            loss = measure(net(nd.asarray(x[rows])), nd.asarray(label[rows]))
        loss.backward()
        trainer.step(len(rows))
        losses.append(loss)
    found = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    return {**found, "losses": np.array([float(one.asnumpy().mean()) for one in losses])}


def refusal(trainer: Trainer, size: int) -> str:
    """What a step says whose shares differ."""
    try:
        trainer.step(batch_for(trainer.source, 0, size))
    except InputError as error:
        return error.message
    return ""


# What a worker other than rank 0 may do otherwise, and what is said of it.
OTHERWISE: dict[str, tuple[dict[str, Any], str]] = {
    "rate": ({"optimizer": SGD(rate=0.1, momentum=0.9)}, "the optimizer is SGD(rate=0.1"),
    "schedule": ({"optimizer": SGD(rate=Cosine(0.02, 10), momentum=0.9)}, "the optimizer is SGD(rate=Cosine("),
    "precision": ({"amp": "bf16"}, "the precision is BFLOAT16 in "),
    "gathering": ({"gather": 2}, "clipping and gathering is clip_norm=None, clip_value=None, gather=2"),
    "weights": ({"freeze": ["*bias"]}, "what learns is 5 tensors of "),
    "loss": ({"loss": "cross_entropy_of_others"}, "the model with its loss is "),
    "code": ({}, "the code of mezzo is 0.0.0 (of another checkout)"),
    "blocks": ({"clip_norm": 1.0}, "clipping and gathering is clip_norm=1.0"),
}


def otherwise(kv: KVStore, name: str) -> str:
    """What the first step says where the workers make different ones."""
    how = dict(OTHERWISE[name][0]) if kv.rank else {}
    if "loss" in how:
        how["loss"] = cross_entropy(label_smoothing=0.1)
    if name == "blocks":
        net = nn.Dense(2, in_units=3).initialize("xavier")
        try:
            gluon.Trainer(net.collect_params(), kvstore=kv, **how)
        except InputError as error:
            return error.message
        return ""
    trainer = Lesson().trainer(kv, **how)
    try:
        what = str(trainer._precision), trainer.source, trainer.parameters, trainer._learned_by
        facts = common_facts(trainer.plan, *what)
        if name == "code" and kv.rank:
            facts["the code of mezzo"] = "0.0.0 (of another checkout)"
        trainer.exchange.join(trainer.parameters, trainer.plan.optimizer, None, facts)  # type: ignore[union-attr]
    except InputError as error:
        return error.message
    return ""


def asynchronously(kv: KVStore) -> dict[str, Array]:
    """What is said to optimizers that differ where pushes are no rounds; and losses of two that do not."""
    said = ""
    try:
        Lesson(on_store=True).trainer(kv, optimizer=SGD(rate=0.1 + kv.rank)).step(batch_for(lenet(), 0, SIZE))
    except InputError as error:
        said = error.message
    losses = []
    for _ in range(2):  # the second one finds a store that has an optimizer
        trainer = Lesson(on_store=True).trainer(kv, optimizer=SGD(rate=0.1))
        losses.append(trainer.step(batch_for(trainer.source, kv.rank, SIZE)))
    return {"asynchronous:said": np.array(said), "asynchronous:losses": np.array(losses)}


def main(folder: str, *lessons: str) -> None:
    if "asynchronous" in lessons:
        with create("dist_async") as kv:
            np.savez(Path(folder) / f"{kv.rank}.npz", allow_pickle=False, **asynchronously(kv))
            kv.barrier()
        return
    with create("dist_sync") as kv:
        if "otherwise" in lessons:
            said = {f"{name}:said": np.array(otherwise(kv, name)) for name in OTHERWISE}
            kv.barrier()
            np.savez(Path(folder) / f"{kv.rank}.npz", allow_pickle=False, **said)
            return
        share, found = Share(kv.rank, kv.num_workers), dict[str, Array]()
        if "blocks" in lessons:
            found |= {f"blocks:{n}": a for n, a in blocks(share, kv.num_workers, kv).items()}
        for name in lessons:
            if name == "blocks":
                continue
            lesson = LESSONS[name]
            if kv.rank:  # other weights, which rank 0's are to take the place of
                own = lesson.network()
                moved = {n: a * 2 if a.dtype.kind == "f" else a for n, a in own.initializers.items()}
                trainer = lesson.trainer(kv)
                for n in trainer.trained:
                    trainer.states[n][...] = moved[n]
            else:
                trainer = lesson.trainer(kv)
            states = lesson.learn(trainer, share, kv.num_workers)
            found |= {f"{name}:{n}": a for n, a in states.items()}
            if not lesson.on_store:
                seen = trainer.metrics(everywhere=True)
                found[f"{name}:seen"] = np.array([seen.samples, seen.loss])
            if name == "float32":
                found[f"{name}:uneven"] = np.array(refusal(trainer, kv.rank + 1))
        np.savez(Path(folder) / f"{kv.rank}.npz", allow_pickle=False, **found)
        print("learned", *lessons)


if __name__ == "__main__":
    main(*sys.argv[1:])
