"""Standard futures whose calls the engine makes, and read-ahead with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from .process import engine
from .work import Variable, Workload, current

T = TypeVar("T")


class Pending(Future[T]):
    """A future that runs in the thread that waits for it, unless it has begun; `work` makes the call."""

    work: Workload

    def result(self, timeout: float | None = None) -> T:
        """Return the result of the call. Raises its error, and TimeoutError after `timeout` seconds."""
        self._help(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the call, or None."""
        self._help(timeout)
        return super().exception(timeout)

    def _help(self, timeout: float | None) -> None:
        if timeout is None and not self.done():
            self.work.wait()


def submit(
    fn: Callable[..., T],
    /,
    *args: Any,
    reads: Iterable[Variable] = (),
    writes: Iterable[Variable] = (),
    resource: str = "compute",
    **options: Any,
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

    future.work = engine().push(call, reads, writes, resource=resource, name=getattr(fn, "__name__", ""))
    return future


def ahead(calls: Iterable[Callable[[], T]], depth: int) -> Iterator[T]:
    """Yield the result of each call in order, while up to `depth` more are made on threads for I/O; 0 makes each on
    demand. An error is raised in the place of its call, and later calls that have not begun are cancelled.

    >>> list(ahead([lambda: 1, lambda: 2, lambda: 3], 2))
    [1, 2, 3]
    """
    if not depth:
        yield from (call() for call in calls)
        return
    under_way: deque[Pending[T]] = deque()
    try:
        for call in calls:
            under_way.append(submit(call, resource="io"))
            if len(under_way) > depth:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for future in under_way:
            future.cancel()
