"""Answers of a reader about a model: the uses of one operator, and whether they are supported; nodes out of order."""

from __future__ import annotations

from ..ops.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """An operator as a model uses it, `count` times. `opset` is None if the model imports none for the domain.

    `first` names the first such node; `problem` says why it cannot be taken (empty: it can), `hint` what to do.
    """

    domain: str
    op: str
    opset: int | None
    count: int
    first: str
    problem: str = ""
    hint: str = ""


class OutOfOrder(UserWarning):
    """Nodes of a file stand before others that they read from; they are taken in an order in which they can run."""
