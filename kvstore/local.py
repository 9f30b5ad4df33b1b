"""A store in one process: the kinds `local` and `device`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np

from ..ops.errors import InputError
from ..ops.types import Array
from .packing import Packings
from .protocol.messages import Overview
from .protocol.pace import Counts
from .rows import Sum, whole_of
from .rule import Updater
from .states import Saved, check_states
from .stats import Stats
from .ticket import ENDED, Ended
from .updater import UpdateRule

OF_ONE = ("local", "device")  # kinds of stores whose only worker is this process


@dataclass(slots=True)
class _Value:
    stored: Array
    shown: Array  # the same, read-only
    room: Array | None = None  # for the sum of several devices
    states: dict[str, Array] = field(default_factory=dict[str, Array])
    updates: int = 0


class Local:
    """One worker: a push replaces the value by the sum over its devices, or updates it."""

    rank, num_workers = 0, 1

    def __init__(self, kind: str = "local") -> None:
        self.kind = kind
        self._values: dict[str, _Value] = {}
        self._rule: UpdateRule | None = None
        self._updater: Updater | None = None
        self._pushes = self._pulls = 0
        self._lock = RLock()  # an updater may look at other keys

    def init(self, key: str, value: Array) -> None:
        stored = np.array(value, order="C")
        shown = stored.view()
        shown.flags.writeable = False
        self._values[key] = _Value(stored, shown)

    def push(self, key: str, values: Sequence[Array], priority: int) -> Ended:
        with self._lock:
            self._pushes += 1
            self._receive(key, values)
        return ENDED

    def _receive(self, key: str, values: Sequence[Array]) -> None:
        held = self._values[key]
        if self._rule is None and self._updater is None:
            _sum(values, held.stored)
            return
        received = values[0]
        if len(values) > 1 or self._updater is not None:  # what a user's function gets is nobody else's
            if held.room is None:
                held.room = np.empty_like(held.stored)
            received = _sum(values, held.room)
        if self._updater is not None:
            self._updater(key, received, held.stored)
        elif self._rule is not None:
            flat = np.ascontiguousarray(received).reshape(-1)
            states = {name: state.reshape(-1) for name, state in self._states(key, held).items()}
            self._rule.step(key, held.updates, held.stored.reshape(-1), flat, states)
            held.updates += 1

    def _states(self, key: str, held: _Value) -> dict[str, Array]:
        assert self._rule is not None
        if not held.states:
            held.states = self._rule.states(key, held.stored)
        return held.states

    def pull(self, key: str, outs: Sequence[Array], priority: int) -> Ended:
        with self._lock:
            self._pulls += 1
            held = self._values[key]
            for out in outs:
                np.copyto(out, held.stored)
            return Ended(held.shown)

    def pushpull(self, key: str, values: Sequence[Array], outs: Sequence[Array], priority: int) -> Ended:
        with self._lock:
            self.push(key, values, priority)
            return self.pull(key, outs, priority)

    def pull_rows(self, key: str, rows: Array, outs: Sequence[Array], priority: int) -> Ended:
        with self._lock:
            self._pulls += 1
            for out in outs:
                np.take(self._values[key].stored, rows, 0, out=out)
        return ENDED

    def push_rows(self, key: str, ids: Array, rows: Array, sum: Sum) -> Ended:
        with self._lock:
            held, rule = self._values[key], self._rule
            if rule is None or not rule.rows_alone(key):
                return self.push(key, (whole_of(ids, rows, held.stored),), 0)
            self._pushes += 1
            tables = {"": held.stored.reshape(-1), **self._states(key, held)}
            rule.step_rows(key, held.updates, tables, (ids, rows)).write(tables)
            held.updates += 1
        return ENDED

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.zeros(shape, dtype)

    def set_optimizer(self, optimizer: Mapping[str, Any]) -> None:
        rule = UpdateRule(optimizer)
        with self._lock:
            self._rule, self._updater = rule, None
            for held in self._values.values():
                held.states, held.updates = {}, 0

    def set_updater(self, updater: Updater) -> None:
        with self._lock:
            self._rule, self._updater = None, updater

    def set_compression(self, packings: Packings) -> None:
        """Nothing travels."""

    def drop_losses(self) -> None:
        """There are none."""

    def take_losses(self) -> dict[str, Array]:
        return {}

    def barrier(self) -> None:
        pass

    def states(self) -> Saved:
        if self._rule is None:
            raise InputError("there is no optimizer", where=self.kind, hint="call set_optimizer first")
        with self._lock:
            states = {key: {n: s.copy() for n, s in held.states.items()} for key, held in self._values.items()}
            return Saved(self._rule.data, states, {key: held.updates for key, held in self._values.items()})

    def load_states(self, saved: Saved) -> None:
        rule = UpdateRule(saved.optimizer)
        check_states(saved, rule.optimizer.slots, {key: held.stored for key, held in self._values.items()})
        with self._lock:
            self._rule, self._updater = rule, None
            for key, held in self._values.items():
                held.states = {name: state.copy() for name, state in saved.states.get(key, {}).items()}
                held.updates = saved.updates.get(key, 0)

    def stats(self) -> Stats:
        return Stats(self._pushes, self._pulls)

    def report(self, counts: Counts) -> None:
        """There is nobody to tell."""

    def overview(self) -> Overview:
        return Overview()

    @property
    def rejoins(self) -> bool:
        return False

    @property
    def gathering(self) -> int:
        return 0

    def again(self) -> Local:
        raise InputError("there are no other workers", where=f"rejoin in {self.kind}")

    def close(self, error: BaseException | None = None) -> None:
        pass


def _sum(values: Sequence[Array], out: Array) -> Array:
    """The sum of arrays in their order, written into `out`."""
    if len(values) > 2 and any(np.may_share_memory(value, out) for value in values[2:]):
        out[...] = _sum(values, np.empty_like(out))
        return out
    if len(values) == 1:
        np.copyto(out, values[0])
        return out
    np.add(values[0], values[1], out=out)
    for value in values[2:]:
        np.add(out, value, out=out)
    return out
