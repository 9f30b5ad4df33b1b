"""The dependency engine: workloads run as soon as the variables that they read and write allow it."""

from .check import AccessGuard
from .differ import Difference, first_difference
from .engine import Engine
from .process import engine
from .trace import Trace
from .work import RESOURCES, Ordered, Variable, Workload, current

__all__ = [
    "RESOURCES",
    "AccessGuard",
    "Difference",
    "Engine",
    "Ordered",
    "Trace",
    "Variable",
    "Workload",
    "current",
    "engine",
    "first_difference",
]
