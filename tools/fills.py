"""Inputs for a model with open sizes: several ways to fill them in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.execution.session import Session
from . import feeds as inputs

# First open axes and all others: batches with sides that convolutions can halve, odd sizes, single ones, equal ones.
WAYS = ((2, 32), (1, 64), (3, 5), (1, 1), (2, 2), (1, 48), (1, 224), (1, 576), (1, 7))


def given_arrays(texts: tuple[str, ...]) -> dict[str, Array]:
    """Arrays from NAME=FILE.npy; raises InputError where one cannot be read."""
    found: dict[str, Array] = {}
    for name, path in inputs.parse_sizes(texts).items():
        try:
            found[name] = np.load(Path(path), allow_pickle=False)
        except Exception as error:  # NumPy raises all kinds for damage
            raise InputError(f"not a .npy file: {error}", where=path, hint="write it with numpy.save") from error
    return found


def fills(
    session: Session, given: Mapping[str, str], arrays: Mapping[str, Array], seed: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Feeds for the model with what was filled in, way after way; one where nothing is open. `given` are sizes by name
    of a dim or an input, `arrays` inputs that are there already."""
    given = {**_sizes_of(session, arrays), **given}
    known = set[str]()
    for number, (first, other) in enumerate(WAYS):
        filled: dict[str, str] = {}
        for port in session.inputs:
            if not isinstance(port.type, Tensor) or port.name in arrays or port.name in given:
                continue
            sizes = []
            dims = port.type.dims or ()
            batch = next((axis for axis, dim in enumerate(dims) if not isinstance(dim, int)), None)
            for axis, dim in enumerate(dims):
                size = first if axis == batch else other
                if isinstance(dim, str):
                    size = int(given.get(dim) or filled.setdefault(dim, str(size)))
                sizes.append(dim if isinstance(dim, int) else size)
            if None in dims:
                filled[port.name] = ",".join(map(str, sizes))
        shown = ", ".join(f"{n}={s}" for n, s in filled.items())
        if shown in known:
            continue
        known.add(shown)
        shapes = inputs.shapes(session, {**given, **filled})
        yield shown, {**inputs.random_feeds(session, shapes, seed + number), **arrays}


def _sizes_of(session: Session, arrays: Mapping[str, Array]) -> dict[str, str]:
    """The sizes of named dims, as arrays that were given have them."""
    found: dict[str, str] = {}
    for port in session.inputs:
        if port.name in arrays and isinstance(port.type, Tensor):
            pairs = zip(port.type.dims or (), arrays[port.name].shape, strict=False)
            found |= {dim: str(size) for dim, size in pairs if isinstance(dim, str)}
    return found
