"""The scheduler's process: runs membership, addresses, barriers and detection of dead processes. It carries no values.

Started by `mezzo launch`, by a script in the role of a scheduler, or as `python -m mezzo.kvstore.role`.
"""

from __future__ import annotations

import socket
import sys
import time

from ..ops.errors import ExecutionError, MezzoError
from . import tls, wire
from .address import describe, listen
from .environment import Environment
from .gate import SCHEDULER, Gate, Told
from .loop import Loop
from .protocol import membership as machine
from .protocol.messages import NOBODY, Bye, Failed, Hello, Overview, Report
from .stream import Frame, Stream

LATE = 10.0  # seconds in which those that are on their way hear what does not fit together
TICK = 0.1  # seconds between looks at the clock: less than what others wait behind the deadline of a barrier


class Scheduler:
    """Runs the membership machine over sockets until the job has ended."""

    def __init__(self, environment: Environment) -> None:
        identity = tls.listening(environment, environment.check_address(environment.root[0]))
        self._loop = Loop()
        self._members = machine.Membership(
            environment.workers,
            environment.servers,
            environment.deadline,
            machine.silence(environment.deadline),
            environment.grace,
            environment.rejoin,
        )
        self._streams: dict[int, Stream] = {}
        self._numbers: dict[Stream, int] = {}
        self._closing: set[Stream] = set()
        self._greeted: set[Stream] = set()
        self._lookers: set[Stream] = set()  # that ask without a Hello: nobody waits for them
        self._ended: machine.End | None = None
        self._peers = self._late = 0  # connections; of those that said Hello when the job had ended
        self._told = Told("scheduler")
        self._gate = Gate(
            self._loop, listen(environment.root), environment, SCHEDULER, self._opened, self._refused, identity
        )

    def run(self) -> Failed | None:
        """Serve until the job has ended; why it failed, if it did."""
        try:
            self._tick()
            self._loop.run(lambda: self._ended is not None)
            assert self._ended is not None
            self._drain(LATE if self._ended.late else 5.0, self._ended.late)
        finally:
            self.close()
        return self._ended.failure

    def close(self) -> None:
        for stream in self._numbers:
            stream.close()
        self._gate.close()
        self._loop.close()

    def _opened(self, sock: socket.socket) -> None:
        stream = Stream(self._loop, sock, self, describe(sock))
        self._peers += 1
        self._streams[self._peers], self._numbers[stream] = stream, self._peers
        if self._ended is not None:
            self._part_from(stream)

    def _refused(self, error: MezzoError) -> None:
        self._told(error)
        self._handle(machine.TurnedAway(f"{error.where}: {error.message}"))

    # --- what streams report

    def place(self, stream: Stream, frame: Frame) -> memoryview | None:
        return memoryview(bytearray(frame.header.length))

    def arrived(self, stream: Stream, frame: Frame, payload: memoryview) -> None:
        if isinstance(frame.message, Hello):
            self._greeted.add(stream)
            self._late += self._ended is not None
        elif stream not in self._greeted:
            self._lookers.add(stream)
        if isinstance(frame.message, Report | Overview):  # what they tell is of a time
            self._handle(machine.MemberTicked(time.monotonic()))
        if stream in self._numbers:  # what the tick had sent may have found it closed
            self._handle(machine.Said(self._numbers[stream], frame.message))

    def lost(self, stream: Stream, reason: str) -> None:
        number = self._numbers.pop(stream)
        self._lookers.discard(stream)
        self._greeted.discard(stream)
        del self._streams[number]
        if stream not in self._closing:
            self._handle(machine.Closed(number, reason))

    def _tick(self) -> None:
        self._handle(machine.MemberTicked(time.monotonic()))
        self._loop.after(TICK, self._tick)

    # --- what the machine wants

    def _handle(self, event: machine.Event) -> None:
        if self._ended is not None:
            return
        for instruction in self._members.handle(event):
            match instruction:
                case machine.MemberTell(peer, message):
                    if peer in self._streams:
                        self._streams[peer].send(wire.encode(message))
                case machine.Close(peer):
                    if peer in self._streams:
                        self._close_after(self._streams[peer])
                case machine.Slow(straggler):
                    print(f"scheduler: {straggler}", file=sys.stderr, flush=True)
                case machine.End():
                    self._ended = instruction

    def _close_after(self, stream: Stream) -> None:
        """Close the connection when what was sent has left. The other end closes first, so that nothing is lost."""
        self._closing.add(stream)
        stream.finish()

    def _drain(self, seconds: float, late: int) -> None:
        """Let the last words leave, and wait for the others to close; and for so many that have not come yet."""
        end = time.monotonic() + seconds
        for stream in tuple(self._numbers):  # what cannot be reached is gone at once
            self._part_from(stream)
        while (self._numbers.keys() - self._lookers or self._late < late) and time.monotonic() < end:
            self._loop.step(0.1)

    def _part_from(self, stream: Stream) -> None:
        """Send nothing more. Who has come too late to be a member hears what became of the job."""
        assert self._ended is not None
        if stream not in self._closing:
            stream.send(wire.encode(self._ended.failure or Bye(NOBODY)))
        stream.finish()


def serve(environment: Environment) -> None:
    """Be the scheduler of a job until it ends. Raises ExecutionError if it fails."""
    failure = Scheduler(environment).run()
    if failure is not None:
        where = f"the job at {environment.root[0]}:{environment.root[1]}"
        raise ExecutionError(failure.reason, where=where, hint=failure.hint)
