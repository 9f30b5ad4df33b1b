"""Regular files, and nothing else: what others give to read may be a pipe, a device, or a link to either."""

from __future__ import annotations

import errno
import os
import stat
from typing import IO


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> IO[bytes]:
    """A regular file, open for reading and unbuffered; OSError for all else, and for a link unless links are to be
    followed. To open a pipe waits for who writes into it, and to open a device may do anything."""
    flags = os.O_RDONLY | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY"):  # what has become a pipe since is not waited for
        flags |= getattr(os, name, 0)
    _regular(os.stat(path, follow_symlinks=follow), path)
    handle = os.open(path, flags)
    try:
        _regular(os.fstat(handle), path)
    except OSError:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb", buffering=0)


def _regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
