"""Strings of LLVM's intermediate form for our kernels, made from types and tiles. Only needed to compile them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..tiers import Tier
from . import n_bits, rms_norm, trees
from .ir import Function

FAMILIES: Final[tuple[Callable[[Tier], Sequence[Function]], ...]] = (
    n_bits.functions,
    trees.functions,
    rms_norm.functions,
)
