"""Batches between processes: their structure as plain data, and arrays by where they lie in shared memory.

Nothing that is read back can run anything: there are lists, tuples, dicts, numbers, texts, bytes, and arrays of plain
element types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from ..ops.errors import InputError, WireError
from ..ops.types import Array

Place = Callable[[Array], tuple[int, int]]  # segment and offset of an array, copied there if need be
Find = Callable[[int, int, tuple[int, ...], np.dtype[Any]], Array]
PLAIN = (bool, int, float, str, bytes)


def packed(tree: Any, place: Place) -> Any:
    """Return plain data for msgpack. Raises InputError for what cannot travel."""
    if hasattr(tree, "asnumpy"):
        tree = tree.asnumpy()
    if isinstance(tree, np.ndarray | np.generic):
        array = np.asarray(tree)
        if array.dtype.hasobject or array.dtype.fields is not None:
            raise InputError(
                f"a batch has an array of {array.dtype}", where="batchify", hint="worker processes send plain arrays"
            )
        return ["a", *place(array), list(array.shape), dtype_name(array.dtype)]
    if isinstance(tree, dict):
        return ["d", [[packed(k, place), packed(v, place)] for k, v in tree.items()]]
    if isinstance(tree, list | tuple):
        return ["t" if isinstance(tree, tuple) else "l", [packed(x, place) for x in tree]]
    if isinstance(tree, memoryview | bytearray):
        tree = bytes(tree)
    if tree is None or isinstance(tree, PLAIN):
        return ["p", tree]
    raise InputError(
        f"a batch has a {type(tree).__name__}",
        where="batchify",
        hint="worker processes send arrays, numbers and texts in lists, tuples and dicts; threads=True sends anything",
    )


def unpacked(data: Any, find: Find) -> Any:
    """Return the batch that `packed` described. Raises WireError."""
    match data:
        case ["a", int(segment), int(offset), list(shape), str(name)]:
            return find(segment, offset, tuple(map(int, shape)), dtype_named(name))
        case ["d", list(pairs)]:
            return {unpacked(k, find): unpacked(v, find) for k, v in pairs}
        case ["l", list(parts)]:
            return [unpacked(p, find) for p in parts]
        case ["t", list(parts)]:
            return tuple(unpacked(p, find) for p in parts)
        case ["p", value]:
            return value
    raise WireError("a batch that nobody packed", where="DataLoader")


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name by which `dtype_named` finds an element type again."""
    return dtype.str if dtype.kind in "biufcUSmM" else dtype.name


def dtype_named(name: str) -> np.dtype[Any]:
    """An element type by its name, those of ml_dtypes too."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


def to_bytes(message: Any) -> bytes:
    """A message as bytes."""
    data: bytes = msgpack.packb(message, use_bin_type=True)
    return data


def from_bytes(data: bytes) -> Any:
    """A message from bytes. Raises WireError."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack has many kinds
        raise WireError(f"no message: {error}", where="DataLoader") from error
