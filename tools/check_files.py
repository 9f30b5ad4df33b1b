"""Checks of many files: expands names and patterns to paths, and checks each path in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from glob import glob, has_magic
from pathlib import Path

from ..ops.errors import InputError
from .check import check
from .check_options import AS_IT_IS, Options
from .processes import each
from .verdict import BAD_FILE, Problem, Verdict

Told = Callable[[Path], object]


def paths(patterns: Iterable[str]) -> list[Path]:
    """The files of names and patterns (`**` goes into folders), each once; InputError for a pattern without any."""
    files: dict[Path, None] = {}
    for pattern in patterns:
        matching = (
            [pattern] if os.path.lexists(pattern) or not has_magic(pattern) else sorted(glob(pattern, recursive=True))
        )
        if not matching:
            raise InputError("no file matches", where=pattern, hint="check the pattern and the working folder")
        files.update((Path(m), None) for m in matching)
    return list(files)


def check_files(
    files: Sequence[Path], options: Options = AS_IT_IS, *, jobs: int | None = None, tell: Told = id
) -> list[Verdict]:
    """Check files, one of them here, several in `jobs` processes (all processors, by default). `tell` hears of each
    file that is done. A process that dies is told as a problem of its file."""
    if options.record and len(files) > 1:
        raise InputError("one recording is of one model", where="--record", hint="check the models one by one")
    done: dict[int, Verdict] = {}
    for i, verdict in each(partial(check, options=options), files, jobs):
        done[i] = verdict or _died(files[i])
        tell(files[i])
    return [done[i] for i in range(len(files))]


def _died(file: Path) -> Verdict:
    problem = Problem("file", "the process that checked it ended without an answer", code=BAD_FILE,
                      hint="it may have run out of memory; check it alone")  # fmt: skip
    return Verdict(str(file), {"file": ""}, (problem,))
