"""Opening the store of one host: by its consistency that of sums, or one whose workers do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...ops.errors import InputError, MezzoError
from ..environment import Environment
from ..levels import Levels
from ..loop import Loop
from ..member import Member
from ..pace import Reporter
from ..protocol.consistency import Consistency
from ..protocol.messages import Welcome
from .backend import Again, HostStore
from .group import Group
from .mesh import Mesh, called, join
from .relaxed import RelaxedGroup, RelaxedStore
from .waiting import reason


def host_store(
    kind: str,
    mesh: Mesh,
    ranks: Sequence[int],
    deadline: float,
    consistency: Consistency,
    leave: Callable[[BaseException | None], None] | None = None,
    reporter: Reporter | None = None,
    again: Again | None = None,
) -> HostStore:
    """The store of the members of a mesh, whose ranks in the job are these."""
    where = f"{kind}, rank {ranks[mesh.me]}"
    if consistency.sums:
        return HostStore(kind, Group(mesh, ranks, deadline, where), leave, reporter, again)
    return RelaxedStore(kind, RelaxedGroup(mesh, ranks, deadline, where, consistency), leave, reporter, again)


def meeting(environment: Environment, welcome: Welcome) -> str:
    """Name under which the members of a host find each other, another one in every gathering of the job."""
    again = f"/{welcome.gathering}" if welcome.gathering else ""
    return f"mezzo/{environment.root[0]}:{environment.root[1]}/{environment.host}{again}"


def rejoining(member: Member, loop: Loop, join: Callable[[], HostStore]) -> Again:
    """The way of a worker back into its job after a failure, which is raised where the job does not gather again."""

    def again(failure: MezzoError) -> HostStore:
        try:
            if not member.gathers():
                raise failure
        finally:
            loop.close()
        return join()

    return again


def open_host(kind: str, environment: Environment, levels: Levels) -> HostStore:
    """Join a job without servers: the scheduler says who is there, and the workers of the host find each other.

    Raises InputError where they are on several hosts, DeadlineError where somebody is missing.
    """
    loop = Loop()
    try:
        member = Member(loop, environment, "worker", consistency=str(levels))
    except BaseException:
        loop.close()
        raise

    def leave(error: BaseException | None) -> None:
        try:
            member.leave(0 if error is None else 1, "" if error is None else reason(error))
        finally:
            loop.close()

    try:
        hosts, rank = member.welcome.hosts, member.welcome.rank
        if len(hosts) != 1:
            names = ", ".join(name for name, _ in hosts)
            raise InputError(
                f"the workers are on {len(hosts)} hosts ({names}), and there is no server",
                where="kv.create",
                hint="start at least one server: mezzo launch -s 1, or DMLC_NUM_SERVER=1",
            )
        ranks = hosts[0][1]
        name, me = meeting(environment, member.welcome), ranks.index(rank)
        mesh = join(name, me, called(ranks), environment.deadline, member.look)
        again = rejoining(member, loop, lambda: open_host(kind, replace(environment, rank=rank), levels))
        about = (ranks, environment.deadline, levels.inside, leave, Reporter(member))
        store = host_store(kind, mesh, *about, again if environment.rejoin else None)
        store.gathering = member.welcome.gathering
        return store
    except BaseException as error:
        if environment.rejoin and isinstance(error, MezzoError) and member.gathers():  # one has died meanwhile
            loop.close()
            return open_host(kind, replace(environment, rank=member.welcome.rank), levels)
        leave(error)
        raise
