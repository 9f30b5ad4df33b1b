"""Threads that make the runs of one version, and keep nothing of the processors while nobody asks it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from ...runtime import idle

T = TypeVar("T")
Calls: TypeAlias = "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]"


def call_and_let_go(work: Callable[..., T], *args: Any) -> T:
    """The result of a call by a thread that runs no model afterwards: what libraries keep for it (a team of OpenMP)
    would slow down the threads that do."""
    try:
        return work(*args)
    finally:
        _let_go()


def _let_go() -> None:
    for call in idle.CALLS:
        call()


class Threads(Executor):
    """At most `count` threads for calls, which are begun when they are needed, and let go what libraries keep for them
    when nothing was to do for a while. All calls come from one thread."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name, self._begun = count, name, 0
        self._free = threading.Semaphore(0)  # threads that wait, less the calls in line
        self._calls: Calls = SimpleQueue()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """The future result of a call."""
        future: Future[T] = Future()
        self._calls.put((future, lambda: fn(*args, **kwargs)))
        if not self._free.acquire(blocking=False) and self._begun < self._count:
            self._begun += 1
            name = f"{self._name} {self._begun}"
            threading.Thread(target=_serve, args=(self._calls, self._free), name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads when what was submitted has run."""
        for _ in range(self._begun):
            self._calls.put(None)

    def __del__(self) -> None:
        self.shutdown()


def _serve(calls: Calls, free: threading.Semaphore) -> None:
    while True:
        try:
            given = calls.get(timeout=idle.AFTER)
        except Empty:
            _let_go()
            given = calls.get()
        if given is None:
            return
        future, call = given
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
            del result
        del given, future, call  # nothing of a request outlives it
        free.release()
