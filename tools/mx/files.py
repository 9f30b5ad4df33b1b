"""Files of arrays as MXNet 1.x writes them (version V2), so that either side reads them. importers/mxnet/arrays.py
reads all versions, and tells the layout."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from ...importers.mxnet.arrays import DTYPES, MAGIC, V2
from ...ops import DType
from ...ops.errors import InputError
from ...ops.types import Array

CPU = struct.pack("<ii", 1, 0)


def write_arrays(arrays: Mapping[str, Array] | Sequence[Array]) -> bytes:
    """The bytes of a file: arrays by name, or without names. Raises InputError for an element type that MXNet lacks.

    >>> from mezzo.importers.mxnet import read_arrays
    >>> read_arrays(write_arrays({"w": np.ones(2, np.float32)}))
    {'w': array([1., 1.], dtype=float32)}
    """
    named = isinstance(arrays, Mapping)
    values = list(arrays.values()) if isinstance(arrays, Mapping) else list(arrays)
    parts = [MAGIC, struct.pack("<Q", len(values)), *map(_array, values)]
    names = [n.encode() for n in arrays] if named else []
    parts += [struct.pack("<Q", len(names)), *(struct.pack("<Q", len(n)) + n for n in names)]
    return b"".join(parts)


def _array(value: Array) -> bytes:
    if value.ndim == 0:
        value = value.reshape(1)  # a shape of no axes stands for no array
    kind = DType.of(value.dtype)
    if kind not in DTYPES:
        raise InputError(f"MXNet has no arrays of {value.dtype}", where="mx.nd.save", hint="astype('float32')")
    head = struct.pack("<Iii", V2, 0, value.ndim) + struct.pack(f"<{value.ndim}q", *value.shape)
    return head + CPU + struct.pack("<i", DTYPES.index(kind)) + np.ascontiguousarray(value).tobytes()
