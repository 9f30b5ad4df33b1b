"""Shards whose values, states and counts lie where they outlive the server (kept.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..ops.errors import BudgetError
from ..ops.types import Array
from .kept import VERSION, Kept, KeptKey
from .protocol.keys import OWN, Keys, element
from .protocol.messages import Init, SetOptimizer
from .shards import Budget, Described, Held, Room, Shards
from .updater import ChangedRows, UpdateRule, nested

States = dict[str, Array]


@dataclass(slots=True, kw_only=True)
class KeptHeld(Held):
    """One shard: `value` is the buffer that counts, `other` the one that does not; so are the `sides` of its states, in
    the order of the buffers."""

    key: int
    kept: KeptKey
    other: Room
    sides: tuple[States, States] = ({}, {})


class KeptShards(Shards):
    """All keys of a server that may be started again, as they were committed.

    What a round makes of a value goes to the buffer that does not count, which counts when it is complete. Without an
    optimizer that buffer is the sum; with one the sum has memory of its own.
    """

    _held: dict[int, KeptHeld]  # type: ignore[assignment]

    def __init__(self, keys: Keys, budget: Budget, kept: Kept, by_staleness: bool = False) -> None:
        super().__init__(keys, budget, by_staleness)
        self._kept = kept
        self.budget.take(kept.changes, "changed rows")
        for key in kept.keys.values():
            shard = key.shard
            self.budget.take(2 * shard.nbytes, f"key {shard.name!r}")
            self._hold(keys.admit(Init(shard.name, shard.dtype, shard.shape, shard.lo, shard.hi, key.first)))
        if kept.optimizer is not None:
            self.optimizer = given = kept.optimizer
            self._rule = UpdateRule({"kind": given.name, **nested(given.scalars)})
            for held in self._held.values():
                self._set_apart(held)
                self._take_states(held)

    def declare(self, key: int) -> Held:
        if key not in self._held:
            shard = self.keys[key]
            apart = self._rule is not None and not shard.name.startswith(OWN)
            size = (2 + apart) * shard.nbytes
            self.budget.take(size, f"key {shard.name!r}")  # all of it before anything is kept
            try:
                self._kept.declare(key, shard, self.keys.first(key))
            except BudgetError:
                self.budget.taken -= size
                raise
            held = self._hold(key)
            if apart:
                held.sum = Room(held.shard, held.dtype)
        return self._held[key]

    def _hold(self, key: int) -> KeptHeld:
        """Take the memory of a key as it is kept."""
        kept = self._kept.keys[key]
        shard, dtype = kept.shard, np.dtype(element(kept.shard.dtype).numpy)
        value, other = (Room(shard, dtype, kept.rooms[at]) for at in (kept.now, 1 - kept.now))
        held = KeptHeld(shard, shard.nbytes, dtype, value, other, key=key, kept=kept, other=other)
        held.step, held.applied, held.rows = kept.word(VERSION), kept.applied, kept.rows()
        held.updates, held.reads = self._kept.updates(kept), self._kept.reads(kept)
        self._held[key] = held
        return held

    def _set_apart(self, held: KeptHeld) -> None:
        """An optimizer needs the sum beside both buffers."""
        if self._rule is not None and held.sum is held.other and not held.shard.name.startswith(OWN):
            self.budget.take(held.nbytes, f"the sum of key {held.shard.name!r}")
            held.sum = Room(held.shard, held.dtype)

    def _take_states(self, held: KeptHeld) -> None:
        sides = [{slot: room.view(held.dtype) for slot, room in states.items()} for states in held.kept.states]
        self.budget.take(sum(state.nbytes for state in sides[0].values()), f"states of key {held.shard.name!r}")
        held.sides = (sides[0], sides[1])
        held.states = held.sides[held.kept.now]

    def counts(self, key: int) -> dict[int, int] | None:
        return self._held[key].kept.counts()

    @property
    def left(self) -> frozenset[int]:
        return frozenset(self._kept.left)

    def leave(self, rank: int) -> None:
        self._kept.leave(rank)

    def come(self, rank: int, counts: Mapping[int, int]) -> None:
        self._kept.come(rank, counts)

    def given(self, key: int) -> None:
        super().given(key)
        self._held[key].kept.set_here(VERSION, 0)

    # --- computing

    def _target(self, held: Held, lo: int, hi: int, how: str) -> tuple[Array, States]:
        assert isinstance(held, KeptHeld)
        value, states = super()._target(held, lo, hi, how)
        target, size = held.elements(held.other, lo, hi), held.dtype.itemsize
        np.copyto(target, value)
        others = {slot: held.sides[1 - held.kept.now][slot][lo // size : hi // size] for slot in states}
        for slot, state in states.items():
            np.copyto(others[slot], state)
        return target, others

    def _applied_in_part(self, held: Held) -> None:
        assert isinstance(held, KeptHeld)
        held.kept.apply_in_part(held.applied)

    def _applied(self, held: Held, step: int, how: str, rank: int | None) -> None:
        assert isinstance(held, KeptHeld)
        counts = held.kept.counts()
        counts = dict.fromkeys(counts, step) if rank is None else {rank: counts[rank] + 1}
        held.step, held.applied = step, 0
        held.updates += how == "update"
        held.kept.commit(step, held.updates, self._kept.era, counts)
        shared = held.sum is held.other
        held.value, held.other = held.other, held.value
        held.sum = held.other if shared else held.sum
        held.states = held.sides[held.kept.now]

    def _source(self, held: Held, step: int) -> Room:
        assert isinstance(held, KeptHeld)
        return held.other if held.applied and step > held.step else held.value

    def read(self, key: int, rank: int) -> None:
        super().read(key, rank)
        if self._by_staleness:
            held = self._held[key]
            held.kept.set_read(rank, held.updates)

    def _rows_stepped(self, held: Held, tables: States, changed: ChangedRows, rank: int, number: int) -> None:
        assert isinstance(held, KeptHeld)
        room = self._kept.lacking([changed.at, *changed.parts.values()])
        self.budget.take(room, f"changed rows of key {held.shard.name!r}")
        held.updates += 1
        held.rows[rank] = number
        self._kept.change_rows(held.key, changed.at, changed.parts, held.updates, rank, number)

    # --- optimizers

    def set_rule(self, rule: UpdateRule, given: SetOptimizer) -> None:
        self._kept.set_optimizer(given)
        super().set_rule(rule, given)
        for held in self._held.values():
            held.sides = ({}, {})
            held.kept.set_reads(0)
            self._set_apart(held)

    def _states(self, held: Held) -> States:
        assert isinstance(held, KeptHeld)
        if self._rule is not None and self._rule.optimizer.slots and not held.states:
            self._kept.add_states(held.key, self._rule.states(held.shard.name, held.value.array))
            self._take_states(held)
        return held.states

    def load_states(self, key: int, about: Described, data: bytes | bytearray) -> None:
        super().load_states(key, about, data)
        held = self._held[key]
        self._kept.set_updates(held.kept, held.updates)
        held.kept.set_reads(held.updates)
