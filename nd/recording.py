"""Observers of operations on arrays: a tape, which records them for gradients, and a trace, which makes a graph of
them. Both are imported on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    from .array import Array


class Tracer(Protocol):
    """Interface of a trace (nd/recorder.py): it is called for everything that makes, reads or writes numbers."""

    def run(self, operator: Any, given: tuple[Any, ...], place: Any = None, call: Any = None) -> Any:
        """Run a prepared operator, as `running.run_unseen` does, and remember it."""

    def graph(self, fragment: Any, given: Sequence[Any], compute: Callable[[], Sequence[Array]]) -> Sequence[Array]:
        """Run a piece of a graph, and remember it."""

    def data(self, owner: Any) -> Array | None:
        """Return the array that stands for the one that a parameter owns."""

    def made(self, x: Array) -> None:
        """An array was made of numbers that Python has."""

    def read(self, x: Array, sort: type | None = None) -> None:
        """The numbers of an array are about to be read: all of them, or (`sort`) one as a number of Python."""

    def write(self, target: Array, value: Array) -> None:
        """An array, or a part of one, is about to become these numbers."""

    def stopped(self, x: Array) -> None:
        """No gradient goes back through this array."""

    def seen_from(self, x: Array, view: Array) -> None:
        """`view` shows a part of `x`."""

    def drawn(self, generator: Any) -> None:
        """A generator was asked for the key of a draw."""

    def recorded(self) -> bool:
        """Return True if the block was called under `record()`."""

    def broke(self, reason: str, remedy: str) -> NoReturn:
        """The program does what no graph does."""


class Recording(threading.local):
    """The recording state of this thread: whether it records, whether it trains, the number of its `record()`, the
    active trace, and whether the program has entered `record()` (True) or `pause()` (False) since that began. `noted`
    is true if anything observes."""

    on = False
    training = False
    scope = 0
    trace: Tracer | None = None
    inside: bool | None = None
    noted = False


RECORDING = Recording()
run: Callable[..., Any]  # in the place of running.run while somebody looks: set by nd/autograd/tape.py
