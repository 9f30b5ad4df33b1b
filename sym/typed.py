"""Types of the values of an expression, as far as they are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ops import Tensor, Type
from .expression import Constant, Dims, Entry, Variable


@dataclass(slots=True)
class Typed:
    """Result of inference over an expression: types of entries, dims of its variables and values of its constants."""

    entries: dict[Entry, Type] = field(default_factory=dict[Entry, Type])
    dims: dict[Variable, Dims | None] = field(default_factory=dict[Variable, Dims | None])
    constants: dict[Constant, np.ndarray[Any, Any]] = field(default_factory=dict[Constant, "np.ndarray[Any, Any]"])

    def tensor(self, entry: Entry | None) -> Dims | None:
        """The dims of an entry; None where they are unknown, or it is absent or no tensor."""
        known = self.entries.get(entry) if entry is not None else None
        if not isinstance(known, Tensor) or known.dims is None:
            return None
        return tuple(d if isinstance(d, int) else None for d in known.dims)


def plain(known: Type | None) -> Type | None:
    """A type without elements."""
    return known.forget() if isinstance(known, Tensor) and known.value is not None else known
