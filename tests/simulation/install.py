"""The product's drivers on a simulated system: names that are replaced in their modules while a run lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

from mezzo.kvstore import agent, dist, held, kept, link, loop, member, pace, scheduler, server, uplink, wire
from mezzo.kvstore.host import group, opening, relaxed, values, waiting
from mezzo.kvstore.protocol import client
from mezzo.kvstore.protocol.client import Client
from mezzo.kvstore.protocol.rounds import Rounds

from .hosts import Hosts
from .network import Network
from .plans import FRAME, SPLIT, Plan
from .streams import Doors, SimEpoll, SimGate, SimStream
from .watched import WatchedServer, WatchedUplink
from .world import World

SMALL, ALONE, WHOLE = 40, 200, 64  # bytes: from where on values take other ways than smaller ones


@contextmanager
def installed(
    world: World, network: Network, plan: Plan, start_agent: Callable[..., int], ended: Callable[[int], bool]
) -> Iterator[None]:
    """Run the drivers over this world."""
    doors, hosts = Doors(world, network), Hosts(world)
    replaced: list[tuple[Any, str, Any]] = [
        (loop, "select", SimpleNamespace(epoll=partial(SimEpoll, world))),
        *(
            (module, "time", world)
            for module in (loop, member, scheduler, server, uplink, waiting, relaxed, group, held, pace)
        ),
        *((module, "Stream", SimStream) for module in (member, scheduler, server, uplink)),
        *((module, "Gate", SimGate) for module in (scheduler, server)),
        *((module, "listen", doors.listen) for module in (scheduler, server)),
        *((module, "enter", doors.enter) for module in (member, uplink)),
        *((module, "join", hosts.join) for module in (agent, dist, opening)),
        *((module, "memory", hosts) for module in (group, relaxed)),
        *((module, "os", hosts) for module in (group, relaxed)),
        (relaxed, "fcntl", hosts),
        *((module, "lent", hosts) for module in (server, uplink)),
        (client, "LENT", 2 * FRAME),
        (server, "MemoryFile", hosts.file),
        (kept, "store", hosts.store),
        (agent, "start", start_agent),
        (agent, "_ends_alone", lambda *_: nullcontext()),  # its thread goes by the clock of this machine
        (agent, "ended", ended),
        (server, "Server", partial(WatchedServer, world)),
        (link, "Uplink", partial(WatchedUplink, world, plan)),
        (link, "SMALL", SMALL),
        (link, "ALONE", ALONE),
        (values, "WHOLE", WHOLE),
        (wire, "FRAME", FRAME),
        (Client.__init__, "__kwdefaults__", {**KEYWORDS, "frame": FRAME, "split": SPLIT}),
        (Rounds.__init__, "__defaults__", (*DEFAULTS[:2], plan.grace * plan.comes_back, *DEFAULTS[3:])),
    ]
    before = [getattr(owner, name) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(replaced, before, strict=True):
            setattr(owner, name, value)


KEYWORDS: dict[str, Any] = Client.__init__.__kwdefaults__  # type: ignore[assignment]
DEFAULTS: tuple[Any, ...] = Rounds.__init__.__defaults__  # type: ignore[assignment]
