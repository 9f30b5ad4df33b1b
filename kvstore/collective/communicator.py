"""The interface of communicators, and the checks that all of them make before a call leaves its rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from ...ops.errors import InputError, MezzoError, ShapeError
from .calls import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, RECEIVE, REDUCE_SCATTER, SEND, Call

FLOATS = ("float16", "bfloat16", "float32", "float64")
SUMMED = (*FLOATS, "int32", "int64")


class Work(Protocol):
    """A call under way. The arrays belong to the communicator until `wait` has returned."""

    def wait(self) -> Any:
        """The result, in its array. Raises the error of the call: a DeadlineError or a PeerError names the ranks that
        caused it."""
        ...


class Communicator(ABC):
    """`size` ranks that call the same operations in the same order, each with arrays of the same number of elements.

    Calls return at once; `wait` of what they return ends them, and calls of one rank end in their order. No wait is
    longer than `deadline` seconds. A rank that dies, is late, or calls something else ends the communicator on all
    ranks, with an error that names it; there is no way on after that. Arrays are in one piece; sums are of float16,
    bfloat16, float32, float64, int32 or int64. Every rank gives a call the same `name`, which errors tell; `stream` is
    that of a GPU on which the operand was written.
    """

    kind = ""
    on_gpus = False  # whether its arrays lie there, and its calls are work on streams
    capturable = True  # whether such a call can be part of a CUDA graph
    later = False  # whether results are ordered on streams later: `ordered` of the work waits for that

    def __init__(self, rank: int, size: int, deadline: float) -> None:
        if not 0 <= rank < size:
            raise InputError(f"there is no rank {rank} of {size}", where="Communicator")
        if not deadline > 0:
            raise InputError(f"deadline={deadline} is no number of seconds above 0", where="Communicator")
        self.rank, self.size, self.deadline = rank, size, deadline
        self.failure: MezzoError | None = None
        self.closed = False

    @property
    def where(self) -> str:
        """This rank, in messages."""
        return f"rank {self.rank} of {self.size} ({self.kind})"

    # -- operations

    def all_reduce(self, x: Any, *, name: str = "", stream: Any = None) -> Work:
        """Replace `x` by the sum over all ranks, in their order."""
        self._summed(x, ALL_REDUCE)
        return self._call(Call(ALL_REDUCE, self._checked(x, ALL_REDUCE, True), x.size, name=name), x, x, stream)

    def reduce_scatter(self, x: Any, out: Any, *, name: str = "", stream: Any = None) -> Work:
        """Write this rank's part of the sum over all ranks: `x` has `size` parts of as many elements as `out`."""
        self._summed(x, REDUCE_SCATTER)
        dtype = self._checked(x, REDUCE_SCATTER)
        self._fits(REDUCE_SCATTER, x, out.size * self.size, out)
        return self._call(Call(REDUCE_SCATTER, dtype, x.size, name=name), x, out, stream)

    def all_gather(self, x: Any, out: Any, *, name: str = "", stream: Any = None) -> Work:
        """Write the arrays of all ranks behind each other into `out`."""
        dtype = self._checked(x, ALL_GATHER)
        self._fits(ALL_GATHER, out, x.size * self.size, out, x)
        return self._call(Call(ALL_GATHER, dtype, x.size, name=name), x, out, stream)

    def broadcast(self, x: Any, root: int = 0, *, name: str = "", stream: Any = None) -> Work:
        """Replace `x` by the `x` of rank `root`."""
        self._rank(root, BROADCAST)
        dtype = self._checked(x, BROADCAST, root != self.rank)
        return self._call(Call(BROADCAST, dtype, x.size, root, name), x, x, stream)

    def send(self, x: Any, to: int, *, name: str = "", stream: Any = None) -> Work:
        """Send `x` to one rank, which calls `receive`. Sends to a rank arrive in their order."""
        self._other(to, SEND)
        return self._call(Call(SEND, self._checked(x, SEND), x.size, to, name), x, x, stream)

    def receive(self, x: Any, source: int, *, name: str = "", stream: Any = None) -> Work:
        """Replace `x` by what one rank sends."""
        self._other(source, RECEIVE)
        return self._call(Call(RECEIVE, self._checked(x, RECEIVE, True), x.size, source, name), x, x, stream)

    def barrier(self, name: str = "") -> None:
        """Return when every rank has called it."""
        nobody = np.empty(0, np.uint8)
        self._call(Call(BARRIER, name=name), nobody, nobody, None).wait()

    @property
    def beside(self) -> Communicator:
        """The communicator of the same ranks for arrays in memory of the host."""
        return self

    def watched(self, what: str = "a step") -> AbstractContextManager[None]:
        """A context around a wait outside the communicator, such as that for a captured step: if a rank has died, it
        ends with an error instead of waiting for ever."""
        return nullcontext()

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> Any:
        """An array of zeros that the other ranks read where it lies, where there is such memory."""
        return np.zeros(shape, dtype)

    # -- the end

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the communicator on all ranks, with this reason. Any thread may call it; calls under way fail."""

    @abstractmethod
    def close(self) -> None:
        """Leave. The other ranks may go on with what needs nothing from this one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.failure is None and not self.closed:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    # -- for implementations

    @abstractmethod
    def _start(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        """Begin a call that has been checked."""

    def _call(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        self._alive(str(call))
        return self._start(call, x, out, stream)

    def _alive(self, what: str) -> None:
        if self.failure is not None:
            raise type(self.failure)(
                f"{what} after the communicator has ended: {self.failure.message}",
                where=self.where,
                hint="begin again from a checkpoint, with a new communicator",
            )
        if self.closed:
            raise InputError(f"{what} after close()", where=self.where, hint="close it when the work is done")

    def _rank(self, rank: int, verb: str) -> None:
        if not 0 <= rank < self.size:
            raise InputError(f"{verb}: there is no rank {rank} of {self.size}", where=self.where)

    def _other(self, rank: int, verb: str) -> None:
        self._rank(rank, verb)
        if rank == self.rank:
            raise InputError(f"{verb}: rank {rank} is this one", where=self.where, hint="copy the array")

    def _summed(self, x: Any, verb: str) -> None:
        if str(x.dtype) not in SUMMED:
            raise InputError(
                f"{verb} of {x.dtype}: there are sums of {', '.join(SUMMED)}", where=self.where, hint="cast it first"
            )

    def _checked(self, x: Any, verb: str, writes: bool = False) -> str:
        """The name of an array's element type. Raises InputError for an array that calls do not take."""
        if not x.flags.c_contiguous:
            raise InputError(
                f"{verb} of an array of shape {list(x.shape)} that is not in one piece", where=self.where,
                hint="give np.ascontiguousarray of it",
            )  # fmt: skip
        if writes and isinstance(x, np.ndarray) and not x.flags.writeable:
            raise InputError(f"{verb} into an array that is read-only", where=self.where, hint="give a copy")
        return str(x.dtype)

    def _fits(self, verb: str, whole: Any, count: int, out: Any, x: Any = None) -> None:
        part = "the result" if x is None else "the operand"
        few = out if x is None else x
        if whole.size != count or whole.dtype != few.dtype:
            raise ShapeError(
                f"{verb}: {self.size} times {part}, {few.dtype}[{few.size}], is not {whole.dtype}[{whole.size}]",
                where=self.where,
                hint="pad what does not divide",
            )
        self._checked(out, verb, True)
        if isinstance(whole, np.ndarray) and isinstance(few, np.ndarray) and np.may_share_memory(whole, few):
            raise InputError(f"{verb}: operand and result share memory", where=self.where, hint="give another array")


class EndedWork:
    """Work that ended at once."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def ordered(self) -> None:
        """Return at once: there is nothing to order on a stream."""

    def wait(self) -> Any:
        return self.value


class Alone(Communicator):
    """The communicator of one rank, to which every call is a copy.

    >>> Alone().all_reduce(np.ones(2)).wait()
    array([1., 1.])
    """

    kind = "alone"

    def __init__(self, copy: Callable[[Any, Any], None] = np.copyto) -> None:
        super().__init__(0, 1, 1.0)
        self._copy = copy

    def _start(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        if out is not x:
            self._copy(out.reshape(-1), x.reshape(-1))
        return EndedWork(out)

    def abort(self, reason: str) -> None:
        self.failure = MezzoError(reason, where=self.where)

    def close(self) -> None:
        self.closed = True


class Planned(Communicator):
    """Rank 0 of `size` ranks that do not exist: programs are planned for it, and none runs.

    >>> Planned(8).size
    8
    """

    kind = "planned"

    def __init__(self, size: int) -> None:
        super().__init__(0, size, 1.0)

    def _start(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        raise InputError(f"{call} of ranks that are not there", where=self.where, hint="it is for plans alone")

    def abort(self, reason: str) -> None:
        self.failure = MezzoError(reason, where=self.where)

    def close(self) -> None:
        self.closed = True
