"""The safetensors format (https://huggingface.co/docs/safetensors): arrays by name as bytes, of every element type that
it has."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from ..ops import DType
from ..ops.types import Array

# How safetensors calls the element types that it has; its own reader of NumPy arrays knows fewer.
NAMES = {
    "F64": DType.DOUBLE, "F32": DType.FLOAT, "F16": DType.FLOAT16, "BF16": DType.BFLOAT16, "I64": DType.INT64,
    "I32": DType.INT32, "I16": DType.INT16, "I8": DType.INT8, "U64": DType.UINT64, "U32": DType.UINT32,
    "U16": DType.UINT16, "U8": DType.UINT8, "BOOL": DType.BOOL, "F8_E4M3": DType.FLOAT8E4M3FN,
    "F8_E5M2": DType.FLOAT8E5M2,
}  # fmt: skip


def encode(arrays: Mapping[str, Array], notes: Mapping[str, str] | None = None) -> bytes:
    """The arrays, and notes about them. Raises ValueError or TypeError for what the format does not have."""
    from safetensors.numpy import save

    return save({n: np.asarray(a, order="C") for n, a in arrays.items()}, dict(notes) if notes else None)


def decode(data: bytes) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays, read-only views of the bytes' copies, and the notes. Raises ValueError for anything else."""
    from safetensors import SafetensorError, deserialize

    try:
        arrays = {
            n: np.frombuffer(t["data"], NAMES[t["dtype"]].numpy).reshape(t["shape"])
            for n, t in deserialize(data)  # type: ignore[no-untyped-call]
        }
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return arrays, {str(n): str(v) for n, v in header.get("__metadata__", {}).items()}
    except (SafetensorError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no safetensors: {error}") from error
