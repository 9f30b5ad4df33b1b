"""Operators: one record per operator, which defines its meaning, and the types that records use. Imports nothing of
ours."""

from .errors import MezzoError
from .op import OPS, Body, Builder, Context, Held, Op, Param, Sample, Subgraph, op, pointwise
from .registry import OPSETS
from .types import DType, Map, Optional, Sequence, Tensor, Type

__all__ = [
    "OPS",
    "OPSETS",
    "Body",
    "Builder",
    "Context",
    "DType",
    "Held",
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
    "op",
    "pointwise",
]
