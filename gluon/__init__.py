"""`mz.gluon`: networks written in Python. Blocks (`nn`, `rnn`, `loss`), their parameters and initialisers, a Trainer;
symbols, which compose graphs, are `mz.sym`.

>>> from mezzo import gluon
>>> net = gluon.nn.HybridSequential(gluon.nn.Dense(4, "relu"), gluon.nn.Dense(2))
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Parts that are imported when they are first used (PEP 562)."""
    match name:
        case "nn":
            from . import nn

            return nn
        case "rnn":
            from . import rnn

            return rnn
        case "loss":
            from . import loss

            return loss
        case "initializer":
            from . import initializer

            return initializer
        case "symbols":
            from . import symbols

            return symbols
        case "Block":
            from .block import Block

            return Block
        case "HybridBlock" | "GraphBroken":
            from . import hybrid

            return getattr(hybrid, name)
        case "SymbolBlock":
            from .symbol_block import SymbolBlock

            return SymbolBlock
        case "Parameter":
            from .parameter import Parameter

            return Parameter
        case "Trainer":
            from .trainer import Trainer

            return Trainer
    raise AttributeError(f"module 'mezzo.gluon' has no attribute {name!r}")
