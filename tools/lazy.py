"""Names of the front door that bring another package, or a whole layer, when they are used, and not before."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def of_onnx(name: str) -> Any:
    """`__getattr__` of `mezzo.onnx` (PEP 562): `Backend` imports onnx, which `import mezzo` does not need, and
    `coverage` the tools that run samples.

    Raises AttributeError for any other name.
    """
    match name:
        case "Backend":
            from .backend import Backend

            return Backend
        case "coverage":
            from .coverage import coverage

            return coverage
    raise AttributeError(f"module 'mezzo.onnx' has no attribute {name!r}")


def names() -> list[str]:
    """`__dir__` of `mezzo`: all its names, those that are not imported yet too."""
    return sorted(sys.modules[__name__.partition(".")[0]].__all__)


def training(name: str) -> Any:
    """`__getattr__` of `mezzo`: arrays, training and the KVStore, which whoever only runs models does not need.

    Raises AttributeError for any other name.
    """
    match name:
        case "Trainer":
            from ..train.trainer import Trainer

            return Trainer
        case "optimizer":
            from ..runtime import optimizer

            return optimizer
        case "schedule":
            from ..runtime import schedule

            return schedule
        case "with_head":
            from ..train.head import with_head

            return with_head
        case "nd":
            from ..runtime import arrays

            return arrays
        case "random":
            from ..runtime.arrays import random

            return random
        case "cpu" | "gpu":
            from ..runtime.arrays import place

            return getattr(place, name)
        case "profiler":
            from . import profiler

            return profiler
        case "viz":
            from . import viz

            return viz
        case "autograd":
            from ..runtime import autograd

            return autograd
        case "amp":
            from ..gluon import amp

            return amp
        case "gluon":
            return import_module("mezzo.gluon")  # `from .. import gluon` would ask here again
        case "sym":
            from ..runtime import symbols

            return symbols
        case "memory":
            from ..runtime import memory

            return memory
        case "gpu_memory_info":
            from ..runtime.gpu.memory import gpu_memory_info

            return gpu_memory_info
        case "grad":
            from ..runtime.autodiff import grad

            return grad
        case "kv":
            from .. import kvstore

            return kvstore
    raise AttributeError(f"module 'mezzo' has no attribute {name!r}")
