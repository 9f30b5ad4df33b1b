"""The interface of what the verbs of a store are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..ops.types import Array
from .packing import Packings
from .protocol.messages import Overview
from .protocol.pace import Counts
from .rows import Sum
from .rule import Updater
from .states import Saved
from .stats import Stats
from .ticket import Ticket


class Backend(Protocol):
    """Interface of the backends below the verbs. Keys are strings here ("#7" for the integer 7); arrays have been
    checked against the declarations of `init`.

    Any thread may call; `push`, `pull` and `pushpull` start an operation and never wait for other workers. Operations
    of one worker on one key happen in the order of their calls. Higher priorities go first where there is a choice.
    Errors name the key, the rank and both sides; a wait beyond the deadline is a DeadlineError that names who is
    missing.
    """

    @property
    def kind(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def num_workers(self) -> int: ...

    def init(self, key: str, value: Array) -> None:
        """Declare a key. Every worker does; the value of rank 0 counts. Workers may declare in different orders."""
        ...

    def push(self, key: str, values: Sequence[Array], priority: int) -> Ticket:
        """Push the sum of the values (one per device, in this order). Ends when they have been taken."""
        ...

    def pull(self, key: str, outs: Sequence[Array], priority: int) -> Ticket:
        """Copy the value, as of this worker's last push, into each of `outs` (which may be empty)."""
        ...

    def pushpull(self, key: str, values: Sequence[Array], outs: Sequence[Array], priority: int) -> Ticket:
        """A push and a pull; an array of `outs` may be one of `values`."""
        ...

    def push_rows(self, key: str, ids: Array, rows: Array, sum: Sum) -> Ticket:
        """Push a value of which these rows (int64, ascending, checked) are given; the others are zeros. An optimizer
        that leaves alone what has no gradient, or is lazy, steps these rows, in a sequential store their `sum` over all
        workers, and they travel alone; else it is the push of the whole value."""
        ...

    def pull_rows(self, key: str, rows: Array, outs: Sequence[Array], priority: int) -> Ticket:
        """Copy these rows (int64, checked) into each of `outs`, of shape (len(rows), *shape of a row)."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array that pushes and pulls need not copy, where there is such memory. Its elements are zeros."""
        ...

    def set_optimizer(self, optimizer: Mapping[str, Any]) -> None:
        """Make each later push a gradient. `optimizer` is plain data; see `updater.py`. Every worker calls it."""
        ...

    def set_updater(self, updater: Updater) -> None:
        """Let `updater` define each later push; refused where the value is in another process."""
        ...

    def set_compression(self, packings: Packings) -> None:
        """Pack values of keys that are declared from now on, where they travel. Every worker calls it."""
        ...

    def drop_losses(self) -> None:
        """Forget what packing has lost. Every worker calls it."""
        ...

    def take_losses(self) -> dict[str, Array]:
        """Return what packing has lost, and forget it. Every worker calls it."""
        ...

    def barrier(self) -> None:
        """Return when every worker has called it as often as this one."""
        ...

    def states(self) -> Saved:
        """The optimizer and its states. Every worker calls it; what rank 0 gets is whole."""
        ...

    def load_states(self, saved: Saved) -> None:
        """Take the states of `states`. Every worker calls it, with the same ones."""
        ...

    def stats(self) -> Stats:
        """Counts of this process, without what others report."""
        ...

    def report(self, counts: Counts) -> None:
        """Tell the scheduler how this worker gets on."""
        ...

    def overview(self) -> Overview:
        """The scheduler's view of the job; one of nobody where there is none."""
        ...

    @property
    def rejoins(self) -> bool:
        """True if `again` may succeed: the job waits for others in the place of workers that have died."""
        ...

    @property
    def gathering(self) -> int:
        """Number of times that the job had gathered before the workers met here."""
        ...

    def again(self) -> Backend:
        """After a failure: join the job again, as the same rank, and return a backend without keys. Every worker does.
        Raises the failure where the job does not gather again, InputError where nothing has failed."""
        ...

    def close(self, error: BaseException | None = None) -> None:
        """Leave, telling the others whether because of an error. Calling it again does nothing."""
        ...
