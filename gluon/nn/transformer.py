"""Layers of transformers (Vaswani et al. 2017), as in PyTorch with batches first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...nd import functions as nd
from ...nd.array import Array
from ..block import Block
from ..hybrid import HybridBlock
from .activations import Activation
from .attention import MultiHeadAttention
from .basic import Dense, Dropout, HybridSequential
from .norm import LayerNorm


class _Layer(HybridBlock):
    """Sublayers with a residual connection around each, and a normalisation after the sum, or (`pre_norm`) before the
    sublayer."""

    def __init__(self, units: int, hidden_size: int, dropout: float, activation: Any, pre_norm: bool) -> None:
        super().__init__()
        self._pre = pre_norm
        self.feed = HybridSequential(
            Dense(hidden_size, flatten=False, in_units=units),
            Activation(activation),
            Dropout(dropout),
            Dense(units, flatten=False, in_units=hidden_size),
            Dropout(dropout),
        )

    def _around(self, norm: Block, part: Block, x: Array, *more: Array | None) -> Array:
        y: Array = x + part(norm(x), *more) if self._pre else norm(x + part(x, *more))
        return y


class TransformerEncoderLayer(_Layer):
    """Self-attention over a sequence [batch, length, units], and a feed-forward network at each position. `mask` is
    true, or 0, where a position may be attended to: [length, length], or with [batch, heads] (or 1) before."""

    def __init__(
        self,
        units: int,
        num_heads: int,
        hidden_size: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Array], Array] = "relu",
        pre_norm: bool = False,
        epsilon: float = 1e-5,
        causal: bool = False,
    ) -> None:
        super().__init__(units, hidden_size, dropout, activation, pre_norm)
        self.attention = MultiHeadAttention(units, num_heads, dropout, causal=causal)
        self.norm1, self.norm2 = (LayerNorm(epsilon, in_channels=units) for _ in range(2))

    def forward(self, x: Array, mask: Array | None = None) -> Array:
        x = self._around(self.norm1, self.attention, x, None, mask)
        return self._around(self.norm2, self.feed, x)


class TransformerDecoderLayer(_Layer):
    """Self-attention to earlier positions (`causal`), attention to a memory [batch, other length, units], and a
    feed-forward network at each position. Masks are those of TransformerEncoderLayer."""

    def __init__(
        self,
        units: int,
        num_heads: int,
        hidden_size: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Array], Array] = "relu",
        pre_norm: bool = False,
        epsilon: float = 1e-5,
        causal: bool = True,
    ) -> None:
        super().__init__(units, hidden_size, dropout, activation, pre_norm)
        self.attention = MultiHeadAttention(units, num_heads, dropout, causal=causal)
        self.cross = MultiHeadAttention(units, num_heads, dropout)
        self.norm1, self.norm2, self.norm3 = (LayerNorm(epsilon, in_channels=units) for _ in range(3))

    def forward(self, x: Array, memory: Array, mask: Array | None = None, memory_mask: Array | None = None) -> Array:
        x = self._around(self.norm1, self.attention, x, None, mask)
        x = self._around(self.norm2, self.cross, x, memory, memory_mask)
        return self._around(self.norm3, self.feed, x)


class PositionalEncoding(HybridBlock):
    """Add sines and cosines of wavelengths from 2 pi to 10000 * 2 pi to [batch, length, units], a sine first in each
    pair; then apply dropout."""

    def __init__(self, units: int, dropout: float = 0.0) -> None:
        super().__init__()
        self._units, self.drop = units, Dropout(dropout)
        self._rates = 10000.0 ** (-np.arange(0, units, 2) / units)

    def forward(self, x: Array) -> Array:
        wide = x.astype("float64" if x.dtype == np.float64 else "float32")
        one = nd.ones((), dtype=wide.dtype, device=x.device)
        ones = nd.where(wide[:1, :, :1] > 0, one, one)  # as many as there are places, in files of any length too
        places = nd.cumulative_sum(ones, axis=1) - 1
        turns = places * nd.asarray(self._rates.astype(wide.dtype), device=x.device)
        waves = nd.reshape(nd.stack([nd.sin(turns), nd.cos(turns)], axis=3), (1, x.shape[1], 2 * len(self._rates)))
        y: Array = self.drop(x + waves[:, :, : self._units].astype(x.dtype))
        return y
