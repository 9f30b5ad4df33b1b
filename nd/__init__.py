"""`mz.nd`: arrays with the interface of the Python array API standard, computed by the dependency engine.

https://data-apis.org/array-api/2024.12. Operations return at once, and run the same operators as graphs do; reading
waits. Every operator of ONNX is here by its name too (`Softmax`, `Conv`, ...), as in `mz.sym`, and so are those of your
own. docs/arrays.md tells the rest, tests/array_api_gaps.txt what is missing and why.

>>> a = ones((2, 3))
>>> print((a * 2).asnumpy())
[[2. 2. 2.]
 [2. 2. 2.]]
"""

from __future__ import annotations

from typing import Any

from . import activations, functions, methods, named, names, neural, random
from .activations import *
from .functions import *
from .named import operator
from .neural import *
from .place import Place, cpu, gpu
from .sparse import RowSparse, row_sparse_array

__all__ = [
    *functions.__all__, *neural.__all__, *activations.__all__, "Place", "RowSparse", "cpu", "gpu", "operator", "random",
    "row_sparse_array",
]  # fmt: skip
names.name_all(globals(), {*functions.__all__, *neural.__all__, *activations.__all__}, __name__)
methods.attach(globals())
names.name_all(vars(random), [n for n, f in vars(random).items() if getattr(f, "__module__", "") == random.__name__])
for _module in (functions.linalg, functions.fft):
    names.name_all(vars(_module), _module.__all__)


def __getattr__(name: str) -> Any:
    """Operators by name (PEP 562)."""
    domain = named.domain_of(name) if name[:1].isupper() else None
    if domain is None:
        raise AttributeError(f"module 'mezzo.nd' has no attribute {name!r}")
    return operator(name, domain)


def __dir__() -> list[str]:
    return sorted({*__all__, *named.names()})
