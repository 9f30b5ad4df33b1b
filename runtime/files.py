"""Atomic replacement of files: a reader finds the old one or the new one, never half of one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..ops.errors import ModelError

BEGINNING = ".mezzo-"  # of the names of temporary files
LEFT = 3600  # seconds after which a file that nobody has finished was left behind


def replace_file(path: str | os.PathLike[str], pieces: Iterable[Any], *, private: bool = False) -> None:
    """Write bytes-like pieces to a file that takes the place of `path` once it is on the disk. Nobody but its owner may
    read a `private` one, at any time. Raises ModelError."""
    with replacing(path, private=private) as handle:
        for piece in pieces:
            handle.write(piece)


@contextmanager
def replacing(
    path: str | os.PathLike[str], kind: str = "part", what: str = "the file", *, private: bool = False
) -> Iterator[IO[bytes]]:
    """A file to write into, which takes the place of `path` once the block has ended and it is on the disk; nothing
    happens to the old one where the block raises. Raises ModelError where `what` cannot be written."""
    target = Path(os.path.realpath(path))
    try:
        handle, temporary = temporary_beside(target.parent, kind)
        try:
            yield handle
            sync(handle)
            put_in_place(temporary, target, private=private)
        finally:
            handle.close()
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(
            f"{what} cannot be written: {error}", where=str(target), hint="check the folder and its free space"
        ) from error


def temporary_beside(folder: Path, kind: str) -> tuple[IO[bytes], Path]:
    """A new file in this folder, open for writing and locked until it is closed, and its path. Those that killed
    writers left there are removed."""
    sweep(folder)
    import tempfile  # which imports five others; a start needs none of them

    handle, name = tempfile.mkstemp(prefix=BEGINNING, suffix=f".{kind}", dir=folder)
    _lock(handle)
    return os.fdopen(handle, "wb"), Path(name)


def sweep(folder: Path) -> None:
    """Remove the temporary files of a folder that nobody has locked, and nobody has written to for an hour."""
    before = time.time() - LEFT
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(BEGINNING):
                continue
            with suppress(OSError):  # another writer removes it as well, or has it open (Windows)
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < before:
                    _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    try:
        if _lock(handle) and os.name == "posix":
            os.unlink(path)
    finally:
        os.close(handle)
    if os.name != "posix":  # there an open file cannot be removed, so that this is the lock
        os.unlink(path)


def _lock(handle: int) -> bool:
    """Lock an open file, if nobody else has: true if it is ours."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody has, or the file system has no locks
        return False
    return True


def sync(handle: IO[bytes]) -> None:
    """Bring what was written to the disk, and close the file."""
    handle.flush()
    os.fsync(handle.fileno())
    handle.close()


def put_in_place(temporary: Path, target: Path, *, private: bool = False) -> None:
    """Rename a finished file to its final name, with the permissions of the file it replaces; a `private` one keeps
    those that every temporary file has, for its owner alone."""
    if not private:
        os.chmod(temporary, target.stat().st_mode & 0o777 if target.exists() else _usual_mode())
    os.replace(temporary, target)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        number = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _usual_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
