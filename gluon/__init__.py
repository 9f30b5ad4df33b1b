"""`mz.gluon`: networks written in Python. Blocks (`nn`, `rnn`, `loss`), their parameters and initialisers, a Trainer;
symbols, which compose graphs, are `mz.sym`.

>>> from mezzo import gluon
>>> net = gluon.nn.HybridSequential(gluon.nn.Dense(4, "relu"), gluon.nn.Dense(2))
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = ("nn", "rnn", "loss", "initializer", "symbols")
NAMES = {
    "Block": ".block", "HybridBlock": ".hybrid", "GraphBroken": ".hybrid", "SymbolBlock": ".symbol_block",
    "Parameter": ".parameter", "Trainer": ".trainer",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Parts that are imported when they are first used (PEP 562)."""
    if name in MODULES:
        return import_module(f".{name}", __name__)
    if name in NAMES:
        return getattr(import_module(NAMES[name], __name__), name)
    raise AttributeError(f"module 'mezzo.gluon' has no attribute {name!r}")
