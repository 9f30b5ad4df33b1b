"""Agreement of workers: before the first step, they compare what each would compute."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array, type_of
from ..runtime.digests import blake2b
from ..runtime.ir.graph import Graph
from ..runtime.version import __version__

if TYPE_CHECKING:
    from ..kvstore.store import KVStore
    from .building import Step
    from .trainer import Trainer

STEP = "trainer/step"  # a key of our own
LONGEST = 16384  # bytes of a description
CODE = ("ops", "runtime", "kvstore", "train")  # folders whose code makes a step


def digest(graph: Graph, without: Iterable[str] = (), *also: object) -> str:
    """Return a digest of what a graph computes: its nodes and its constants. Of states, and of the constants in
    `without`, only the types count."""
    first = {*(s.input for s in graph.states), *without}
    digest = blake2b(f"{also} {graph.inputs} {graph.outputs} {graph.states}".encode(), digest_size=16)
    for node in graph.nodes:
        attrs = sorted((a, str(v)) for a, v in node.attrs.items())
        digest.update(f"{node.domain} {node.op} {node.inputs} {node.outputs} {attrs}".encode())
    for name, array in sorted(graph.initializers.items()):
        digest.update(f"{name} {type_of(array)}".encode())
        if name not in first:
            digest.update(np.ascontiguousarray(array).tobytes() if array.dtype != object else str(array).encode())
    return str(digest.hexdigest())


def digest_of_step(trainer: Trainer) -> str:
    """Return a digest of a training step: its graph, its optimizer, and the seed. What is shared out, and among how
    many, is not the training's."""
    graph, plan = trainer.graph_of_step, trainer.plan
    if plan.shared is not None:
        alone = replace(plan.shared, workers=1) if plan.shared.on_store else None
        graph = trainer._steps(step=replace(plan, shared=alone))
    if trainer.pipeline:  # whose turns the devices tell
        graph = graph.but(nodes=tuple(sorted(graph.nodes, key=lambda n: n.outputs)))
    graph = graph if trainer._products is None else trainer._products.steps()
    return digest(graph, (), trainer.seed, trainer._optimizer.to_dict())


@cache
def code() -> str:
    """The version of this package, and a digest of the code that makes a step: two checkouts may have one version."""
    digest, root = blake2b(digest_size=8), Path(__file__).resolve().parent.parent
    for folder in CODE:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return f"{__version__} ({digest.hexdigest()})"


def common_facts(
    plan: Step, precision: str, source: Graph, parameters: Mapping[str, Array], learned_by: str
) -> dict[str, str]:
    """Return the facts that all workers of a job must have in common."""
    count = f"{len(parameters)} tensors of {sum(a.size for a in parameters.values())} elements"
    return {
        "the optimizer": str(plan.optimizer),
        "the precision": precision,
        "clipping and gathering": f"clip_norm={plan.clip_norm}, clip_value={plan.clip_value}, gather={plan.gather}",
        "what learns": f"{count} ({digest(source.but(nodes=()), source.initializers, *parameters)})",
        "the model with its loss": learned_by,
        "the code of mezzo": code(),
    }


def agree(store: KVStore, prefix: str, facts: Mapping[str, str]) -> None:
    """Compare what all workers would do. Every worker calls it.

    Raises InputError on every worker, telling what differs and on which ranks. Where the store has an optimizer
    already, so that a push is a gradient, each worker compares itself with rank 0: who does the same hears of the
    others as of workers that have left.
    """
    if store.num_workers == 1:
        return
    text = told_as(facts)
    if store.steps:
        mine = _padded(text)
        ranks, first = [0, store.rank], mine.copy()
        store.broadcast(prefix + STEP, first, first)
        texts = np.stack([first, mine])
    else:
        number = int.from_bytes(blake2b(text, digest_size=4).digest(), "little")
        numbers = _of_all(store, prefix + STEP, np.array([number], np.float64))
        if (numbers == number).all():
            return
        ranks = [*range(store.num_workers)]
        texts = _of_all(store, f"{prefix}{STEP}s", _padded(text))
    if differing := differences(
        {r: json.loads(bytes(t[t > 0].astype(np.uint8))) for r, t in zip(ranks, texts, strict=True)}
    ):
        raise InputError(
            f"the workers of this job do not make the same step: {differing}",
            where=f"rank {store.rank}",
            hint="make the Trainer alike on every worker; parameters and random numbers may differ",
        )


def told_as(facts: Mapping[str, str]) -> bytes:
    """Facts as a text of at most LONGEST bytes; long ones as their digests."""
    text = json.dumps(dict(facts)).encode()
    if len(text) > LONGEST:
        shorter = {n: v if len(v) < 200 else blake2b(v.encode(), digest_size=16).hexdigest() for n, v in facts.items()}
        text = json.dumps(shorter).encode()[:LONGEST]
    return text


def _padded(text: bytes) -> np.ndarray[Any, Any]:
    place = np.zeros(LONGEST)  # floats: a store with an optimizer has states for each value
    place[: len(text)] = np.frombuffer(text, np.uint8)
    return place


def _of_all(store: KVStore, key: str, mine: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The arrays of all workers, by rank. A push is added to zeros, or replaces them by the sum of all pushes: one and
    the same once all have pushed."""
    rows = np.zeros((store.num_workers, len(mine)), mine.dtype)
    store.init(key, rows)
    rows[store.rank] = mine
    store.push(key, rows)
    store.barrier()
    store.pull(key, rows)
    return rows


def differences(facts: Mapping[int, Mapping[str, str]]) -> str:
    """Tell what differs, and on which ranks; nothing if all is the same.

    >>> differences({0: {"rate": "1"}, 1: {"rate": "2"}, 2: {"rate": "1"}})
    'rate is 1 on ranks 0, 2 and 2 on rank 1'
    """
    clauses: list[str] = []
    for name in dict.fromkeys(n for known in facts.values() for n in known):
        sides: dict[str, list[str]] = {}
        for rank, known in facts.items():
            sides.setdefault(known.get(name, "nothing"), []).append(str(rank))
        if len(sides) > 1:
            each = [f"{v} on rank{'s' * (len(on) > 1)} {', '.join(on)}" for v, on in sides.items()]
            clauses.append(f"{name} is {' and '.join(each)}")
    return "; ".join(clauses)
