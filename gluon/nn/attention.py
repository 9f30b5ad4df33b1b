"""Attention."""

from __future__ import annotations

from ...nd.array import Array
from ...nd.running import apply
from ...ops.errors import InputError
from ..hybrid import HybridBlock
from .basic import Dense, Dropout


class MultiHeadAttention(HybridBlock):
    """Scaled dot products of several heads (Vaswani et al. 2017): queries [batch, length, units] over keys and values,
    the queries themselves if none are given. `mask` is true, or 0, where a key is seen."""

    def __init__(self, units: int, num_heads: int, dropout: float = 0.0, use_bias: bool = True, causal: bool = False):
        super().__init__()
        if units % num_heads:
            raise InputError(f"{units} units in {num_heads} heads", where="MultiHeadAttention")
        self._heads, self._causal = num_heads, int(causal)
        self.query, self.key, self.value, self.out = (
            Dense(units, flatten=False, use_bias=use_bias) for _ in range(4)
        )  # fmt: skip
        self.drop = Dropout(dropout)

    def forward(self, x: Array, memory: Array | None = None, mask: Array | None = None) -> Array:
        other = x if memory is None else memory
        mixed = apply(
            "Attention", self.query(x), self.key(other), self.value(other), mask,
            q_num_heads=self._heads, kv_num_heads=self._heads, is_causal=self._causal,
        )  # fmt: skip
        y: Array = self.drop(self.out(mixed))
        return y
