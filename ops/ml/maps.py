"""ai.onnx.ml: conversion between maps and tensors. Maps are dicts from str or int to str or NumPy's numbers, held by
the host.

https://onnx.ai/onnx/operators/onnx_aionnxml_ZipMap.html
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ShapeError
from ..op import Context, Held, Sample, op
from ..tensor.strings import texts
from ..types import Array, DType, Map, Sequence, Tensor, Type, f32
from .scores import Ints, Strings

CASTS = {"TO_FLOAT": DType.FLOAT, "TO_STRING": DType.STRING, "TO_INT64": DType.INT64}
SCALAR = {t: Tensor(t, ()) for t in (DType.FLOAT, DType.DOUBLE, DType.INT64, DType.STRING)}


def _map(value: dict[Any, Any], key: DType, element: DType) -> Held:
    read = str if element is DType.STRING else element.numpy.type
    return Held({a: read(v) for a, v in value.items()}, Map(key, SCALAR[element]))


def _map_type(type: Type) -> Map:
    if not isinstance(type, Map):
        raise ShapeError(f"{type} is no map")
    return type


@op(
    "CastMap",
    domain="ai.onnx.ml",
    since=1,
    samples=[
        Sample([_map({3: 1.5, 1: -2.0}, DType.INT64, DType.FLOAT)]),
        Sample([_map({0: "1.5", 2: "7"}, DType.INT64, DType.STRING)], {"map_form": "SPARSE", "max_map": 4}),
        Sample([_map({5: 1.5, 1: 2.0}, DType.INT64, DType.FLOAT)], {"cast_to": "TO_INT64"}),
        Sample([_map({5: "b", 1: "a"}, DType.INT64, DType.STRING)], {"cast_to": "TO_STRING"}),
    ],
)
def cast_map(
    k: Context, X: dict[int, Any], *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> Array:
    to = _cast(cast_to)
    read: Any = {DType.FLOAT: float, DType.STRING: str, DType.INT64: lambda v: int(float(v))}[to]
    empty: Any = "" if to is DType.STRING else 0
    if map_form == "SPARSE":
        outside = [key for key in X if not 0 <= key < max_map]
        if outside:
            raise ShapeError(f"the key {outside[0]} is outside of max_map {max_map}")
        row = [read(X[i]) if i in X else empty for i in range(max_map)]
    elif map_form == "DENSE":
        row = [read(X[key]) for key in sorted(X)]
    else:
        raise ShapeError(f"map_form {map_form!r} is neither DENSE nor SPARSE")
    return texts(row, (1, len(row))) if to is DType.STRING else np.array([row], to.numpy)


def _cast(name: str) -> DType:
    if name not in CASTS:
        raise ShapeError(f"cast_to {name!r} is none of {', '.join(CASTS)}")
    return CASTS[name]


@cast_map.infer
def _(X: Type, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Tensor:
    _map_type(X)
    return Tensor(_cast(cast_to), (1, max_map if map_form == "SPARSE" else None))


@op(
    "DictVectorizer",
    domain="ai.onnx.ml",
    since=1,
    samples=[
        Sample([_map({"a": 4.0, "c": 8.0}, DType.STRING, DType.FLOAT)], {"string_vocabulary": ("a", "c", "b", "z")}),
        Sample([_map({7: 3.0}, DType.INT64, DType.DOUBLE)], {"int64_vocabulary": (5, 7)}),
        Sample([_map({7: "x"}, DType.INT64, DType.STRING)], {"int64_vocabulary": (5, 7)}),
        Sample([_map({}, DType.STRING, DType.FLOAT)], {"string_vocabulary": ("a",)}),
        Sample([_map({"b": 3}, DType.STRING, DType.INT64)], {"string_vocabulary": ("a", "b")}),
        Sample([_map({"b": 0.5}, DType.STRING, DType.DOUBLE)], {"string_vocabulary": ("a", "b")}),
        Sample([_map({5: 0.25}, DType.INT64, DType.FLOAT)], {"int64_vocabulary": (5, 7)}),
    ],
)
def dict_vectorizer(
    k: Context, X: dict[Any, Any], *, int64_vocabulary: Ints = None, string_vocabulary: Strings = None
) -> Array:
    words = list(string_vocabulary or int64_vocabulary or ())
    first = next(iter(X.values()), np.float32(0))  # numbers of a map are NumPy's, and tell their type
    if isinstance(first, str):
        return texts([X.get(word, "") for word in words], (1, len(words)))
    return np.array([[X.get(word, 0) for word in words]], type(first))


@dict_vectorizer.infer
def _(X: Type, *, int64_vocabulary: Ints = None, string_vocabulary: Strings = None) -> Tensor:
    element = _map_type(X).element
    if not isinstance(element, Tensor):
        raise ShapeError(f"{X} does not hold single numbers or texts")
    return Tensor(element.dtype, (1, len(string_vocabulary or int64_vocabulary or ())))


@op(
    "ZipMap",
    domain="ai.onnx.ml",
    since=1,
    outputs=("Z",),
    samples=[
        Sample([f32(2, 3)], {"classlabels_int64s": (4, 5, 6)}),
        Sample([f32(2)], {"classlabels_strings": ("a", "b")}),
        Sample([f32(0, 1)], {"classlabels_int64s": (1,)}),
    ],
)
def zip_map(
    k: Context, X: Array, *, classlabels_int64s: Ints = None, classlabels_strings: Strings = None
) -> list[dict[Any, float]]:
    keys = list(classlabels_strings or classlabels_int64s or ())
    rows = X.reshape(1, -1) if X.ndim == 1 else X
    if rows.shape[1] != len(keys):
        raise ShapeError(f"{rows.shape[1]} columns do not fit {len(keys)} labels")
    return [dict(zip(keys, row, strict=True)) for row in rows.tolist()]


@zip_map.infer
def _(X: Tensor, *, classlabels_strings: Strings = None) -> Sequence:
    return Sequence(Map(DType.STRING if classlabels_strings else DType.INT64, SCALAR[DType.FLOAT]))
