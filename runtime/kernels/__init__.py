"""Kernels of the CPU, in the order in which they are asked."""

from __future__ import annotations

from .exchange import Exchanges
from .extremes import Extremes, Places
from .kernel import Alias, Ask, Call, Choice, Declined, Exchange, Kernel, Packs, Rebinds, Recalls, Target, Work
from .losses import CrossEntropy
from .matmul import Gemm, MatMul
from .movement import Movement, Take
from .pad import Pad
from .pointwise import Pointwise
from .reference import Reference
from .scatter import Scatter
from .strips import ConvReluPool
from .update import Update

CPU_KERNELS: tuple[Kernel, ...] = (
    Pointwise(),
    MatMul(),
    Gemm(),
    Movement(),
    Take(),
    Extremes(),
    Places(),
    Pad(),
    ConvReluPool(),
    Update(),
    CrossEntropy(),
    Scatter(),
    Exchanges(),
    Reference(),
)

__all__ = [
    "CPU_KERNELS", "Alias", "Ask", "Call", "Choice", "Declined", "Exchange", "Kernel", "Packs", "Rebinds", "Recalls",
    "Target", "Work",
]  # fmt: skip
