"""Communicators of GPUs, over NCCL by way of CuPy, which is imported when the first one is made.

Calls are work on a stream: they return when they have been ordered, and wait for nothing, so that they can be part of a
CUDA graph. Nothing of NCCL ends by itself when a rank dies: a thread looks at its errors, at the other ranks (over the
communicator of their host, `beside`) and at the clock, and aborts what hangs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from threading import Event, Thread
from typing import Any

import numpy as np

from ...ops.errors import DeadlineError, ExecutionError, MezzoError, MissingPackage, PeerError
from ...runtime.backends.cuda.driver import cupy
from .calls import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, RECEIVE, REDUCE_SCATTER, SEND, Call
from .communicator import Communicator, Work
from .gpu_sums import add_up
from .sums import shares

# Element types as NCCL numbers them (ncclDataType_t).
TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9,
}  # fmt: skip
SUM = 0  # ncclRedOp_t
UNIQUE_ID = 128  # bytes
PAUSE = 0.02  # seconds between looks


def nccl() -> Any:
    """CuPy's module of NCCL. MissingPackage names the line that installs it."""
    cupy()
    why = "libnccl.so.2 is not there"
    try:
        with warnings.catch_warnings():  # CuPy warns where the library is missing, and gives an empty module
            warnings.simplefilter("ignore")
            module = import_module("cupy.cuda.nccl")
    except ImportError as error:
        why, module = str(error), None
    if not hasattr(module, "NcclCommunicator"):
        raise MissingPackage(f"NCCL cannot be loaded: {why}", where="nccl",
                             hint="pip install 'mezzo[multi-gpu]' beside 'mezzo[cuda13]'")  # fmt: skip
    return module


class Nccl(Communicator):
    """One rank, on one GPU. `beside` is a communicator of the same ranks over memory of the host: it carries NCCL's
    unique identifier and the barriers, and knows which ranks have died. With `deterministic` sums are taken in the
    order of the ranks, by sends and additions, which moves no more bytes and keeps a copy of each operand on the GPU.
    """

    kind = "nccl"
    on_gpus = True

    def __init__(
        self, beside: Communicator, device: int = 0, deadline: float | None = None, deterministic: bool = False
    ) -> None:
        super().__init__(beside.rank, beside.size, beside.deadline if deadline is None else deadline)
        self._beside, self.device, self._deterministic = beside, device, deterministic
        library, cp = nccl(), cupy()
        self._library, self._cp = library, cp
        self._parts: dict[tuple[int, str], Any] = {}
        number = np.zeros(UNIQUE_ID, np.uint8)
        if self.rank == 0:
            unique_id = bytes(b & 0xFF for b in library.get_unique_id())  # older versions give numbers with a sign
            number[: len(unique_id)] = np.frombuffer(unique_id, np.uint8)
        beside.broadcast(number, name="the number of a communicator").wait()
        self._comm: Any = None
        failure: list[BaseException] = []

        def begin() -> None:
            try:
                with cp.cuda.Device(device):
                    self._comm = library.NcclCommunicator(self.size, number.tobytes(), self.rank)
            except BaseException as error:
                failure.append(error)

        thread = Thread(target=begin, name="mezzo nccl", daemon=True)  # it waits for all ranks, for ever
        thread.start()
        thread.join(self.deadline)
        if failure:
            hint = "NCCL_DEBUG=INFO tells more; each rank needs a GPU of its own"
            raise ExecutionError(f"NCCL does not begin: {failure[0]}", where=self.where, hint=hint) from failure[0]
        if self._comm is None:
            raise DeadlineError(f"NCCL did not begin within {self.deadline:g} s{self._lost()}", where=self.where,
                                hint="see `mezzo doctor --gpu`; a longer wait is deadline=")  # fmt: skip

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> Any:
        with self._cp.cuda.Device(self.device):
            array = self._cp.empty(shape, dtype)
            array.data.memset_async(0, array.nbytes)
            self._cp.cuda.get_current_stream().synchronize()  # other streams do not wait for this one
        return array

    def barrier(self, name: str = "") -> None:
        """Return when every rank has called it, and what it ordered before is done."""
        self._alive(BARRIER)
        self._cp.cuda.Device(self.device).synchronize()
        self._beside.barrier(name)

    def abort(self, reason: str) -> None:
        self._end(PeerError(reason, where=self.where))
        self._beside.abort(reason)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.failure is None:
                self._comm.destroy()
            self._beside.close()

    @property
    def beside(self) -> Communicator:
        """The communicator of the same ranks over memory of the host."""
        return self._beside

    # -- calls

    def _start(self, call: Call, x: Any, out: Any, stream: Any) -> Work:
        stream = self._cp.cuda.get_current_stream() if stream is None else stream
        if call.count:
            try:
                with self._cp.cuda.Device(self.device):
                    self._order(call, x, out, stream.ptr)
            except Exception as error:
                self.abort(f"rank {self.rank}: {call} failed: {error}")
                raise ExecutionError(f"{call} failed: {error}", where=self.where) from error
        return NcclWork(self, call, x, out, stream)

    def _order(self, call: Call, x: Any, out: Any, stream: int) -> None:
        comm, kind, count = self._comm, TYPES[call.dtype], call.count
        source, to, itemsize = x.data.ptr, out.data.ptr, np.dtype(x.dtype).itemsize
        if call.verb in (ALL_REDUCE, REDUCE_SCATTER) and self._deterministic and self.size > 1:
            self._in_order(call, source, to, itemsize, stream)
        elif call.verb == ALL_REDUCE:
            comm.allReduce(source, to, count, kind, SUM, stream)
        elif call.verb == REDUCE_SCATTER:
            comm.reduceScatter(source, to, count // self.size, kind, SUM, stream)
        elif call.verb == ALL_GATHER:
            comm.allGather(source, to, count, kind, stream)
        elif call.verb == BROADCAST:
            comm.broadcast(source, to, count, kind, call.root, stream)
        elif call.verb == SEND:
            comm.send(source, count, kind, call.root, stream)
        elif call.verb == RECEIVE:
            comm.recv(to, count, kind, call.root, stream)

    def _in_order(self, call: Call, source: int, to: int, itemsize: int, stream: int) -> None:
        """Add up this rank's part in the order of the ranks, and for an all_reduce send it to all ranks."""
        parts, kind, ranks = shares(call.count, self.size), TYPES[call.dtype], range(self.size)
        sizes = [part.stop - part.start for part in parts]
        mine, key = sizes[self.rank], (call.count, call.dtype)
        if key not in self._parts:
            self._parts[key] = self.empty(mine * (self.size + 1), np.dtype(_numpy(call.dtype)))
        place = self._parts[key]
        at, comm = place.data.ptr, self._comm
        total = at + mine * self.size * itemsize if call.verb == ALL_REDUCE else to
        with self._together():
            for r in ranks:
                _some(comm.send, source + parts[r].start * itemsize, sizes[r], kind, r, stream)
                _some(comm.recv, at + r * mine * itemsize, mine, kind, r, stream)
        if mine:
            with self._cp.cuda.ExternalStream(stream):
                add_up(place[: mine * self.size], total, self.size, self.device)
        if call.verb == ALL_REDUCE:
            with self._together():
                for r in ranks:
                    _some(comm.send, total, mine, kind, r, stream)
                    _some(comm.recv, to + parts[r].start * itemsize, sizes[r], kind, r, stream)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Calls that NCCL begins all at once."""
        self._library.groupStart()
        try:
            yield
        finally:
            self._library.groupEnd()

    # -- the others

    def _alive(self, what: str) -> None:
        if self.failure is None and not self.closed:
            try:
                self._beside._alive(what)
            except MezzoError as error:
                self._end(error)
                raise
        super()._alive(what)

    def wait_for(self, done: Callable[[], bool], what: str) -> None:
        """Wait until work of a GPU is done. Raises what ends the communicator before: an error of NCCL, a rank that has
        died, or the deadline."""
        end = time.monotonic() + self.deadline
        pause = 1e-5
        while not done():
            self._look(what, end)
            time.sleep(pause)
            pause = min(2 * pause, PAUSE)

    @contextmanager
    def watched(self, what: str = "a step") -> Iterator[None]:
        """Watch over work that somebody else waits for, such as a captured step: what hangs is aborted, so that the
        wait ends, and the error says why."""
        over = Event()

        def watch() -> None:
            end = time.monotonic() + self.deadline
            while not over.wait(PAUSE):
                try:
                    self._look(what, end)
                except MezzoError:
                    return

        thread = Thread(target=watch, name="mezzo nccl watch", daemon=True)
        thread.start()
        try:
            yield
        except Exception as error:
            if self.failure is not None and error is not self.failure:
                raise self.failure from error
            raise
        finally:
            over.set()
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _look(self, what: str, end: float) -> None:
        if self.failure is not None:
            raise self.failure
        error: MezzoError | None = None
        try:
            self._comm.check_async_error()
        except Exception as failure:
            error = PeerError(f"NCCL failed in {what}: {failure}{self._lost()}", where=self.where,
                              hint="NCCL_DEBUG=INFO tells more")  # fmt: skip
        beside = self._beside
        if error is None and (beside.failure is not None or self._lost()):
            why = self._lost().removeprefix("; ") if beside.failure is None else beside.failure.message
            error = PeerError(f"{why} before {what} ended", where=self.where, hint="its own output says why")
        if error is None and time.monotonic() >= end:
            error = DeadlineError(
                f"{what} did not end within {self.deadline:g} s{self._lost()}", where=self.where,
                hint="a rank is frozen, or takes another path; a longer wait is deadline=",
            )  # fmt: skip
        if error is not None:
            self._end(error)
            beside.abort(error.message)
            raise error

    def _lost(self) -> str:
        lost = getattr(self._beside, "lost", "")
        return f"; {lost}" if lost else ""

    def _end(self, error: MezzoError) -> None:
        if self.failure is None:
            self.failure = error
            self._comm.abort()  # kernels that wait for other ranks end


class NcclWork:
    """A call that has been ordered on a stream."""

    def __init__(self, communicator: Nccl, call: Call, x: Any, out: Any, stream: Any) -> None:
        self._communicator, self._call, self._out = communicator, call, out
        self._operand = x  # whose memory is nobody else's until then
        capturing = stream.is_capturing() if hasattr(stream, "is_capturing") else False
        self._done = None if capturing else stream.record(communicator._cp.cuda.Event(disable_timing=True))

    def wait(self) -> Any:
        """Wait until the work is done, and return the result. A captured call is not waited for: whoever launches its
        graph does that."""
        if self._done is not None:
            self._communicator.wait_for(partial(getattr, self._done, "done"), str(self._call))
        return self._out


def _some(call: Callable[..., None], address: int, count: int, *about: int) -> None:
    if count:
        call(address, count, *about)


def _numpy(name: str) -> Any:
    if name != "bfloat16":
        return name
    from ...ops import DType

    return DType.BFLOAT16.numpy
