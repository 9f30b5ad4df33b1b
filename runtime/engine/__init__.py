"""The dependency engine: workloads run as soon as the variables that they read and write allow it."""

from .engine import Engine, engine
from .work import RESOURCES, Variable, Work, current

__all__ = ["RESOURCES", "Engine", "Variable", "Work", "current", "engine"]
