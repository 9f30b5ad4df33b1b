"""The store of workers that share one host and have no servers: each serves its part of every value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ops.errors import InputError, MezzoError
from ...ops.types import Array
from ..pace import Reporter
from ..packing import Packings
from ..protocol.messages import Overview
from ..protocol.pace import Counts
from ..rows import Rows, Sum, whole_of
from ..rule import Updater
from ..states import Saved, check_states
from ..stats import Stats
from ..ticket import ENDED, Ticket
from ..updater import UpdateRule, flat
from .group import Group
from .optimizers import gather, take_rule
from .values import HostValue, ValueOperation

Again = Callable[[MezzoError], "HostStore"]  # joins a job again after a failure, or raises it


class HostStore:
    """The backend of a group; `leave` is called when the store is closed, `again` joins the job once more."""

    operation = ValueOperation
    gathering = 0

    def __init__(
        self,
        kind: str,
        group: Group,
        leave: Callable[[BaseException | None], None] | None = None,
        reporter: Reporter | None = None,
        again: Again | None = None,
    ) -> None:
        self.kind, self.group, self._reporter = kind, group, reporter
        self.rank, self.num_workers = group.ranks[group.me], group.members
        self._leave, self._again = leave, again
        self._values: dict[str, HostValue] = {}
        self._pushes = self._pulls = 0

    def init(self, key: str, value: Array) -> None:
        array = np.asarray(value, order="C")
        self._values[key] = self.group.declare(key, array, self._packing(key, array))

    def push(self, key: str, values: Sequence[Array], priority: int) -> ValueOperation:
        self._pushes += 1
        return self.group.start(self.operation(self.group, self._values[key], values, (), False, priority))

    def pull(self, key: str, outs: Sequence[Array], priority: int) -> ValueOperation:
        self._pulls += 1
        return self.group.start(self.operation(self.group, self._values[key], (), outs, True, priority))

    def pushpull(self, key: str, values: Sequence[Array], outs: Sequence[Array], priority: int) -> ValueOperation:
        self._pushes += 1
        self._pulls += 1
        return self.group.start(self.operation(self.group, self._values[key], values, outs, True, priority))

    def pull_rows(self, key: str, rows: Array, outs: Sequence[Array], priority: int) -> ValueOperation:
        self._pulls += 1
        return self.group.start(self.operation(self.group, self._values[key], (), outs, True, priority, rows))

    def push_rows(self, key: str, ids: Array, rows: Array, sum: Sum) -> Ticket:
        value, rule = self._values[key], self._rule_now
        if rule is None or not rule.rows_alone(key):
            return self.push(key, (whole_of(ids, rows, value.stored),), 0)
        self._pushes += 1
        return self._step_rows(value, rule, (ids, rows), sum)

    @property
    def _rule_now(self) -> UpdateRule | None:
        return self.group.rule

    def _step_rows(self, value: HostValue, rule: UpdateRule, rows: Rows, sum: Sum) -> Ticket:
        """Have each member step its part of the sum of all rows."""
        self.group.settle(value)
        value.step_rows(rule, sum(*rows))
        self.group.barrier()  # the value of all members is one
        return ENDED

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.group.empty(shape, dtype)

    def set_optimizer(self, optimizer: Mapping[str, Any]) -> None:
        rule = UpdateRule(optimizer)
        self._agree("set_optimizer", flat(rule.data))
        self._take(rule)

    def set_updater(self, updater: Updater) -> None:
        name = getattr(updater, "__name__", type(updater).__name__)
        raise InputError(
            f"{name} is code, which does not travel to the processes that hold the values",
            where=f"set_updater in {self.kind}, rank {self.rank}",
            hint=f"write it as expressions: @mezzo.kv.rule def {name}(e, stored, received): return ...; or use "
            "set_optimizer, or a local store",
        )

    def set_compression(self, packings: Packings) -> None:
        """Within a host nothing travels."""
        self._agree("set_compression", dict(packings.least))

    def drop_losses(self) -> None:
        """There are none."""

    def take_losses(self) -> dict[str, Array]:
        return {}

    def _packing(self, key: str, value: Array) -> str:
        return ""

    def barrier(self) -> None:
        self.group.barrier()

    def _agree(self, what: str, mine: Any) -> None:
        for member, theirs in self.group.together(what, mine).items():
            if theirs != mine:
                raise InputError(
                    f"rank {self.group.ranks[member]} gives {theirs}, and rank {self.rank} {mine}",
                    where=what,
                    hint="every worker must call it with the same argument",
                )

    def states(self) -> Saved:
        rule = self.group.rule
        if rule is None:
            raise InputError("there is no optimizer", where=self.kind, hint="call set_optimizer first")
        return self._gather(rule)

    def load_states(self, saved: Saved) -> None:
        rule = UpdateRule(saved.optimizer)
        check_states(saved, rule.optimizer.slots, {key: value.stored for key, value in self._values.items()})
        self._agree("load_optimizer_states", flat(rule.data))
        self._take(rule, saved)

    def _take(self, rule: UpdateRule, saved: Saved | None = None) -> None:
        if not rule.elementwise:
            raise InputError(
                f"{rule.optimizer.kind} measures whole tensors, and each worker of this store steps a part of them",
                where=f"set_optimizer in {self.kind}, rank {self.rank}",
                hint="update on the workers (Trainer's default), or start one server: mezzo launch -s 1",
            )
        take_rule(self.group, rule, saved)

    def _gather(self, rule: UpdateRule) -> Saved:
        return gather(self.group, rule)

    def stats(self) -> Stats:
        return Stats(self._pushes, self._pulls, inside=self.group.moved)

    def report(self, counts: Counts) -> None:
        if self._reporter is not None:
            self._reporter.report({**counts, **self._moved()})

    def _moved(self) -> Counts:
        """The counts of a report that the store has."""
        return {"inside": float(self.group.moved)}

    def overview(self) -> Overview:
        return Overview() if self._reporter is None else self._reporter.overview()

    @property
    def rejoins(self) -> bool:
        return self._again is not None

    def again(self) -> HostStore:
        failure, again = self.group.failure, self._again
        if failure is None:
            raise InputError("the store has not failed", where=f"rejoin in {self.kind}, rank {self.rank}")
        if again is None:
            raise failure
        if self._rule_now is not None:
            raise InputError(
                "the optimizer's states are on the store, which forgets them when the job gathers again",
                where=f"rejoin in {self.kind}, rank {self.rank}",
                hint="let the workers update, or raise the failure: all begin again then, from what was saved",
            ) from failure
        self._leave = self._again = None
        self.group.rest()
        self._part(failure)
        return again(failure)

    def _part(self, failure: MezzoError) -> None:
        """Close what belongs to this gathering of the job."""
        self.group.close(failure)

    def close(self, error: BaseException | None = None) -> None:
        try:
            self.group.close(error)
        finally:
            leave, self._leave = self._leave, None
            if leave is not None:
                leave(error)
