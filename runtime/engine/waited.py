"""Seconds for which this thread has waited for batches, whoever made them: loaders and fits add to it, and a KVStore
that tells what a step is made of reads it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")


class _Waited(threading.local):
    seconds = 0.0


WAITED = _Waited()


def timed(batches: Iterable[T]) -> Iterator[T]:
    """The batches, whose waits count.

    >>> before = WAITED.seconds
    >>> list(timed([1, 2])), WAITED.seconds > before
    ([1, 2], True)
    """
    each = iter(batches)
    while True:
        began, before = perf_counter(), WAITED.seconds
        try:
            batch = next(each)
        except StopIteration:
            return
        WAITED.seconds = before + perf_counter() - began  # in place of what the batches have counted themselves
        yield batch
