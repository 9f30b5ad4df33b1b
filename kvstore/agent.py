"""The communication process of a host: owns the connections to servers for large values.

It is one more member of the host's group (protocol/host.py): it maps the shared memory of the workers' values, hears
when a sum is complete, exchanges it with the servers in place, and tells the workers when the value is there. The first
worker of a host starts it as a process of its own, so that nothing that a user's script does holds up the bytes or the
heartbeats.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from ..ops.errors import MezzoError, PeerError
from .environment import Environment
from .host.group import Group, resign
from .host.mesh import called, join
from .link import Link
from .loop import Loop
from .member import Member
from .protocol.messages import SEE, Report
from .protocol.pace import EVERY

STARTING = 30.0  # seconds that an agent may take to start, at least


@dataclass(frozen=True, slots=True)
class ServedHost:
    """The host that an agent serves: the name under which its members meet, the ranks of its workers, and the gathering
    of the job."""

    name: str
    ranks: tuple[int, ...]
    gathering: int = 0


def start(environment: Environment, place: ServedHost) -> int:
    """Start the agent of this host; its process number."""
    given = {**os.environ, **environment.as_role("worker").variables()}
    command = [sys.executable, "-m", "mezzo.kvstore.agent", json.dumps(asdict(place)), str(os.getpid())]
    return os.posix_spawn(sys.executable, command, given)


def ended(pid: int) -> bool:
    """True if the agent that this process has started is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # it was waited for, or this process does not care for its children
        return True


def serve(environment: Environment, place: ServedHost, orphaned: Callable[[], bool]) -> None:
    """Be the agent until all workers of the host have left. Raises what the job failed with; before it has met them,
    PeerError where the one that has started it is gone."""
    loop = Loop()
    member = None
    link = None
    error: MezzoError | None = None
    try:
        me = len(place.ranks)
        patience = max(environment.deadline, STARTING)
        mesh = join(place.name, me, called(place.ranks, agent=True), patience, partial(_look, orphaned))
        try:
            member = Member(loop, environment, "agent", gathering=place.gathering)
            link = Link(loop, member, environment, me, me, member.welcome.rank, "agent")
        except MezzoError as problem:
            reason = f"{problem.where}: {problem.message}"
            resign(mesh, reason)
            if member is not None:
                member.leave(1, reason)
            raise
        group = Group(mesh, place.ranks, environment.deadline, f"the agent of host {environment.host!r}", link)
        member.failed = link.uplink.failed = group.fail
        member.moved, link.uplink.asked = link.uplink.moved, group.asked

        def report() -> None:
            """The agent's bytes, beside those of the workers."""
            member.say(Report(member.welcome.rank, {"between": float(sum(link.counts()))}))
            loop.after(EVERY, report)

        report()
        try:
            group.follow()
        except MezzoError as problem:
            error = problem
        group.close(error)
        link.close(error)
        member.leave(0 if error is None else 1, "" if error is None else error.message)
    finally:
        loop.close()
    if error is not None:
        raise error


def _look(orphaned: Callable[[], bool]) -> None:
    if orphaned():
        raise PeerError("the worker that has started it is gone", where="agent", hint=SEE)


def main() -> int:
    """The exit code of an agent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started the job ends it
    given = json.loads(sys.argv[1])
    try:
        place = ServedHost(given["name"], tuple(given["ranks"]), given["gathering"])
        serve(Environment.read(), place, lambda: os.getppid() != int(sys.argv[2]))
    except MezzoError as error:
        print(f"agent: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
