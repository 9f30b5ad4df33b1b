"""Several devices of one process: each is a rank of its own in a thread of its own, behind one Trainer, which splits
every batch between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..ops import Tensor
from ..ops.errors import InputError
from ..runtime.devices import full_name, session_device
from ..runtime.environment import usual_threads
from ..runtime.execution.feeds import checked
from ..runtime.execution.instance import Observer
from ..runtime.execution.session import Session
from .collective import Collective
from .shares import Samples, Share

if TYPE_CHECKING:
    from ..nd.place import Place

Feeds = Mapping[str, Any]


def devices_of(device: str | Place | Sequence[str | Place]) -> tuple[str, ...]:
    """The full names of devices: of one, of several with commas, or of a list of names or of `mz.gpu(i)`. Raises
    InputError for what is no device, or for one that is there twice.

    >>> from mezzo.nd.place import cpu
    >>> devices_of("cpu"), devices_of("gpu:0, gpu:1"), devices_of([cpu(0), cpu(1)])
    (('cpu',), ('gpu:0', 'gpu:1'), ('cpu:0', 'cpu:1'))
    """
    given: Sequence[Any] = device if isinstance(device, list | tuple) else [device]
    given = device.split(",") if isinstance(device, str) else given
    names = tuple(full_name(_name(one)) for one in given)
    if len(names) == 1:
        return names
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    kinds = {name.partition(":")[0] for name in names}
    why = "no device" if not names else f"{twice[0]!r} is there twice" if twice else ""
    if len(kinds) > 1:
        why = f"{' and '.join(sorted(kinds))} together"
    if why:
        raise InputError(
            f"device={device!r}: {why}", where="Trainer",
            hint='name each once, of one kind: "gpu:0,gpu:1", or "cpu:0,cpu:1"',
        )  # fmt: skip
    return names


def _name(device: str | Place) -> str:
    if isinstance(device, str):
        return device.strip()
    try:
        return f"{device.name}:{device.index}"
    except AttributeError:
        raise InputError(
            f"{device!r} is no device", where="Trainer", hint='give "cpu", "gpu:0", mz.gpu(0), or several of them'
        ) from None


def threads_of(devices: Sequence[str], threads: int | None) -> int | None:
    """The threads of a step on one of these devices: several that are processors share the usual ones."""
    if threads is not None or len(devices) == 1 or session_device(devices[0]) != "cpu":
        return threads
    return max(1, usual_threads() // len(devices))


class Rank(Protocol):
    """A Trainer of one device, as its team sees it."""

    exchange: Any

    def _session_of_next(self) -> Session: ...
    def _step(self, feeds: Feeds, size: int, observe: Observer | None) -> float: ...


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's share of a batch: of `size` samples. A rank for which none is left gets one that counts for nothing."""

    feeds: Feeds
    size: int


def split(feeds: Feeds, size: int, samples: Samples, ranks: int) -> list[Part]:
    """The shares of a batch of `size` samples, as equal as may be, the first ranks have more.

    Each feed is split along the axis of its samples. Raises InputError for one that has another number of them.
    """
    axes = {n: axis for n, axis in samples.axes.items() if n in feeds}
    arrays = {n: np.asarray(x) if n in axes and not hasattr(x, "shape") else x for n, x in feeds.items()}
    samples.check(arrays, size)
    parts = []
    for rank in range(ranks):
        rows = Share(rank, ranks, uneven=True).rest(np.arange(size))
        begin, end = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (size - 1, size)
        cut = {n: (*[slice(None)] * axis, slice(begin, end)) for n, axis in axes.items()}
        parts.append(Part({n: x[cut[n]] if n in cut else x for n, x in arrays.items()}, len(rows)))
    return parts


class Team:
    """The Trainers of one process, by rank; the first is the one that the user has."""

    def __init__(self, ranks: Sequence[Rank], samples: Samples) -> None:
        self.ranks, self._samples = tuple(ranks), samples
        self._threads = ThreadPoolExecutor(len(ranks) - 1, "mezzo device")
        self._planned: set[Any] = set()

    def step(self, feeds: Feeds, size: int, observe: Observer | None) -> float:
        """Learn from one batch, of which each rank has a share; returns the mean loss of the batch. Raises InputError
        before anything is learned where the feeds do not fit."""
        session = self.ranks[0]._session_of_next()
        known = session.signature.inputs
        parts = split(feeds, size, self._samples, len(self.ranks))
        for rank, part in zip(self.ranks, parts, strict=True):
            own = rank._session_of_next()
            arrays = checked(own.signature, part.feeds, own.device.from_dlpack)
            shapes = {n: tuple(np.shape(a)) for n, a in arrays.items() if isinstance(known[n], Tensor)}
            key = own, tuple(shapes.items())
            if key not in self._planned:  # nobody waits for who plans
                own.warmup(shapes)
                self._planned.add(key)
        losses = self.run(
            lambda rank, part: rank._step(part.feeds, part.size, observe if rank is self.ranks[0] else None),
            parts,
        )
        return float(sum(part.size * loss for part, loss in zip(parts, losses, strict=True) if part.size) / size)

    def run(self, call: Callable[..., Any], given: Sequence[Any] | None = None) -> list[Any]:
        """Call something of each rank, with what that rank is given, all at once; return the answers. The first error
        ends the communicator, so that the others end too, and is raised."""
        errors: list[BaseException] = []
        lock = Lock()

        def one(rank: Rank, arguments: tuple[Any, ...]) -> Any:
            try:
                return call(rank, *arguments)
            except BaseException as error:
                with lock:
                    errors.append(error)
                exchange = rank.exchange
                assert isinstance(exchange, Collective)
                exchange.communicator.abort(f"{type(error).__name__}: {error}")
                return None

        every = [() if given is None else (given[r],) for r in range(len(self.ranks))]
        others = [self._threads.submit(one, *pair) for pair in zip(self.ranks[1:], every[1:], strict=True)]
        answers = [one(self.ranks[0], every[0]), *(other.result() for other in others)]
        if errors:
            raise errors[0]
        return answers
