"""Values that a server takes and gives packed (packing.py): each frame of an answer is packed once, whoever gets it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ops.errors import PeerError, WireError
from .packing import ITEM, Packer, parse, unpacked
from .protocol import messages as m
from .protocol import serving as s
from .shards import Shards
from .wire import FRAME

Answered = dict[int, tuple[int, int]]  # by key, of the value that one peer gets: its step, and the bytes that were sent


class PackedValues:
    """The packers of a server's answers. `again`: the server was started again, without what its answers had lost."""

    def __init__(self, shards: Shards, again: bool) -> None:
        self._shards, self._again = shards, again
        self._packers: dict[tuple[int, str], Packer] = {}  # by key and scheme
        self._eras: dict[int, int] = {}  # by key

    def check(self) -> None:
        """Raise PeerError where the ranks of one round would get different values."""
        if self._again:
            raise PeerError(
                "a server that packs was started again, without what its answers had lost",
                where="server",
                hint="without compression a server goes on alone; with it all begin again",
            )

    def unpack(self, packed: m.Packed, payload: memoryview) -> memoryview:
        """The bytes of a frame of a known key. Raises WireError."""
        shard = self._shards.keys[packed.key]
        if shard.dtype != "float32" or packed.offset % FRAME:
            raise WireError(f"bytes from {packed.offset} of {shard} cannot be packed", where=f"key {shard.name!r}")
        plain = unpacked(packed.scheme, payload, packed.nbytes)
        if packed.era > self._eras.get(packed.key, 0):
            self._eras[packed.key] = packed.era
            self._drop(packed.key)
        return plain

    def with_losses(self, i: s.Send, lo: int, part: memoryview) -> memoryview:
        """The bytes of an answer from `lo` on that travels as it is, with what those before have lost: all workers ask
        for that, and drop it, when they collect it."""
        for (key, _), packer in self._packers.items():
            if key == i.key and i.step:
                given = np.frombuffer(part, np.float32)
                part = (given + packer.kept[lo // ITEM :][: given.size]).view(np.uint8).data
        return part

    def _drop(self, key: int) -> None:
        """Forget what the answers of a key have lost."""
        for place in [place for place in self._packers if place[0] == key]:
            self._shards.budget.taken -= self._room(self._packers.pop(place))

    @staticmethod
    def _room(packer: Packer) -> int:
        """Bytes of what a packer keeps, and of its packets at most."""
        return packer.kept.nbytes + packer.kept.nbytes // 2

    def frames(self, i: s.Send, scheme: str, answered: Answered) -> Iterator[tuple[m.PackedValue, bytes]]:
        """Yield those frames of an answer that are whole, and have not been sent yet. Raises BudgetError."""
        packer, size = self._packers.get((i.key, scheme)), self._shards[i.key].nbytes
        if packer is None:
            name = self._shards.keys[i.key].name
            packer = Packer(parse(scheme), size)
            self._shards.budget.take(self._room(packer), f"packed answers of key {name!r}")
            self._packers[i.key, scheme] = packer
        step, at = answered.get(i.key, (i.step, 0))
        at = at if i.lo and step == i.step else 0
        while at < (end := min(at + FRAME, size)) <= i.hi:
            packet = packer.packet(i.step, at, self._shards.view(i.key, i.step, at, end))
            yield m.PackedValue(i.key, i.step, i.rank, at, end - at, scheme), packet
            at = end
        answered[i.key] = i.step, at
