"""The kernels of a GPU, in the order in which they are asked."""

from __future__ import annotations

from ..kernels.kernel import Kernel
from .pointwise import Pointwise

GPU_KERNELS: tuple[Kernel, ...] = (Pointwise(),)
