"""The store of workers that have servers: sums inside of a host, exchanged with the other hosts' by level 2."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..ops.errors import MezzoError
from . import agent
from .environment import Environment
from .host.backend import HostStore
from .host.group import Group
from .host.mesh import join
from .levels import Levels, host_of
from .link import Link
from .loop import Loop
from .member import Member
from .protocol import client as c
from .protocol import messages as m
from .updater import Rule, flat

PATIENCE = 1.25  # a worker waits longer than servers do, which know who is missing


class DistStore(HostStore):
    """The backend of a group whose sums go to servers."""

    def __init__(self, kind: str, group: Group, link: Link, member: Member, loop: Loop, pid: int | None) -> None:
        super().__init__(kind, group)
        self.rank, self.num_workers = member.welcome.rank, member.welcome.num_workers
        self._link, self._member, self._loop, self._pid = link, member, loop, pid
        self._closed = False

    # -- all together

    def barrier(self) -> None:
        self._stand("barrier")

    def _stand(self, name: str) -> None:
        """Until every worker of the job has said this name as often as this one."""
        passed = []
        self.group.wait(lambda: passed[0](), f"barrier {name!r}", lambda: passed.append(self._member.barrier(name)))

    def _request(self, message: m.Message) -> tuple[m.Message, ...]:
        """What all servers answer. Raises what one of them refuses."""
        made: list[c.Answered] = []
        self.group.wait(
            lambda: bool(made), type(message).__name__, lambda: self._link.uplink.request(message, made.append)
        )
        if made[0].error is not None:
            raise made[0].error
        return made[0].messages

    # -- optimizers

    def set_optimizer(self, optimizer: Mapping[str, Any]) -> None:
        rule = Rule(optimizer)
        self._agree("set_optimizer", flat(rule.data))
        self._configure(rule)

    def _configure(self, rule: Rule) -> None:
        self._stand("set_optimizer")  # no round is open
        scalars = flat(rule.data)
        kind = str(scalars.pop("kind"))
        if self.group.me == 0:
            self._request(m.SetOptimizer(kind, scalars, self._link.rank))
        self._stand("set_optimizer")
        self._rule = rule

    def close(self, error: BaseException | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        failed = self.group.failure
        try:
            super().close(error)
        finally:
            told = failed or (None if error is None else MezzoError(f"{type(error).__name__}: {error}"))
            self._link.close(told)
            self._member.leave(0 if told is None else 1, "" if told is None else str(told))
            self._loop.close()
            if self._pid is not None:
                os.waitpid(self._pid, os.WNOHANG)


def open_dist(kind: str, environment: Environment, levels: Levels) -> DistStore:
    """Join a job with servers. Raises DeadlineError or PeerError where it does not come together."""
    loop = Loop()
    member = link = None
    try:
        member = Member(loop, environment, "worker", consistency=str(levels))
        welcome = member.welcome
        rank = welcome.rank
        name = f"mezzo/{environment.root[0]}:{environment.root[1]}/{environment.host}"
        pid = None
        if levels.sums:
            ranks = welcome.hosts[host_of(welcome, rank)][1]
            if rank == ranks[0]:
                pid = agent.start(environment, agent.Place(name, ranks))
            mesh = join(name, ranks.index(rank), len(ranks) + 1, environment.deadline)
        else:
            ranks = (rank,)
            mesh = join(f"{name}/{rank}", 0, 1, environment.deadline)
        me = ranks.index(rank)
        link = Link(loop, member, environment, me, len(ranks), levels.speaker(welcome, rank), "worker")
        group = Group(mesh, ranks, environment.deadline * PATIENCE + 0.5, f"{kind}, rank {rank}", link)
        member.failed = link.uplink.failed = group.fail
        return DistStore(kind, group, link, member, loop, pid)
    except BaseException as error:
        if member is not None:
            member.leave(1, f"{type(error).__name__}: {error}")
        loop.close()
        raise
