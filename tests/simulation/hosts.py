"""What the processes of one host have in common: the sockets between them, memory, and locks.

They stand in for `host.mesh.join`, the module `host.memory` and those of the system that go with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from os import getpid
from typing import Any

import msgpack
import numpy as np

from mezzo.kvstore import lent
from mezzo.kvstore.host.memory import Segment, SharedPlaces
from mezzo.kvstore.host.mesh import ABOVE, GONE, NOTE, Mesh, Tag, late
from mezzo.kvstore.loop import READ, Loop
from mezzo.ops.types import Array

from .streams import SimEpoll
from .world import Killed, Process, World


class Memory(bytearray):
    """Bytes that several processes have."""

    __slots__ = ("__weakref__",)


class Wires:
    """What the members of one group have said to each other, and who is there."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.joined: dict[int, Process] = {}
        self.meshes: dict[int, SimMesh] = {}


class SimMesh:
    """`Mesh`: tags to and from the other members."""

    def __init__(self, world: World, me: int, wires: Wires) -> None:
        self.me, self._world, self._wires = me, world, wires
        self._epoll = SimEpoll(world)
        self._own = True
        self._peers = {m: SimSocket(self, m) for m in range(wires.members) if m != me}
        for peer in self._peers.values():
            self._epoll.register(peer)
        self._process = world.current
        self._process.closings.append(self.close)
        self._by_number = {peer.number: peer for peer in self._peers.values()}

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(self._peers)

    def pid(self, member: int) -> int:
        """The process of every member, whose arrays the others may read: they are all here."""
        return getpid()

    def share(self, loop: Loop) -> None:
        self._own = False
        self._epoll = loop.epoll  # type: ignore[assignment]
        for peer in self._peers.values():
            self._epoll.register(peer)

    def tell(self, members: tuple[int, ...], kind: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        for member in members:
            self._say(member, Tag(self.me, kind, a, b, c, d))

    def note(self, members: tuple[int, ...], body: Any, fd: int = -1) -> None:
        packed = msgpack.packb(body)
        for member in members:
            self._say(member, Tag(self.me, NOTE, body=msgpack.unpackb(packed), fd=fd))

    def _say(self, member: int, tag: Tag) -> None:
        peer = self._peers.get(member)
        if peer is not None and not self._process.dead:
            self._carry(peer, tag)

    def _carry(self, peer: SimSocket, tag: Tag) -> None:
        peer.due = max(peer.due, self._world.now + self._world.chance.random() * 1e-4)
        self._world.after(peer.due - self._world.now, partial(self._arrive, peer.member, tag))

    def _arrive(self, member: int, tag: Tag) -> None:
        other = self._wires.meshes.get(member)
        peer = None if other is None else other._peers.get(self.me)
        if other is not None and peer is not None:
            peer.got.append(tag)
            other._epoll.stir(peer)

    def flush(self, seconds: float) -> None: ...

    def ring(self) -> None: ...

    def receive(self, seconds: float) -> list[Tag]:
        found: list[Tag] = []
        for number, events in self._epoll.poll(max(0.0, seconds)):
            peer = self._by_number.get(number)
            if peer is None:
                found.append(Tag(self.me, ABOVE, number, events))
                continue
            found += peer.got
            if peer.got[-1].kind == GONE:
                self._epoll.unregister(self._peers.pop(peer.member))
            peer.got.clear()
        return found

    def close(self) -> None:
        for peer in self._peers.values():
            self._carry(peer, Tag(self.me, GONE))
            self._epoll.unregister(peer)
        self._peers.clear()
        self._wires.meshes.pop(self.me, None)


class SimSocket:
    """What one member has heard of another."""

    def __init__(self, mesh: SimMesh, member: int) -> None:
        self.member, self.got, self.due = member, deque[Tag](), 0.0
        self.number = mesh._world.number()

    def fileno(self) -> int:
        return self.number

    def events(self) -> int:
        return READ if self.got else 0


class KeptFile:
    """Memory of a server that outlives it."""

    def __init__(self) -> None:
        self._bytes = np.zeros(1 << 22, np.uint8)

    def map(self, offset: int, size: int) -> Array:
        return self._bytes[offset : offset + size]


class Hosts:
    """All hosts: `join` of the mesh, and what stands for the modules `memory`, `os` and `fcntl`."""

    SharedPlaces = SharedPlaces
    LOCK_SH = LOCK_EX = LOCK_UN = LOCK_NB = 0

    def __init__(self, world: World) -> None:
        self._world = world
        self._wires: dict[str, Wires] = {}
        self._memory: dict[int, Memory] = {}
        self._files: dict[int, KeptFile] = {}

    def join(
        self,
        name: str,
        me: int,
        called: Sequence[str],
        deadline: float,
        look: Callable[[], None] = lambda: None,
    ) -> Mesh:
        """The mesh, when all have come."""
        world, members = self._world, len(called)
        wires = self._wires.setdefault(name, Wires(members))
        for other in [m for m, process in wires.joined.items() if process.over]:
            del wires.joined[other]  # its door has closed
        wires.joined[me] = world.current
        made = wires.meshes[me] = SimMesh(world, me, wires)
        end = world.now + deadline
        for process in wires.joined.values():
            process.poke()
        while len(wires.joined) < members:
            if world.now >= end:
                raise late(name, called, wires.joined, deadline)
            world.current.wait(min(0.1, end - world.now))
            look()
        return made  # type: ignore[return-value]

    # --- the module `memory`

    def create(self, size: int) -> int:
        number = self._world.number()
        self._memory[number] = Memory(max(size, 1))
        return number

    def attach(self, number: int, fd: int) -> Segment:
        memory = self._memory[fd]
        return Segment(number, memory, len(memory), np.frombuffer(memory, np.uint8).ctypes.data)  # type: ignore[arg-type]

    # --- the module `lent`

    Place = lent.Place

    def near(self, stream: Any) -> bool:
        return True

    def keep(self, fd: int, size: int) -> lent.Place:
        return lent.Place(0, fd, self._world.current.machine, fd, size)

    def release(self, place: lent.Place) -> None: ...

    def reach(self, place: lent.Place) -> memoryview | None:
        if place.kernel != self._world.current.machine:
            return None
        return memoryview(self._memory[place.file])[: place.size]

    # --- memory of servers that outlives them

    def file(self, number: int) -> KeptFile:
        """`kept.MemoryFile` of a server."""
        return self._files.setdefault(number, KeptFile())

    def store(self, words: Array, at: int, number: int) -> None:
        """`kept.store`: a process may die before or after it."""
        process = self._world.current
        dies = process.fuse == 1
        process.fuse -= process.fuse > 0
        if dies and self._world.chance.random() < 0.5:
            self._world.note(f"{process.name} is killed before it writes")
            process.kill()
            raise Killed
        words[at] = number
        if dies:
            self._world.note(f"{process.name} is killed when it has written")
            process.kill()
            raise Killed

    # --- the modules `os` and `fcntl`

    def close(self, fd: int) -> None: ...

    def lockf(self, fd: int, how: int, length: int = 0, start: int = 0) -> None:
        """Nobody else has the turn while a lock is held, so there is nothing to wait for."""
