"""Files of data by path or address: what is far away is fetched once into a cache, or read in pieces.

Addresses (`s3://`, `http://`, `memory://`, ...) are read through fsspec, the extra `mezzo[remote]`.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..ops.errors import InputError, MissingPackage
from ..runtime.engine.future import Pending, submit
from ..runtime.files import replacing

T = TypeVar("T")
BLOCK = 1 << 20
KEPT = 16  # blocks in memory
TRIES = 5
FIRST_PAUSE = 0.2  # seconds; each further one is twice as long


def far(source: object) -> bool:
    """True for an address, false for a path."""
    return isinstance(source, str) and "://" in source


def usual_cache() -> Path:
    """The folder of fetched files."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mezzo" / "data"


def _file_system(address: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise MissingPackage(
            "addresses are read through fsspec", where=address, hint="pip install 'mezzo[remote]'"
        ) from error
    try:
        system_and_path: tuple[Any, str] = fsspec.core.url_to_fs(address, **options)
    except (ImportError, ValueError) as error:  # of a kind of its own, or of none that is known
        raise MissingPackage(str(error), where=address, hint="fsspec says which package it needs") from error
    return system_and_path


def again(call: Callable[[], T], where: str, tries: int = TRIES, pause: float = FIRST_PAUSE) -> T:
    """Call until it succeeds, with pauses that double. Raises InputError after `tries`, and at once for a file that is
    not there."""
    for attempt in range(tries):
        try:
            return call()
        except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
            raise InputError(f"it cannot be read: {error}", where=where, hint="check the address") from error
        except Exception as error:  # each file system has errors of its own
            if attempt == tries - 1:
                why = f"{type(error).__name__}: {error}"
                raise InputError(f"{tries} attempts failed: {why}", where=where, hint="try later") from error
            time.sleep(pause * 2**attempt)
    raise AssertionError("at least one attempt")


class RemoteFile(io.RawIOBase):
    """A file far away, read in blocks: the next `ahead` are fetched while one is used, each is tried several times, and
    with `cache` (a folder) blocks stay on the disk. Not for several threads at once.

    Raises InputError for what is not there, MissingPackage without fsspec.
    """

    def __init__(
        self,
        address: str,
        *,
        block: int = BLOCK,
        ahead: int = 2,
        cache: str | os.PathLike[str] | None = None,
        tries: int = TRIES,
        pause: float = FIRST_PAUSE,
        **options: Any,
    ) -> None:
        super().__init__()
        self.address, self._block, self._ahead, self._tries, self._pause = address, block, ahead, tries, pause
        self._fs, self._path = _file_system(address, options)
        about = again(lambda: self._fs.info(self._path), address, tries, pause)
        if about.get("size") is None:
            raise InputError("the server does not tell its size", where=address, hint="fetched() takes the whole file")
        self._size, self._at = int(about["size"]), 0
        self._blocks: OrderedDict[int, Pending[bytes]] = OrderedDict()
        self._last = -2
        self._folder: Path | None = None
        if cache is not None:
            mark = f"{address} {self._size} {about.get('mtime') or about.get('ETag') or ''} {block}"
            self._folder = Path(cache) / hashlib.blake2b(mark.encode(), digest_size=12).hexdigest()
            self._folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the beginning")  # as files say it
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        out = memoryview(buffer).cast("B")
        if self._at >= self._size or not len(out):
            return 0
        number, within = divmod(self._at, self._block)
        data = self._at_block(number)[within : within + len(out)]
        out[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _at_block(self, number: int) -> bytes:
        last = (self._size - 1) // self._block
        ahead = self._ahead if number in (self._last, self._last + 1) else 0  # those who jump need no more
        for wanted in range(number, min(number + ahead, last) + 1):
            if wanted not in self._blocks:
                self._blocks[wanted] = submit(self._fetch, wanted, resource="io")
        self._last = number
        try:
            data = self._blocks[number].result()
        except BaseException:
            del self._blocks[number]
            raise
        self._blocks.move_to_end(number)
        while len(self._blocks) > max(KEPT, ahead + 1):
            self._blocks.popitem(last=False)[1].cancel()
        return data

    def _fetch(self, number: int) -> bytes:
        begin = number * self._block
        end = min(begin + self._block, self._size)
        kept = self._folder / f"{number}" if self._folder else None
        if kept is not None and kept.is_file() and kept.stat().st_size == end - begin:
            return kept.read_bytes()

        def call() -> bytes:
            data: bytes = self._fs.cat_file(self._path, begin, end)
            if len(data) != end - begin:
                raise OSError(f"{len(data)} bytes of {end - begin}")
            return data

        data = again(call, f"{self.address}, bytes {begin} to {end}", self._tries, self._pause)
        if kept is not None:
            with replacing(kept) as file:
                file.write(data)
        return data


def fetched(
    address: str,
    cache: str | os.PathLike[str] | None = None,
    *,
    tries: int = TRIES,
    pause: float = FIRST_PAUSE,
    **options: Any,
) -> Path:
    """The path of a file far away, in the cache: it is fetched if it is not there, or has another size or time.

    What lies beside it (`.idx`, `.sum` of a `.rec`) is fetched by its own address. Raises InputError, MissingPackage.
    """
    fs, path = _file_system(address, options)
    about = again(lambda: fs.info(path), address, tries, pause)
    mark = f"{address} {about.get('size')} {about.get('mtime') or about.get('ETag') or ''}"
    folder = (
        Path(cache or usual_cache()) / hashlib.blake2b(address.rpartition("/")[0].encode(), digest_size=8).hexdigest()
    )
    target, note = folder / path.rpartition("/")[2], folder / f".{path.rpartition('/')[2]}.from"
    if target.is_file() and note.is_file() and note.read_text("utf8") == mark:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    note.unlink(missing_ok=True)
    with replacing(target, "part", "the fetched file") as out:

        def call() -> None:
            out.seek(0)
            out.truncate()
            with fs.open(path, "rb", block_size=BLOCK) as file:
                while piece := file.read(BLOCK):
                    out.write(piece)
            if about.get("size") is not None and out.tell() != about["size"]:
                raise OSError(f"{out.tell()} bytes of {about['size']}")

        again(call, address, tries, pause)
    note.write_text(mark, "utf8")
    return target


def local(source: str | os.PathLike[str], beside: tuple[str, ...] = ()) -> Path:
    """The path of a file: of an address, that in the cache. `beside` are endings of files that are fetched with it,
    where they are there."""
    if not far(source):
        return Path(source)
    address = str(source)
    path = fetched(address)
    for ending in beside:
        other = address.rpartition(".")[0] + ending
        fs, place = _file_system(other, {})
        if again(lambda fs=fs, place=place: fs.exists(place), other):  # type: ignore[misc]
            fetched(other)
    return path
