"""Outer steps: workers that learn by themselves, and meet after many steps, for links that are slow.

Between two meetings each worker's Trainer makes steps of its own. Then the mean over all workers of how far their
parameters have come is one step of an outer optimizer, SGD with Nesterov's momentum, and all go on from there: DiLoCo
(https://arxiv.org/abs/2311.08105). Without momentum and with a rate of 1 parameters are averaged, which is local SGD
(https://arxiv.org/abs/1805.09767).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array
from .exchange import prefix_of_next
from .following import Callback, Run

if TYPE_CHECKING:
    from ..kvstore.store import KVStore
    from .trainer import Trainer

PREFIX = "outer/"  # of keys


class Outer(Callback):
    """Have the workers of a job learn by themselves, and meet after every `every` steps, and at the end of a fit.

    Each worker's Trainer has no kvstore, and gives `fit` this callback; all make as many steps. They begin with the
    parameters of rank 0. What else a step changes (the optimizer's states, statistics) stays each worker's own. What
    `kv.set_compression` says before holds for what travels. In loops of your own call `begin(trainer)` before the first
    step and `stepped(trainer, loss)` after each.

    Raises InputError for a store that does not sum, or has an optimizer.
    """

    def __init__(self, kv: KVStore, *, every: int, rate: float = 0.7, momentum: float = 0.9) -> None:
        if every < 1 or not rate > 0 or not 0 <= momentum < 1:
            raise InputError(f"every={every}, rate={rate}, momentum={momentum}", where="Outer")
        if kv.steps or {*kv.consistency} != {"sequential"}:
            why = "has an optimizer" if kv.steps else "does not sum over workers"
            raise InputError(f"the store {why}", where="Outer", hint='give mz.kv.create("dist_sync")')
        self.kv, self.every, self.rate, self.momentum = kv, every, rate, momentum
        self._prefix = prefix_of_next(kv) + PREFIX
        self._count = 0  # steps
        self._own: dict[str, Array] = {}  # parameters before the workers have met for the first time
        self._anchor: dict[str, Array] = {}  # where all were when they met last
        self._velocity: dict[str, Array] = {}
        self._trainer: Trainer | None = None

    def begin(self, trainer: Trainer) -> None:
        """Meet the others: all get the parameters of rank 0. Raises InputError for a Trainer with a store."""
        if not hasattr(trainer, "parameters") or trainer.exchange is not None:
            raise InputError("it exchanges every gradient itself", where="Outer", hint="a mz.Trainer without kvstore=")
        self._trainer = trainer
        self._own = {name: np.array(array) for name, array in trainer.parameters.items()}
        first = not self._anchor
        self._anchor = {name: array.copy() for name, array in self._own.items()}
        self._velocity = {name: np.zeros_like(array) for name, array in self._own.items()}
        keys, arrays = [self._prefix + name for name in self._anchor], [*self._anchor.values()]
        if first:
            self.kv.init(keys, arrays)
            self.kv.pull(keys, arrays)
        else:  # the store has the keys of an earlier fit
            self.kv.pushpull(keys, [a if self.kv.rank == 0 else np.zeros_like(a) for a in arrays], arrays)
        self._go_on(trainer)

    def stepped(self, trainer: Trainer, loss: float | None = None) -> bool:
        """Count a step, and meet the others where it is time. Returns whether they have met."""
        self._count += 1
        due = self._count % self.every == 0
        if due:
            self.meet(trainer)
        self.kv.stepped(loss)
        return due

    def meet(self, trainer: Trainer) -> None:
        """Make an outer step. Every worker calls it, after as many steps."""
        moved = [anchor - np.asarray(trainer.parameters[name]) for name, anchor in self._anchor.items()]
        self.kv.pushpull([self._prefix + name for name in self._anchor], moved, moved)
        for (name, anchor), gradient in zip(self._anchor.items(), moved, strict=True):
            gradient /= self.kv.num_workers
            velocity = self._velocity[name]
            velocity *= self.momentum
            velocity += gradient
            anchor -= self.rate * (gradient + self.momentum * velocity)
        self._go_on(trainer)

    def _go_on(self, trainer: Trainer) -> None:
        for name, array in trainer.parameters.items():
            array[...] = self._anchor[name]

    # -- of a fit

    def fit_begin(self, run: Run) -> None:
        self.begin(run.trainer)  # type: ignore[arg-type]

    def step_end(self, run: Run) -> None:
        self.stepped(run.trainer, None if run.last is None else run.last.loss)  # type: ignore[arg-type]

    def epoch_end(self, run: Run) -> None:
        if run.epoch + 1 == run.epochs and self._count % self.every:
            self.meet(run.trainer)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, "anchor": self._anchor, "velocity": self._velocity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, with parameters that the Trainer had before `begin`: those of this worker."""
        self._count = int(state["count"])
        self._anchor, self._velocity = dict(state["anchor"]), dict(state["velocity"])
        if self._trainer is not None:
            for name, array in self._trainer.parameters.items():
                array[...] = self._own[name]
