"""The same job for many items, each in a process of its own, so that a crash loses one result only."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from ..runtime.environment import processors

T = TypeVar("T")
R = TypeVar("R")


def each(work: Callable[[T], R], items: Sequence[T], jobs: int | None = None) -> Iterator[tuple[int, R | None]]:
    """The number and the result of each item, as they come; None for one whose process died. A single worker (one
    item, or `jobs` = 1) is this process."""
    workers = min(jobs or processors(), len(items))
    if workers <= 1:
        yield from ((i, work(item)) for i, item in enumerate(items))
        return
    with _one_thread_each(max(1, processors() // workers)):
        left = list(range(len(items)))
        while left:
            unanswered = list[int]()
            for i, answered, result in _in_pool(work, items, left, workers):
                if answered:
                    yield i, result
                else:
                    unanswered.append(i)
            suspects, left = sorted(unanswered)[: 2 * workers], sorted(unanswered)[2 * workers :]
            for i in suspects:  # those that were under way when a process died are asked again, each alone
                yield from ((i, result) for _, _, result in _in_pool(work, items, [i], 1))


def _in_pool(
    work: Callable[[T], R], items: Sequence[T], which: Sequence[int], workers: int
) -> Iterator[tuple[int, bool, R | None]]:
    """Number, whether there is a result, and the result. Items are begun in their order."""
    # never forked: threads and locks of a runtime do not survive that
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = {pool.submit(work, items[i]): i for i in which}
        for future in as_completed(asked):
            try:
                yield asked[future], True, future.result()
            except BrokenProcessPool:
                yield asked[future], False, None


@contextmanager
def _one_thread_each(threads: int) -> Iterator[None]:
    """Processes that start now share the processors among them, unless the user said otherwise."""
    name = "OMP_NUM_THREADS"
    before = os.environ.get(name)
    os.environ.setdefault(name, str(threads))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
