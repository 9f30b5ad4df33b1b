"""`mezzo explain --workers N`: the memory of each rank of a training, planned before a device is touched, and with
`--time` what a model expects of a step; `mezzo explain --micro-batches N`: the turns and the memory of each device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..importers import load_graph
from ..kvstore.collective.communicator import Planned
from ..ops import Tensor
from ..ops.errors import InputError
from ..ops.training.exchange import AWAIT, DOMAIN, SUM
from ..runtime.compile.auto_place import AutoPlace, needs_of
from ..runtime.compile.parts import copies
from ..runtime.compile.program import Program
from ..runtime.devices import GPU, Placement
from ..runtime.ir.graph import Graph
from ..runtime.memory.plan import Space
from ..runtime.optimizer import named
from ..train.trainer import Trainer
from .fills import first_that_runs
from .gpu_time import card_for
from .report import Report, Table
from .scaling import scaling_table

COLUMNS = ("zero", "parameters", "optimizer states", "other states", "buckets", "arena", "bytes of a rank")

PARTS = ("device", "in flight", "arena bytes", "weights bytes", "states bytes", "bytes", "room")


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


def pipeline_report(
    model: Path,
    place: Placement | None,
    count: int,
    optimizer: str,
    shapes: Mapping[str, Any],
    seed: int,
    device: str,
    facts: Mapping[str, Any],
) -> Report:
    """Report on a training with each batch in `count` micro-batches: the turns of each device, how many micro-batches
    are in flight there, and what it needs of memory with their activations.

    Raises InputError for a batch of fewer samples, and what a Trainer raises.
    """
    how: dict[str, Any] = {"device": device} if place is None else {"place": place}
    trainer = Trainer(load_graph(model), optimizer=named(optimizer)(), micro_batches=count, **how)
    session, pipeline = trainer._update, trainer.pipeline
    assert pipeline is not None

    def planned(feeds: Mapping[str, Any]) -> None:
        trainer.plan.check({}, len(next(iter(feeds.values()))))
        session.warmup({n: np.shape(a) for n, a in feeds.items()})

    chosen, _ = first_that_runs(session, shapes, seed, planned)
    needs = needs_of(session.program, session.executable.constants, pipeline.devices[0])
    room = place.room if isinstance(place, AutoPlace) else {}
    rows = [(d, pipeline.in_flight(d), needs[d].arena, needs[d].weights, needs[d].states, needs[d].total,
             room.get(d, "")) for d in pipeline.devices]  # fmt: skip
    moved = sum(c.type.nbytes for c in copies(session.program))
    told = {"turns": 1 + pipeline.turns[-1].time, "bytes_between_devices": moved, **facts}
    told |= {"sizes_chosen": chosen} if chosen else {}
    turns = Table("Turns", ("device", "turns"), [(d, " ".join(map(str, pipeline.of(d)))) for d in pipeline.devices])
    return Report(str(model), told, [turns, Table("Devices", PARTS, rows)])


def _planned(trainer: Trainer, shapes: Mapping[str, Any], seed: int) -> Program:
    """The program of a step, for sizes that are given or chosen."""
    session = trainer._update
    first_that_runs(session, shapes, seed, lambda feeds: session.warmup({n: np.shape(a) for n, a in feeds.items()}))
    return session.program
