"""The store of workers that use servers: sums within a host, exchanged between hosts by level 2."""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np

from ..ops.errors import InputError, MezzoError, PeerError
from ..ops.types import Array, DType
from . import agent
from .environment import Environment
from .host.backend import Again, HostStore
from .host.group import Group, resign
from .host.mesh import called, join
from .host.opening import meeting, rejoining
from .host.values import HostValue
from .host.waiting import reason
from .levels import Levels, host_of
from .link import Link
from .loop import Loop
from .member import Member
from .pace import Reporter
from .packing import Packings
from .protocol import client as c
from .protocol import messages as m
from .protocol.consistency import Eventual
from .protocol.keys import OWN, Shard, element, place
from .protocol.pace import Counts
from .rows import Rows, Sum
from .shards import UPDATES, Described
from .states import Saved, check_states
from .stats import Stats
from .ticket import ENDED, Ticket
from .updater import UpdateRule, flat
from .uplink import Parts
from .wire import FRAME

MOST_TOLD = 500  # characters of what a worker gives


class DistStore(HostStore):
    """The backend of a group whose sums go to servers."""

    def __init__(
        self, kind: str, group: Group, link: Link, member: Member, loop: Loop, pid: int | None, again: Again | None
    ) -> None:
        super().__init__(kind, group, reporter=Reporter(member, group.wait), again=again)
        self.rank, self.num_workers = member.welcome.rank, member.welcome.num_workers
        self._link, self._member, self._loop, self._pid = link, member, loop, pid
        self._closed = False
        self._rule: UpdateRule | None = None
        self._levels = Levels.parse(member.welcome.consistency)
        self._known: dict[str, Parts] = {}
        self._brought = Counter[str]()  # gradients of rows, by key
        self._packings = Packings()

    # -- all together

    def barrier(self) -> None:
        uplink, opened = self._link.uplink, -1
        # Nobody waits for a push: what follows a barrier shall find it on the servers, where it may be said again too.
        while self._link.newest and opened != uplink.opened:
            opened = uplink.opened
            self.group.wait(lambda: not uplink.sending, "pushes before a barrier")
            self._request(m.ServerStats())
        self._stand("barrier")

    def _stand(self, name: str, given: Any = None) -> None:
        """Wait until each worker of the job has called this as often as this one with this name, and gives the same."""
        said, passed = "" if given is None else _told(given), list[Callable[[], bool]]()

        def begin() -> None:
            passed.append(self._member.barrier(name, said))

        self.group.wait(lambda: passed[0](), f"barrier {name!r}", begin)

    def _request(self, message: m.Message) -> tuple[m.Message, ...]:
        """Send a request to all servers and return their answers. Raises the error if one of them refuses."""
        made: list[c.Answered] = []
        self.group.wait(
            lambda: bool(made), type(message).__name__, lambda: self._link.uplink.request(message, made.append)
        )
        if made[0].error is not None:
            raise made[0].error
        return made[0].messages

    # -- what travels

    def set_compression(self, packings: Packings) -> None:
        super().set_compression(packings)
        if self._levels.between.sums:
            self._stand("set_compression", dict(packings.least))
        self._packings = packings
        self._again = self._again if not packings.least else None  # what was lost would be lost for good

    def drop_losses(self) -> None:
        if any(value.packing for value in self._values.values()):
            self._stand("drop_losses")  # no round is open
            self.group.drop_losses()

    def take_losses(self) -> dict[str, Array]:
        """The sums of what all hosts and servers keep, in a round of each key in which all travels as it is. An
        optimizer on the servers would take that for a gradient: there it is dropped."""
        found: dict[str, Array] = {}
        packed = sorted(name for name, value in self._values.items() if value.packing)
        if not packed:
            return found
        self._stand("take_losses")  # no round is open
        self.group.drop_losses(collect=True)
        for name in packed if self._rule is None else ():
            found[name] = np.zeros_like(self._values[name].stored)
            self.pushpull(name, (found[name],), (found[name],), 0).wait()
        self.drop_losses()
        return found

    def _packing(self, key: str, value: Array) -> str:
        """The scheme of a new key. Where there is a part of it for each server, each packs its own."""
        own = key.startswith(OWN) or not self._levels.between.sums
        return "" if own else self._packings.scheme(str(DType.of(value.dtype)), value.nbytes)

    # -- optimizers

    def set_optimizer(self, optimizer: Mapping[str, Any]) -> None:
        rule = UpdateRule(optimizer)
        self._agree("set_optimizer", flat(rule.data))
        self._configure(rule)

    def _configure(self, rule: UpdateRule) -> None:
        rule.check_rate(self._levels.between.by_staleness, f"set_optimizer in {self.kind}, rank {self.rank}")
        scalars = flat(rule.data)
        self._stand("set_optimizer", scalars)  # no round is open
        kind = str(scalars.pop("kind"))
        if self.group.me == 0:
            self._request(m.SetOptimizer(kind, scalars, self._link.rank))
        self._stand("set_optimizer")
        self._rule = rule

    def states(self) -> Saved:
        if self._rule is None:
            raise InputError("there is no optimizer", where=self.kind, hint="call set_optimizer first")
        self._stand("save_optimizer_states")  # no round is open
        states: dict[str, dict[str, Array]] = {}
        updates: dict[str, int] = {}
        for name, value in self._learning() if self.rank == 0 else ():
            states[name] = {slot: np.empty_like(value.stored) for slot in self._rule.optimizer.slots}
            for server, (number, shard) in self._parts(value).items():
                about, data = self._asked(server, m.States(number, self._link.rank))
                at = 0
                for slot, dtype, shape in about:
                    part = np.frombuffer(data, element(dtype).numpy, math.prod(shape), at)
                    at += part.nbytes
                    if slot == UPDATES:
                        updates[name] = int(part[0])
                    else:
                        lo = shard.lo // value.dtype.itemsize
                        states[name][slot].reshape(-1)[lo : lo + part.size] = part
        self._stand("save_optimizer_states")
        return Saved(self._rule.data, states, updates)

    def load_states(self, saved: Saved) -> None:
        rule = UpdateRule(saved.optimizer)
        check_states(saved, rule.optimizer.slots, {key: value.stored for key, value in self._values.items()})
        self._agree("load_optimizer_states", flat(rule.data))
        self._configure(rule)
        for name, value in self._learning() if self.rank == 0 else ():
            for server, (number, shard) in self._parts(value).items():
                part = slice(shard.lo // value.dtype.itemsize, shard.hi // value.dtype.itemsize)
                arrays = {slot: state.reshape(-1)[part] for slot, state in saved.states.get(name, {}).items()}
                arrays[UPDATES] = np.array(saved.updates.get(name, 0), np.int64)
                about = tuple((slot, str(DType.of(a.dtype)), a.shape) for slot, a in arrays.items())
                about_part = m.States(number, self._link.rank, 0, about)
                self._give(server, about_part, b"".join(a.tobytes() for a in arrays.values()))
        self._stand("load_optimizer_states")

    def _learning(self) -> list[tuple[str, HostValue]]:
        """The keys that the optimizer steps."""
        return [(name, value) for name, value in self._values.items() if not value.own]

    def _parts(self, value: HostValue) -> Parts:
        """The parts of a key, whichever member has declared it."""
        known = self._known.get(value.name)
        if known is None:
            shards = place(value.name, str(DType.of(value.dtype)), value.shape, self._link.uplink.servers)
            known = self._known[value.name] = {s: (self._number(s, shard), shard) for s, shard in shards.items()}
        return known

    def _answers(
        self, server: int, said: Sequence[tuple[m.Message, bytes]], enough: Callable[[m.Message, bytes], bool]
    ) -> None:
        """Ask one server, and drive until its answers are enough. Raises what it refuses."""
        told: list[m.Message] = []

        def answered(message: m.Message, data: bytes) -> bool:
            if isinstance(message, m.Refused) or enough(message, data):
                told.append(message)
            return bool(told)

        ask = partial(self._link.uplink.ask, server, said, answered)
        self.group.wait(lambda: bool(told), f"the answer of server {server}", ask)
        if isinstance(told[0], m.Refused):
            raise PeerError(told[0].reason, where=f"server {server}", hint=told[0].hint)

    def _number(self, server: int, shard: Shard) -> int:
        """The server's number of a key."""
        found: list[int] = []

        def enough(message: m.Message, data: bytes) -> bool:
            assert isinstance(message, m.Init)
            found.append(message.key)
            return True

        rank = self._link.rank
        init = m.Init(shard.name, shard.dtype, shard.shape, shard.lo, shard.hi, rank)
        self._answers(server, [(init, b"")], enough)
        return found[0]

    def _asked(self, server: int, message: m.States) -> tuple[Described, bytes]:
        """The states of a shard."""
        parts: list[bytes] = []
        about: list[Described] = []

        def enough(message: m.Message, data: bytes) -> bool:
            assert isinstance(message, m.States)
            if not message.offset:  # of the first answer, or of one after the server was started again
                parts.clear()
                about.clear()
            parts.append(data)
            about.append(message.arrays)
            total = sum(math.prod(shape) * element(dtype).itemsize for _, dtype, shape in message.arrays)
            return bool(message.offset + len(data) >= total)

        self._answers(server, [(message, b"")], enough)
        return about[0], b"".join(parts)

    def _give(self, server: int, about: m.States | m.Rows, data: bytes) -> None:
        """Hand states, or rows, to a server, which answers when it has all."""
        frames = range(0, max(1, len(data)), FRAME)
        said = [(replace(about, offset=lo), data[lo : lo + FRAME]) for lo in frames]
        self._answers(server, said, lambda message, _: True)

    # -- rows

    @property
    def _rule_now(self) -> UpdateRule | None:
        return self._rule

    def _step_rows(self, value: HostValue, rule: UpdateRule, rows: Rows, sum: Sum) -> Ticket:
        """Have the servers step the sum of all rows, which rank 0 brings them, and bring each host the rows that have
        changed; or have them step these ones, where nobody waits for anybody."""
        self.group.settle(value)
        if isinstance(self._levels.inside, Eventual) and isinstance(self._levels.between, Eventual):
            self._bring(value, rows)
            return ENDED
        if not (self._levels.inside.sums and self._levels.between.sums):
            raise InputError(
                f"rows are stepped in sequential stores and in eventual ones, and this is {self._levels}",
                where=f"push in {self.kind}, rank {self.rank}",
                hint="create dist_sync or dist_async, or let the workers update: update_on_kvstore=False",
            )
        ids, gradient = sum(*rows)
        if self.rank == 0:
            self._bring(value, (ids, gradient))
        self._stand("rows")
        changed, ended = np.empty((len(ids), *value.shape[1:]), value.dtype), list[MezzoError | None]()
        if self.group.me == 0 and changed.size:
            room = changed.reshape(len(ids), -1).view(np.uint8)
            fetch = partial(self._link.uplink.fetch, self._parts(value), ids, room, ended.append)
            self.group.wait(lambda: bool(ended), f"rows of key {value.name!r}", fetch)
            value.stored[ids] = changed
        self.group.barrier()
        return ENDED

    def _bring(self, value: HostValue, rows: Rows) -> None:
        """Have every server step what it holds of some rows."""
        ids, gradient = rows
        width = max(1, math.prod(value.shape[1:]) * value.dtype.itemsize)
        self._brought[value.name] += 1
        for server, (number, shard) in self._parts(value).items():
            low, high = np.searchsorted(ids, (shard.lo // width, -(-shard.hi // width))).tolist()
            data = ids[low:high].tobytes() + np.ascontiguousarray(gradient[low:high]).tobytes()
            self._give(server, m.Rows(number, self._link.rank, self._brought[value.name], 0, len(data), low), data)

    def stats(self) -> Stats:
        """Bytes of level 2 are counted where they pass: those of the agent belong to the first worker of its host."""
        mine = super().stats()
        between = sum(self._link.counts())
        if self._pid is not None:
            between += sum(self.group.count())
        staleness: Counter[int] = Counter()
        for answer in self._request(m.ServerStats()):
            assert isinstance(answer, m.ServerStats)
            for name, count in answer.counts.items():
                what, _, number = name.partition(" ")
                if what == "staleness":
                    staleness[int(number)] += count
        return replace(mine, between=between, staleness=dict(sorted(staleness.items())))

    def _moved(self) -> Counts:
        return {**super()._moved(), "between": float(sum(self._link.counts()))}

    def close(self, error: BaseException | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        failed = self.group.failure
        try:
            super().close(error)
        finally:
            told = failed or (None if error is None else MezzoError(reason(error)))
            self._link.close(told)
            self._member.leave(0 if told is None else 1, "" if told is None else told.message)
            self._loop.close()
            self._reap()

    def _part(self, failure: MezzoError) -> None:
        self._closed = True
        super()._part(failure)
        self._link.close(failure)
        self._reap()

    def _reap(self) -> None:
        if self._pid is not None:
            with suppress(ChildProcessError):  # where the user's process does not care for its children
                os.waitpid(self._pid, os.WNOHANG)


def open_dist(kind: str, environment: Environment, levels: Levels) -> DistStore:
    """Join a job with servers. Raises DeadlineError or PeerError where it does not come together."""
    loop = Loop()
    member = mesh = link = pid = None
    try:
        member = Member(loop, environment, "worker", consistency=str(levels))
        welcome = member.welcome
        rank = welcome.rank
        name = meeting(environment, welcome)
        if levels.sums:
            ranks = welcome.hosts[host_of(welcome, rank)][1]
            if rank == ranks[0]:
                pid = agent.start(environment, agent.ServedHost(name, ranks, welcome.gathering))
            patience, look = max(environment.deadline, agent.STARTING), partial(_look, member, pid)
            mesh = join(name, ranks.index(rank), called(ranks, agent=True), patience, look)
        else:
            ranks = (rank,)
            mesh = join(f"{name}/{rank}", 0, called(ranks), environment.deadline)
        me = ranks.index(rank)
        link = Link(loop, member, environment, me, len(ranks), levels.speaker(welcome, rank), "worker")
        group = Group(mesh, ranks, environment.deadline, f"{kind}, rank {rank}", link)
        member.failed = link.uplink.failed = group.fail
        member.moved, link.uplink.asked = link.uplink.moved, group.asked
        again = rejoining(member, loop, lambda: open_dist(kind, replace(environment, rank=rank), levels))
        store = DistStore(kind, group, link, member, loop, pid, again if environment.rejoin else None)
        store.gathering = welcome.gathering
        return store
    except BaseException as error:
        if environment.rejoin and isinstance(error, MezzoError) and member is not None and member.gathers():
            if link is not None:  # one has died meanwhile
                link.close(error)
            if mesh is not None:
                mesh.close()
            loop.close()
            if pid is not None:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            return open_dist(kind, replace(environment, rank=member.welcome.rank), levels)
        why = f"{error.where}: {error.message}" if isinstance(error, MezzoError) else reason(error)
        if mesh is not None:
            resign(mesh, why)
        if member is not None:
            member.leave(1, why)
        loop.close()
        raise


def _told(given: Any) -> str:
    """Return what a worker gives as others are told it: of what is long, the beginning and a digest."""
    text = str(given)
    return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}... ({sha256(text.encode()).hexdigest()[:16]})"


def _look(member: Member, pid: int | None) -> None:
    """Raise what keeps the members of a host from meeting: who has started the agent sees its end, and tells all."""
    member.look()
    if pid is not None and agent.ended(pid):
        raise PeerError(
            "the agent of this host has ended before it met its workers",
            where=member.name,
            hint="see what it printed last",
        )
