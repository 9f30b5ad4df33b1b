"""mezzo: the front door. Everything a user needs, nothing of its own.

>>> import mezzo as mz
>>> from mezzo.models.digits import digits_model, held_out
>>> session = mz.load(digits_model())
>>> session(held_out().inputs[:3]).shape
(3, 10)
"""

from . import onnx
from .ops.budget import Budget
from .ops.errors import (
    BudgetError,
    Cancelled,
    DeadlineError,
    ExecutionError,
    ForkedProcess,
    InputError,
    MezzoError,
    MissingPackage,
    ModelError,
    PlanError,
    ShapeError,
    UnsupportedModel,
)
from .ops.op import op, pointwise
from .runtime.session import Session
from .runtime.version import __version__
from .tools.inference_session import InferenceSession
from .tools.load import load

__all__ = [
    "Budget",
    "BudgetError",
    "Cancelled",
    "DeadlineError",
    "ExecutionError",
    "ForkedProcess",
    "InferenceSession",
    "InputError",
    "MezzoError",
    "MissingPackage",
    "ModelError",
    "PlanError",
    "Session",
    "ShapeError",
    "UnsupportedModel",
    "__version__",
    "load",
    "onnx",
    "op",
    "pointwise",
]
