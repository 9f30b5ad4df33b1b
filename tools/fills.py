"""Inputs for a model with open sizes: several ways to fill them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..ops import Tensor
from ..ops.errors import InputError, MezzoError
from ..ops.types import Array
from ..runtime.compile.auto_place import AutoPlace
from ..runtime.execution.session import Session
from . import feeds as inputs
from .roles import Roles

# First open axes and all others: batches with sides that convolutions can halve, odd sizes, single ones, equal ones.
WAYS = ((2, 32), (1, 64), (3, 5), (1, 1), (2, 2), (1, 48), (1, 224), (1, 576), (1, 7))
ONE = ((1, 64), (1, 224), *WAYS)  # of which one is looked at: a single sample first

T = TypeVar("T")


def given_arrays(texts: tuple[str, ...]) -> dict[str, Array]:
    """Arrays from NAME=FILE.npy; raises InputError where one cannot be read."""
    arrays: dict[str, Array] = {}
    for name, path in inputs.parse_sizes(texts).items():
        try:
            with open(path, "rb") as file:
                arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
        except Exception as error:  # NumPy raises all kinds for damage
            raise InputError(f"not a .npy file: {error}", where=path, hint="write it with numpy.save") from error
    return arrays


def fills(
    session: Session,
    given: Mapping[str, str],
    arrays: Mapping[str, Array],
    seed: int,
    ways: Sequence[tuple[int, int]] = WAYS,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Feeds for the model with what was filled in, way after way; one where nothing is open. `given` are sizes by name
    of a dim or an input, `arrays` inputs that are there already. Caches are empty first, then filled."""
    roles = Roles.of(session.inputs)
    given = {**_sizes_of(session, {n: np.shape(a) for n, a in arrays.items()} | _whole(session, given)), **given}
    known = set[str]()
    for number, lengths in enumerate(roles.ways(ways, given)):
        filled: dict[str, str] = {}
        for port in session.inputs:
            if not isinstance(port.type, Tensor) or port.name in arrays or port.name in given:
                continue
            sizes = []
            for dim, role in zip(port.type.dims or (), roles.of_input[port.name], strict=True):
                size = lengths[role]
                if isinstance(dim, str):
                    size = int(given[dim]) if dim in given else int(filled.setdefault(dim, str(size)))
                sizes.append(dim if isinstance(dim, int) else size)
            if None in (port.type.dims or ()):
                filled[port.name] = ",".join(map(str, sizes))
        shown = ", ".join(f"{n}={s}" for n, s in filled.items())
        if shown in known:
            continue
        known.add(shown)
        shapes = inputs.shapes(session, {**given, **filled})
        yield shown, {**inputs.random_feeds(session, shapes, seed + number), **arrays}


def first_that_runs(
    session: Session, given: Mapping[str, str], seed: int, do: Callable[[dict[str, Any]], T]
) -> tuple[str, T]:
    """The sizes that were filled in, and what `do` returns for them: the first ones for which it raises no MezzoError.

    Raises InputError where none does, and the error itself where nothing was to be chosen.
    """
    last: MezzoError | None = None
    for shown, feeds in fills(session, given, {}, seed, ONE):
        try:
            return shown, do(feeds)
        except MezzoError as error:
            if not shown:
                raise
            last = error
    assert last is not None  # there is one way at least
    text = f"it runs with none of the sizes that were tried: {last.message}"
    raise InputError(text, where=last.where, hint="give sizes with --dim name=4") from last


def auto_place(session: Session, room: Mapping[str, int], given: Mapping[str, str], seed: int) -> AutoPlace:
    """A placement that is to be found for a session's model, at sizes that are given or chosen."""

    def shapes(feeds: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        sizes = {n: tuple(map(int, np.shape(a))) for n, a in feeds.items()}
        session.warmup(sizes)
        return sizes

    return AutoPlace(room, first_that_runs(session, given, seed, shapes)[1])


def _whole(session: Session, given: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The shapes that were given for inputs as a whole."""
    return {n: s for n, s in inputs.shapes(session, given).items() if n in given}


def _sizes_of(session: Session, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """The sizes of named dims, as inputs whose shapes are known have them."""
    sizes: dict[str, str] = {}
    for port in session.inputs:
        if port.name in shapes and isinstance(port.type, Tensor):
            pairs = zip(port.type.dims or (), shapes[port.name], strict=False)
            sizes |= {dim: str(size) for dim, size in pairs if isinstance(dim, str)}
    return sizes
