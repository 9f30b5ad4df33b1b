"""Agreement of workers: before the first step, they compare digests of what each would compute."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..ops.errors import InputError
from ..ops.types import type_of
from ..runtime.digests import blake2b
from ..runtime.ir.graph import Graph
from ..runtime.version import __version__

if TYPE_CHECKING:
    from ..kvstore.store import KVStore

STEP = "trainer/step"  # a key of our own
LONGEST = 16384  # bytes of a description
CODE = ("ops", "runtime", "kvstore", "train")  # folders whose code makes a step


def digest(graph: Graph, without: Iterable[str] = (), *also: object) -> str:
    """Return a digest of what a graph computes: its nodes and its constants. Of states, and of the constants in
    `without`, only the types count."""
    first = {*(s.input for s in graph.states), *without}
    made = blake2b(f"{also} {graph.inputs} {graph.outputs} {graph.states}".encode(), digest_size=16)
    for node in graph.nodes:
        attrs = sorted((a, str(v)) for a, v in node.attrs.items())
        made.update(f"{node.domain} {node.op} {node.inputs} {node.outputs} {attrs}".encode())
    for name, array in sorted(graph.initializers.items()):
        made.update(f"{name} {type_of(array)}".encode())
        if name not in first:
            made.update(np.ascontiguousarray(array).tobytes() if array.dtype != object else str(array).encode())
    return str(made.hexdigest())


def code() -> str:
    """The version of this package, and a digest of the code that makes a step: two checkouts may have one version."""
    made, root = blake2b(digest_size=8), Path(__file__).resolve().parent.parent
    for folder in CODE:
        for path in sorted((root / folder).rglob("*.py")):
            made.update(str(path.relative_to(root)).encode())
            made.update(path.read_bytes())
    return f"{__version__} ({made.hexdigest()})"


def agree(store: KVStore, prefix: str, facts: Mapping[str, str]) -> None:
    """Compare what this worker would do with what rank 0 would. Every worker calls it, with facts of the same names.

    Raises InputError naming both sides of each difference. It needs nothing but `init` and `pull`, which every kind of
    store has, whatever its pushes mean; so the others learn of it as they learn of a worker that has left.
    """
    if store.num_workers == 1:
        return
    text = json.dumps(dict(facts)).encode()
    if len(text) > LONGEST:
        shorter = {n: v if len(v) < 200 else blake2b(v.encode(), digest_size=16).hexdigest() for n, v in facts.items()}
        text = json.dumps(shorter).encode()[:LONGEST]
    place = np.zeros(LONGEST, np.int32)
    place[: len(text)] = np.frombuffer(text, np.uint8)
    mine = place.copy()
    store.broadcast(prefix + STEP, place, place)
    if np.array_equal(place, mine):
        return
    ours, theirs = (json.loads(bytes(p[p > 0].astype(np.uint8))) for p in (mine, place))
    told = [
        f"{n} is {ours.get(n, 'nothing')} on rank {store.rank} and {theirs.get(n, 'nothing')} on rank 0"
        for n in dict.fromkeys((*theirs, *ours))
        if ours.get(n) != theirs.get(n)
    ]
    raise InputError(
        f"the workers of this job do not make the same step: {'; '.join(told)}",
        where=f"rank {store.rank}",
        hint="make the Trainer alike on every worker; parameters and random numbers may differ",
    )
