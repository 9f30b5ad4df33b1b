"""What a worker does: it declares keys, pushes and pulls in rounds, and looks at every value that it gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np

from mezzo.kvstore import dist
from mezzo.kvstore.environment import Environment
from mezzo.kvstore.host import opening
from mezzo.kvstore.host.backend import HostStore
from mezzo.kvstore.levels import Levels
from mezzo.kvstore.protocol.consistency import Bounded
from mezzo.kvstore.protocol.keys import place
from mezzo.kvstore.protocol.waits import BEHIND_SPEAKERS, beyond
from mezzo.kvstore.updater import UpdateRule
from mezzo.ops.errors import MezzoError
from mezzo.ops.types import Array
from mezzo.runtime.optimizer import SGD

from .plans import FRAME, SPLIT, KeyPlan, Plan, Step, WorkerPlan
from .world import Process, Violation, World

ROOT = ("127.0.0.1", 9091)
NOISE: Array = np.random.default_rng(0).standard_normal(4001) * 10.0 ** np.random.default_rng(1).integers(-2, 3, 4001)
JUNK = -77
OPTIMIZER = SGD(rate=0.25, momentum=0.5).to_dict()
T = TypeVar("T")


class Shared:
    """What the workers of a job know of each other, so that values can be checked."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.hosts: tuple[tuple[int, ...], ...] = ()  # ranks by host
        self.pushed: Counter[tuple[int, int]] = Counter()  # pushes begun, by key and rank
        self.standing: dict[tuple[int, int], set[int]] = {}  # ranks that have come to each barrier of a gathering
        self.sums: dict[tuple[int, int], Array] = {}
        self.most: dict[int, int] = {}  # rounds, by rank
        self.rule = UpdateRule(OPTIMIZER)
        self.states: dict[int, dict[str, Array]] = {}  # by key

    def expected(self, key: int, step: int) -> Array:
        """The value after a round of a sequential store: sums within hosts, then over hosts, in order."""
        known = self.sums.get((key, step))
        if known is None:
            about = self.plan.keys[key]
            if not step:
                return noise(about, key, 0, 0)
            parts = []
            for ranks in self.hosts:
                total = noise(about, key, ranks[0], step).copy()
                for rank in ranks[1:]:
                    total += noise(about, key, rank, step)
                parts.append(total)
            for part in parts[1:]:
                parts[0] += part
            known = self.sums[key, step] = self._stepped(key, step, parts[0]) if self.plan.learns else parts[0]
        return known

    def _stepped(self, key: int, step: int, gradient: Array) -> Array:
        """What an optimizer makes of the value before."""
        name, value = self.plan.keys[key].name, self.expected(key, step - 1).copy()
        states = self.states.setdefault(key, self.rule.states(name, value))
        self.rule.step(name, step - 1, value, gradient, states)
        return value


def noise(about: KeyPlan, key: int, rank: int, step: int) -> Array:
    """What a rank pushes: numbers of very different sizes, whose sum depends on the order."""
    at = (key * 1009 + rank * 211 + step * 53) % (len(NOISE) - about.size)
    return NOISE[at : at + about.size].astype(about.dtype)


@cache
def marks(size: int, dtype: str, rank: int, workers: int) -> Array:
    """Ones where an element counts the pushes of this rank, and zeros elsewhere."""
    return (np.arange(size) % workers == rank).astype(dtype)


@cache
def parts(about: KeyPlan, servers: int) -> tuple[slice, ...]:
    """The elements of a key that come at once: servers send frames of a value that may change between them."""
    if not servers:
        return (slice(0, about.size),)
    size = np.dtype(about.dtype).itemsize
    shards = place(about.name, about.dtype, (about.size,), servers, SPLIT).values()
    frames = [(lo, min(lo + FRAME, shard.hi)) for shard in shards for lo in range(shard.lo, shard.hi, FRAME)]
    return tuple(slice(lo // size, hi // size) for lo, hi in frames)


class Worker:
    """One worker."""

    def __init__(self, world: World, shared: Shared, number: int, mine: WorkerPlan, kind: str = "") -> None:
        self.world, self.shared, self.number, self.mine = world, shared, number, mine
        self.plan = shared.plan
        self.kind = kind or self.plan.levels
        self.rank = -1
        self.keys = self.plan.keys
        self.busy = 0.0  # computes for so long
        self.told = self.plan.told(False)  # numbers of workers and servers
        self.incarnation = 0
        self.rounds = 0  # behind it
        self.finished = False
        self.passed, self.stands = 0, False  # barriers; at one
        self.steps: Counter[int] = Counter()
        self.seen: dict[int, Array] = {}

    @property
    def process(self) -> Process:
        return self.world.current

    def main(self) -> None:
        plan = self.plan
        environment = Environment(
            "worker", ROOT, *self.told, self.mine.host, self.mine.hint,
            deadline=plan.deadline, grace=plan.grace, rejoin=plan.rejoin, incarnation=self.incarnation,
        )  # fmt: skip
        levels = Levels.parse(self.kind)
        if self.told[1]:
            store: HostStore = self._timed(
                "kv.create", lambda: dist.open_dist("dist_sync", environment, levels), 3, 38.0 + self._comes
            )
        else:
            store = self._timed(
                "kv.create", lambda: opening.open_host("dist_sync", environment, levels), 3, 8.0 + self._comes
            )
        self.levels = levels
        try:
            while not self.finished:
                store = self._joined(store)
        except MezzoError as problem:
            error = problem
            self.world.note(f"{self.process.name} fails: {error.message}")
            self._timed("close", lambda: store.close(error), more=8.0)
            raise
        self._timed("close", lambda: store.close(None), more=8.0)

    @property
    def _comes(self) -> float:
        """Seconds that others may take to come again, several times."""
        return 4 * self.plan.rejoin

    def _joined(self, store: HostStore) -> HostStore:
        """Work in a store; that of the next gathering, if another worker has died meanwhile."""
        if self.plan.servers:
            self.shared.hosts = tuple(ranks for _, ranks in store._member.welcome.hosts)  # type: ignore[attr-defined]
        else:
            self.shared.hosts = (store.group.ranks,)
        self.rank, self.gathering = store.rank, store.gathering
        self.shared.most[self.rank] = len(self.mine.rounds)
        self.world.note(f"{self.process.name} is rank {self.rank}")
        try:
            self._work(store)
            self.finished = True
        except MezzoError as problem:
            if not store.rejoins or store.group.failure is None:
                raise
            self.world.note(f"{self.process.name} fails, and would come again: {problem.message}")
            self.passed, self.stands = 0, False
            return self._timed("rejoin", store.again, 3, 46.0 + self._comes)
        return store

    def _agree(self, store: HostStore) -> None:
        """In a job that has gathered again, go on behind the rounds that all have behind them who have any."""
        name, mine = "rounds", np.zeros(len(self.plan.workers), np.int64)
        mine[self.rank] = 1 + self.rounds
        store.init(name, np.zeros_like(mine))
        self._timed("rounds", store.pushpull(name, [mine], [mine], 0).wait)
        if not mine.all():
            raise Violation(f"{self.process.name} does not hear of all workers: {mine}")
        self.rounds = min((int(number) - 1 for number in mine if number > 1), default=0)

    def _timed(self, what: str, call: Callable[[], T], deadlines: int = 1, more: float = 0.0) -> T:
        """Call, which takes no longer than so many deadlines and what comes behind them."""
        process, begun = self.process, self.world.now
        try:
            return call()
        finally:
            now = self.world.now
            own = sum(max(0.0, min(b, now) - max(a, begun)) for a, b in process.frozen_at)
            most = self.plan.deadline * deadlines + beyond(self.plan.deadline, BEHIND_SPEAKERS) + more
            slack = 0.15 + 60 * self.plan.latency
            if now - begun - own > most + slack and not process.dead:
                self.world.violate(
                    f"{process.name} has waited {now - begun:.3f} s in {what}, and {most:g} are the most"
                )

    def _work(self, store: HostStore) -> None:
        plan, keys = self.plan, self.keys
        if self.gathering:
            self._agree(store)
        self.steps = Counter(dict.fromkeys(range(len(keys)), self.rounds))
        for number, about in enumerate(keys):
            given = noise(about, number, self.rank, 0) if self._sums else np.zeros(about.size, about.dtype)
            if self.rank and not self._sums:
                given += JUNK
            if self.rounds and not self.rank:
                given = self.shared.expected(number, self.rounds)
            self._timed("init", lambda name=about.name, given=given: store.init(name, given))  # type: ignore[misc]
            self._pull(store, number, "the initial value")
        if plan.learns:
            self._timed("set_optimizer", lambda: store.set_optimizer(OPTIMIZER), 4)
        for round, steps in list(enumerate(self.mine.rounds))[self.rounds :]:
            if self.busy and round == len(self.mine.rounds) // 2:
                self.world.note(f"{self.process.name} computes for {self.busy:.3g} s")
                until = self.world.now + self.busy
                self.process.frozen_at.append((self.world.now, until))
                while self.world.now < until:  # whatever comes meanwhile
                    self.process.wait(until - self.world.now)
            elif self.mine.pause:
                self.process.wait(self.mine.pause * self.world.chance.random())
            ends = []
            for step in steps:
                end = self._begin(store, step)
                if self.mine.one_by_one:
                    end()
                else:
                    ends.append(end)
            for end in ends:
                end()
            self.rounds = round + 1
            if plan.barriers and plan.fault != "uneven" and round % 2 == 0:
                self._stand(store)
        for last in (False, True):  # a push has ended when the value is taken; a pull, when it counts
            for number in range(len(keys)):
                self._pull(store, number, "the last value", last and plan.fault != "uneven")
            if not last and plan.fault != "uneven":
                self._stand(store)

    @property
    def _sums(self) -> bool:
        return self.plan.sequential

    def _stand(self, store: HostStore) -> None:
        self.passed += 1
        here = self.shared.standing.setdefault((self.gathering, self.passed), set())
        here.add(self.rank)
        self.stands = True
        self._timed("barrier", store.barrier)
        self.stands = False
        if len(here) < len(self.plan.workers):
            raise Violation(f"{self.process.name} passes barrier {self.passed} before all have come to it")

    def _begin(self, store: HostStore, step: Step) -> Callable[[], None]:
        """Begin what a worker does with a key in a round; what to call at its end."""
        key, about = step.key, self.keys[step.key]
        self.steps[key] += 1
        self.shared.pushed[key, self.rank] += 1
        if self._sums:
            given = noise(about, key, self.rank, self.steps[key])
        else:
            given = marks(about.size, about.dtype, self.rank, len(self.plan.workers)).copy()
        if step.shared:
            place = store.empty(given.shape, given.dtype)
            place[...] = given
            given = place
        out = np.full(about.size, JUNK, about.dtype)
        pulls = step.how != "push"
        if step.how == "pushpull":
            tickets: list[Any] = [store.pushpull(about.name, [given], [out], step.priority)]
        else:
            tickets = [store.push(about.name, [given], step.priority)]
            if pulls:
                tickets.append(store.pull(about.name, [out], step.priority))
        count = self.steps[key]

        def end() -> None:
            for ticket in tickets:
                self._timed(f"{step.how} of key {about.name!r}", ticket.wait)
            if pulls:
                self._look(key, out, count, f"step {count}")
            if pulls or not step.shared:
                given[...] = JUNK

        return end

    def _pull(self, store: HostStore, key: int, what: str, last: bool = False) -> None:
        about = self.keys[key]
        out = np.full(about.size, JUNK, about.dtype)
        self._timed(f"pull of key {about.name!r}", store.pull(about.name, [out], 0).wait)
        self._look(key, out, self.steps[key], what, last)

    # --- values

    def _look(self, key: int, found: Array, count: int, what: str, last: bool = False) -> None:
        """Check a value that came after so many pushes of this worker."""
        if found.size != self.plan.keys[key].size:
            return  # it is the one that has declared another shape
        name = f"{self.process.name} (rank {self.rank}): key {self.plan.keys[key].name!r}, {what}"
        if self._sums:
            expected = self.shared.expected(key, count)
            if found.tobytes() != expected.tobytes():
                raise Violation(f"{name} is {found[:5]}..., and the sum in the order of ranks {expected[:5]}...")
            return
        workers, plan = len(self.plan.workers), self.plan
        mates = next(ranks for ranks in self.shared.hosts if self.rank in ranks) if plan.inside_sums else (self.rank,)
        rule = self.levels.between if plan.servers else self.levels.inside
        most = rule.staleness if isinstance(rule, Bounded) else 1 << 20
        newest = last and not plan.inside_sums
        for part in parts(self.plan.keys[key], len(plan.servers)):
            for rank in range(workers):
                at = found[part][(np.arange(part.start, part.stop) % workers) == rank]
                if not at.size:
                    continue
                pushed = int(at[0])
                if (at != at[0]).any() or pushed != at[0] or pushed < 0:
                    raise Violation(f"{name} has pushes of rank {rank} in part: {at}")
                began = self.shared.pushed[key, rank]
                if pushed > began:
                    raise Violation(f"{name} counts {pushed} pushes of rank {rank}, who has begun {began}")
                if rank in mates and pushed != count:
                    raise Violation(f"{name} counts {pushed} pushes of this worker, who has made {count}")
                if pushed < min(count, self.shared.most.get(rank, 0)) - most or (newest and pushed != began):
                    raise Violation(f"{name} counts {pushed} pushes of rank {rank}, and {count} of this worker")
        before = self.seen.get(key)
        if before is not None and (found < before).any():
            raise Violation(f"{name} is older than what this worker has seen")
        self.seen[key] = found.copy()
