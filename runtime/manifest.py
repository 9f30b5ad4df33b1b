"""Run manifests: a file of everything that must be equal for a run to give the same bits again.

A manifest has the seed, the versions of what computes, the machine, the environment variables that change numbers, and
digests of what was run (models, parameters, data). It is JSON, and is replaced as a whole.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ..ops.errors import InputError, ModelError
from .backends.onednn.library import library
from .digests import blake2b
from .environment import PREFIX, usual_threads
from .files import replace_file
from .ir.graph import Graph
from .version import __version__

FORMAT = 1
LARGEST = 1 << 20  # bytes of a file
PIECE = 1 << 20  # bytes of a file that are read at once
# what may decide of bits; the secret of a job is not written down
PREFIXES = (PREFIX, "OMP_", "GOMP_", "ONEDNN_", "DNNL_", "OPENBLAS_", "MKL_", "CUDA_", "CUBLAS_", "NVIDIA_", "NPY_")
REPLAY = "MEZZO_REPLAY"  # where a run that is a replay writes its manifest
RECORD, COMMAND = "MEZZO_RECORD", "MEZZO_RECORD_COMMAND"  # where the workers of a job write theirs; the launcher's
# Not written down: the secret of a job, where manifests are, and who is who in a job, which its launcher says.
UNSAID = frozenset({
    "MEZZO_JOB_KEY", REPLAY, RECORD, COMMAND, "MEZZO_RANK", "MEZZO_HOST", "MEZZO_ATTEMPT", "MEZZO_INCARNATION",
    "MEZZO_GPU", "MEZZO_KV_TRACE",
})  # fmt: skip
PACKAGES = (
    "numpy", "ml_dtypes", "onednn-cpu-gomp", "cupy-cuda12x", "cupy-cuda13x", "nvidia-cuda-nvrtc",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvmath-python",
)  # fmt: skip


class NotTheSame(UserWarning):
    """Warning: a run differs from its manifest, and continues."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The dependencies of a run. `digests` are those of noted values, by their names; `command` is what Python was
    asked to run, in this `folder`, where that was noted.

    >>> import numpy as np
    >>> one = taken(7).noting(data=np.arange(3))
    >>> one.differences(data=np.arange(3))
    ()
    >>> len(one.differences(data=np.arange(4)))
    1
    """

    seed: int
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    environment: Mapping[str, str]
    digests: Mapping[str, str] = field(default_factory=dict[str, str])
    command: tuple[str, ...] = ()
    folder: str = ""

    def __str__(self) -> str:
        rows = [("seed", str(self.seed))]
        for part in PARTS:
            rows += [(f"{part} {name}", value) for name, value in getattr(self, part).items()]
        return "\n".join(f"{name}: {value}" for name, value in rows)

    def noting(self, **ran: Any) -> Manifest:
        """The manifest with digests of these too: see `digest`."""
        return replace(self, digests={**self.digests, **{name: digest(value) for name, value in ran.items()}})

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it in place of the file that is there. Raises ModelError where that cannot be done."""
        said = {"format": FORMAT, "seed": self.seed, **{part: dict(getattr(self, part)) for part in PARTS}}
        said |= {"command": list(self.command), "folder": self.folder} if self.command else {}
        replace_file(path, [json.dumps(said, indent=1, sort_keys=True).encode(), b"\n"])

    def differences(self, **ran: Any) -> tuple[str, ...]:
        """Return the differences from now: versions, machine and environment of this process, and digests of the given
        values."""
        now = taken(self.seed).noting(**ran)
        changes = []
        for part in PARTS:
            recorded, current = getattr(self, part), getattr(now, part)
            names = dict.fromkeys(current if part == "digests" else (*recorded, *current))
            changes += [
                f"{part}: {name} was {recorded.get(name, 'not there')}, and is {current.get(name, 'not there')}"
                for name in names
                if recorded.get(name) != current.get(name)
            ]
        return tuple(changes)

    def check(self, **ran: Any) -> None:
        """Raise InputError, which lists every difference, where anything is not as it was."""
        changes = self.differences(**ran)
        if changes:
            raise InputError(
                f"{len(changes)} things are not as the manifest has them:\n  " + "\n  ".join(changes),
                where="manifest",
                hint="make them what they were, or replay(..., strict=False)",
            )


PARTS = ("versions", "machine", "environment", "digests")


def program() -> tuple[str, ...]:
    """The command line of this process as Python was given it: the absolute path of a script, or -m and the module, and
    arguments; nothing of an interactive session, which cannot be run again."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name:
        return ("-m", spec.name.removesuffix(".__main__"), *sys.argv[1:])
    return (str(Path(file).resolve()), *sys.argv[1:]) if file else ()


def taken(seed: int) -> Manifest:
    """The manifest of this process, with no digests."""
    onednn = library()
    machine = {
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": str(usual_threads()),
        "onednn": "off" if onednn is None else str(onednn),
    }
    versions = {"mezzo": __version__, "python": platform.python_version(), "byteorder": sys.byteorder}
    versions |= {n: metadata.version(n) for n in PACKAGES if any(True for _ in metadata.distributions(name=n))}
    named = {n: v for n, v in sorted(os.environ.items()) if n.startswith(PREFIXES) and n not in UNSAID}
    return Manifest(seed, versions, machine, named)


def read(path: str | os.PathLike[str]) -> Manifest:
    """A manifest that was written. Raises ModelError where there is none, or it is damaged."""
    where = Path(path)
    try:
        if where.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST} bytes")
        said = json.loads(where.read_bytes())
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        seed, parts = said["seed"], [said[part] for part in PARTS]
        if type(seed) is not int:
            raise ValueError(f"its seed is {seed!r}")
        for part, values in zip(PARTS, parts, strict=True):
            if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
                raise ValueError(f"its {part} are no texts by name")
        command, folder = said.get("command", []), said.get("folder", "")
        if not isinstance(command, list) or not all(isinstance(v, str) for v in (*command, folder)):
            raise ValueError("its command is no list of texts")
        return replace(Manifest(seed, *parts), command=tuple(command), folder=folder)
    except KeyError as error:
        raise _bad(where, f"it has no {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _bad(where, str(error)) from error


def _bad(where: Path, why: str) -> ModelError:
    return ModelError(
        f"no run manifest can be read: {why}", where=str(where), hint="give a file of seed_all(..., path)"
    )


def digest(value: Any) -> str:
    """BLAKE2b of 16 bytes, in hexadecimal, of what a run reads or makes.

    Takes arrays of any sort, a graph, a block (what it prints and its parameters), a Session or a Trainer of graphs
    (its graph and its states), a path (the bytes of the file), bytes, text, numbers, and mappings and sequences of
    those. Waits for arrays. Raises InputError for anything else.

    >>> digest([1, 2]) == digest([1, 2]), digest([1, 2]) == digest([12])
    (True, False)
    """
    hasher = blake2b(digest_size=16)
    for piece in pieces(value):
        hasher.update(piece)
    return hasher.hexdigest()


def pieces(value: Any) -> Iterator[Any]:
    """Bytes that tell what a value is; each part says how long it is, so that no two values have the same."""
    if isinstance(value, Graph):
        from .file import encode  # of a start, several ms

        yield b"graph "
        yield from encode(value)
    elif hasattr(value, "collect_params"):
        yield from pieces({"block": repr(value), "parameters": dict(value.collect_params())})
    elif hasattr(value, "list_data"):
        yield from pieces(value.data())
    elif hasattr(value, "states") and (
        hasattr(value, "graph_of_step") or isinstance(getattr(value, "graph", None), Graph)
    ):
        graph = value.graph_of_step if hasattr(value, "graph_of_step") else value.graph
        yield from pieces({"graph": graph, "states": dict(value.states)})
    elif isinstance(value, os.PathLike):
        yield from _file(Path(value))
    elif isinstance(value, str):
        yield from _named("text", value.encode("utf8", "surrogatepass"))
    elif isinstance(value, bytes | bytearray | memoryview):
        yield from _named("bytes", value)
    elif value is None or isinstance(value, bool | int | float | complex):
        yield from _named(type(value).__name__, repr(value).encode())
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)} ".encode()
        for name in sorted(value, key=str):
            yield from pieces(str(name))
            yield from pieces(value[name])
    elif isinstance(value, Sequence):
        yield f"sequence {len(value)} ".encode()
        for item in value:
            yield from pieces(item)
    elif hasattr(value, "__array__") or hasattr(value, "asnumpy"):
        yield from _array(np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value))
    else:
        raise InputError(
            f"no digest of a {type(value).__name__}",
            where="manifest",
            hint="give arrays, graphs, blocks, paths, texts or numbers, or collections of them",
        )


def _array(array: np.ndarray[Any, Any]) -> Iterator[Any]:
    if array.dtype.hasobject:
        yield from pieces({"texts": array.astype(str).tolist(), "shape": array.shape})
        return
    yield f"array {array.dtype} {array.shape} ".encode()
    yield np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _named(sort: str, data: Any) -> Iterator[Any]:
    yield f"{sort} {len(data)} ".encode()
    yield data


def _file(path: Path) -> Iterator[Any]:
    try:
        yield f"file {path.stat().st_size} ".encode()
        with path.open("rb") as handle:
            while piece := handle.read(PIECE):
                yield piece
    except OSError as error:
        raise InputError(
            f"no digest: {error}", where=str(path), hint="give a path to a file, or text as bytes"
        ) from error


__all__ = ["Manifest", "NotTheSame", "digest", "read", "taken"]
