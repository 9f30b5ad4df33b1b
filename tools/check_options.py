"""Options of `mezzo check`, and the largest array that its constant folding computes."""

from __future__ import annotations

from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from .feeds import parse_sizes
from .gaps import Tolerance

FOLDED = 1 << 18  # elements: shape arithmetic is computed in the static part, weights are not


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a check; see `mezzo check --help`."""

    train: bool = False
    opset: int | None = None
    device: str = "cpu"
    against: str | None = None
    sizes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    seed: int = 0
    tolerance: tuple[str, ...] = ()
    record: str | None = None
    record_limit: int = 1 << 30
    round_trip: bool | None = None  # by default where numbers are compared
    modules: tuple[str, ...] = ()  # of the user's, which are imported first

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be meant, before any file is opened."""
        Tolerance.parse(self.tolerance)
        parse_sizes((*self.sizes, *self.inputs))
        runs = self.against or self.record or self.round_trip
        option = "--tolerance" if self.tolerance else "--input" if self.inputs else "--dim" if self.sizes else ""
        if option and not runs and (option != "--dim" or self.device == "cpu"):
            hint = "add --against, --record or --round-trip, or leave it out"
            raise InputError("it says something of a run, and nothing is run", where=option, hint=hint)


AS_IT_IS = Options()
