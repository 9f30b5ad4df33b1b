"""The DataLoader: batches of a dataset in the order of a sampler, made ahead by worker processes or threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any, Protocol, Self

from ..ops.dataclasses import replace
from ..ops.errors import DeadlineError, InputError
from ..runtime.engine.future import Pending, submit
from ..runtime.engine.process import engine
from ..runtime.engine.waited import WAITED
from ..runtime.environment import processors
from .batchify import Batchify
from .dataset import dataset_of
from .making import Bad, Made, Maker, Task
from .samplers import Batches, BatchSampler, Last, ListedBatches, RandomSampler, Rows, Sampler, SequentialSampler
from .stats import Stats
from .workers import Workers

NAMED = 100  # skipped samples of which the names are kept


class _Source(Protocol):
    """A maker of batches."""

    def push(self, task: Task) -> None: ...
    def take(self, number: int, timeout: float) -> Made: ...
    def drop(self, number: int) -> None: ...
    def close(self) -> None: ...


class _Here:
    """Batches made where they are asked for."""

    def __init__(self, maker: Maker) -> None:
        self._maker, self._tasks = maker, dict[int, Task]()

    def push(self, task: Task) -> None:
        self._tasks[task.number] = task

    def take(self, number: int, timeout: float) -> Made:
        return self._maker.make(self._tasks.pop(number))

    def drop(self, number: int) -> None:
        self._tasks.pop(number, None)

    def close(self) -> None:
        self._tasks.clear()


class _Threads:
    """Batches made by the engine's threads for I/O, `count` of them at a time."""

    def __init__(self, maker: Maker, count: int) -> None:
        self._maker, self._pending = maker, dict[int, Pending[Made]]()
        self._lanes = [engine().variable(f"data {i}") for i in range(count)]

    def push(self, task: Task) -> None:
        lane = self._lanes[task.number % len(self._lanes)]
        self._pending[task.number] = submit(self._maker.make, task, writes=(lane,), resource="io")

    def take(self, number: int, timeout: float) -> Made:
        pending = self._pending[number]
        if pending.work.done or timeout == float("inf"):
            result = pending.result()
        else:
            try:
                result = pending.result(timeout)
            except TimeoutError as error:
                if pending.done():
                    raise  # of the dataset itself
                raise DeadlineError(
                    f"no batch came for {timeout:g} seconds", where="DataLoader", hint="timeout= gives more time"
                ) from error
        del self._pending[number]
        return result

    def drop(self, number: int) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.cancel()

    def close(self) -> None:
        for number in [*self._pending]:
            self.drop(number)


class DataLoader:
    """Batches of a dataset, epoch after epoch; each iteration is one epoch.

    `dataset` has samples by number: one of `mz.data`, a list, an array, or an object of yours with `__len__` and
    `__getitem__`. Which samples a batch has is said by `batch_size` with `shuffle` or `sampler` and `last_batch`, or by
    `batch_sampler`; how they are joined by `batchify_fn`. The order of an epoch and all draws of its samples follow
    from `seed`, the epoch, and a sample's place in it alone.

    `workers` processes make batches in shared memory (`threads=True`: so many threads of the engine), `prefetch`
    batches ahead, by default two for each. Processes get a copy of the dataset; each keeps it until the loader is
    closed or gone. Arrays of a batch are the caller's for as long as they are held.

    A sample that cannot be made raises BadSample, which names it; with `bad="skip"` it is left out of its batch and
    counted. A worker that dies is replaced, and its batches are made again; a sample in which three workers died is
    bad. DeadlineError tells that nothing came for `timeout` seconds, and which sample is under way.

    `state_dict` is the place after the batches that were taken: `load_state` goes on there, with any number of workers,
    and of ranks where the batch of all ranks has the same size.

    >>> import numpy as np
    >>> from .dataset import ArrayDataset
    >>> loader = DataLoader(ArrayDataset(np.arange(5), np.arange(5) * 2), 2)
    >>> [x.tolist() for x, y in loader]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Sampler | Iterable[int] | None = None,
        last_batch: Last | None = None,
        batch_sampler: Batches | Iterable[Any] | None = None,
        batchify_fn: Batchify | None = None,
        *,
        workers: int = 0,
        threads: bool = False,
        prefetch: int | None = None,
        seed: int = 0,
        bad: Bad = "error",
        timeout: float = 120.0,
        start: str = "forkserver",
    ) -> None:
        if bad not in ("error", "skip"):
            raise InputError(f"bad={bad!r}", where="DataLoader", hint="'error' or 'skip'")
        if workers < 0 or (prefetch is not None and prefetch < 0) or not timeout > 0:
            raise InputError(
                f"workers={workers}, prefetch={prefetch}, timeout={timeout}", where="DataLoader", hint="from 0 on"
            )
        self.dataset = dataset_of(dataset)
        self.batches = self._rule(batch_size, shuffle, sampler, last_batch, batch_sampler, seed)
        self.workers, self.threads, self.timeout, self.start = workers, threads, timeout, start
        self.prefetch = max(2 * workers if prefetch is None else prefetch, workers)
        self.seed = seed
        self._maker = Maker(self.dataset, batchify_fn, seed, bad)
        self._source: _Source | None = None
        self._number = 0  # of the next task
        self.epoch, self._over = 0, 0  # where the next iteration begins
        self._stats = Stats(workers, threads)

    def _rule(
        self, size: int | None, shuffle: bool, sampler: Any, last: Last | None, batch_sampler: Any, seed: int
    ) -> Batches:
        if batch_sampler is not None:
            if size is not None or shuffle or sampler is not None or last is not None:
                raise InputError(
                    "batch_sampler= says all of it", where="DataLoader", hint="leave size, shuffle, sampler out"
                )
            return batch_sampler if isinstance(batch_sampler, Batches) else ListedBatches(batch_sampler)
        if size is None:
            raise InputError("no batch_size", where="DataLoader", hint="give one, or batch_sampler=")
        if sampler is None:
            count = len(self.dataset)
            sampler = RandomSampler(count, seed) if shuffle else SequentialSampler(count)
        elif shuffle:
            raise InputError("a sampler says the order", where="DataLoader", hint="leave shuffle= out")
        return BatchSampler(sampler, size, last or "keep")

    def __len__(self) -> int:
        return self.batches.count(self.epoch)

    def __iter__(self) -> Iterator[Any]:
        epoch, over = self.epoch, self._over
        self.epoch, self._over = epoch + 1, 0
        return _Epoch(self, epoch, over)

    def _makes(self) -> _Source:
        if self._source is None:
            if not self.workers:
                self._source = _Here(self._maker)
            elif self.threads:
                self._source = _Threads(self._maker, self.workers)
            else:
                depth = -(-self.prefetch // self.workers)
                self._source = Workers(self._maker, self.workers, self.start, depth)
        return self._source

    # -- the place --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place after the batches that were taken, as plain data for a checkpoint."""
        state: dict[str, Any] = {"epoch": self.epoch, "samples": 0}
        if self._place is not None:
            state = {"epoch": self._place[0], "samples": self._place[1]}
        return {**state, "seed": self.seed, "order": self.batches.digest(state["epoch"])}

    _place: tuple[int, int] | None = None  # in an epoch that is not over

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a place: the next iteration is the rest of its epoch.

        Raises InputError where the order of that epoch is another one here: other data, another sampler or seed.
        """
        try:
            epoch, samples, seed, order = int(state["epoch"]), int(state["samples"]), state["seed"], state["order"]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"no place: {error}", where="load_state", hint="give what state_dict returned") from error
        if seed != self.seed or order != self.batches.digest(epoch) or epoch < 0 or samples < 0:
            raise InputError(
                f"the place is one in another order of samples (seed {seed}, here {self.seed})",
                where="load_state",
                hint="make the loader with the data, the sampler and the seed that it had",
            )
        next(iter(self.batches.rows(epoch, samples)), None)  # raises where this is no end of a batch
        self.epoch, self._over, self._place = epoch, samples, (epoch, samples)

    load_state_dict = load_state

    # -- what it tells ----------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Time that the trainer waited for data, and for what."""
        died = self._source.died if isinstance(self._source, Workers) else 0
        return replace(self._stats, died=self._stats.died + died)

    def reset_stats(self) -> None:
        """Count from nothing."""
        now = self._source.died if isinstance(self._source, Workers) else 0
        self._stats = Stats(self.workers, self.threads, died=-now)

    def advice(self) -> str:
        """A sentence on what would make the data come faster; empty where they do not hold the trainer back."""
        return self._stats.advice(processors())

    @property
    def pids(self) -> list[int]:
        """The worker processes that run now."""
        return self._source.pids if isinstance(self._source, Workers) else []

    def close(self) -> None:
        """End the workers. Batches that somebody holds stay valid; the next iteration begins workers anew."""
        if self._source is not None:
            self._source.close()
            self._stats.died += self._source.died if isinstance(self._source, Workers) else 0
        self._source = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Epoch(Iterator[Any]):
    """One epoch of a loader: tasks are pushed ahead, and batches taken in their order."""

    def __init__(self, loader: DataLoader, epoch: int, over: int) -> None:
        self._loader, self._epoch = loader, epoch
        self._rows: Iterator[Rows] = loader.batches.rows(epoch, over)
        self._pushed: deque[tuple[int, int]] = deque()  # tasks, and the place after them
        self._source = loader._makes()
        self._over, self._taken = False, 0
        self._given = 0.0  # when the last batch was given to the trainer
        loader._place = epoch, over
        if loader.workers:
            self._push()

    def __iter__(self) -> _Epoch:
        return self

    def _push(self) -> None:
        loader = self._loader
        while len(self._pushed) <= (loader.prefetch if loader.workers else 0):
            rows = next(self._rows, None)
            if rows is None:
                return
            number = loader._number
            loader._number += 1
            self._source.push(Task(number, self._epoch, rows.places, rows.numbers))
            self._pushed.append((number, rows.after))

    def __next__(self) -> Any:
        loader, stats = self._loader, self._loader._stats
        began = perf_counter()
        if self._given:
            stats.used += began - self._given
        while True:
            if self._over:
                raise StopIteration
            self._push()
            if not self._pushed:
                self._over, self._given = True, 0.0
                if loader._place is not None and loader._place[0] == self._epoch:
                    loader._place = None
                    loader.epoch = max(loader.epoch, self._epoch + 1)
                raise StopIteration
            number, after = self._pushed.popleft()
            try:
                result = self._source.take(number, loader.timeout)
            except BaseException:
                self.close()
                raise
            self._push()
            for name, seconds in result.times.items():
                stats.stages[name] += seconds
            stats.skipped += len(result.skipped)
            stats.skipped_samples += result.skipped[: NAMED - len(stats.skipped_samples)]
            loader._place = self._epoch, after
            if result.batch is not None or result.samples:
                break
        stats.batches, stats.samples = stats.batches + 1, stats.samples + result.samples
        self._given = perf_counter()
        stats.waited += self._given - began
        WAITED.seconds += self._given - began
        if not self._taken:
            stats.first += self._given - began
        self._taken += 1
        return result.batch

    def close(self) -> None:
        """Nobody takes what is left."""
        self._over = True
        while self._pushed:
            self._source.drop(self._pushed.popleft()[0])

    def __del__(self) -> None:
        if getattr(self, "_pushed", None):
            self.close()
