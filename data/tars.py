"""WebDataset: samples as neighbouring files of tar archives (https://github.com/webdataset/webdataset).

Files whose paths are the same up to the first dot of the name are one sample: `n01/0007.jpg` and `n01/0007.cls`.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ops.errors import InputError
from .clock import stage
from .dataset import Dataset
from .images import ENDINGS, decode
from .sources import local

LARGEST = 1 << 31  # bytes of one file in an archive


class WebDataset(Dataset):
    """The samples of tar archives (a path or address, or several) as dicts: file endings without dot, and `__key__`.

    An archive is searched once for where its files lie, and read there. Images become uint8 pixels, `cls` and `id`
    integers, `txt` text, `json` what it says, `npy` arrays; others stay bytes, and all do with `decode=False`. `keys`
    are the endings of a sample's tuple, as `("jpg", "cls")`; then a sample is that tuple.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        keys: Sequence[str] | None = None,
        *,
        decode: bool = True,
    ) -> None:
        several = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
        self.paths, self.keys, self.decodes = [local(p) for p in several], keys, decode
        self._samples: list[tuple[int, str, dict[str, tuple[int, int]]]] = []
        for number, path in enumerate(self.paths):
            self._samples += [(number, key, files) for key, files in _searched(path)]

    def __len__(self) -> int:
        return len(self._samples)

    def name(self, number: int) -> str:
        archive, key, _ = self._samples[number]
        return f"{self.paths[archive]}, {key}"

    def __getitem__(self, number: int) -> Any:
        archive, key, files = self._samples[number]
        sample: dict[str, Any] = {"__key__": key}
        wanted = files if self.keys is None else self.keys
        with self.paths[archive].open("rb") as file:
            for ending in wanted:
                if ending not in files:
                    raise InputError(
                        f"there is no {ending!r} of it", where=self.name(number), hint=f"there are {', '.join(files)}"
                    )
                begin, size = files[ending]
                file.seek(begin)
                data = file.read(size)
                if len(data) != size:
                    raise InputError("the archive is cut off", where=self.name(number), hint="fetch it again")
                sample[ending] = _decoded(data, ending, self.name(number)) if self.decodes else data
        return sample if self.keys is None else tuple(sample[k] for k in self.keys)


def _searched(path: Path) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """Yield keys of samples, and first byte and size of each file by its ending. Raises InputError."""
    now, files = "", dict[str, tuple[int, int]]()
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                if member.size > LARGEST or member.offset_data + member.size > path.stat().st_size:
                    raise InputError(f"{member.name!r} is cut off", where=str(path), hint="fetch it again")
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if key != now and files:
                    yield now, files
                    files = {}
                now = key
                if ending.lower() in files:
                    raise InputError(f"{member.name!r} is there twice", where=str(path), hint="keys are unique")
                files[ending.lower()] = member.offset_data, member.size
    except (OSError, tarfile.TarError, EOFError) as error:
        raise InputError(
            f"no tar archive: {error}", where=str(path), hint="an archive is plain: unpack .gz before"
        ) from error
    if files:
        yield now, files


def _decoded(data: bytes, ending: str, where: str) -> Any:
    """The content of a file by the last part of its ending. Raises InputError."""
    kind = ending.rpartition(".")[2]
    try:
        if f".{kind}" in ENDINGS:
            return decode(data, where=where)
        with stage("decode"):
            match kind:
                case "cls" | "id" | "index":
                    return int(data)
                case "txt" | "text":
                    return data.decode("utf8")
                case "json":
                    return json.loads(data)
                case "npy":
                    return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{ending!r} cannot be decoded: {error}", where=where, hint="is it damaged?") from error
    return data
