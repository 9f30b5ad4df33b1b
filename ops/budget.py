"""Limits on the resources of a model, checked before memory or time is spent."""

from __future__ import annotations

import dataclasses
from operator import index
from typing import SupportsIndex

from .dataclasses import dataclass
from .errors import BudgetError, InputError


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on a model. Exceeding one raises BudgetError, which names the value, the limit and this field.

    >>> Budget(nesting=2).check("nesting", 3, "subgraphs inside subgraphs", where="m.onnx")
    Traceback (most recent call last):
        ...
    mezzo.ops.errors.BudgetError: m.onnx: subgraphs inside subgraphs: 3 is more than the limit of 2
      hint: pass budget=Budget(nesting=3) if you trust the model
    """

    file_bytes: int = 64 << 30
    """Size of the model file, and of each file of external data."""
    tensor_elements: int = 1 << 31
    """Elements of one tensor stored in the model."""
    nesting: int = 64
    """Levels of subgraphs and of function calls inside one another."""
    nodes: int = 1 << 22
    """Nodes after local functions are expanded into their callers."""
    steps: int = 1 << 24
    """Iterations of loop bodies in one run."""
    fold_elements: int = 1 << 28
    """Elements that constant folding may create in one graph."""
    dynamic_bytes: int = 8 << 30
    """Memory of one run for values whose shape depends on data."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            limit = getattr(self, field.name)
            if not isinstance(limit, SupportsIndex) or index(limit) < 0:
                raise BudgetError(f"{field.name}={limit!r} is no limit", hint="give a count of zero or more")

    @classmethod
    def of(cls, given: Budget | None) -> Budget:
        """Return the given limits, or the default ones for None. Raises InputError for anything else."""
        if given is not None and not isinstance(given, cls):
            hint = "give a Budget (from mezzo.ops.budget import Budget), or None"
            raise InputError(f"budget={given!r} has no limits", hint=hint)
        return given or cls()

    def check(self, limit: str, value: int, what: str, *, where: str = "") -> None:
        """Raise BudgetError if `value`, the measure of `what`, passes the limit of this name."""
        most = getattr(self, limit)
        if value > most:
            raise BudgetError(
                f"{what}: {value} is more than the limit of {most}",
                where=where,
                hint=f"pass budget=Budget({limit}={value}) if you trust the model",
            )
