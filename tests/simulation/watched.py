"""The drivers of servers and of those who speak to them, with a look at what must hold at every step.

The product's uplink waits for a server that is started again; this one opens connections again that were lost
otherwise, as its machine can.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from functools import partial
from typing import Any

from mezzo.kvstore import uplink
from mezzo.kvstore.protocol import client as c
from mezzo.kvstore.protocol import messages as m
from mezzo.kvstore.protocol import serving as s
from mezzo.kvstore.server import Server
from mezzo.kvstore.uplink import Done, Lies, Operation, Uplink
from mezzo.ops.errors import MezzoError
from mezzo.ops.types import Array, DType

from .plans import Plan
from .world import Violation, World


class WatchedServer(Server):
    """A server, whose staging memory is one round of each key and rank at most."""

    def __init__(self, world: World, environment: Any) -> None:
        self.world = world
        super().__init__(environment)
        world.current.server = self  # type: ignore[attr-defined]

    def _handle(self, event: s.Event) -> bool:
        refused = super()._handle(event)
        if event.__class__ is not s.ServerTicked:
            for key in self._shards:
                held = self._shards[key]
                for rank, parts in held.staged.items():
                    if sum(block.size for _, block in parts) > held.nbytes:
                        raise Violation(f"more than a round of key {held.shard.name!r} of rank {rank} is staged")
        return refused


class WatchedUplink(Uplink):
    """The connections of a rank, which are opened again when they are lost if the plan has a grace."""

    def __init__(
        self, world: World, plan: Plan, loop: Any, environment: Any, servers: Any, rank: int, lane: int, role: m.Role
    ) -> None:
        self._world, self._plan, self._process = world, plan, world.current
        self._calls: dict[str, deque[tuple[bool, bool, int]]] = {}  # operations in flight
        self._declared: dict[str, c.Declare] = {}
        self._ready: set[str] = set()  # keys whose initial value is there
        self._answered: Counter[str] = Counter()  # pushes, by key
        super().__init__(loop, environment, servers, rank, lane, role)
        self._process.uplink = self  # type: ignore[attr-defined]

    # --- priorities

    def _do(self, i: c.Instruction) -> None:
        if isinstance(i, c.Transmit):
            waiting = [part.priority for _, _, part in self._client._servers[i.server].ready]
            mine = self._client._keys[i.name].parts[i.server].priority
            if max(waiting, default=mine) > mine:
                raise Violation(f"key {i.name!r} of priority {mine} goes before one of {max(waiting)}")
        super()._do(i)

    # --- coming back

    def declare(self, name: str, value: Array, done: Done, step: int | None = None) -> None:
        def declared(error: MezzoError | None) -> None:
            self._ready.add(name)
            done(error)

        self._calls[name] = deque()
        self._declared[name] = c.Declare(name, str(DType.of(value.dtype)), value.shape)
        super().declare(name, value, declared, step)

    def start(
        self,
        name: str,
        source: memoryview | None,
        target: memoryview | None,
        done: Done,
        priority: int = 0,
        lies: Lies | None = None,
        goes: Lies | None = None,
        packing: str = "",
    ) -> None:
        def ended(error: MezzoError | None) -> None:
            self._calls[name].popleft()
            self._answered[name] += source is not None
            done(error)

        self._calls[name].append((source is not None, target is not None, priority))
        super().start(name, source, target, ended, priority, lies, goes, packing)

    def lost(self, stream: Any, reason: str) -> None:
        number = self._numbers[stream]
        super().lost(stream, reason)
        if self._plan.comes_back and not self._closing and number not in self._ended:
            self._connect(number)

    def restart(self) -> None:
        """Be another process that goes on with the state of this one: what was answered, and what was under way."""
        self._environment = replace(self._environment, incarnation=self._environment.incarnation + 1)
        self._world.note(f"{self._process.name} starts again")
        old = self._client
        self._client = c.Client(self._rank, self.servers, deadline=old._deadline, grace=old._grace)
        self._receiving.clear()
        for name, known in self._declared.items():
            if name not in self._ready:
                self._handle(known)
                continue
            while self._operations[name] and self._operations[name][0].done is _ignored:
                self._operations[name].popleft()
            self._operations[name].appendleft(Operation(uplink._NOTHING, uplink._NOTHING, _ignored))
            self._handle(known._replace(step=self._answered[name]))
            for push, pull, priority in self._calls[name]:
                self._handle(c.Start(name, push, pull, priority))
        for number, message in old._requests.items():
            self._handle(c.Request(number, message.message))
        for number in range(self.servers):
            if number in self._streams:
                del self._numbers[self._streams[number]]
                self._streams.pop(number).close()
            self._left[number] = partial(self._sent, self._client, number)
            self._connect(number)

    def _sent(self, client: c.Client, number: int) -> None:
        if client is self._client:
            self._handle(c.Sent(number))


def _ignored(error: MezzoError | None) -> None:
    assert error is None
