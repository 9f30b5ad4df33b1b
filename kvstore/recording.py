"""Manifests of a job, one for each rank: all for `mezzo replay FOLDER` to run it again, to the same bits.

`MEZZO_RECORD` names their folder (`mezzo launch --record FOLDER` sets it). A worker writes its own when it closes its
store: seed, versions, machine, environment, and digests of what was declared and pushed by key, in order, and of what
its Trainers say: parameters before and after, and all batches in their order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Self

from ..nd.random import state
from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.digests import blake2b
from ..runtime.environment import switch
from ..runtime.manifest import COMMAND, RECORD, Manifest, pieces, program, read, taken
from .backend import Backend
from .rows import Sum
from .ticket import Ticket

NAME = "rank-{}.json"
_current: list[Recording] = []  # that of this process, if it has one


class Recording:
    """Digests of what this worker does, until its store is closed."""

    def __init__(self, folder: str, rank: int) -> None:
        self.path, self._lock = Path(folder) / NAME.format(rank), Lock()  # operations begin in threads of the engine
        self._streams: dict[tuple[str, str], Any] = {}
        self._after: dict[str, Callable[[], Any]] = {}
        self._begun = taken(0)

    def begins(self, parameters: Callable[[], Any]) -> None:
        """A Trainer begins, whose parameters these are, and at the end again."""
        number = len(self._after)
        which = f" {number}" if number else ""
        self._begun = self._begun.noting(**{f"before{which}": parameters()})
        self._after[f"after{which}"] = parameters

    def says(self, what: str, key: str, *values: Any) -> None:
        """More of what is done with a key."""
        with self._lock:
            stream = self._streams.setdefault((what, key), blake2b(digest_size=16))
            for value in values:
                for piece in pieces(value):
                    stream.update(piece)

    def end(self) -> Manifest:
        """Write the manifest. Raises ModelError where it cannot be written."""
        made = self._begun.noting(**{name: parameters() for name, parameters in self._after.items()})
        told = dict[str, dict[str, str]]()
        for (what, key), stream in self._streams.items():
            told.setdefault(what, {})[key] = stream.hexdigest()
        made = made.noting(**told)
        command = json.loads(switch(COMMAND) or "[]")
        made = replace(made, seed=int(state()["seed"]), command=tuple(command), folder=os.getcwd())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        made.write(self.path)
        return made


def begins(parameters: Callable[[], Any]) -> None:
    """A Trainer begins: see `Recording.begins`; nothing where nobody records."""
    for recording in _current:
        recording.begins(parameters)


def learns_from(batch: Any) -> None:
    """A Trainer makes a step with this batch."""
    for recording in _current:
        recording.says("batches", "", batch)


class RecordedBackend:
    """A backend whose operations are recorded; everything else is that of the one below."""

    def __init__(self, backend: Backend, folder: str) -> None:
        self._backend = backend
        self._recording = Recording(folder, backend.rank)
        _current[:] = [self._recording]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def init(self, key: str, value: Array) -> None:
        self._recording.says("declared", key, value)
        self._backend.init(key, value)

    def push(self, key: str, values: Sequence[Array], priority: int) -> Ticket:
        self._recording.says("pushed", key, *values)
        return self._backend.push(key, values, priority)

    def pushpull(self, key: str, values: Sequence[Array], outs: Sequence[Array], priority: int) -> Ticket:
        self._recording.says("pushed", key, *values)
        return self._backend.pushpull(key, values, outs, priority)

    def push_rows(self, key: str, ids: Array, rows: Array, sum: Sum) -> Ticket:
        self._recording.says("pushed", key, ids, rows)
        return self._backend.push_rows(key, ids, rows, sum)

    def again(self) -> Self:
        raise InputError("a job that is recorded does not go on without a worker", where="rejoin")

    def close(self, error: BaseException | None = None) -> None:
        recording = [one for one in _current if one is self._recording]
        _current.clear()
        if error is None:
            for one in recording:  # closing again does nothing
                one.end()
        self._backend.close(error)


# -- of a launcher ----------------------------------------------------------------------------------------------------


def recorded_into(folder: str | os.PathLike[str]) -> dict[str, str]:
    """The variables that make the workers of a job record it, to be run again by the command of this process. Raises
    InputError."""
    return {RECORD: str(emptied(folder, NAME)), COMMAND: json.dumps(program())}


def emptied(folder: str | os.PathLike[str], names: str) -> Path:
    """The path of a folder, which is made, and from which files of such names are removed: an earlier job has left
    them. Raises InputError."""
    where = Path(os.path.abspath(folder))
    try:
        where.mkdir(parents=True, exist_ok=True)
        for path in where.glob(names.format("*")):
            path.unlink()
    except OSError as error:
        raise InputError(f"no job can be recorded there: {error}", where=str(folder)) from error
    return where


def recorded_in(folder: str | os.PathLike[str]) -> Mapping[str, Manifest]:
    """The manifests of a job by the names of their workers, in the order of ranks. Raises InputError where there are
    none, ModelError for a file that is none."""
    before, after = NAME.split("{}")
    names = [p.name.removeprefix(before).removesuffix(after) for p in Path(folder).glob(NAME.format("*"))]
    ranks = sorted(int(name) for name in names if name.isdecimal())
    if not ranks:
        raise InputError(
            "no worker has recorded anything there",
            where=str(folder),
            hint="mezzo launch --record FOLDER; workers write when they close their stores (with ... as kv)",
        )
    return {f"worker {rank}": read(Path(folder) / NAME.format(rank)) for rank in ranks}
