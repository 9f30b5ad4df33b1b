"""`mz.sym`: expressions over variables, which are bound to arrays and run, as MXNet's symbols.

Every operator of ONNX, and of your own, is here by its name (`Conv`, `Relu`, `Concat`, ...), and MXNet's layers, which
bring variables of their own (`FullyConnected`, `Convolution`, `BatchNorm`, `SoftmaxOutput`, ...).

>>> data = Variable("data")
>>> mlp = data.FullyConnected(num_hidden=64).Activation(act_type="relu").FullyConnected(num_hidden=10).SoftmaxOutput()
>>> mlp.infer_shape(data=(100, 784))[1]
[(100, 10)]
"""

from __future__ import annotations

from typing import Any

from ..nd import named
from . import methods, standard
from .arrays import Arrays
from .control import cond, foreach, while_loop
from .executor import Executor
from .memory import Memory
from .operators import LAYERS, find, operator
from .operators import group as Group  # noqa: N812 (MXNet's name)
from .operators import variable as Variable  # noqa: N812
from .symbol import Symbol
from .text import load, load_json

var = Variable
fromjson = load_json  # MXNet's name
methods.attach()


def __getattr__(name: str) -> Any:
    """Operators and layers by name, and the functions of arrays."""
    if name in standard.NAMES:
        return getattr(standard, name)
    if not name[:1].isupper():
        raise AttributeError(f"module 'mezzo.sym' has no attribute {name!r}")
    return find(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *LAYERS, *standard.NAMES, *named.names()})


__all__ = [
    "Arrays", "Executor", "Group", "Memory", "Symbol", "Variable", "cond", "foreach", "fromjson", "load", "load_json",
    "operator", "var", "while_loop",
]  # fmt: skip
