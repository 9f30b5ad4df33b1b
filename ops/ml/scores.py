"""Parts that the classifiers and regressors of ai.onnx.ml share: transforms of scores, and labels.

https://onnx.ai/onnx/operators/onnx_aionnxml_LinearClassifier.html. Where the text is silent (two classes told by one
score), this follows ONNX Runtime, which the converters are tested against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..tensor.strings import texts
from ..types import Array, Dim, DType, Tensor

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
Ints = Sequence[int] | None
Floats = Sequence[float] | None
Strings = Sequence[str] | None


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _softmax_of_nonzero(x: Array) -> Array:
    """A softmax that a score of zero takes no part in: it stays zero."""
    taken = np.abs(x) > 1e-7
    e = np.where(taken, np.exp(x - x.max(-1, keepdims=True)), 0)
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def _probit(p: Array) -> Array:
    """The normal distribution's quantile, by Winitzki's formula for the inverse of the error function
    (https://en.wikipedia.org/wiki/Error_function#Approximation_with_elementary_functions), as ONNX Runtime has it."""
    x = 2 * p - 1
    log = np.log((1 - x) * (1 + x))
    half = 2 / (np.pi * 0.147) + 0.5 * log
    return np.sqrt(2) * np.sign(x) * np.sqrt(-half + np.sqrt(half * half - log / 0.147))


def transform(scores: Array, name: str) -> Array:
    """The scores after a post_transform; ShapeError for an unknown one."""
    match name:
        case "NONE":
            return scores
        case "SOFTMAX":
            return _softmax(scores)
        case "LOGISTIC":
            return logistic(scores)
        case "SOFTMAX_ZERO":
            return _softmax_of_nonzero(scores)
        case "PROBIT":
            return _probit(scores)
    raise ShapeError(f"post_transform {name!r} is none of {', '.join(TRANSFORMS)}")


def both_classes(score: Array, name: str, *, shares: bool) -> Array:
    """Scores [n, 2] of two classes that one score [n] tells apart. `shares`: it is a share of 1, and stays one, but for
    the logistic function, which makes one of any number."""
    if shares and name != "LOGISTIC":
        both = np.stack([1 - score, score], 1)
        return transform(both, name) if name == "PROBIT" else both
    return transform(np.stack([-score, score], 1), name)


def labels_of(numbers: Ints, words: Strings) -> Array:
    """The class labels as an array."""
    if words:
        return texts(list(words), (len(words),))
    if not numbers:
        raise ShapeError("a classifier needs class labels")
    return np.asarray(numbers, np.int64)


def classified(X: Tensor, numbers: Ints, words: Strings, columns: Dim) -> tuple[Tensor, Tensor]:
    """Types of labels and scores."""
    rows = None if X.dims is None else 1 if len(X.dims) == 1 else X.dims[0]
    return Tensor(DType.STRING if words else DType.INT64, (rows,)), Tensor(DType.FLOAT, (rows, columns))


def table(X: Any) -> Array:
    """The input as rows of float64 features; one list is one row."""
    return np.asarray(X, np.float64).reshape(-1, X.shape[-1]) if X.ndim != 2 else X.astype(np.float64)


def regressed(X: Tensor, columns: Dim) -> Tensor:
    """The type of a regressor's result."""
    return Tensor(DType.FLOAT, (None if X.dims is None else 1 if len(X.dims) == 1 else X.dims[0], columns))
