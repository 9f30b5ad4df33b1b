"""A communicator as the Trainer and its programs see it: gradients in flat buckets, and what ZeRO gathers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike

import numpy as np

from ..kvstore.collective.communicator import Communicator, Work
from ..ops import DType, Tensor
from ..ops.errors import ExecutionError, InputError, PeerError
from ..ops.training.exchange import ALL, PART, SUM
from ..ops.types import Array, type_of
from ..runtime.digests import blake2b
from ..runtime.optimizer import Optimizer
from .agree import LONGEST, differences, told_as
from .building import Shared
from .sharded import check

WIRES = {"fp16": DType.FLOAT16, "bf16": DType.BFLOAT16}


def wire_named(name: str | None) -> DType | None:
    """The element type of gradients on their way; None is their own."""
    if name in (None, "fp32"):
        return None
    if name not in WIRES:
        raise InputError(f"wire={name!r}", where="Trainer", hint=f"there are fp32, {', '.join(WIRES)}")
    return WIRES[name]


class Collective:
    """The communicator behind a step's Emit and Await, and what Trainers of all ranks tell each other.

    `most` is how many bytes a bucket has at most (0: by the sizes of the gradients), `wire` the element type of
    gradients on their way, and `zero` what is shared out (see `train/sharded.py`).
    """

    on_store = False
    overlap = True
    one_process = False  # whether all ranks are devices of this one, whose Trainer speaks for all

    def __init__(
        self,
        communicator: Communicator,
        *,
        zero: int = 0,
        most: int = 0,
        wire: DType | None = None,
        overlap: bool = True,
        compare_every: int = 0,
    ) -> None:
        self.communicator, self.joined = communicator, False
        self.device = communicator if communicator.on_gpus else None  # that of values on GPUs
        self.host = communicator.beside
        self.rank, self.workers = communicator.rank, communicator.size
        self.zero, self._most, self._wire, self.overlap = zero, most, wire, overlap
        self._compare_every = compare_every if self.workers > 1 else 0
        self._buffers: dict[str, Array] = {}
        self._answers: dict[str, Array] = {}
        self._works: dict[str, Work] = {}
        self._names: list[str] = []

    @property
    def shared(self) -> Shared:
        """Split of a step between ranks."""
        return Shared(
            self.workers, overlap=self.overlap, collective=True, most=self._most, wire=self._wire, zero=self.zero,
            rank=self.rank,
        )  # fmt: skip

    @property
    def part(self) -> tuple[int, ...]:
        """Part of the random key of this rank, so that each draws numbers of its own."""
        return (self.rank,) if self.workers > 1 else ()

    def join(
        self,
        parameters: Mapping[str, Array],
        optimizer: Optimizer,
        states: PathLike[str] | str | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Compare what the ranks would do, and give all the parameters of rank 0. Every rank calls it, once."""
        check(optimizer, self.zero)
        about = {**(facts or {}), "what is shared out": f"zero={self.zero}, buckets={self._most}, wire={self._wire}"}
        texts = self.gathered(np.frombuffer(told_as(about).ljust(LONGEST, b" "), np.uint8), "what the ranks do")
        if differing := differences({r: _facts(text) for r, text in enumerate(texts)}):
            raise InputError(
                f"the ranks of this job do not make the same step: {differing}",
                where=f"rank {self.rank}",
                hint="make the Trainer alike on every rank; parameters and random numbers may differ",
            )
        self._names = [*parameters]
        for name, parameter in parameters.items():
            array = np.ascontiguousarray(np.asarray(parameter))
            array = array if array.flags.writeable else array.copy()
            self.host.broadcast(array, name=name).wait()
            if array is not parameter:
                parameter[...] = array
        self.joined = True

    def compare(self, parameters: Mapping[str, Array], step: int | None = None) -> None:
        """Compare the parameters of all ranks, where it is their time: after every so many steps, and where no step is
        given. PeerError names the first that differs and the ranks."""
        every = self._compare_every
        if not every or not self.joined or (step is not None and step % every):
            return
        arrays = [np.ascontiguousarray(np.asarray(p)) for p in parameters.values()]
        digests = [int.from_bytes(blake2b(a.tobytes(), digest_size=8).digest(), "little") for a in arrays]
        rows = self.gathered(np.array(digests, np.uint64), "digests of parameters")
        for name, column in zip(parameters, rows.T, strict=True):
            numbers, counts = np.unique(column, return_counts=True)
            if len(numbers) > 1:
                others = [r for r, n in enumerate(column) if n != numbers[counts.argmax()]]
                at = "" if step is None else f" after step {step}"
                raise PeerError(
                    f"parameter {name!r} is not the same everywhere{at}: it differs on rank "
                    f"{', '.join(map(str, others))}",
                    where=f"rank {self.rank}",
                    hint="begin again from a checkpoint; memory or a processor of that rank may be broken",
                )

    def stepped(self, loss: float) -> None:
        """A step has ended. Ranks of a communicator tell nobody."""

    def watched(self, step: int) -> AbstractContextManager[None]:
        """Watch over a step on a GPU, which would wait for ever for a rank that has died."""
        return self.communicator.watched(f"step {step}")

    # -- one step ---------------------------------------------------------------------------------------------------

    def buffer(self, key: str, type: Tensor) -> Array:
        """The array in which a value travels."""
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = self.communicator.empty(type.sizes, type.dtype.numpy)
        elif type_of(buffer) != type.forget():
            raise InputError(f"the value is {type}, and was {type_of(buffer)} before", where=f"key {key!r}")
        return buffer

    def emit(self, key: str, verb: str = SUM) -> None:
        """The value is final, and begins its way."""
        if key in self._works:
            raise ExecutionError(
                "the former step ended before the others had answered",
                where=f"key {key!r}",
                hint="after an error in a step, begin again from a checkpoint",
            )
        x = self._buffers[key]
        if verb == SUM:
            self._works[key] = self.communicator.all_reduce(x, name=key)
            return
        if key not in self._answers:
            count = x.size // self.workers if verb == PART else x.size * self.workers
            self._answers[key] = self.communicator.empty(count, x.dtype)
        call = self.communicator.reduce_scatter if verb == PART else self.communicator.all_gather
        assert verb in (PART, ALL)
        self._works[key] = call(x, self._answers[key], name=key)

    def wait(self, key: str) -> Array:
        """Return what has come of a value."""
        result: Array = self._works.pop(key).wait()
        return result

    def sum_rows(self, key: str, ids: Array, rows: Array) -> tuple[Array, Array]:
        raise ExecutionError("rows do not travel over a communicator", where=f"key {key!r}")

    # -- numbers ----------------------------------------------------------------------------------------------------

    def fraction(self, size: int) -> float:
        """This rank's part of a batch, of which each rank tells how many samples it has. Where all have as many, it is
        the number that the step was made with."""
        sizes = self.gathered(np.array([size], np.int64), "sizes of shares").reshape(-1)
        if (sizes == sizes[0]).all():
            return 1 / self.workers
        return float(size / sizes.sum())

    def sizes_begin(self, size: int) -> None:
        """Shares may differ: `fraction` says what each counts."""

    def sizes_end(self, handle: object) -> None:
        pass

    def gathered(self, array: Array, name: str) -> Array:
        """The arrays of all ranks, one in each row."""
        out = np.empty(self.workers * array.size, array.dtype)
        return np.asarray(self.host.all_gather(array, out, name=name).wait()).reshape(self.workers, -1)

    def total(self, numbers: Sequence[float]) -> list[float]:
        """The sum over all ranks of each number (float64). Every rank calls it, with as many numbers."""
        if self.workers == 1:
            return list(numbers)
        place = np.array(numbers, np.float64)
        return [float(n) for n in self.host.all_reduce(place, name="totals").wait()]

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set on any rank. Every rank calls it, or the Trainer of one process for all."""
        return flag if self.one_process else self.total([float(flag)])[0] > 0

    def drop_losses(self) -> None:
        """Nothing is compressed."""

    def keep_losses(self) -> dict[str, Array]:
        return {}

    def give_losses(self, lost: Mapping[str, Array]) -> None:
        """A checkpoint of a store may have some: they are left out."""

    def barrier(self) -> None:
        """Return when every rank is here."""
        self.communicator.barrier()


def _facts(text: Array) -> dict[str, str]:
    facts: dict[str, str] = json.loads(text.tobytes())
    return facts
