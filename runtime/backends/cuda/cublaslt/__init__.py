"""Matrix products by cuBLASLt, through nvmath.bindings, which are loaded with the first product on a device.

`product.py` is what is asked, as data, and `written.py` makes it of operators; `library.py` makes descriptors of it,
and `kernel.py` chooses algorithms and prepares calls.
"""

from __future__ import annotations

from ....compile.kernel import Kernel
from .kernel import Products

KERNELS: tuple[Kernel, ...] = (Products(),)

__all__ = ["KERNELS"]
