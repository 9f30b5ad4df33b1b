"""A process of a job on a node of a Ray cluster, as the actor that runs it (tools/on_ray.py)."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import IO

from .relay import ERR, OUT

MOST = 1 << 16  # bytes that one answer has, about: Ray passes those on by itself, not through its store
PATIENCE = 1.0  # seconds in which an answer comes, also where nothing was written


class NodeProcess:
    """A process that `request`, a line of `remote.asked`, describes. It ends with this actor, whatever ends that."""

    def __init__(self, request: bytes) -> None:
        self._written: SimpleQueue[tuple[bytes, bytes]] = SimpleQueue()
        command = [sys.executable, "-m", "mezzo.tools.remote"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        assert self._process.stderr is not None
        with suppress(BrokenPipeError):  # its exit code tells
            self._process.stdin.write(request)
            self._process.stdin.flush()
        ends = ((OUT, self._process.stdout), (ERR, self._process.stderr))
        self._open = len(ends)  # streams that have not ended
        for end in ends:
            threading.Thread(target=self._take, args=end, daemon=True).start()

    def _take(self, kind: bytes, stream: IO[bytes]) -> None:
        for line in stream:
            self._written.put((kind, line))
        self._written.put((kind, b""))

    def read(self) -> tuple[list[tuple[bytes, bytes]], int | None]:
        """Lines that were written since, each with its stream, and the exit code once there will be no more."""
        lines, size = list[tuple[bytes, bytes]](), 0
        with suppress(Empty):
            while self._open and size < MOST:
                lines.append(self._written.get(block=not lines, timeout=PATIENCE))
                size += len(lines[-1][1])
                self._open -= not lines[-1][1]
        code = None if self._open else self._process.wait()
        return [line for line in lines if line[1]], 128 - code if code is not None and code < 0 else code

    def end(self) -> None:
        """Ask the process to end; it is ended some seconds later."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
