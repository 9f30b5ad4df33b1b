"""`mezzo explain --workers N`: the memory of each rank of a training, planned before a device is touched, and with
`--time` what a model expects of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..kvstore.collective.communicator import Planned
from ..ops import Tensor
from ..ops.errors import InputError
from ..ops.training.exchange import AWAIT, DOMAIN, SUM
from ..runtime.compile.program import Program
from ..runtime.devices import GPU
from ..runtime.ir.graph import Graph
from ..runtime.memory.plan import Space
from ..runtime.optimizer import named
from ..train.trainer import Trainer
from .fills import first_that_runs
from .gpu_time import card_for
from .report import Table
from .scaling import scaling_table

COLUMNS = ("zero", "parameters", "optimizer states", "other states", "buckets", "arena", "bytes of a rank")


def training_table(
    graph: Graph, workers: int, optimizer: str, shapes: Mapping[str, Any], seed: int = 0, device: str = "cpu"
) -> Table:
    """Table of the bytes that rank 0 of so many needs, at each level of `zero` that the optimizer allows: the plan of a
    training step of its share. No other rank needs more.

    Raises InputError for optimizers that there are not, and what `Trainer` raises.
    """
    rows = []
    kind = named(optimizer)()
    for zero in (0, 1, 2):
        try:
            trainer = Trainer(graph, optimizer=kind, device=device, kvstore=Planned(workers), zero=zero, buckets=True)
        except InputError:
            if not zero:
                raise
            continue
        program, states = _planned(trainer, shapes, seed), trainer.states
        learned = sum(states[n].nbytes for n in trainer.trained)
        optimizers = sum(a.nbytes for n, a in states.items() if n.startswith("optimizer/") and n.count("/") > 1)
        others = sum(a.nbytes for a in states.values()) - learned - optimizers
        buckets = {s.life.name: s.life.nbytes for s in program.plan.slots if s.life.space is Space.EXTERN}
        answers = [s for s in program.steps if (s.node.op, s.node.domain) == (AWAIT, DOMAIN)]
        apart = (program.types[s.node.outputs[0]] for s in answers if s.node.attrs.get("verb", SUM) != SUM)
        travelling = sum(buckets.values()) + sum(t.nbytes for t in apart if isinstance(t, Tensor))
        total = learned + optimizers + others + travelling + program.arena_bytes
        rows.append((zero, learned, optimizers, others, travelling, program.arena_bytes, total))
    return Table(f"Memory of a rank of {workers}, {optimizer}", COLUMNS, rows)


def scaling_of(
    graph: Graph, workers: int, optimizer: str, shapes: Mapping[str, Any], seed: int, device: str, card: str
) -> Table:
    """Table of the time that a model expects of a training step over 1 to `workers` GPUs.

    Raises InputError for a device that is no GPU, and what `training_table` raises.
    """
    if not device.startswith(GPU):
        raise InputError(
            f"--time is for GPUs, not {device}", hint="--device gpu:0@sm_90 plans for one that is not here"
        )
    trainer = Trainer(graph, optimizer=named(optimizer)(), device=device, kvstore=Planned(workers), buckets=True)
    program = _planned(trainer, shapes, seed)
    return scaling_table(program, card_for(program, card), workers)


def _planned(trainer: Trainer, shapes: Mapping[str, Any], seed: int) -> Program:
    """The program of a step, for sizes that are given or chosen."""
    session = trainer._update
    first_that_runs(session, shapes, seed, lambda feeds: session.warmup({n: np.shape(a) for n, a in feeds.items()}))
    return session.program
