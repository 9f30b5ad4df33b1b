"""The scheduler's state machine: members with their ranks and addresses, barriers, and missing or dead processes.

Events name a connection by a number of the driver's own (`peer`). Workers and servers say `Hello`; when as many as were
declared are there, all get their `Welcome`. A worker or server without a hint (`Hello.rank`) gets the lowest free rank:
hosts in the order of their names, on a host in order of arrival. An agent says `Hello` too; its rank is the place of
its host in `Welcome.hosts`, one agent per host.

The job ends well when every worker has said Bye; it fails with the first process that says Bye with a code, says
Failed, closes its connection without a word, or falls silent after it had sent heartbeats. Everybody is told. Who sends
heartbeats gets some, so that a scheduler that is frozen is noticed too.

Where workers may be replaced (`rejoin`), a worker or an agent that dies ends a *gathering* of the job, not the job:
everybody is told to come again, and the job is complete when as many as were declared have said Hello once more, on
new connections, another process in the place of the dead one. Nothing of a gathering is known in the next one, neither
ranks nor barriers nor what servers hold. What others say of a death (servers and agents see it too, and may be heard
first) waits for a moment until it is clear who died.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from . import pace
from .consistency import parse
from .gathering import by_host, called, crowded, disagreement, miscounted, missing
from .messages import (
    NOBODY,
    Barrier,
    Bye,
    Failed,
    Gather,
    Heartbeat,
    Hello,
    Message,
    Overview,
    Refused,
    Report,
    Role,
    Seen,
    ServerStats,
    Welcome,
    named,
)
from .waits import BEHIND_SERVERS, beyond

SHOWN = 64  # members in one answer
BEAT = 0.4  # seconds between heartbeats of everybody, since each has a deadline of its own
SETTLE = 0.5  # seconds in which a failure that is told may turn out to be the death of a worker that can be replaced


def silence(deadline: float) -> float:
    """Seconds without a heartbeat after which an agent, a server or the scheduler is taken for dead: less than the
    deadline, so that who is frozen is named before who waits for it."""
    return max(2.0, min(30.0, deadline * 0.75))


@dataclass(frozen=True, slots=True)
class Said:
    """A message has arrived: Hello, Barrier, Heartbeat, Failed, Stats or Bye."""

    peer: int
    message: Message


@dataclass(frozen=True, slots=True)
class Closed:
    """A connection is closed; without an earlier Bye, its process is dead."""

    peer: int
    reason: str = "its connection was closed"


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A connection was refused: its other end is no member of the job."""

    reason: str  # who, and why


@dataclass(frozen=True, slots=True)
class MemberTicked:
    """Time has passed; seconds of a clock that only this event tells. A tick a second is enough."""

    now: float


Event = Said | Closed | TurnedAway | MemberTicked


@dataclass(frozen=True, slots=True)
class MemberTell:
    """Send this message."""

    peer: int
    message: Message


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection once all earlier messages are sent."""

    peer: int


@dataclass(frozen=True, slots=True)
class Slow:
    """Say that a rank holds the others up."""

    straggler: pace.Straggler


@dataclass(frozen=True, slots=True)
class End:
    """The job has ended, well or with the first failure; every process has been told, but for `late` ones that are
    still on their way, of what was started with something that does not fit."""

    failure: Failed | None = None
    late: int = 0


Instruction = MemberTell | Close | Slow | End


@dataclass(slots=True)
class _Away:
    """A server that is gone, and may be started again."""

    member: _Member
    reason: str
    since: float | None = None  # when the first tick saw that


@dataclass(slots=True)
class _Member:
    """One process of the job."""

    hello: Hello
    rank: int = NOBODY
    left: bool = False
    failed: bool = False  # it has said so, and will not come again
    beats: bool = False  # it sends heartbeats
    fresh: bool = True  # something came since the last tick
    heard: float = 0.0
    history: pace.History = field(default_factory=pace.History)

    def __str__(self) -> str:
        return called(self.hello.role, self.hello.host, self.rank)


class Membership:
    """State machine of the scheduler, for a job of a given number of workers and servers.

    `deadline`: seconds for all to come, and for a barrier; workers that say how long they wait count more. `timeout`:
    seconds of silence after which a process that has sent a heartbeat before is taken for dead (0: never; a closed
    connection always is). `grace`: seconds for which a server that was there may be away: one of a greater incarnation
    takes its place, and everybody hears where it is.
    `rejoin`: seconds in which the job gathers again when a worker or an agent has died (0: that is the end of the job).

    >>> job = Membership(workers=2)
    >>> job.handle(Said(7, Hello("worker", "b")))
    ()
    >>> for told in job.handle(Said(8, Hello("worker", "a"))):
    ...     print(told.peer, told.message.rank, told.message.hosts)
    7 1 (('a', (0,)), ('b', (1,)))
    8 0 (('a', (0,)), ('b', (1,)))
    >>> job.handle(Closed(7))[-1].failure.reason
    "worker 1 on host 'b' is gone: its connection was closed"
    """

    def __init__(
        self,
        workers: int,
        servers: int = 0,
        deadline: float = 120.0,
        timeout: float = 0.0,
        grace: float = 0.0,
        rejoin: float = 0.0,
    ) -> None:
        self._declared: dict[Role, int] = {"worker": workers, "server": servers}
        self._deadline, self._timeout, self._grace, self._rejoin = deadline, timeout, grace, rejoin
        self._gathering = 0  # how often the job has gathered before
        self._lost = ""  # why it gathers again
        self._before: Welcome | None = None  # of the last gathering
        self._early: dict[int, Hello] = {}  # by peer: who comes in a place that has no end yet that was heard of
        self._former: dict[int, _Member] = {}  # by peer: members of earlier gatherings, until they have closed
        self._verdict: Failed | None = None  # the failure of the job, unless a worker turns out to have died
        self._judged_at = math.inf  # when that is clear
        self._members: dict[int, _Member] = {}  # by peer, in order of arrival
        self._welcome: Welcome | None = None  # for nobody in particular, once the job is complete
        self._barriers: dict[str, dict[int, int]] = {}  # by name: peers by rank
        self._words: dict[str, tuple[int, str]] = {}  # by barrier: who came first, and what it said there
        self._since: dict[str, float] = {}  # by barrier, or "" for the gathering: the first tick that saw it
        self._strangers = 0  # who were turned away,
        self._stranger = ""  # the last of them, and why
        self._released = 0
        self._away: dict[int, _Away] = {}  # servers, by rank
        self._beaten = -math.inf  # when the last heartbeats were sent
        self._now = 0.0  # of the last tick
        self._looked = -math.inf  # when the pace of all was judged last
        self._slow: tuple[int, str] | None = None  # the slow rank of the last look, and its cause
        self._slow_since = 0.0  # when it was first seen so
        self._slow_told: tuple[int, str] | None = None  # the last that was told
        self._ended = False

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """Return the instructions for an event."""
        if self._ended:
            return ()
        match event:
            case Said(peer, message):
                return tuple(self._said(peer, message))
            case Closed(peer, reason):
                return tuple(self._closed(peer, reason))
            case TurnedAway(reason):
                self._strangers += 1
                self._stranger = reason
                return ()
            case MemberTicked(now):
                return tuple(self._ticked(now))

    def _said(self, peer: int, message: Message) -> Iterable[Instruction]:
        member = self._members.get(peer)
        if isinstance(message, Overview):
            return [MemberTell(peer, self._overview(message.first))]
        if isinstance(message, Hello):
            known = member is not None or peer in self._former
            return self._refuse(peer, "said Hello twice") if known else self._hello(peer, message)
        if peer in self._former:
            return self._parted(self._former[peer], message)
        if member is None:
            return self._refuse(peer, f"said {type(message).__name__} before Hello")
        member.fresh = True
        match message:
            case Heartbeat():
                member.beats = True
                return ()
            case Barrier():
                return self._barrier(peer, member, message)
            case Bye():
                return self._bye(member, message)
            case Failed():
                return self._judge(message)
            case Report():
                return self._reported(peer, member, message)
            case ServerStats():
                return [MemberTell(peer, ServerStats({"members": len(self._members), "barriers": self._released}))]
        return self._refuse(peer, f"said {type(message).__name__} to the scheduler")

    def _refuse(self, peer: int, reason: str, hint: str = "") -> list[Instruction]:
        """The request of a member, or a process that is none and is sent away, of which those hear who wait for all."""
        if peer in self._members:
            return [MemberTell(peer, Refused(reason, hint))]
        self._strangers, self._stranger = self._strangers + 1, f"a process of the job: {reason}"
        return [MemberTell(peer, Refused(reason, hint)), Close(peer)]

    # --------------------------------------------------------------------------------------------------- gathering

    def _role(self, role: Role) -> list[tuple[int, _Member]]:
        return [(peer, member) for peer, member in self._members.items() if member.hello.role == role]

    def _hello(self, peer: int, hello: Hello) -> Iterable[Instruction]:
        if hello.role == "scheduler":
            return self._refuse(peer, "this job has a scheduler already")
        if problem := miscounted(hello, self._declared["worker"], self._declared["server"]):
            if self._welcome is not None:  # a stranger, for whom nobody waits
                return self._refuse(peer, problem.reason, problem.hint)
            self._members[peer] = _Member(hello)
            return self._unfit(problem, max(hello.num_workers, self._declared["worker"]), hello.num_servers)
        if hello.role == "agent":
            if hello.gathering != self._gathering:
                return self._refuse(peer, "the job has gathered again since this agent was started")
            if any(m.hello.host == hello.host and not m.left for _, m in self._role("agent")):
                return self._refuse(peer, f"host {hello.host!r} has an agent already")
            self._members[peer] = _Member(hello)
            return self._welcomed(peer) if self._welcome else ()
        if hello.role == "server" and self._grace:
            self._replace(hello)
            if self._welcome and hello.rank in self._away:
                return self._returned(peer, hello)
        if hello.role == "worker" and self._rejoin and hello.rank != NOBODY:
            for former, member in self._role("worker"):
                here = hello.rank in (member.rank, member.hello.rank)
                if here and member.hello.incarnation < hello.incarnation:  # whose end was not heard of yet
                    made = self._closed(former, "another process has its place")
                    return [*made, *(() if self._ended else self._hello(peer, hello))]
        same = [member for _, member in self._role(hello.role)]
        most = self._declared[hello.role]
        full = len(same) >= most or crowded(hello, (each.hello for each in same), self._before)
        if full and self._rejoin and hello.role == "worker" and hello.incarnation:
            self._early[peer] = hello
            return ()
        if len(same) >= most:
            return self._refuse(
                peer,
                f"this job has {most} {hello.role}s, and all have come: {by_host(each.hello for each in same)}",
                f"on host {hello.host!r} is one more: DMLC_NUM_{hello.role.upper()} says how many there are, and a "
                "process is one of them, with one store",
            )
        if hello.rank != NOBODY and (hello.rank >= most or any(m.hello.rank == hello.rank for m in same)):
            why = f"there are {most}" if hello.rank >= most else "another process has it"
            return self._refuse(peer, f"{hello.role} {hello.rank} cannot be: {why}", "MEZZO_RANK counts from 0")
        self._members[peer] = _Member(hello)
        workers = [member.hello for _, member in self._role("worker")]
        if hello.role == "worker":
            self._heed(workers)
        if problem := disagreement(workers):
            return self._unfit(problem, self._declared["worker"])
        if any(len(self._role(role)) < declared for role, declared in self._declared.items()):
            return ()
        self._away.clear()
        self._complete()
        return [told for each in list(self._members) for told in self._welcomed(each)]

    def _unfit(self, failure: Failed, workers: int, servers: int = 0) -> Iterable[Instruction]:
        """End a job that does not fit together: all are told, those that are still on their way too."""
        come = sum(member.hello.role != "agent" for member in self._members.values())
        *told, _ = self._fail(failure)
        return [*told, End(failure, max(0, workers + max(servers, self._declared["server"]) - come))]

    def _heed(self, workers: list[Hello]) -> None:
        """Wait as long as these workers do, which have `kv.create`, and this process has not: since the first came."""
        if not (told := max(worker.deadline for worker in workers)):
            return
        self._deadline, self._timeout = told, min(self._timeout, silence(told))
        if len(workers) == 1 and not self._gathering:
            self._since.pop("", None)

    def _replace(self, hello: Hello) -> None:
        """A server that was started again comes before the end of the one in whose place it is has been heard of."""
        for peer, member in self._role("server"):
            if member.hello.rank == hello.rank != NOBODY and member.hello.incarnation < hello.incarnation:
                del self._members[peer]
                self._away[hello.rank] = _Away(member, "")

    def _returned(self, peer: int, hello: Hello) -> Iterable[Instruction]:
        """A server is back, at another address."""
        job, rank = self._welcome, hello.rank
        assert job is not None
        del self._away[rank]
        self._members[peer] = _Member(hello, rank)
        servers = (*job.servers[:rank], hello.address, *job.servers[rank + 1 :])
        self._welcome = replace(job, servers=servers)
        here = [each for each, member in self._members.items() if not member.left]
        return [told for each in here for told in self._welcomed(each)]

    def _complete(self) -> None:
        """Give ranks: hints first, then hosts by name, on a host in order of arrival."""
        for role, most in self._declared.items():
            members = [member for _, member in self._role(role)]
            free = iter(sorted({*range(most)} - {m.hello.rank for m in members}))
            for member in sorted(members, key=lambda m: m.hello.host):
                member.rank = member.hello.rank if member.hello.rank != NOBODY else next(free)
        workers = sorted((m for _, m in self._role("worker")), key=lambda m: m.rank)
        servers = sorted((m for _, m in self._role("server")), key=lambda m: m.rank)
        hosts: dict[str, list[int]] = {}
        for worker in workers:
            hosts.setdefault(worker.hello.host, []).append(worker.rank)
        self._welcome = Welcome(
            NOBODY,
            len(workers),
            tuple(server.hello.address for server in servers),
            tuple((host, tuple(ranks)) for host, ranks in hosts.items()),
            workers[0].hello.consistency if workers else "",
            gathering=self._gathering,
        )

    def _welcomed(self, peer: int) -> Iterable[Instruction]:
        member, job = self._members[peer], self._welcome
        assert job is not None
        if member.hello.role == "agent":
            hosts = [host for host, _ in job.hosts]
            if member.hello.host not in hosts:
                del self._members[peer]
                return self._refuse(peer, f"no worker runs on host {member.hello.host!r}")
            member.rank = hosts.index(member.hello.host)
        return [MemberTell(peer, replace(job, rank=member.rank))]

    def _missing(self) -> Failed:
        """Return the failure message when not all processes have joined in time."""
        come = {role: [member.hello for _, member in self._role(role)] for role in self._declared}
        ranks, who = missing(self._declared, come)
        refused = f"; refused connections: {self._strangers}, the last from {self._stranger}" if self._strangers else ""
        again, within = (f"{self._lost}; ", "again within") if self._gathering else ("", "within")
        why = f"{again}not all have come {within} {self._patience:g} s: {who}{refused}"
        return Failed(ranks, why)

    @property
    def _patience(self) -> float:
        """Seconds that a gathering may take."""
        return self._rejoin if self._gathering else self._deadline

    # ------------------------------------------------------------------------------------------------- once more

    def _gather_again(self, lost: _Member, what: str) -> Iterable[Instruction]:
        """A worker or an agent has died: the gathering is over, and the next one begins."""
        self._gathering += 1
        self._lost = f"{lost} {what}"
        ranks = (lost.rank,) if lost.hello.role == "worker" else ()
        told = Gather(self._gathering, ranks, self._lost)
        made: list[Instruction] = [MemberTell(p, told) for p, member in self._members.items() if not member.left]
        self._former |= self._members
        for known in (self._members, self._barriers, self._words, self._since, self._away):
            known.clear()
        self._before, self._welcome = self._welcome, None
        self._verdict = self._slow = self._slow_told = None
        self._judged_at = math.inf
        return [*made, *self._again()]

    def _again(self) -> Iterable[Instruction]:
        """Hear those again who came before the end of whom they replace was heard of."""
        early, self._early = self._early, {}
        return [told for peer, hello in early.items() for told in (() if self._ended else self._hello(peer, hello))]

    def _replaceable(self, member: _Member) -> bool:
        """True if the job can gather again without this process: nobody has left, or failed, who is missed then."""
        takes_part = self._rejoin > 0 and member.hello.role in ("worker", "agent")
        return takes_part and not any(worker.left or worker.failed for _, worker in self._role("worker"))

    def _parted(self, member: _Member, message: Message) -> Iterable[Instruction]:
        """Hear a member of an earlier gathering on its old connection: a worker that leaves will not come again."""
        if isinstance(message, Bye) and member.hello.role == "worker" and self._welcome is None:
            why = f": {message.reason}" if message.reason else ""
            return self._fail(Failed((member.rank,), f"{self._lost}; {member} does not come again{why}"))
        return ()

    def _judge(self, failure: Failed) -> Iterable[Instruction]:
        """The job has failed; where workers may be replaced, unless one of them has died."""
        if not self._rejoin or self._welcome is None:
            return self._fail(failure)
        self._verdict = self._verdict or failure
        self._judged_at = min(self._judged_at, self._now + SETTLE)
        return ()

    # ---------------------------------------------------------------------------------------------------- barriers

    def _barrier(self, peer: int, member: _Member, barrier: Barrier) -> Iterable[Instruction]:
        if member.hello.role != "worker" or member.rank != barrier.rank or member.left:
            return self._refuse(peer, f"{member} stands at a barrier as rank {barrier.rank}")
        at = self._barriers.setdefault(barrier.name, {})
        if barrier.rank in at:
            return self._refuse(peer, f"rank {barrier.rank} stands at barrier {barrier.name!r} already")
        at[barrier.rank] = peer
        first, word = self._words.setdefault(barrier.name, (barrier.rank, barrier.said))
        if word != barrier.said:
            why = f"{barrier.name}: rank {barrier.rank} gives {barrier.said}, and rank {first} {word}"
            return self._fail(Failed((first, barrier.rank), f"{why}; every worker must give the same"))
        self._since.setdefault(barrier.name, self._now)
        return self._release()

    def _awaited(self, name: str) -> list[int]:
        """Ranks that take part in the job and have not come to a barrier."""
        return sorted(m.rank for _, m in self._role("worker") if not m.left and m.rank not in self._barriers[name])

    def _release(self) -> Iterable[Instruction]:
        """Open every barrier that waits for nobody any more."""
        made = list[Instruction]()
        for name in [name for name in self._barriers if not self._awaited(name)]:
            made += [MemberTell(peer, Barrier(name, rank)) for rank, peer in sorted(self._barriers.pop(name).items())]
            self._since.pop(name, None)
            del self._words[name]
            self._released += 1
        return made

    # -------------------------------------------------------------------------------------------------------- pace

    def _reported(self, peer: int, member: _Member, report: Report) -> Iterable[Instruction]:
        if member.rank != report.rank:
            return self._refuse(peer, f"{member} reports as rank {report.rank}")
        member.history.add(self._now, report.counts)
        return ()

    def _judged(self, now: float) -> Iterable[Instruction]:
        """Look at all ranks once in a while, and say who has been slow by one cause since PATIENCE."""
        if now - self._looked < pace.EVERY:
            return ()
        self._looked = now
        slow = pace.straggler(self._splits().values())
        found = None if slow is None else (slow.rank, slow.cause)
        if found != self._slow:
            self._slow, self._slow_since = found, now
        if slow is None or self._slow_told == found or now - self._slow_since < pace.PATIENCE:
            return ()
        self._slow_told = found
        return [Slow(slow)]

    def _splits(self) -> dict[int, pace.Split]:
        """Splits of the steps of workers that take part, by peer."""
        if self._welcome is None:
            return {}
        servers = [member.history for _, member in self._role("server")]
        sums = parse(self._welcome.consistency.partition("/")[0] or "sequential").sums
        host = {rank: place for place, (_, ranks) in enumerate(self._welcome.hosts) for rank in ranks}
        found = {
            peer: pace.split_of(member.rank, member.history, servers, host[member.rank] if sums else member.rank)
            for peer, member in self._role("worker")
            if not member.left
        }
        return {peer: split for peer, split in found.items() if split is not None}

    def _overview(self, first: int) -> Overview:
        splits, shown = self._splits(), list[Seen]()
        order: list[Role] = ["worker", "server", "agent"]
        members = sorted(self._members.items(), key=lambda each: (order.index(each[1].hello.role), each[1].rank))
        for peer, member in members[first : first + SHOWN]:
            counts = member.history.rates()
            last = member.history.reports[-1][1] if member.history.reports else {}
            counts |= {f"all {name}": last[name] for name in pace.RATES if name in last}
            counts |= {"behind": last["behind"]} if "behind" in last else {}
            counts |= splits[peer].counts() if peer in splits else {}
            counts |= {"left": 1.0} if member.left else {}
            silent = 0.0 if member.fresh else max(0.0, self._now - member.heard)
            shown.append((member.hello.role, member.rank, member.hello.host, silent, counts))
        return Overview(first, len(members), tuple(shown), self._declared["worker"])

    # -------------------------------------------------------------------------------------------------------- ends

    def _bye(self, member: _Member, bye: Bye) -> Iterable[Instruction]:
        if bye.code:
            member.failed, why = True, f": {bye.reason}" if bye.reason else ""
            return self._judge(_failure_of(member, f"ended with code {bye.code}{why}"))
        if self._welcome is None:
            return self._blame(member, "left before the job was complete")
        member.left = True
        if all(worker.left for _, worker in self._role("worker")):
            self._ended = True
            others = [(p, m) for p, m in self._members.items() if m.hello.role != "worker" and not m.left]
            made: list[Instruction] = [MemberTell(peer, Bye(other.rank)) for peer, other in others]
            return [*made, *(Close(peer) for peer in self._members), End()]
        if member.hello.role == "server":
            return self._blame(member, "left while workers need it")
        return self._release()

    def _closed(self, peer: int, reason: str) -> Iterable[Instruction]:
        member = self._members.get(peer)
        self._former.pop(peer, None)
        self._early.pop(peer, None)
        if member is None or member.left:
            return ()
        del self._members[peer]
        if member.hello.role == "agent" and self._welcome and not self._needs(member):
            return ()
        if member.hello.role == "server" and member.hello.rank != NOBODY and self._grace:
            self._away[member.hello.rank] = _Away(member, reason)
            return ()
        if member.failed:
            return ()  # it is judged already
        if self._replaceable(member):
            return self._again() if self._welcome is None else self._gather_again(member, f"is gone: {reason}")
        return self._blame(member, f"is gone: {reason}")

    def _needs(self, agent: _Member) -> bool:
        return any(not m.left for _, m in self._role("worker") if m.hello.host == agent.hello.host)

    def _blame(self, member: _Member, what: str) -> Iterable[Instruction]:
        return self._fail(_failure_of(member, what))

    def _fail(self, failure: Failed) -> Iterable[Instruction]:
        self._ended = True
        here = [peer for peer, member in (self._former | self._members).items() if not member.left]
        made: list[Instruction] = [MemberTell(peer, failure) for peer in here]
        return [*made, *(Close(peer) for peer in self._members), End(failure)]

    def _ticked(self, now: float) -> Iterable[Instruction]:
        self._now = now
        if self._verdict is not None and now >= self._judged_at:
            return self._fail(self._verdict)
        for member in self._members.values():
            if member.fresh:
                member.fresh, member.heard = False, now
            elif member.beats and not member.left and 0 < self._timeout < now - member.heard:
                return self._blame(member, f"is silent for {now - member.heard:.3g} s")
        for away in self._away.values():
            away.since = now if away.since is None else away.since
            if now - away.since > self._grace:
                return self._blame(away.member, f"is gone and did not come back in {self._grace:g} s: {away.reason}")
        beats = list[Instruction](self._judged(now))
        if self._timeout and now - self._beaten >= BEAT:
            self._beaten = now
            beats += [MemberTell(p, Heartbeat()) for p, member in self._members.items() if member.beats]
        waits = [*([] if self._welcome else [""]), *self._barriers]
        for name in waits:
            end = self._deadline + beyond(self._deadline, BEHIND_SERVERS) if name else self._patience
            if now - self._since.setdefault(name, now) <= end:
                continue
            if not name:
                return self._fail(self._missing())
            for member in self._members.values():  # who is awaited may wait for it
                if member.beats and not member.left and now - member.heard > 3 * BEAT:
                    return self._blame(member, f"is silent for {now - member.heard:.3g} s")
            ranks = self._awaited(name)
            why = f"barrier {name!r} waits for {named(ranks)} since {self._deadline:g} s"
            return self._fail(Failed(tuple(ranks), why))
        return beats


def _failure_of(member: _Member, what: str) -> Failed:
    ranks = (member.rank,) if member.rank != NOBODY else ()
    return Failed(ranks, f"{member} {what}", member.hello.role)
