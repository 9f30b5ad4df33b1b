"""Futures of the standard library whose calls the engine makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from .process import engine
from .work import Variable, Work, current

T = TypeVar("T")


class Pending(Future[T]):
    """A future that runs in the thread that waits for it, if nothing has begun it; `work` makes the call."""

    work: Work

    def result(self, timeout: float | None = None) -> T:
        """What the call returns; raises what it raises, and TimeoutError after so many seconds."""
        self._help(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raises, or None."""
        self._help(timeout)
        return super().exception(timeout)

    def _help(self, timeout: float | None) -> None:
        if timeout is None and not self.done():
            self.work.wait()


def submit(
    fn: Callable[..., T], /, *args: Any, reads: Iterable[Variable] = (), writes: Iterable[Variable] = (), **options: Any
) -> Pending[T]:
    """Push `fn(*args, **options)` to the engine of this process. Its error, which names the line that pushed it, is
    for who asks the future, and no error of a workload: variables that it writes stay sound.

    >>> submit(int, "12").result()
    12
    """
    future = Pending[T]()

    def call() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(fn(*args, **options))
        except BaseException as error:
            work = current()
            assert work is not None
            future.set_exception(work.blame(error).error)
            if not isinstance(error, Exception):
                raise

    future.work = engine().push(call, reads, writes, name=getattr(fn, "__name__", ""))
    return future
