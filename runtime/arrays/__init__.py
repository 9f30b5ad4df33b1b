"""`mz.nd`: arrays in the manner of the Python array API standard, computed by the dependency engine.

https://data-apis.org/array-api/2024.12. Operations return at once, and run the same operators as graphs do; reading
waits. docs/arrays.md tells the rest, tests/array_api_gaps.txt what is missing and why.

>>> a = ones((2, 3))
>>> print((a * 2).asnumpy())
[[2. 2. 2.]
 [2. 2. 2.]]
"""

from . import functions, random
from .functions import *
from .place import Place, cpu, gpu

__all__ = [*functions.__all__, "Place", "cpu", "gpu", "random"]
