"""Looking at a job from outside: a connection to its scheduler that proves the job's key and asks; it is no member."""

from __future__ import annotations

import json
import time
from os import PathLike
from types import TracebackType
from typing import Self

from ..ops.errors import DeadlineError, InputError, PeerError
from . import secret, wire
from .environment import Environment
from .gate import SCHEDULER, enter
from .loop import Loop
from .protocol import messages as m
from .stream import Frame, Stream

MOST = 64 << 10  # bytes of the file of a job
PATIENCE = 5.0  # seconds for an answer
LISTENS = 1.0  # seconds within which somebody listens there, where a job is
HINT = "it is what `mezzo launch --job FILE` has written, for as long as the job lasts"


def job_in(path: str | PathLike[str]) -> Environment:
    """The job that a file tells of. Raises InputError unless nobody but its owner may read it."""
    data = secret.read_private(str(path), "the file of a job", HINT, MOST)
    try:
        given = json.loads(data)
        if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
            raise ValueError("no map of names to texts")
    except ValueError as error:
        raise InputError(f"this tells of no job: {error}", where=str(path), hint=HINT) from error
    return Environment.read(given)


def told_of(environment: Environment) -> bytes:
    """The text of such a file; it has the key."""
    return json.dumps(environment.as_role("worker").variables(), indent=1).encode() + b"\n"


class Onlooker:
    """A connection to the scheduler of a job. Raises DeadlineError where nobody answers, PeerError where it is refused.

    The job neither waits for it nor hears of its end.
    """

    def __init__(self, job: Environment) -> None:
        job.check_address(job.root[0])
        self.failure = ""  # of the job
        self.over = False  # it has ended
        self._gone = ""  # why there is no connection any more
        self._shown, self._whole = m.Overview(), False
        self._loop = Loop()
        try:
            sock = enter(job.root, PATIENCE, job, SCHEDULER, "the scheduler", LISTENS)
            self._stream = Stream(self._loop, sock, self, "the scheduler")
        except BaseException:
            self._loop.close()
            raise

    def look(self) -> m.Overview | None:
        """The scheduler's view; None where the job has ended or failed (`over`, `failure`). Raises PeerError
        where the scheduler has gone without a word, DeadlineError where it is silent."""
        self._shown, self._whole = m.Overview(), False
        self._stream.send(wire.encode(m.Overview()))
        end = time.monotonic() + PATIENCE
        while not self._whole:
            if self.failure or self.over:
                return None
            if self._gone:
                raise PeerError(f"the scheduler is gone: {self._gone}", where="the job")
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineError(f"the scheduler has said nothing for {PATIENCE:g} s", where="the job")
            self._loop.step(left)
        return self._shown

    def rest(self, seconds: float) -> None:
        """Wait, and hear meanwhile what becomes of the job."""
        end = time.monotonic() + seconds
        while not (self.failure or self.over or self._gone) and (left := end - time.monotonic()) > 0:
            self._loop.step(left)

    # --- what the stream reports

    def place(self, stream: Stream, frame: Frame) -> memoryview | None:
        return memoryview(bytearray(frame.header.length))

    def arrived(self, stream: Stream, frame: Frame, payload: memoryview) -> None:
        match frame.message:
            case m.Overview() as answer:
                self._shown, self._whole = answer.behind(self._shown)
                if not self._whole:
                    stream.send(wire.encode(m.Overview(len(self._shown.members))))
            case m.Failed(_, reason) | m.Refused(reason):
                self.failure = reason
            case m.Bye():
                self.over = True

    def lost(self, stream: Stream, reason: str) -> None:
        self._gone = reason

    def close(self) -> None:
        self._stream.close()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
