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
