"""Placements of trainings that are found: of the model's nodes, so that the planned step fits each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..importers import load_graph
from ..runtime.compile.auto_place import AutoPlace, DeviceNeed, filled_shapes, needs_of, proposed
from ..runtime.devices import CPU, plannable, rooms_of
from ..runtime.ir.graph import Graph
from ..runtime.ir.infer import infer
from ..runtime.passes.place import renamed_devices
from .prepare import listed, prepared, refuse_beside


def automatic(trainer: Callable[..., Any], given: Mapping[str, Any]) -> Graph:
    """The model with a device for each node, as `proposed` finds them for the training step of a Trainer with these
    arguments: trainers that only plan tell what each device needs.

    Raises BudgetError where nothing fits, InputError for what placements cannot have beside them.
    """
    how = {n: x for n, x in given.items() if n not in ("self", "model", "place", "others", "__class__")}
    model = given["model"] if isinstance(given["model"], Graph) else load_graph(given["model"])
    graph = infer(prepared(model, listed(how["train"]) or ()))
    beside = {"device": how["device"] != "cpu", "kvstore": how["kvstore"], "recompute": how["recompute"]}
    refuse_beside(beside)
    asked = rooms_of(given["place"])
    if not asked.room:
        return model
    standing = {d: d if d.startswith(CPU) or "@" in d else _planned(d) for d in asked.devices}

    def needs(placed: Graph) -> dict[str, DeviceNeed]:
        session = trainer(renamed_devices(placed.but(types=graph.types), standing), **how)._update
        session.warmup(filled_shapes(session.signature, asked.shapes))
        program, own = session.program, {s: d for d, s in standing.items()}
        needed = needs_of(program, session.executable.constants, standing[placed.devices[0]])
        return {own[d]: need for d, need in needed.items()}

    shapes = {n: s for n, s in asked.shapes.items() if n in graph.inputs}
    sized = infer(graph, {n: graph.types[n].of(s) for n, s in filled_shapes(graph.signature, shapes).items()})  # type: ignore[union-attr]
    return proposed(sized, AutoPlace(asked.room, asked.shapes), needs, training=True).but(types=graph.types)


def _planned(device: str) -> str:
    """The name of a GPU that stands for one, and only plans."""
    from ..runtime.devices import device_named

    name = plannable(device)[0]
    return name if "@" in name else f"{name}@sm_{device_named(name).sm}"
