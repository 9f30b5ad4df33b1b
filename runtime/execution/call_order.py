"""The order in which the prepared calls of a program run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..compile.kernel import nothing
from ..compile.program import Program

StepCall = Callable[[], Any]


class Watch(Protocol):
    """A look at the machine, which the first run that begins after `next` (of `time.monotonic`) takes."""

    next: float

    def look(self) -> None: ...


class CallOrder:
    """The calls of a program in the order of its steps. Backends whose library needs calls in between have their own.

    `arrays` are those of the instance, by the names of values.
    """

    watch: Watch | None = None  # what runs look at before they begin

    def __init__(self, program: Program, arrays: Mapping[str, Any]) -> None:
        self.program, self.arrays = program, arrays

    def working(self, calls: Sequence[StepCall]) -> list[tuple[int, StepCall]]:
        """The calls that do something, each with the number of its step; `calls` has one for each step."""
        return [(i, call) for i, call in enumerate(calls) if call is not nothing]

    def separate(self, calls: Sequence[StepCall]) -> list[tuple[int, StepCall]]:
        """The same calls one by one, for runs that may end between any two of them."""
        return self.working(calls)

    def observed(self, i: int, calls: Sequence[StepCall]) -> StepCall:
        """The call of step `i` for runs that are observed, where others compute between the steps."""
        return calls[i]

    def abandon(self) -> None:
        """Leave the calling thread as it was, after a call has raised."""
