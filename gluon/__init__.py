"""`mz.gluon`: networks written in Python. Blocks (`nn`, `rnn`, `loss`), `data`, their parameters and initialisers, a
Trainer; `fit`, `quantize`; symbols, which compose graphs, are `mz.sym`.

>>> from mezzo import gluon
>>> net = gluon.nn.HybridSequential(gluon.nn.Dense(4, "relu"), gluon.nn.Dense(2))
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "Block", "GraphBroken", "HybridBlock", "Parameter", "SymbolBlock", "Trainer", "data", "fit", "initializer", "loss",
    "nn", "quantize", "rnn", "symbols",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Parts that are imported when they are first used (PEP 562)."""
    match name:
        case "nn":
            return import_module("mezzo.gluon.nn")  # `from . import nn` would ask here again
        case "data":
            return import_module("mezzo.gluon.data")
        case "rnn":
            return import_module("mezzo.gluon.rnn")
        case "loss":
            return import_module("mezzo.gluon.loss")
        case "initializer":
            return import_module("mezzo.gluon.initializer")
        case "symbols":
            return import_module("mezzo.sym")
        case "Block":
            from .block import Block

            return Block
        case "HybridBlock" | "GraphBroken":
            from .hybrid import GraphBroken, HybridBlock

            return HybridBlock if name == "HybridBlock" else GraphBroken
        case "SymbolBlock":
            from .symbol_block import SymbolBlock

            return SymbolBlock
        case "Parameter":
            from .parameter import Parameter

            return Parameter
        case "Trainer":
            from .trainer import Trainer

            return Trainer
        case "fit":
            from .fitting import fit

            return fit
        case "quantize":
            from .quantized import quantize

            return quantize
    raise AttributeError(f"module 'mezzo.gluon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
