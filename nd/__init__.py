"""`mz.nd`: arrays with the interface of the Python array API standard, computed by the dependency engine.

https://data-apis.org/array-api/2024.12. Operations return at once, and run the same operators as graphs do; reading
waits. Every operator of ONNX is here by its name too (`Softmax`, `Conv`, ...), as in `mz.sym`. docs/arrays.md tells the
rest, tests/array_api_gaps.txt what is missing and why.

>>> a = ones((2, 3))
>>> print((a * 2).asnumpy())
[[2. 2. 2.]
 [2. 2. 2.]]
"""

from __future__ import annotations

from typing import Any

from . import functions, methods, neural, random
from .functions import *
from .neural import *
from .place import Place, cpu, gpu
from .sparse import RowSparse, row_sparse_array

__all__ = [*functions.__all__, *neural.__all__, "Place", "RowSparse", "cpu", "gpu", "random", "row_sparse_array"]
methods.attach()


def __getattr__(name: str) -> Any:
    """Operators of ONNX by name (PEP 562)."""
    if not name[:1].isupper():
        raise AttributeError(f"module 'mezzo.nd' has no attribute {name!r}")
    from .named import operator_named

    return operator_named(name)


def __dir__() -> list[str]:
    from ..ops import OPS

    return sorted({*__all__, *(op for domain, op in OPS if not domain)})
