"""Creation of primitives in a thread while the next ones are selected: creation is oneDNN's work, selection
Python's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Thread

from . import api
from .library import set_threads
from .primitive import Descriptor


class Maker:
    """A thread that creates the requested primitives one after the other; it begins with the first."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Descriptor | None] = SimpleQueue()
        self._thread: Thread | None = None

    def want(self, descriptors: Iterable[Descriptor]) -> None:
        """Make these."""
        if self._thread is None:
            self._thread = Thread(target=self._make, name="mezzo-primitives", daemon=True)
            self._thread.start()
        for descriptor in descriptors:
            self._queue.put(descriptor)

    def end(self) -> None:
        """End the thread once the requested primitives are created."""
        self._queue.put(None)

    def join(self) -> None:
        """Wait until all is made."""
        if self._thread is not None:
            self._thread.join()

    def _make(self) -> None:
        kept: list[Descriptor] = []
        count = 0
        while (descriptor := self._queue.get()) is not None:
            if count != descriptor.threads:  # each call of the library hands Python's lock to and fro
                count = descriptor.threads
                set_threads(count)
            with suppress(api.Refused):  # whoever makes it for a step is told why it cannot be made
                kept.append(descriptor)
                _ = descriptor.primitive


_maker: Maker | None = None
_last = Maker()


@contextmanager
def made_ahead() -> Iterator[None]:
    """Create the primitives that kernels select inside the context in a thread, each as soon as it is selected: steps
    find them in their descriptors. One thread at a time may be inside."""
    global _maker, _last
    maker = _maker = _last = Maker()
    try:
        yield
    finally:
        _maker = None
        maker.end()


def wanted(descriptors: Iterable[Descriptor]) -> None:
    """Request the creation of the selected primitives."""
    if _maker is not None:
        _maker.want(descriptors)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: _last.join())  # a child would have half of what it makes
