"""Operators on text: object arrays of str, held by the host (https://onnx.ai/onnx/operators/onnx__StringSplit.html)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.rules import has_rank
from ..errors import ShapeError
from ..op import Context, Sample, broadcast_dims, op
from ..types import Array, DType, Tensor
from .regex import compiled


def text(*values: Any) -> np.ndarray[Any, Any]:
    """An array of strings."""
    return np.array(values, object)


def texts(values: Sequence[str], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """An array of strings of this shape; also where there are none."""
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(tuple(shape))


NO_TEXT = texts([], [0])


@op(
    "StringConcat",
    since=20,
    outputs=("Z",),
    samples=[
        Sample([text("ab", "c"), text("x", "")]),
        Sample([text(["a"], ["b"]), text("1", "2", "3")]),
        Sample([np.array("é", object), text("", "ß")]),
        Sample([NO_TEXT, text("a")]),
    ],
)
def string_concat(k: Context, X: Array, Y: Array) -> Array:
    return np.array(X + Y, object)


@string_concat.infer
def _(X: Tensor, Y: Tensor) -> Tensor:
    return X.of(broadcast_dims(X.dims, Y.dims))


CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@op(
    "StringNormalizer",
    since=10,
    samples=[
        Sample([text("Monday", "monday", "Tuesday")], {"stopwords": ("monday",), "case_change_action": "UPPER"}),
        Sample([text(["Monday", "monday"])], {"stopwords": ("monday",), "is_case_sensitive": 1}),
        Sample([text("Monday")], {"stopwords": ("MONDAY",)}),
        Sample([text("Ab", "")], {"case_change_action": "LOWER"}),
    ],
)
def string_normalizer(
    k: Context,
    X: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] | None = None,
) -> Array:
    """Python changes case as Unicode says for all languages; `locale` has no say."""
    if case_change_action not in CASES:
        raise ShapeError(f"case_change_action {case_change_action!r} is none of {', '.join(CASES)}")
    fold = str if is_case_sensitive else str.lower
    stop = {fold(word) for word in stopwords or ()}
    kept = [CASES[case_change_action](word) for word in k.each(X.ravel()) if fold(word) not in stop] or [""]
    return texts(kept, (*X.shape[:-1], len(kept)))


@string_normalizer.infer
def _(X: Tensor) -> Tensor:
    has_rank(X, 1, 2)
    if X.dims is not None and len(X.dims) == 2 and X.dims[0] not in (1, None) and isinstance(X.dims[0], int):
        raise ShapeError(f"{X} has more than one row")
    return X.of(None if X.dims is None else (*X.dims[:-1], None))


@op(
    "StringSplit",
    since=20,
    outputs=("Y", "Z"),
    samples=[
        Sample([text("a.b", "c", "")], {"delimiter": "."}, 2),
        Sample([text([" a  b c ", "d"])], {"maxsplit": 1}, 2),
        Sample([text("a--b-", "")], {"delimiter": "-", "maxsplit": 5}, 2),
        Sample([NO_TEXT], {}, 2),
        Sample([np.array("one two", object)], {"delimiter": ""}, 2),
    ],
)
def string_split(
    k: Context, X: Array, *, delimiter: str | None = None, maxsplit: int | None = None
) -> tuple[Array, Array]:
    most_splits = -1 if maxsplit is None else maxsplit
    words = k.each(X.ravel())
    parts = [x.split(delimiter, most_splits) if delimiter else x.strip().split(None, most_splits) for x in words]
    most = max(map(len, parts), default=0)
    padded = [word for row in k.each(parts) for word in [*row, *[""] * (most - len(row))]]
    return texts(padded, (*X.shape, most)), np.array([len(row) for row in parts], np.int64).reshape(X.shape)


@string_split.infer
def _(X: Tensor) -> tuple[Tensor, Tensor]:
    return X.of(None if X.dims is None else (*X.dims, None)), X.to(DType.INT64)


@op(
    "RegexFullMatch",
    since=20,
    samples=[
        Sample([text("ab1", "ab", "")], {"pattern": r"[a-z]+\d?"}),
        Sample([text(["a\n", "a"])], {"pattern": "a$"}),
        Sample([text("x1", "é")], {"pattern": r"(?i)(?P<letter>[[:alpha:]])\w"}),
        Sample([text("a.b", "azb")], {"pattern": r"\Qa.b\E"}),
        Sample([NO_TEXT], {"pattern": "a*"}),
    ],
)
def regex_full_match(k: Context, X: Array, *, pattern: str | None = None) -> Array:
    matches, check = compiled(pattern or "").matches, k.check
    return np.array([matches(x, check) for x in k.each(X.ravel())], bool).reshape(X.shape)


@regex_full_match.infer
def _(X: Tensor, *, pattern: str | None = None) -> Tensor:
    compiled(pattern or "")
    return X.to(DType.BOOL)
