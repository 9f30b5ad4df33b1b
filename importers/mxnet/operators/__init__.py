"""Rules of MXNet's operators, by kind. Importing this registers all of them."""

from ..rules import RULES
from . import (
    algebra,
    boxes,
    control,
    ctc,
    detection,
    draws,
    elementwise,
    fused,
    indexing,
    nn,
    numpy_elements,
    numpy_shapes,
    quantised,
    reductions,
    regions,
    rnn,
    shapes,
    vision,
)

__all__ = [
    "RULES", "algebra", "boxes", "control", "ctc", "detection", "draws", "elementwise", "fused", "indexing", "nn",
    "numpy_elements", "numpy_shapes", "quantised", "reductions", "regions", "rnn", "shapes", "vision",
]  # fmt: skip
