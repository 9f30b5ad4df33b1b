"""A connection of a server, and what is known of its other end."""

from __future__ import annotations

from ..ops.errors import WireError
from .protocol import messages as m
from .protocol import serving as s
from .stream import Stream


class Peer:
    """The other end of a connection; unknown before its Hello."""

    def __init__(self, stream: Stream, number: int) -> None:
        self.stream, self.number = stream, number  # in the order of arrival
        self.rank, self.lane, self.name = m.NOBODY, 0, stream.name
        self.said_bye = False
        self.receiving: s.ServerReceive | None = None  # what the machine said about the push that is arriving
        self.loading = bytearray()  # states, or rows, that are arriving
        self.beside = False  # it is the agent of this server's host
        self.segments: dict[int, memoryview] = {}  # that it has lent
        self.targets: dict[int, memoryview] = {}  # where it wants the value of a key that it pushes
        self.packings: dict[int, str] = {}  # the scheme of a key that it pushes packed
        self.answered: dict[int, tuple[int, int]] = {}  # of its value: the step, and the bytes that were sent

    def check(self, rank: int) -> None:
        """Check that it speaks for this rank. Raises WireError."""
        if self.rank == m.NOBODY or rank != self.rank:
            raise WireError(f"rank {self.rank} speaks for rank {rank}", where=self.name)
