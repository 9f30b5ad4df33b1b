"""Arbitration between two runtimes that differ: the distance of each from the same model in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.dataclasses import dataclass
from ..ops.errors import MezzoError
from ..ops.types import DType
from ..runtime.ir.graph import Graph
from ..runtime.ir.interpreter import evaluate
from .finite import doubles, in_float64
from .gaps import Tolerance, gap

MOST = 256 << 20  # bytes of values between, in float32: the reference keeps all of them


@dataclass(frozen=True, slots=True)
class Exact:
    """The distances of our outputs and of theirs from those in float64, and the distance that is allowed."""

    ours: float
    theirs: float
    allowed: float

    @property
    def ill_conditioned(self) -> bool:
        """True if neither side is accurate in float32."""
        return min(self.ours, self.theirs) > self.allowed

    def __str__(self) -> str:
        return f"from float64 ours is {self.ours:.1e} away, theirs {self.theirs:.1e}"


def exact(
    graph: Graph, typed: Graph, feeds: Mapping[str, Any], mine: Mapping[str, Any], theirs: Mapping[str, Any],
    tolerance: Tolerance,
) -> Exact | None:  # fmt: skip
    """Return the distances of both sides from the outputs in float64. None if that has no meaning (no float32, random
    numbers), takes too much memory (`typed` has the sizes), or cannot be computed."""
    kinds = [t for t in typed.types.values() if isinstance(t, Tensor)]
    known = sum(t.nbytes for t in kinds if t.static and t.dtype is not DType.STRING)
    if known > MOST or not any(t.dtype is DType.FLOAT for t in kinds):
        return None
    try:
        reference = evaluate(in_float64(graph), {n: doubles(x) for n, x in feeds.items()})
    except (MezzoError, AttributeError):  # AttributeError: it is given lists
        return None
    floats = [n for n in theirs if isinstance(reference[n], np.ndarray) and reference[n].dtype == np.float64]
    if not floats:
        return None
    ours, other = (
        max(gap(np.asarray(side[n], np.float64), reference[n], tolerance).error for n in floats)
        for side in (mine, theirs)
    )
    return Exact(ours, other, max(tolerance.of(DType.of(np.asarray(theirs[n]).dtype)) for n in floats))
