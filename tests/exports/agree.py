"""A file of an architecture against ONNX Runtime: one session of each, the same inputs one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

import mezzo

from .architecture import BATCHES, Architecture, Array, Sizes

# float32 with another order of sums, through some tens of layers
TOLERANCE = 1e-4


@dataclass
class Verdict:
    """The sizes that were tried, the largest `max|a-b| / max|ref|` of a tensor, and what was refused or differs."""

    nodes: int
    tried: list[Sizes] = field(default_factory=list[Sizes])
    error: float = 0.0
    problems: list[str] = field(default_factory=list[str])


def verdict(
    made: Architecture, content: bytes, settings: Mapping[str, Any], batches: tuple[int, ...] = BATCHES
) -> Verdict:
    """What one session of Mezzo says at all sizes that the file leaves open, beside one of ONNX Runtime."""
    found = Verdict(len(onnx.load_from_string(content).graph.node))
    runtime, session = _runtime(content), mezzo.load(content, **settings)
    outputs = [output.name for output in runtime.get_outputs()]
    for sizes in made.tried(batches):
        feeds = made.feeds(sizes)
        if not _fits(runtime, feeds):
            continue
        theirs = dict(zip(outputs, runtime.run(None, feeds), strict=True))
        found.tried.append(sizes)
        try:
            ours = session.run(feeds)
        except mezzo.MezzoError as error:
            found.problems.append(f"{sizes}: {error}")
            continue
        for name in outputs:
            far = difference(ours[name], theirs[name])
            found.error = max(found.error, far)
            if not far <= TOLERANCE:
                found.problems.append(f"{sizes}: {name} is off by {far:.2g}")
    return found


def difference(ours: Array, theirs: Array) -> float:
    """`max|a-b| / max|ref|`; infinite where shape, type, or the places of NaN and infinities differ."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    if not ours.size or np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"):
        return 0.0
    if ours.dtype.kind != "f":
        return float("inf")
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True) or not np.isfinite(ours[finite]).all():
        return float("inf")
    off = np.abs(ours[finite].astype(np.float64) - theirs[finite]).max()
    return float(off / max(np.abs(theirs[finite]).max(), np.finfo(np.float32).tiny))


def _runtime(content: bytes) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _fits(runtime: Any, feeds: Mapping[str, Array]) -> bool:
    """Whether the sizes that the file fixes are those of the inputs."""
    fixed = {i.name: i.shape for i in runtime.get_inputs()}
    return all(
        isinstance(wanted, str) or wanted == size
        for name, a in feeds.items()
        for wanted, size in zip(fixed[name], a.shape, strict=True)
    )
