"""Checkpoints of optimizer states that ranks share out: each writes its parts, and any number of ranks read them.

In a checkpoint a state has the name that it has where nothing is shared out, `optimizer/STATE/PARAMETER`; the manifest
tells how parts lie in buckets, and which file is whose.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.errors import InputError, ModelError
from ..ops.types import Array
from ..runtime.ir.graph import Graph
from .buckets import KEY, Bucket
from .building import COUNT, SHARE
from .checkpoint import Checkpoint, Parts, write_part
from .collective import Collective
from .sharded import LAYOUT

FAILED = bytes(32)


def layout_of(graph: Graph, workers: int) -> tuple[Bucket, ...]:
    """The buckets of a step."""
    layout = json.loads(graph.metadata.get(LAYOUT, "[]"))
    return _buckets(layout, graph.initializers, workers)


def _buckets(layout: Any, arrays: Mapping[str, Array], workers: int) -> tuple[Bucket, ...]:
    return tuple(
        Bucket(key, tuple(names), tuple(arrays[n].shape for n in names), DType.of(arrays[names[0]].dtype), workers)
        for key, *names in layout
    )


def is_part(state: str) -> bool:
    """True for a state of a bucket.

    >>> is_part("optimizer/mean/bucket 3"), is_part("optimizer/mean/0.weight"), is_part("0.weight")
    (True, False, False)
    """
    return state.startswith("optimizer/") and state.count("/") == 2 and state.rpartition("/")[2].startswith(KEY)


def collected(
    folder: str | os.PathLike[str], states: Mapping[str, Array], graph: Graph, exchange: Any, lost: Mapping[str, Array],
    waiting: int,
) -> tuple[dict[str, Array], Parts | None]:  # fmt: skip
    """The states of a checkpoint, of which rank 0 writes all, and the parts of ranks that share them out, who write
    their own (see `written`). What compression has lost is a state of a store, or was one (`lost`)."""
    if exchange is None:
        return dict(states), None
    states = {**states, **(exchange.keep_losses() if exchange.joined else lost)}
    return written(folder, states, graph, exchange, waiting) if isinstance(exchange, Collective) else (states, None)


def written(
    folder: str | os.PathLike[str], states: Mapping[str, Array], graph: Graph, exchange: Collective, waiting: int
) -> tuple[dict[str, Array], Parts | None]:
    """Write this rank's parts, as every rank does; returns the states that rank 0 writes for all, and the parts of all.

    Raises InputError where gradients are gathered and `waiting` calls of `step` are missing to the next update, and
    ModelError on every rank where one could not write.
    """
    if waiting:
        raise InputError(
            f"gradients of this update are gathered: {waiting} more calls of step make it", where="save",
            hint="save after an update: each rank has gradients of its own until then",
        )  # fmt: skip
    parts = {n: np.array(a) for n, a in states.items() if is_part(n)}
    whole = {n: a for n, a in states.items() if n != SHARE and n not in parts}
    if not parts:
        return whole, None
    mine, failure = FAILED, None
    try:
        mine = write_part(folder, parts)
    except ModelError as error:
        failure = error
    digests = exchange.gathered(np.frombuffer(mine, np.uint8).copy(), "parts of a checkpoint")
    if failure is not None:
        raise failure
    lost = [r for r, row in enumerate(digests) if bytes(row) == FAILED]
    if lost:
        raise ModelError(
            f"rank {lost[0]} could not write its part", where=str(Path(folder)), hint="its own error says why"
        )
    layout = [[b.key, *b.names] for b in layout_of(graph, exchange.workers)]
    return whole, Parts(layout, tuple(bytes(row).hex() for row in digests))


def whole_snapshots(state: Any, graph: Graph, exchange: object) -> Any:
    """Return the counts of a callback as a checkpoint has them: snapshots of a Trainer have the names of one rank, as
    its other states. Every rank calls it, since each has its parts alone."""
    if not isinstance(state, Mapping) or not isinstance(exchange, Collective):
        return state
    if COUNT not in state:
        return {key: whole_snapshots(value, graph, exchange) for key, value in state.items()}
    whole = {n: a for n, a in state.items() if n != SHARE and not is_part(n)}
    rows = {n: exchange.gathered(np.asarray(state[n]), n) for n in sorted(filter(is_part, state))}
    parts = [{n: row[r] for n, row in rows.items()} for r in range(exchange.workers)]
    return joined(whole, parts, [[b.key, *b.names] for b in layout_of(graph, exchange.workers)]) if rows else whole


def own_snapshots(state: Any, states: Mapping[str, Array], graph: Graph, exchange: object) -> Any:
    """The same as this rank's callback has it."""
    if not isinstance(state, Mapping) or not isinstance(exchange, Collective):
        return state
    if COUNT in state:
        return {n: a for n, a in _mine(state, states, graph, exchange).items() if n != SHARE}
    return {key: own_snapshots(value, states, graph, exchange) for key, value in state.items()}


def read(checkpoint: Checkpoint, states: Mapping[str, Array], graph: Graph, exchange: object) -> Mapping[str, Array]:
    """The arrays of a checkpoint by the names of these states; what it has not is left out."""
    arrays = (
        checkpoint.arrays
        if checkpoint.parts is None
        else joined(checkpoint.arrays, checkpoint.parts.arrays, checkpoint.parts.layout)
    )
    return _mine(arrays, states, graph, exchange) if isinstance(exchange, Collective) else arrays


def _mine(
    arrays: Mapping[str, Array], states: Mapping[str, Array], graph: Graph, exchange: Collective
) -> dict[str, Array]:
    """The arrays of a checkpoint by the names of a rank's states."""
    layout = layout_of(graph, exchange.workers)
    mine = {n: state_of(n, arrays, layout, exchange.rank, a) for n, a in states.items()}
    return {n: a for n, a in mine.items() if a is not None}


def joined(arrays: Mapping[str, Array], parts: Sequence[Mapping[str, Array]], layout: Any) -> dict[str, Array]:
    """The arrays of a checkpoint with the states of each parameter, from the parts of all ranks."""
    states = dict(arrays)
    for bucket in _buckets(layout, arrays, len(parts)):
        for name in [n for n in parts[0] if n.endswith(f"/{bucket.key}") and is_part(n)]:
            slot = name.split("/")[1]
            for parameter, state in bucket.whole([part[name] for part in parts]).items():
                states[f"optimizer/{slot}/{parameter}"] = state
    return states


def state_of(name: str, arrays: Mapping[str, Array], layout: Sequence[Bucket], rank: int, now: Array) -> Array | None:
    """A state of this rank from the arrays of a checkpoint; None where they have it not. Padding stays as it is."""
    if not is_part(name):
        return now if name == SHARE else arrays.get(name)
    _, slot, key = name.split("/")
    bucket = next(b for b in layout if b.key == key)
    whole = {n: arrays.get(f"optimizer/{slot}/{n}") for n in bucket.names}
    known = {n: a for n, a in whole.items() if a is not None}
    if len(known) < len(whole):
        return np.zeros_like(now) if slot == "gathered" else None  # a checkpoint is written at an update
    part, filled = bucket.flat(known, rank), sum(p.end - p.begin for p in bucket.pieces(rank))
    part[filled:] = np.asarray(now)[filled:]
    return part
