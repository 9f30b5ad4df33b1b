"""Feeds and the caller's buffers for results: memory that they share is not written while it is still to be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops import Tensor
from ...ops.errors import InputError
from ...ops.types import Array, type_of
from ..compile.program import Port
from ..memory.allocate import fresh

if TYPE_CHECKING:
    from .executor import Executor


def share(a: Any, b: Any) -> bool:
    """True if two contiguous arrays, of NumPy or of a GPU, have bytes in common."""
    first, second = _begin(a), _begin(b)
    if first is None or second is None or first[0] != second[0]:
        return False
    return bool(first[1] < second[1] + b.nbytes and second[1] < first[1] + a.nbytes)


def _begin(array: Any) -> tuple[str, int] | None:
    """The kind of memory of an array, and where it begins; None for what is no array."""
    for kind in ("__array_interface__", "__cuda_array_interface__"):
        found = getattr(array, kind, None)
        if found is not None:
            return kind, int(found["data"][0])
    return None


def apart(feeds: Mapping[str, Any], buffers: Mapping[str, Array | None]) -> dict[str, Any]:
    """The feeds, as copies where a buffer has bytes of theirs: a result may be written before the last step reads them,
    and a run that meets NaN is made again. Raises InputError where two buffers share bytes."""
    given = [(n, b) for n, b in buffers.items() if b is not None]
    for i, (name, buffer) in enumerate(given):
        for other, second in given[:i]:
            if share(buffer, second):
                raise InputError(
                    f"the buffers of {other!r} and {name!r} share memory", where="outputs", hint="give each its own"
                )
    return {n: x.copy() if any(share(x, b) for _, b in given) else x for n, x in feeds.items()}


def result_buffer(port: Port, given: Mapping[str, Array] | None, device: Executor, owner: str) -> Array | None:
    """The caller's buffer for a result, or a fresh one that `owner` accounts for; None where data decide the size.
    Raises InputError for a buffer that does not fit."""
    if not (isinstance(port.type, Tensor) and port.type.static):
        return None
    if given is None or port.name not in given:
        return fresh(port.type.sizes, port.type.dtype.numpy, owner)
    array = given[port.name]
    if not isinstance(array, np.ndarray):
        array = device.from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)
    writable = not isinstance(array, np.ndarray) or array.flags.writeable
    fits = type_of(array) == port.type and array.flags.c_contiguous and writable
    if not fits:
        raise InputError(
            f"the buffer for {port} is a {type_of(array)}, or is not contiguous and writable",
            where=f"outputs[{port.name!r}]",
            hint=f"give np.empty({port.type.sizes}, {str(port.type.dtype)!r})",
        )
    return array
