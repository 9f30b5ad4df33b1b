"""The states of an optimizer as a file: safetensors, with the rest as JSON in its metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..ops.errors import ModelError
from ..ops.types import Array
from ..runtime.files import replace_file
from ..runtime.tensors import decode, encode

FORMAT = "mezzo kvstore states 1"


@dataclass(frozen=True, slots=True)
class Saved:
    """An optimizer as plain data; by key its states by name (each of the shape of the value), and the number of updates
    that the key has had."""

    optimizer: Mapping[str, Any]
    states: Mapping[str, Mapping[str, Array]]
    updates: Mapping[str, int]


def write_states(path: str | PathLike[str], saved: Saved) -> None:
    """Write in place of the former file. Raises ModelError where that cannot be done."""
    names = [(key, state) for key, states in saved.states.items() for state in states]
    about = {"optimizer": saved.optimizer, "updates": saved.updates, "names": names}
    try:
        arrays = {str(i): saved.states[key][state] for i, (key, state) in enumerate(names)}
        text = json.dumps(about)
        notes = {"format": FORMAT, "about": text, "digest": _digest(text, arrays)}
        replace_file(path, [encode(arrays, notes)])
    except (TypeError, ValueError) as error:
        raise ModelError(f"the states cannot be written: {error}", where=fspath(path)) from error


def read_states(path: str | PathLike[str]) -> Saved:
    """Return the states that `write_states` wrote. Raises ModelError if there is no such file, or it is damaged."""
    try:
        arrays, notes = decode(Path(path).read_bytes())
        if notes.get("format") != FORMAT:
            raise ValueError(f"format {notes.get('format')!r} is not {FORMAT!r}")
        if notes.get("digest") != _digest(notes["about"], arrays):
            raise ValueError("the file is not as it was written")
        about = json.loads(notes["about"])
        states: dict[str, dict[str, Array]] = {key: {} for key in about["updates"]}
        for i, (key, state) in enumerate(about["names"]):
            states[key][state] = arrays[str(i)]
        return Saved(dict(about["optimizer"]), states, {key: int(n) for key, n in about["updates"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"no states of an optimizer can be read: {error}",
            where=fspath(path),
            hint="give the file that save_optimizer_states wrote; a pickle is never read",
        ) from error


def check_states(saved: Saved, slots: Sequence[str], values: Mapping[str, Array]) -> None:
    """Raise ModelError unless the states, with these names, belong to these values."""
    for key, states in saved.states.items():
        value = values.get(key)
        wanted = set(slots) if saved.updates[key] else set()
        if value is None:
            why = "is not declared in this store"
        elif not wanted <= set(states) <= set(slots):
            why = f"has the states {sorted(states)}, not {sorted(slots)}"
        elif any(state.shape != value.shape or state.dtype != value.dtype for state in states.values()):
            why = f"has states of another shape or type than {value.dtype}{list(value.shape)}"
        else:
            continue
        raise ModelError(
            f"key {key!r} of the saved states {why}",
            where="load_optimizer_states",
            hint="declare the same keys as the store that saved them",
        )


def _digest(text: str, arrays: Mapping[str, Array]) -> str:
    made = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(arrays, key=int):
        made.update(arrays[name].tobytes())
    return made.hexdigest()
