"""Many files at once: names and patterns to paths, each checked in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path

from ..ops.errors import InputError
from .check import AS_IT_IS, Options, check
from .verdict import BAD_FILE, Problem, Verdict

Told = Callable[[Path], object]


def paths(patterns: Iterable[str]) -> list[Path]:
    """The files of names and patterns (`**` goes into folders), each once; InputError for a pattern without any."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        matching = (
            [pattern] if os.path.lexists(pattern) or not has_magic(pattern) else sorted(glob(pattern, recursive=True))
        )
        if not matching:
            raise InputError("no file matches", where=pattern, hint="check the pattern and the working folder")
        found.update((Path(m), None) for m in matching)
    return list(found)


def check_files(
    files: Sequence[Path], options: Options = AS_IT_IS, *, jobs: int | None = None, tell: Told = id
) -> list[Verdict]:
    """Check files, one of them here, several in `jobs` processes (all processors, by default). `tell` hears of each
    file that is done. A process that dies is told as a problem of its file."""
    from ..runtime.seats import processors

    if options.record and len(files) > 1:
        raise InputError("one recording is of one model", where="--record", hint="check the models one by one")
    workers = min(jobs or processors(), len(files))
    if workers <= 1:
        return [_told(check(file, options), file, tell) for file in files]
    done: dict[Path, Verdict] = {}
    with _one_thread_each(processors() // workers):
        for file, verdict in _in_processes(files, options, workers):
            if verdict is not None:
                done[file] = _told(verdict, file, tell)
        for file in files:  # whoever shared a pool with one that died is asked again, alone
            if file not in done:
                found = [v for _, v in _in_processes([file], options, 1)]
                done[file] = _told(found[0] or _died(file), file, tell)
    return [done[file] for file in files]


def _in_processes(files: Sequence[Path], options: Options, workers: int) -> Iterator[tuple[Path, Verdict | None]]:
    """Verdicts as they come; None for the files of a pool that broke."""
    # never forked: threads and locks of a runtime do not survive that
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = {pool.submit(check, file, options): file for file in files}
        for future in as_completed(asked):
            try:
                yield asked[future], future.result()
            except BrokenProcessPool:
                yield asked[future], None


def _died(file: Path) -> Verdict:
    problem = Problem("file", "the process that checked it ended without an answer", code=BAD_FILE,
                      hint="it may have run out of memory; check it alone")  # fmt: skip
    return Verdict(str(file), {"file": ""}, (problem,))


def _told(verdict: Verdict, file: Path, tell: Told) -> Verdict:
    tell(file)
    return verdict


@contextmanager
def _one_thread_each(threads: int) -> Iterator[None]:
    """Processes that start now share the processors among them, unless the user said otherwise."""
    name = "OMP_NUM_THREADS"
    before = os.environ.get(name)
    os.environ.setdefault(name, str(max(1, threads)))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
