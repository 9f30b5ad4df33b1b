"""What is made once on a machine and kept for later processes: compiled kernels, plans of libraries.

`MEZZO_CACHE` names the folder; without it, it is the place for such files of the platform. Entries are replaced as a
whole, and one that is damaged is made again. Nothing in it is trusted further than its own digest: the folder has to be
as safe as the code of the package, since kernels come out of it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from ...ops.errors import ModelError
from ..environment import switch
from ..files import replace_file

_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Where entries lie; it may not exist yet. Raises InputError where the environment has an unknown MEZZO_*."""
    given = switch("MEZZO_CACHE")
    if given:
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "mezzo" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mezzo"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mezzo"


def key_of(*parts: str | bytes) -> str:
    """A name for what is made of these parts and of nothing else.

    >>> key_of("a", "bc") == key_of("ab", "c")
    False
    """
    found = hashlib.sha256()
    for part in parts:
        held = part.encode() if isinstance(part, str) else part
        found.update(len(held).to_bytes(8, "little"))
        found.update(held)
    return found.hexdigest()


def read(kind: str, key: str) -> bytes | None:
    """An entry, or None where there is none, or a damaged one."""
    try:
        held = (folder() / kind / key).read_bytes()
    except OSError:
        return None
    content = held[_DIGEST:]
    return content if hashlib.sha256(content).digest() == held[:_DIGEST] else None


def write(kind: str, key: str, content: bytes) -> None:
    """Keep an entry. Where the folder cannot be written, a warning says so and what was made is used all the same."""
    path = folder() / kind / key
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [hashlib.sha256(content).digest(), content])
    except (OSError, ModelError) as error:
        warnings.warn(f"{path.parent} keeps nothing ({error}); name another folder by MEZZO_CACHE", stacklevel=2)


def kept(kind: str, key: str, make: Callable[[], bytes]) -> bytes:
    """The entry of this key, made and kept where it is missing."""
    found = read(kind, key)
    if found is None:
        found = make()
        write(kind, key, found)
    return found
