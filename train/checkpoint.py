"""Checkpoints: the states of a training in safetensors, beside a JSON manifest that says what they belong to.

`FOLDER/checkpoint.json` names a data file with its digest, and is replaced as a whole once that file is on the disk: a
reader finds the former checkpoint or the new one, never half of one. Former checkpoints that are kept have manifests of
their own, `checkpoint-RUN.json`; they are read where the newest is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..ops.errors import ModelError
from ..ops.types import Array
from ..runtime.files import replace_file
from ..runtime.tensors import decode, encode
from ..runtime.version import __version__

MANIFEST = "checkpoint.json"
CALLBACKS, ARRAY = "@callbacks", "@array"  # a prefix of names of arrays; the key of such a name
FORMAT = 1
LARGEST_MANIFEST = 64 << 20  # bytes
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The data needed to resume a training: its arrays by name, the number of the next run (random numbers depend on
    it), the caller's notes (`position` in the data, ...), the states of callbacks by name (arrays among them), and a
    digest of the trained graph."""

    arrays: Mapping[str, Array]
    run: int
    graph: str
    optimizer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    callbacks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    parts: Parts | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of states that ranks have written (train/parts.py): how buckets are filled, the digest of each rank's file,
    and where they have been read the arrays."""

    layout: Any
    digests: tuple[str, ...]
    arrays: tuple[Mapping[str, Array], ...] = ()


def write_part(folder: str | os.PathLike[str], arrays: Mapping[str, Array]) -> bytes:
    """Write one rank's part of a checkpoint that is still to be named; returns its digest. Raises ModelError."""
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
        data = encode(dict(arrays))
        digest = hashlib.blake2b(data, digest_size=32).digest()
        replace_file(where / _data_name(digest.hex()), [data])
    except OSError as error:
        raise ModelError(
            f"a part of the checkpoint cannot be written: {error}",
            where=str(where),
            hint="check the folder and its free space",
        ) from error
    return digest


def _data_name(digest: str) -> str:
    return f"{digest[:24]}.safetensors"


def save(folder: str | os.PathLike[str], checkpoint: Checkpoint, keep: int = 1) -> None:
    """Write a checkpoint; the newest `keep` of the folder stay. Raises ModelError where that cannot be done, and the
    former ones are as they were."""
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
        arrays = dict(checkpoint.arrays)
        callbacks = _without(checkpoint.callbacks, arrays, CALLBACKS)
        data = encode(arrays)
        digest = hashlib.blake2b(data, digest_size=32).hexdigest()
        name = _data_name(digest)
        replace_file(where / name, [data])
        manifest = {
            "format": FORMAT,
            "data": name,
            "digest": digest,
            "run": checkpoint.run,
            "graph": checkpoint.graph,
            "optimizer": checkpoint.optimizer,
            "notes": checkpoint.notes,
            "callbacks": callbacks,
            "versions": {"mezzo": __version__, "numpy": np.__version__},
        }
        if checkpoint.parts is not None:
            manifest["parts"] = {"layout": checkpoint.parts.layout, "digests": [*checkpoint.parts.digests]}
        text = json.dumps({**manifest, "seal": _seal(json.loads(json.dumps(manifest)))}, indent=1)
        if keep > 1:
            replace_file(where / _kept(checkpoint.run), [text.encode()])
        replace_file(where / MANIFEST, [text.encode()])
        _tidy(where, _files(manifest), kept(where, checkpoint.run, keep))
    except (OSError, TypeError, ValueError) as error:
        raise ModelError(
            f"the checkpoint cannot be written: {error}", where=str(where), hint="check the folder and its free space"
        ) from error


def load(folder: str | os.PathLike[str]) -> Checkpoint:
    """Read a folder's newest checkpoint, or where that is damaged, with a warning, the newest that is whole. Raises
    ModelError where there is none."""
    where = Path(folder)
    try:
        return _read(where, MANIFEST)
    except _UNREADABLE as error:
        for run in runs(where):
            with suppress(*_UNREADABLE):
                checkpoint = _read(where, _kept(run))
                warnings.warn(
                    f"{where}: the newest checkpoint is damaged ({error}); that of run {run} is whole", stacklevel=3
                )
                return checkpoint
        raise ModelError(
            f"no checkpoint can be read: {error}",
            where=str(where),
            hint="give the folder that Trainer.save wrote to; a pickle is never read",
        ) from error


def _read(where: Path, name: str) -> Checkpoint:
    """The checkpoint of a manifest."""
    if (where / name).stat().st_size > LARGEST_MANIFEST:
        raise ValueError("the manifest is too large")
    manifest = json.loads((where / name).read_bytes())
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']!r} is not {FORMAT}")
    if manifest.pop("seal") != _seal(manifest):
        raise ValueError("the manifest is not as it was written")
    arrays = _data(where, str(manifest["data"]), manifest["digest"])
    entry, parts = manifest.get("parts"), None
    if entry is not None:
        digests = tuple(map(str, entry["digests"]))
        parts = Parts(entry["layout"], digests, tuple(_data(where, _data_name(d), d) for d in digests))
    callbacks = _with(manifest.get("callbacks", {}), arrays)
    return Checkpoint(
        arrays,
        int(manifest["run"]),
        str(manifest["graph"]),
        dict(manifest["optimizer"]),
        dict(manifest["notes"]),
        callbacks,
        parts,
    )


def _data(where: Path, file: str, digest: str) -> dict[str, Array]:
    """The arrays of a file whose digest is known."""
    if Path(file).name != file or not file.endswith(".safetensors"):
        raise ValueError(f"{file!r} is no file beside the manifest")
    data = (where / file).read_bytes()
    if hashlib.blake2b(data, digest_size=32).hexdigest() != digest:
        raise ValueError(f"{file} has another digest than the manifest says")
    return dict(decode(data)[0])


def _files(manifest: Mapping[str, Any]) -> set[str]:
    """The files of a checkpoint."""
    return {manifest["data"], *map(_data_name, manifest.get("parts", {}).get("digests", ()))}


def runs(folder: str | os.PathLike[str]) -> list[int]:
    """The runs of the checkpoints that a folder keeps beside the newest's manifest, the newest first."""
    matches = (re.fullmatch(r"checkpoint-(\d+)\.json", path.name) for path in Path(folder).glob(_kept("*")))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def kept(folder: str | os.PathLike[str], run: int, keep: int) -> list[int]:
    """The runs whose checkpoints stay when that of `run` is written; what is beyond it was abandoned."""
    return [each for each in runs(folder) if each <= run][:keep] if keep > 1 else []


def _kept(run: int | str) -> str:
    """The name of the manifest of a checkpoint that is kept."""
    return f"checkpoint-{run}.json"


def _tidy(where: Path, newest: set[str], keep: Sequence[int]) -> None:
    """Remove what belongs to no checkpoint that is kept, also of writers that were killed."""
    used = set(newest)
    for run in runs(where):
        if run in keep:
            with suppress(OSError, ValueError, KeyError):  # a damaged one has nothing
                used |= _files(json.loads((where / _kept(run)).read_bytes()))
        else:
            (where / _kept(run)).unlink(missing_ok=True)
    for former in (*where.glob("*.safetensors"), *where.glob(".mezzo-*.part")):
        if former.name not in used:
            former.unlink(missing_ok=True)


def _without(state: Any, arrays: dict[str, Array], name: str) -> Any:
    """A state whose arrays lie among the others, under its name; it has the names in their places."""
    if isinstance(state, Mapping):
        return {key: _without(value, arrays, f"{name}/{key}") for key, value in state.items()}
    if not isinstance(state, np.ndarray):
        return state
    arrays[name] = state
    return {ARRAY: name}


def _with(state: Any, arrays: dict[str, Array]) -> Any:
    """A state with its arrays again, which are taken from among the others."""
    if not isinstance(state, dict):
        return state
    return arrays.pop(state[ARRAY]) if {*state} == {ARRAY} else {key: _with(v, arrays) for key, v in state.items()}


def _seal(manifest: Mapping[str, Any]) -> str:
    """The digest of what a manifest says."""
    encoded = json.dumps(manifest, sort_keys=True).encode()
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()


def exists(folder: str | os.PathLike[str]) -> bool:
    """True if the folder holds a checkpoint."""
    return (Path(folder) / MANIFEST).exists()


def beside(folder: str | os.PathLike[str], run: int | str) -> Path:
    """Return the path of the states of a store's optimizer, beside the checkpoint of a run."""
    return Path(folder) / f"optimizer-{run}.states"


def tidy_beside(folder: str | os.PathLike[str], run: int, keep: int) -> None:
    """Remove the states of stores' optimizers that are beside no checkpoint which stays when that of `run` is
    written."""
    stay = [beside(folder, each) for each in (run, *kept(folder, run, keep))]
    for former in Path(folder).glob(beside(folder, "*").name):
        if former not in stay:
            former.unlink(missing_ok=True)
