"""ai.onnx.ml: preparing features and mapping labels.

https://onnx.ai/onnx/operators/onnx_aionnxml_LabelEncoder.html. Where the text leaves a question open, this follows
ONNX Runtime, and scikit-learn, whose models these operators carry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.rules import total
from ..errors import ShapeError
from ..op import Context, Sample, op
from ..tensor.strings import text, texts
from ..types import Array, Dim, DType, Tensor, f32, i64
from .scores import Floats, Ints, Strings

X = np.array([[1, -2, 3], [0, 0.5, -1]], np.float32)


@op(
    "ArrayFeatureExtractor",
    domain="ai.onnx.ml",
    since=1,
    outputs=("Z",),
    samples=[
        Sample([f32(2, 3), np.array([2, 0])]),
        Sample([f32(4), np.array([[1, 3]])]),
        Sample([text(["a", "b"]), np.array([1])]),
        Sample([i64(2, 2, 3), np.array([0])]),
    ],
)
def array_feature_extractor(k: Context, X: Array, Y: Array) -> Array:
    picked = k.xp.take(X, Y.ravel(), axis=-1)
    return picked[None] if X.ndim == 1 else picked  # a list counts as one row


@array_feature_extractor.infer
def _(X: Tensor, Y: Tensor) -> Tensor:
    lead = X.shape[:-1] if len(X.shape) > 1 else (1,)
    return X.of((*lead, Y.elements))


@op("Binarizer", domain="ai.onnx.ml", since=1, samples=[Sample([X], {"threshold": 0.5}), Sample([i64(3)])])
def binarizer(k: Context, X: Array, *, threshold: float = 0.0) -> Array:
    return (threshold < X).astype(X.dtype)


@op(
    "Scaler",
    domain="ai.onnx.ml",
    since=1,
    samples=[
        Sample([X], {"offset": (1.0, 2.0, 3.0), "scale": (1.0, 0.5, 2.0)}),
        Sample([X.astype(np.int64)], {"offset": (1.0,), "scale": (0.5,)}),
        Sample([X]),
    ],
)
def scaler(k: Context, X: Array, *, offset: Floats = None, scale: Floats = None) -> Array:
    moved = X.astype(np.float32, copy=False) if X.dtype != np.float64 else X
    centred = moved - np.asarray(offset or (0,), moved.dtype)
    return (centred * np.asarray(scale or (1,), moved.dtype)).astype(np.float32)


@scaler.infer
def _(X: Tensor) -> Tensor:
    return X.to(DType.FLOAT)


@op(
    "Normalizer",
    domain="ai.onnx.ml",
    since=1,
    samples=[
        Sample([x], {"norm": n}) for n in ("MAX", "L1", "L2") for x in (X, X.astype(np.int64), np.zeros(2, np.float32))
    ],
)
def normalizer(k: Context, X: Array, *, norm: str = "MAX") -> Array:
    """L1 divides by the sum of absolute values and L2 keeps signs, as everybody has it but the text."""
    x = X.astype(np.float64)
    match norm:
        case "MAX":
            size = x.max(-1, keepdims=True)
        case "L1":
            size = k.xp.abs(x).sum(-1, keepdims=True)
        case "L2":
            size = k.xp.sqrt((x * x).sum(-1, keepdims=True))
        case _:
            raise ShapeError(f"norm {norm!r} is none of MAX, L1, L2")
    return (x / k.xp.where(size == 0, 1, size)).astype(np.float32)


@normalizer.infer
def _(X: Tensor) -> Tensor:
    return X.to(DType.FLOAT)


@op(
    "Imputer", domain="ai.onnx.ml",
    since=1,
    samples=[
        Sample([np.array([[1, np.nan], [np.nan, 4]], np.float32)],
               {"imputed_value_floats": (7.0, 8.0), "replaced_value_float": math.nan}),
        Sample([X], {"imputed_value_floats": (9.0,)}),
        Sample([np.array([[1, -1], [0, 4]])], {"imputed_value_int64s": (5, 6), "replaced_value_int64": -1}),
    ],
)  # fmt: skip
def imputer(
    k: Context,
    X: Array,
    *,
    imputed_value_floats: Floats = None,
    imputed_value_int64s: Ints = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Array:
    floating = DType.of(X.dtype).floating
    values = imputed_value_floats if floating else imputed_value_int64s
    if not values:
        raise ShapeError(f"Imputer has no values to put into {X.dtype}")
    replaced = replaced_value_float if floating else replaced_value_int64
    gone = k.xp.isnan(X) if floating and math.isnan(replaced) else replaced == X
    return k.xp.where(gone, np.asarray(values, X.dtype), X)


@imputer.infer
def _(X: Tensor) -> Tensor:
    return X.forget()


@op(
    "FeatureVectorizer",
    domain="ai.onnx.ml",
    since=1,
    samples=[
        Sample([X, X[:, :1]], {"inputdimensions": (3, 1)}),
        Sample([X[0], X[1]], {"inputdimensions": (3, 3)}),
        Sample([X.astype(np.int64)], {"inputdimensions": (3,)}),
        Sample([X, X], {"inputdimensions": (2, 4)}),
    ],
)
def feature_vectorizer(k: Context, *X: Array, inputdimensions: Ints = None) -> Array:
    parts = []
    for i, x in enumerate(X):
        rows = x.reshape(1, -1) if x.ndim == 1 else x
        width = inputdimensions[i] if inputdimensions else rows.shape[1]
        part = k.xp.zeros((len(rows), width), np.float32)  # what an input lacks is 0, what it has too many is left out
        part[:, : rows.shape[1]] = rows[:, :width]
        parts.append(part)
    return k.xp.concatenate(parts, 1)


@feature_vectorizer.infer
def _(*X: Tensor, inputdimensions: Ints = None) -> Tensor:
    widths: list[Dim] = [x.dims[-1] if x.dims else None for x in X]
    if inputdimensions:
        widths = list(inputdimensions)
    first = X[0].dims
    return Tensor(DType.FLOAT, (None if first is None else 1 if len(first) == 1 else first[0], total(widths)))


@op(
    "OneHotEncoder",
    domain="ai.onnx.ml",
    since=1,
    samples=[
        Sample([np.array([[2, 5], [9, 1]])], {"cats_int64s": (1, 2, 5)}),
        Sample([text("a", "z", "b")], {"cats_strings": ("a", "b")}),
        Sample([text("a", "z")], {"cats_int64s": (1, 2, 5)}),
        Sample([np.array([1.0, 2.0], np.float32)], {"cats_int64s": (2, 1), "zeros": 0}),
    ],
)
def one_hot_encoder(
    k: Context, X: Array, *, cats_int64s: Ints = None, cats_strings: Strings = None, zeros: int = 1
) -> Array:
    words = DType.of(X.dtype) is DType.STRING
    categories = texts(list(cats_strings or ()), (-1,)) if words else np.asarray(cats_int64s or (), np.int64)
    if not categories.size:  # of the other kind: nothing is one of them
        return np.zeros((*X.shape, len(cats_strings or cats_int64s or ())), np.float32)
    hot = (X if words else X.astype(np.int64))[..., None] == categories
    if not zeros and not hot.any(-1).all():
        strange = X[~hot.any(-1)].ravel()[0]
        raise ShapeError(f"{strange!r} is no category", hint="with zeros=1 such elements become rows of zeros")
    return np.asarray(hot, np.float32)


@one_hot_encoder.infer
def _(X: Tensor, *, cats_int64s: Ints = None, cats_strings: Strings = None) -> Tensor:
    kinds = (cats_strings, cats_int64s) if X.dtype is DType.STRING else (cats_int64s, cats_strings)
    count = len(kinds[0] or kinds[1] or ())
    return Tensor(DType.FLOAT, None if X.dims is None else (*X.dims, count))


@op(
    "CategoryMapper",
    domain="ai.onnx.ml",
    since=1,
    samples=[
        Sample([text(["a", "?"])], {"cats_int64s": (3, 4), "cats_strings": ("a", "b"), "default_int64": -9}),
        Sample([np.array([4, 7])], {"cats_int64s": (3, 4), "cats_strings": ("a", "b"), "default_string": "none"}),
    ],
)
def category_mapper(
    k: Context,
    X: Array,
    *,
    cats_int64s: Ints = None,
    cats_strings: Strings = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Array:
    numbers, words = list(cats_int64s or ()), list(cats_strings or ())
    if DType.of(X.dtype) is DType.STRING:
        return _mapped(k, X, dict(zip(words, numbers, strict=True)), default_int64, DType.INT64)
    return _mapped(k, X, dict(zip(numbers, words, strict=True)), default_string, DType.STRING)


def _mapped(k: Context, x: Array, table: dict[Any, Any], default: Any, to: DType) -> Array:
    mapped = [table.get(v, default) for v in k.each(x.ravel().tolist())]
    return texts(mapped, x.shape) if to is DType.STRING else np.array(mapped, to.numpy).reshape(x.shape)


@category_mapper.infer
def _(X: Tensor) -> Tensor:
    return X.to(DType.INT64 if X.dtype is DType.STRING else DType.STRING)


def _tensor(values: Any, dtype: type) -> Array:
    return np.asarray(values, dtype)


@op(
    "LabelEncoder", domain="ai.onnx.ml",
    since=4,
    samples=[
        Sample([text(["b", "?"])], {"keys_strings": ("a", "b"), "values_int64s": (1, 2), "default_int64": 42}),
        Sample([np.array([1, 5])], {"keys_int64s": (1, 2), "values_strings": ("one", "two")}),
        Sample([np.array([1, math.nan, 3], np.float32)],
               {"keys_floats": (1.0, math.nan), "values_floats": (2.5, 9.0), "default_float": -1.0}),
        Sample([np.array([3, 4], np.int32)],
               {"keys_tensor": _tensor([3], np.int32), "values_tensor": _tensor([0.5], np.float64),
                "default_tensor": _tensor([-7], np.float64)}),
        Sample([text("x", "y")], {"keys_tensor": text("x"), "values_tensor": _tensor([7], np.int16)}),
        Sample([np.array([1, 1, 2])], {"keys_int64s": (1, 1), "values_int64s": (5, 6)}),
    ],
)  # fmt: skip
def label_encoder(
    k: Context,
    X: Array,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: Floats = None,
    keys_int64s: Ints = None,
    keys_strings: Strings = None,
    keys_tensor: Array | None = None,
    values_floats: Floats = None,
    values_int64s: Ints = None,
    values_strings: Strings = None,
    values_tensor: Array | None = None,
) -> Array:
    to = _value_type(values_floats, values_int64s, values_strings, values_tensor)
    keys = _listed(keys_tensor, keys_floats, keys_int64s, keys_strings)
    values = _listed(values_tensor, values_floats, values_int64s, values_strings)
    default: Any = default_string if to is DType.STRING else default_float if to.floating else default_int64
    if default_tensor is not None:
        default = default_tensor.ravel().tolist()[0]
    table = {_key(a): b for a, b in zip(keys, values, strict=True)}
    labels = [table.get(_key(v), default) for v in k.each(X.ravel().tolist())]
    return texts(labels, X.shape) if to is DType.STRING else np.array(labels, to.numpy).reshape(X.shape)


def _key(value: Any) -> Any:
    """Return the key of a value; all NaN are one key."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _listed(tensor: Array | None, *lists: Sequence[Any] | None) -> list[Any]:
    return tensor.ravel().tolist() if tensor is not None else list(next((v for v in lists if v), ()))


def _value_type(floats: Floats, numbers: Ints, words: Strings, tensor: Array | None) -> DType:
    if tensor is not None:
        return DType.of(tensor.dtype)
    return DType.STRING if words else DType.FLOAT if floats else DType.INT64


@label_encoder.infer
def _(
    X: Tensor,
    *,
    values_floats: Floats = None,
    values_int64s: Ints = None,
    values_strings: Strings = None,
    values_tensor: Array | None = None,
) -> Tensor:
    return X.to(_value_type(values_floats, values_int64s, values_strings, values_tensor))
