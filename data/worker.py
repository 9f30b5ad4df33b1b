"""A worker process of a DataLoader: makes the batches that it is asked for, in shared memory."""

from __future__ import annotations

import mmap
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from typing import Any

import numpy as np

from . import channel
from .arena import allocating
from .making import BadSample, Maker, Task
from .segments import Arena
from .tree import packed

PATIENCE = 2.0  # seconds that a sample has to end when the trainer is gone
CELLS = 3  # numbers of a worker's page: task, place in the batch, sample


def run(sock: socket.socket, maker: Maker) -> None:
    """Make batches until the trainer closes the socket, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    message, (page,) = channel.receive(sock)
    memory = mmap.mmap(page, 0)
    os.close(page)
    cells = np.frombuffer(memory, np.int64, CELLS)
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    ended = threading.Event()
    threading.Thread(target=_listen, args=(sock, tasks, ended), daemon=True).start()
    try:
        channel.send(sock, {"ready": message["worker"]})
        _serve(sock, maker, tasks, cells)
    except channel.Closed:
        pass
    finally:
        ended.set()
        sys.stdout.flush()
        sys.stderr.flush()


def _listen(sock: socket.socket, tasks: queue.SimpleQueue[Any], ended: threading.Event) -> None:
    """Take in messages; when the trainer is gone, the process ends, also in the middle of a sample."""
    try:
        while True:
            tasks.put(channel.receive(sock)[0])
    except Exception:
        tasks.put(None)
    ended.wait(PATIENCE)
    os._exit(0)


def _serve(sock: socket.socket, maker: Maker, tasks: queue.SimpleQueue[Any], cells: Any) -> None:
    arena = Arena()
    while (message := tasks.get()) is not None:
        arena.take_back(message["free"])
        if "task" not in message:
            continue
        task = task_of(message["task"])

        def begin(at: int, number: int, task: Task = task) -> None:
            cells[1], cells[2], cells[0] = at, number, task.number

        begin(-1, -1)
        answer: dict[str, Any] = {"number": task.number}
        try:
            arena.begin()
            with allocating(arena.allocate):
                result = maker.make(task, begin)
                tree = packed(result.batch, arena.place)
            answer |= {"tree": tree, "samples": result.samples, "times": result.times, "skipped": result.skipped}
            answer["segments"] = arena.lend()
        except Exception as error:
            arena.cancel()
            answer["error"] = describe(error)
        fresh, dropped = arena.fresh[: channel.MOST_DESCRIPTORS], arena.dropped
        cells[0] = -1
        _send(sock, answer, arena, fresh, dropped)


def _send(
    sock: socket.socket, answer: dict[str, Any], arena: Arena, fresh: list[tuple[int, int]], dropped: list[int]
) -> None:
    """Send an answer, after the segments that the trainer does not know."""
    arena.fresh, arena.dropped = arena.fresh[len(fresh) :], []
    while arena.fresh:  # more than one message holds
        _hand_over(sock, {}, fresh, [])
        fresh, arena.fresh = arena.fresh[: channel.MOST_DESCRIPTORS], arena.fresh[channel.MOST_DESCRIPTORS :]
    _hand_over(sock, answer, fresh, dropped)


def _hand_over(sock: socket.socket, answer: dict[str, Any], fresh: list[tuple[int, int]], dropped: list[int]) -> None:
    try:
        answer |= {"fresh": [number for number, _ in fresh], "dropped": dropped}
        channel.send(sock, answer, [fd for _, fd in fresh])
    finally:
        for _, fd in fresh:
            os.close(fd)


def describe(error: Exception) -> dict[str, Any]:
    """An error as plain data."""
    trace = "".join(traceback.format_exception(error))
    name = error.name if isinstance(error, BadSample) else ""
    message, where = getattr(error, "message", ""), getattr(error, "where", "")
    if not message:
        message = f"{type(error).__name__}: {error}"
    return {"name": name, "message": message, "where": where, "hint": getattr(error, "hint", ""), "trace": trace}


def described(task: Task) -> dict[str, Any]:
    """A task as plain data."""
    places, numbers = (a.astype("<i8").tobytes() for a in (task.places, task.numbers))
    return {"n": task.number, "e": task.epoch, "p": places, "s": numbers, "w": list(task.without)}


def task_of(data: dict[str, Any]) -> Task:
    """The task that `described` told."""
    places, numbers = (np.frombuffer(data[k], "<i8").astype(np.int64) for k in "ps")
    return Task(data["n"], data["e"], places, numbers, tuple(data["w"]))
