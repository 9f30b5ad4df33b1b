"""Membership of a worker, a server or an agent: its connection to the scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..ops.errors import DeadlineError, MezzoError, PeerError
from . import wire
from .environment import Environment
from .gate import SCHEDULER, enter
from .loop import Loop
from .protocol import messages as m
from .protocol.membership import BEAT, silence
from .stream import Frame, Stream


def prompt(deadline: float) -> float:
    """Seconds in which a process that was there before must answer, or is taken for dead: less than the deadline too,
    since others wait meanwhile for whom it keeps."""
    return min(silence(deadline), 0.9 * deadline)


WORD = 10.0  # seconds in which the scheduler tells what becomes of a job that has failed, at most


class JobEnded(PeerError):
    """The job has ended before this process came."""


class Member:
    """One process of a job, from its `Hello` to its `Bye`.

    Making it waits until the job is complete; `welcome` says who this is and where the others are. Afterwards the loop
    hears of failures: the first stays in `failure`, and `failed` is called with it; `moved` is called with the
    addresses of servers when one of them is back. Raises PeerError or DeadlineError where the job does not come
    together.
    """

    def __init__(
        self,
        loop: Loop,
        environment: Environment,
        role: m.Role,
        *,
        address: str = "",
        consistency: str = "sequential/sequential",
        deadline: float | None = None,
        gathering: int = 0,
    ) -> None:
        self._loop, self._role, self._host = loop, role, environment.host
        self.deadline = environment.deadline if deadline is None else deadline
        self.failure: MezzoError | None = None
        self.ended = False  # the scheduler has said that the job is over
        self.gathering = 0  # that it has called for
        self._told = False  # what becomes of the job, by the scheduler
        self.failed: Callable[[MezzoError], None] = _ignore
        self.moved: Callable[[Sequence[str]], None] = _ignore
        self._welcome: m.Welcome | None = None
        self._passed: dict[str, int] = {}  # barriers, and how often they were passed
        self._shown, self._overviews = m.Overview(), 0  # the scheduler's view, and how often it has come
        self._unheard: int | None = None  # beats since the scheduler's last; a count of beats, since a loop may stand
        environment.check_address(environment.root[0])
        there = role == "agent"  # is started when all have come: the scheduler has its welcome
        patience, begun = prompt(self.deadline) if there else self.deadline, time.monotonic()
        sock = enter(environment.root, patience, environment, SCHEDULER, "scheduler")
        self._stream = Stream(loop, sock, self, "the scheduler")
        try:
            rank = m.NOBODY if environment.rank is None else environment.rank
            about = (rank, 0, environment.incarnation, address, consistency, self.deadline, gathering)
            self.say(m.Hello(role, environment.host, *about, environment.workers, environment.servers))
            if role in ("server", "agent"):
                self._beat()
            # the scheduler names who is missing at the deadline; this is for one that is silent
            silent = max(self.deadline, environment.rejoin) * 1.5 + 1
            left = begun + patience - time.monotonic() if there else silent
            self.wait(lambda: self._known, left, "the scheduler is silent: its welcome")
            if self._welcome is None:
                raise JobEnded("the job has ended", where=self.name)
        except BaseException:
            self._stream.close()
            raise

    @property
    def _known(self) -> bool:
        return self._welcome is not None or self.ended

    @property
    def welcome(self) -> m.Welcome:
        assert self._welcome is not None
        return self._welcome

    @property
    def name(self) -> str:
        """Name of this process in messages."""
        if self._role == "agent":
            return f"the agent of host {self._host!r}"
        number = f" {self._welcome.rank}" if self._welcome else ""
        return f"{self._role}{number} on host {self._host!r}"

    def say(self, message: m.Message) -> None:
        """Tell the scheduler."""
        self._stream.send(wire.encode(message))

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Step the loop until it is ready. Raises the failure of the job, or DeadlineError after that many seconds."""
        end = time.monotonic() + seconds
        while not ready():
            if self.failure is not None:
                raise self.failure
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineError(f"{what} did not come within {seconds:.3g} s", where=self.name)
            self._loop.step(left)

    def look(self) -> None:
        """Handle what has come. Raises the failure of the job."""
        self._loop.step(0.0)
        if self.failure is not None:
            raise self.failure

    def barrier(self, name: str, said: str = "") -> Callable[[], bool]:
        """Say that this worker stands at a barrier; whether all do, as often as this one, is what the answer tells. The
        job fails where they do not say the same."""
        before = self._passed.get(name, 0)
        self.say(m.Barrier(name, self.welcome.rank, said))
        return lambda: self._passed.get(name, 0) > before

    def overview(self) -> Callable[[], m.Overview | None]:
        """Ask for the scheduler's view of the job; it is what the answer tells, None before it has come."""
        before = self._overviews
        self.say(m.Overview())
        return lambda: self._shown if self._overviews > before else None

    def fail(self, error: MezzoError) -> None:
        """The job cannot go on: the first error stays, and the scheduler is told whom it is because of."""
        if self.failure is not None or self.ended:
            return
        self.failure = error
        self.failed(error)

    def leave(self, code: int = 0, reason: str = "") -> None:
        """Say Bye, and wait a little until the scheduler has heard it; less where something is wrong already."""
        self.ended, seconds = True, 1.0 if code else 5.0
        self.say(m.Bye(self.welcome.rank, code, reason[:4000]))
        self._stream.finish()
        end = time.monotonic() + seconds
        while not self._stream.closed and time.monotonic() < end:
            self._loop.step(max(0.0, end - time.monotonic()))
        self._stream.close()

    def gathers(self) -> bool:
        """Wait for the scheduler's word of what has become of the job, after a failure; True if it gathers again. This
        process leaves it without a Bye."""
        end = time.monotonic() + min(self.deadline, WORD)
        while not (self._told or self._stream.closed) and (left := end - time.monotonic()) > 0:
            self._loop.step(left)
        self.ended = True
        self._stream.close()
        return bool(self.gathering)

    def _beat(self) -> None:
        if self._stream.closed:
            return
        if self._unheard is not None and not self.ended:
            self._unheard += 1
            if self._unheard * BEAT > silence(self.deadline):
                why = f"the scheduler is silent for {self._unheard * BEAT:.3g} s"
                self.fail(PeerError(why, where=self.name, hint="is it frozen? The job cannot go on without it"))
        self.say(m.Heartbeat())
        self._loop.after(BEAT, self._beat)

    # --- what the stream reports

    def place(self, stream: Stream, frame: Frame) -> memoryview | None:
        return memoryview(bytearray(frame.header.length))

    def arrived(self, stream: Stream, frame: Frame, payload: memoryview) -> None:
        match frame.message:
            case m.Heartbeat():
                self._unheard = 0
            case m.Welcome(servers=servers):
                self._welcome, self._unheard = frame.message, 0
                self.moved(servers)
            case m.Barrier(name):
                self._passed[name] = self._passed.get(name, 0) + 1
            case m.Gather(number, _, reason):
                self.gathering, self._told = number, True
                self.fail(PeerError(reason, where=self.name))
            case m.Failed(reason=reason, hint=hint):
                self._told = True
                self.fail(PeerError(reason, where=self.name, hint=hint or m.SEE))
            case m.Refused(reason, hint):
                self._told = True
                self.fail(PeerError(reason, where=self.name, hint=hint))
            case m.Overview() as answer:
                self._shown, last = answer.behind(self._shown)
                if last:
                    self._overviews += 1
                else:
                    self.say(m.Overview(len(self._shown.members)))
            case m.Bye():
                self.ended = self._told = True

    def lost(self, stream: Stream, reason: str) -> None:
        if not self.ended:
            self.fail(PeerError(f"the scheduler is gone: {reason}", where=self.name, hint=m.SEE))


def _ignore(what: object) -> None:
    pass
