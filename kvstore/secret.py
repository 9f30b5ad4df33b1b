"""The secret of a job: made afresh, or read from a file that its owner alone can read."""

from __future__ import annotations

import os
import secrets
import stat

from ..ops.errors import InputError

FILE = "MEZZO_JOB_KEY_FILE"
LONGEST = 4096  # bytes of a key
OPEN = 0o077  # bits of a mode that let somebody else in


def fresh() -> str:
    """Return a key that nobody can guess: 256 random bits."""
    return secrets.token_hex(32)


def read_key(path: str) -> str:
    """The key in a file, without white space around it. Raises InputError unless the file is one of this user that
    nobody else may read."""
    hint = "make one with `umask 077; openssl rand -hex 32 > FILE`"
    data = read_private(path, FILE, hint, LONGEST)
    key = data.strip().decode("utf8", "surrogateescape")
    if not key:
        raise InputError(f"{path!r} is empty", where=FILE, hint=hint)
    return key


def read_private(path: str, where: str, hint: str, most: int) -> bytes:
    """The bytes of a regular file of this user that nobody else may read, at most so many. Raises InputError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe without a writer does not block
        try:
            reason = _unfit(os.fstat(file), most)
            data = b"" if reason else os.read(file, most)
        finally:
            os.close(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path!r} cannot be read: {why}", where=where, hint=hint) from error
    if reason:
        raise InputError(f"{path!r} is not taken: {reason}", where=where, hint=hint)
    return data


def _unfit(about: os.stat_result, most: int) -> str:
    """Return what is wrong with a file, before it is read."""
    if not stat.S_ISREG(about.st_mode):
        return "it is no regular file"
    if about.st_uid != os.geteuid():
        return f"it belongs to user {about.st_uid}, and this process runs as {os.geteuid()}"
    if about.st_mode & OPEN:
        return f"its mode is {stat.S_IMODE(about.st_mode):04o}, and others may use it (chmod 600)"
    if about.st_size > most:
        return f"it has more than {most} bytes"
    return ""
