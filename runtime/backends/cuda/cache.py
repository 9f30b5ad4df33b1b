"""The disk cache of a machine for later processes: compiled kernels, plans of libraries.

`MEZZO_CACHE` names the folder; without it, it is the place for such files of the platform. Entries are replaced as a
whole, and one that is damaged is made again. Where all together take more than `MEZZO_CACHE_SIZE`, those that were used
longest ago are removed: processes may do so at once, since whoever misses an entry makes it again.

Nothing in it is trusted further than its own digest, and kernels come out of it: a folder that others may write to is
not used.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ....ops.errors import ModelError
from ...environment import switch
from ...files import replace_file

USUAL = 1024  # MiB that entries may take, if nothing is said
LEFT = 86400  # seconds after which a file that nobody has finished was left behind
ENTRY = re.compile(r"[0-9a-f]{64}(\.\w+)?")  # nothing else that lies there is ours to remove
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Return the folder of the entries; it may not exist yet. Raises InputError if the environment has an unknown
    MEZZO_*."""
    path = switch("MEZZO_CACHE")
    if path:
        return Path(path)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "mezzo" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mezzo"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mezzo"


@lru_cache(maxsize=8)
def safe(path: Path) -> bool:
    """True if nobody but the user (and root) can put files into this folder; a warning says who can."""
    if os.name != "posix":
        return True
    for place in (path, *path.absolute().parents):
        try:
            status = place.stat()
        except OSError:  # it is not there yet, or cannot be used anyway
            continue
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        shared = place != path and status.st_mode & stat.S_ISVTX  # where each may remove only what is his own
        strange = place == path and status.st_uid not in (0, os.geteuid())
        if strange or (others and not shared):
            warnings.warn(
                f"{path} is not used: others may write to {place}, and kernels come out of it; "
                f"chmod go-w {place}, or name another folder by MEZZO_CACHE",
                stacklevel=2,
            )
            return False
    return True


def limit() -> int:
    """Bytes that all entries may take together.

    >>> limit() >> 20
    1024
    """
    return int(switch("MEZZO_CACHE_SIZE") or USUAL) << 20


def key_of(*parts: str | bytes) -> str:
    """A name for what is made of these parts and of nothing else.

    >>> key_of("a", "bc") == key_of("ab", "c")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        held = part.encode() if isinstance(part, str) else part
        digest.update(len(held).to_bytes(8, "little"))
        digest.update(held)
    return digest.hexdigest()


def read(kind: str, key: str) -> bytes | None:
    """An entry, or None where there is none, or a damaged one."""
    path = folder() / kind / key
    if not safe(folder()):
        return None
    try:
        held = path.read_bytes()
    except OSError:
        return None
    with suppress(OSError):  # somebody else may have removed it, or owns it
        os.utime(path)  # when it was used last
    content = held[_DIGEST:]
    return content if hashlib.sha256(content).digest() == held[:_DIGEST] else None


def write(kind: str, key: str, content: bytes) -> None:
    """Keep an entry. Where the folder cannot be written, a warning says so and what was made is used all the same."""
    path = folder() / kind / key
    if _DIGEST + len(content) > limit() or not safe(folder()):
        return
    try:
        folder().mkdir(0o700, parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [hashlib.sha256(content).digest(), content])
    except (OSError, ModelError) as error:
        warnings.warn(f"{path.parent} keeps nothing ({error}); name another folder by MEZZO_CACHE", stacklevel=2)
        return
    _ROOM.taken(_DIGEST + len(content))


def kept(kind: str, key: str, make: Callable[[], bytes]) -> bytes:
    """The entry of this key, made and kept where it is missing."""
    entry = read(kind, key)
    if entry is None:
        entry = make()
        write(kind, key, entry)
    return entry


class _Room:
    """The size of all entries, as far as this process knows: those that it found, and those written since."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder, self._nbytes = Path(), 0

    def taken(self, nbytes: int) -> None:
        """Count what was written, and make room where that is too much. What other processes write is seen then."""
        with self._lock:
            if self._folder != folder():
                self._folder, self._nbytes = folder(), sum(size for _, size, _ in _entries())
            else:
                self._nbytes += nbytes
            if self._nbytes > limit():
                self._nbytes = trim(limit() // 10 * 9)


_ROOM = _Room()


def trim(nbytes: int) -> int:
    """Remove entries, those that were used longest ago first, until all take no more than so many bytes; returns what
    they take then."""
    entries = sorted(_entries())
    total = sum(size for _, size, _ in entries)
    for _, size, path in entries:
        if total <= nbytes:
            break
        with suppress(OSError):  # of a system on which a file that is read cannot be removed
            path.unlink(missing_ok=True)
            total -= size
    return total


def _entries() -> Iterator[tuple[int, int, Path]]:
    """Yield the time of the last use of each entry in nanoseconds, its size in bytes, and its path."""
    now = time.time()
    for path in folder().glob("*/*"):
        with suppress(OSError):  # removed by another process
            about = path.stat()
            if ENTRY.fullmatch(path.name):
                yield about.st_mtime_ns, about.st_size, path
            elif path.name.startswith(".mezzo-") and about.st_mtime < now - LEFT:
                path.unlink()
