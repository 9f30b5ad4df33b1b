"""What a graph may grow by: moves with their weights, and the fields of search that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .maker import Maker

Step = Callable[[Maker], object]


@dataclass(frozen=True)
class Move:
    """A way to go on: how often it is taken beside others, and the focus of a search that it belongs to."""

    name: str
    step: Step
    weight: float
    focus: str


MOVES: list[Move] = []


def move(weight: float, focus: str) -> Callable[[Step], Step]:
    """Enter a function into the table."""

    def enter(step: Step) -> Step:
        MOVES.append(Move(step.__name__, step, weight, focus))
        return step

    return enter
