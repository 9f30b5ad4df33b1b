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
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

from ..ops.errors import MezzoError, PeerError
from ..runtime.environment import switch
from .environment import LASTS, Environment
from .host.group import Group, resign
from .host.mesh import Mesh, called, join
from .link import Link
from .loop import Loop
from .member import JobEnded, Member
from .protocol.messages import SEE, Report
from .protocol.pace import EVERY

STARTING = 30.0  # seconds that an agent may take to start, at least
ALONE = 0.1  # seconds between looks whether anybody is left


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
    held = switch(LASTS)
    if held:
        os.set_inheritable(int(held), True)
    pid = os.posix_spawn(sys.executable, command, given)
    if held:
        os.set_inheritable(int(held), False)  # nothing else that the script starts has it
    return pid


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
            with _ends_alone(mesh, orphaned):
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


@contextmanager
def _ends_alone(mesh: Mesh, orphaned: Callable[[], bool]) -> Iterator[None]:
    """End this process as soon as all workers of the host have: they were done before it had met the servers, which
    may be gone as well, and would be waited for."""
    met = threading.Event()

    def watch() -> None:
        while not met.wait(ALONE):
            if orphaned() and mesh.alone:
                os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        met.set()


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
    except JobEnded:  # all workers had left before it met the scheduler: nobody waits for it
        return 0
    except MezzoError as error:
        print(f"agent: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
