"""States of optimizers that MXNet saved: `Trainer.save_states`, a module's `.states`, those of a KVStore.

    (states, optimizer) or states; states: a dict of index or name -> None, an array, or a tuple of these

Source: `Updater.get_states` and `NDArray.__getstate__` of Apache MXNet 1.9.1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field
from ...ops.errors import ModelError
from ...ops.types import Array
from .arrays import content_of, read_one
from .stream import Machine, Named

MOST = 1 << 20  # values in a file
DEEPEST = 8  # tuples in tuples, settings in settings


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerStates:
    """By index or name of each parameter what the optimizer keeps of it: None, an array, or a tuple of these, as MXNet
    orders them. `optimizer` and `settings` tell MXNet's class and its fields, where the file has them: plain data, in
    which an object is a dict with its "class"."""

    states: Mapping[int | str, Any]
    optimizer: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def updates(self) -> int:
        """Return the number of updates that were made; 0 where the file does not tell."""
        count = self.settings.get("num_update", 0)
        return count if isinstance(count, int) and count >= 0 else 0


def read_states(source: str | os.PathLike[str] | bytes, budget: Budget | None = None) -> OptimizerStates:
    """Read a file of states, of any of MXNet's versions. It is a pickle, of which no byte is run: only the steps that
    such files have are read, as data.

    Raises ModelError for all else, BudgetError for arrays beyond `budget.tensor_elements`.
    """
    limits = Budget.of(budget)
    if isinstance(source, bytes):
        return _StateReader("model", limits).read(source)
    path = Path(source)
    content = content_of(path, limits, "give a file of MXNet's save_states")
    return _StateReader(path.name, limits).read(content)


@dataclass(slots=True)
class _StateReader:
    where: str
    budget: Budget
    count: int = 0
    known: dict[int, Array] = field(default_factory=dict[int, Array])  # arrays that several states share

    def read(self, content: bytes) -> OptimizerStates:
        value = Machine(memoryview(content), self.where).run()
        states, optimizer = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        if not isinstance(states, dict):
            raise self.wrong(f"it is a {type(states).__name__}, no dict of states")
        if None in states:
            raise self.wrong("a state belongs to no parameter")
        converted = {key: self.state(state, 0) for key, state in states.items()}
        if optimizer is None:
            return OptimizerStates(converted)
        if not isinstance(optimizer, Named) or not optimizer.kind.startswith("mxnet.optimizer."):
            raise self.wrong("its second part is no optimizer")
        settings = self.plain(optimizer, 0)
        return OptimizerStates(converted, settings.pop("class"), settings)

    def wrong(self, what: str) -> ModelError:
        return ModelError(what, where=self.where, hint="give a file of MXNet's save_states")

    def one_more(self, level: int) -> None:
        self.count += 1
        if self.count > MOST or level > DEEPEST:
            raise self.wrong("it has too many values, or too deep ones")

    def state(self, value: Any, level: int) -> Any:
        self.one_more(level)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, tuple | list):
            return tuple(self.state(v, level + 1) for v in value)
        if not isinstance(value, Named) or not value.kind.lower().endswith("ndarray"):
            raise self.wrong(f"a state is a {value.kind if isinstance(value, Named) else type(value).__name__}")
        if id(value) not in self.known:
            raw = value.fields.get("handle") if isinstance(value.fields, dict) else None
            if not isinstance(raw, bytes):
                raise self.wrong("an array has no bytes")
            self.known[id(value)] = read_one(raw, self.where, self.budget)
        return self.known[id(value)]

    def plain(self, value: Any, level: int) -> Any:
        """Settings: an object is a dict of its fields."""
        self.one_more(level)
        if isinstance(value, Named):
            fields = value.fields if isinstance(value.fields, dict) else {}
            return {"class": value.kind.rsplit(".", 1)[1]} | {k: self.plain(v, level + 1) for k, v in fields.items()}
        if isinstance(value, dict):
            return {k: self.plain(v, level + 1) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return tuple(self.plain(v, level + 1) for v in value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise self.wrong(f"a setting is a {type(value).__name__}")
