"""What an operator means: one record per operator, and the types they speak. Imports nothing of ours."""

from . import (
    cast,
    conv,
    detection,
    elementwise,
    generate,
    indexing,
    linear,
    movement,
    norm,
    pool,
    recurrent,
    reduce,
    resize,
)
from .errors import MezzoError
from .op import OPS, OPSETS, Body, Builder, Context, Op, Param, Sample, Subgraph, op, pointwise
from .types import DType, Map, Optional, Sequence, Tensor, Type

__all__ = [
    "OPS",
    "OPSETS",
    "Body",
    "Builder",
    "Context",
    "DType",
    "Map",
    "MezzoError",
    "Op",
    "Optional",
    "Param",
    "Sample",
    "Sequence",
    "Subgraph",
    "Tensor",
    "Type",
    "cast",
    "conv",
    "detection",
    "elementwise",
    "generate",
    "indexing",
    "linear",
    "movement",
    "norm",
    "op",
    "pointwise",
    "pool",
    "recurrent",
    "reduce",
    "resize",
]
