"""What operators mean, in closed form, where referees differ from one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalized(X: Any, **attrs: Any) -> Any:
    """The texts that are no stop words, in the case asked for; one empty text where none is left."""
    fold: Callable[[str], str] = str if attrs.get("is_case_sensitive") else str.lower
    stop = {fold(w) for w in attrs.get("stopwords", ())}
    cases: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    turn = cases[attrs.get("case_change_action", "NONE")]
    kept = [turn(w) for w in X.reshape(-1) if fold(w) not in stop] or [""]
    return np.array(kept, object).reshape(*X.shape[:-1], -1)


def biased_zeros(A: Any, B: Any, *parts: Any) -> Any:
    """A product of no depth: zeros, and the bias behind scales and zero points, if there is one."""
    bias = parts[4] if len(parts) > 4 else None
    return np.zeros((*A.shape[:-1], B.shape[-1]), np.float32) + (0 if bias is None else bias)


def gemm_of_no_depth(
    A: Any, a_scale: Any, a_zero: Any, B: Any, b_scale: Any, b_zero: Any, C: Any = None, y_scale: Any = None,
    y_zero: Any = None, *, transA: int = 0, transB: int = 0, alpha: float = 1.0,
) -> Any:  # fmt: skip
    """QGemm of no depth: the bias alone, whole numbers of the product's scale, quantised where that is asked for."""
    y = np.zeros((A.shape[1 if transA else 0], B.shape[0 if transB else 1]))
    y = y if C is None else y + C * np.float64(alpha) * a_scale * np.reshape(b_scale, (1, -1))
    if y_scale is None:
        return y.astype(np.float32)
    zero = np.asarray(0 if y_zero is None else y_zero)
    bounds = np.iinfo(np.uint8 if y_zero is None else zero.dtype)
    return np.clip(np.rint(y / y_scale) + zero, bounds.min, bounds.max).astype(bounds.dtype)
