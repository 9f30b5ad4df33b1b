"""The uses of one operator in a model, and whether they are supported."""

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
