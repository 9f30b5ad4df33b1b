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
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe without a writer does not block
        try:
            reason = _unfit(os.fstat(file))
            data = b"" if reason else os.read(file, LONGEST + 1)
        finally:
            os.close(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path!r} cannot be read: {why}", where=FILE) from error
    key = data.strip().decode("utf8", "surrogateescape")
    if not reason and len(data) > LONGEST:
        reason = f"it has more than {LONGEST} bytes"
    if not reason and not key:
        reason = "it is empty"
    if reason:
        hint = "make one with `umask 077; openssl rand -hex 32 > FILE`"
        raise InputError(f"{path!r} holds no key: {reason}", where=FILE, hint=hint)
    return key


def _unfit(about: os.stat_result) -> str:
    """Return what is wrong with a file, before it is read."""
    if not stat.S_ISREG(about.st_mode):
        return "it is no regular file"
    if about.st_uid != os.geteuid():
        return f"it belongs to user {about.st_uid}, and this process runs as {os.geteuid()}"
    if about.st_mode & OPEN:
        return f"its mode is {stat.S_IMODE(about.st_mode):04o}, and others may use it (chmod 600)"
    return ""
