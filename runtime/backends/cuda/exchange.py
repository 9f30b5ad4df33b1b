"""Emit and Await on a GPU: gradients are copied through pinned memory to the store while the backward part goes on, and
the store's results are copied back.

An Emit orders a copy on a stream of its own and goes on. The processor is far ahead of the GPU: it meets the first
Await while the backward part still runs, and hands over each value there, in the order of the Emits, as soon as its
copy is done. The store's own priorities say what travels first to others.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ....ops import Tensor
from ....ops.errors import ExecutionError
from ....ops.training.exchange import AWAIT, DOMAIN, EMIT, PART, SUM
from ....ops.types import Array
from ...compile.kernel import Alias, Call, Choice, Declined, Exchange, KernelArgs, KernelRequest, nothing
from ...ir.graph import Node
from .copy import Passing
from .driver import cupy
from .memory import pinned

ANSWER = " (answer)"  # behind the key of a mirror


class CudaExchanges:
    """Kernels of Emit and Await. Without a store both are the identity, which costs nothing if operand and result share
    their bytes."""

    name = "gpu.exchange"
    remembers = True

    def serves(self, node: Node) -> bool:
        return node.domain == DOMAIN and node.op in (EMIT, AWAIT)

    def select(self, request: KernelRequest) -> Choice | Declined:
        if not isinstance(request.inputs[0], Tensor):
            return Declined("no tensor")
        verb = str(request.node.attrs.get("verb", SUM))
        if request.node.op == EMIT:
            return Choice(self.name, aliases=(Alias(0, 0, "view"),))
        return Choice(self.name, aliases=(Alias(0, 0, "inplace"),) if verb == SUM else ())

    def prepare(self, args: KernelArgs) -> Call:
        x, out = args.inputs[0], args.outputs[0]
        node, known, store = args.node, args.request.inputs[0], args.exchange
        assert x is not None and out is not None and isinstance(known, Tensor)
        verb = str(node.attrs.get("verb", SUM))
        if node.op == AWAIT and verb != SUM:
            if store is None:
                return partial(_alone, x, out, verb, int(node.attrs.get("rank", 0)))
            assert isinstance(store, Transfer | OnDevice)
            answer = args.request.outputs[0]
            assert isinstance(answer, Tensor)
            return store.fetching(str(node.attrs["key"]), out, answer, ANSWER)
        copy = nothing if x.data.ptr == out.data.ptr or not x.nbytes else partial(_across, out, x)
        if store is None:
            return copy
        assert isinstance(store, Transfer | OnDevice)
        key = str(node.attrs["key"])
        if node.op == AWAIT:
            return store.fetching(key, out, known) if copy is nothing else _then(store.fetching(key, out, known), copy)
        send = store.sending(key, out, known, verb)  # whose bytes stay until the Await, which reads them
        return send if copy is nothing else partial(_both, copy, send)


def _across(to: Any, source: Any) -> None:
    cuda = cupy().cuda
    kind = cuda.runtime.memcpyDeviceToDevice
    cuda.runtime.memcpyAsync(to.data.ptr, source.data.ptr, source.nbytes, kind, cuda.get_current_stream().ptr)


def _alone(x: Any, out: Any, verb: str, rank: int) -> None:
    """The result of an Await without other workers: this worker's part, or the part between zeros."""
    runtime, stream = cupy().cuda.runtime, cupy().cuda.get_current_stream().ptr
    size = min(x.nbytes, out.nbytes)
    begin = rank * size
    if x.nbytes < out.nbytes:
        runtime.memsetAsync(out.data.ptr, 0, out.nbytes, stream)
        to, source = out.data.ptr + begin, x.data.ptr
    else:
        to, source = out.data.ptr, x.data.ptr + begin
    if size:
        runtime.memcpyAsync(to, source, size, runtime.memcpyDeviceToDevice, stream)


def _both(first: Call, second: Call) -> None:
    first()
    second()


def _then(first: Call, second: Call) -> Call:
    return partial(_both, first, second)


class Carrier:
    """The store behind the steps of an instance on a GPU, which `stream` runs; steps of the host speak to it too."""

    def __init__(self, store: Exchange, stream: Any) -> None:
        self._store, self._stream, self._cuda = store, stream, cupy().cuda

    @property
    def part(self) -> tuple[int, ...]:
        return self._store.part

    def buffer(self, key: str, type: Tensor) -> Array:
        return self._store.buffer(key, type)

    def emit(self, key: str, verb: str = SUM) -> None:
        self._store.emit(key, verb)

    def wait(self, key: str) -> Array:
        return self._store.wait(key)

    def sum_rows(self, key: str, ids: Array, rows: Array) -> tuple[Array, Array]:
        return self._store.sum_rows(key, ids, rows)


class OnDevice(Carrier):
    """The communicator's side of the steps of an instance: values travel from GPU to GPU, on a stream of their own.

    A call is ordered when a value is final, behind what has been ordered on the steps' stream, which waits for it at
    the Await alone: both can be part of one CUDA graph, where the communicator's calls can.
    """

    def __init__(self, store: Exchange, communicator: Any, stream: Any) -> None:
        super().__init__(store, stream)
        self._communicator = communicator
        self._calls = self._cuda.Stream(non_blocking=True)
        self._ready: dict[str, Any] = {}
        self._done: dict[str, Any] = {}
        self._answers: dict[str, Any] = {}
        self._works: dict[str, Any] = {}  # of a communicator that orders results later
        self._later = bool(getattr(communicator, "later", False))

    def emit(self, key: str, verb: str = SUM) -> None:
        raise ExecutionError("a step of the host sends what lies on a GPU", where=f"key {key!r}")

    def wait(self, key: str) -> Array:
        raise ExecutionError("a step of the host awaits what lies on a GPU", where=f"key {key!r}")

    def sending(self, key: str, x: Any, known: Tensor, verb: str = SUM) -> Call:
        """Return the call that orders what a value is sent for."""
        ready = self._ready[key] = self._cuda.Event(disable_timing=True)
        done = self._done[key] = self._cuda.Event(disable_timing=True)
        one, size = self._communicator, self._communicator.size
        if verb == SUM:
            order = partial(one.all_reduce, x, name=key, stream=self._calls)
        else:
            parts = verb == PART
            count = x.size // size if parts else x.size * size
            answer = self._answers[key] = one.empty(count, known.dtype.numpy)
            call = one.reduce_scatter if parts else one.all_gather
            order = partial(call, x, answer, name=key, stream=self._calls)

        def send() -> None:
            self._refuse_in_capture()
            ready.record(self._stream)
            self._calls.wait_event(ready)
            work = order()
            if self._later:
                self._works[key] = work
            else:
                done.record(self._calls)

        return send

    def fetching(self, key: str, out: Any, known: Tensor, mark: str = "") -> Call:
        """Return the call that has the steps' stream wait for the answer."""
        done, answer = self._done[key], self._answers.get(key)

        def fetch() -> None:
            self._refuse_in_capture()
            if self._later:
                self._works.pop(key).ordered()
                done.record(self._calls)
            self._stream.wait_event(done)
            if answer is not None:
                _across(out, answer)

        return fetch

    def forget(self) -> None:
        """Nothing of a run is left over: what has been ordered is done, or aborted."""
        self._works.clear()

    def _refuse_in_capture(self) -> None:
        if not self._communicator.capturable and self._stream.is_capturing():
            raise ExecutionError(
                f"calls over {self._communicator.kind!r} wait for other threads, and cannot be part of a CUDA graph"
            )


def carrier(store: Exchange | None, stream: Any) -> Any:
    """The carrier of the values of an instance's steps: through memory of the host to a store, or between GPUs, to
    other ranks or to other parts of the program."""
    if store is None:
        return None
    if getattr(store, "direct", False):
        return Passing(store, stream)
    communicator = getattr(store, "device", None)
    return Transfer(store, stream) if communicator is None else OnDevice(store, communicator, stream)


class Transfer(Carrier):
    """The way through memory of the host to a store."""

    def __init__(self, store: Exchange, stream: Any) -> None:
        super().__init__(store, stream)
        self._copies = self._cuda.Stream(non_blocking=True)
        self._ready = self._cuda.Event(disable_timing=True)
        self._mirrors: dict[str, Array] = {}
        self._left: dict[str, Any] = {}  # when a value is in its mirror
        self._under_way: list[tuple[str, str, Array]] = []  # keys and verbs, in order, and the store's buffers

    def sending(self, key: str, x: Any, known: Tensor, verb: str = SUM) -> Call:
        """Return the call that starts to send a value of the device."""
        mirror, buffer = self._mirror(key, known), self._store.buffer(key, known)
        left = self._left[key] = self._cuda.Event(disable_timing=True)

        def send() -> None:
            self._refuse_in_capture()
            self._copy(mirror, x, down=True)
            left.record(self._copies)
            self._hand_over(wait=False)
            self._under_way.append((key, verb, buffer))

        return send

    def fetching(self, key: str, out: Any, known: Tensor, mark: str = "") -> Call:
        """Return the call that waits for the store's answer and copies it to the device. `mark` tells the mirror of an
        answer from that of what was sent."""
        mirror = self._mirror(key + mark, known)

        def fetch() -> None:
            self._refuse_in_capture()
            self._hand_over(wait=True)
            np.copyto(mirror, self._store.wait(key))
            self._copy(mirror, out, down=False)
            self._ready.record(self._copies)
            self._stream.wait_event(self._ready)

        return fetch

    def forget(self) -> None:
        """Drop the transfers that have not been handed over: the run has ended."""
        self._copies.synchronize()
        self._under_way.clear()

    def _hand_over(self, *, wait: bool) -> None:
        """Give the store what has arrived in its mirror, in order; with `wait`, all that is under way."""
        while self._under_way:
            key, verb, buffer = self._under_way[0]
            if wait:
                self._left[key].synchronize()
            elif not self._left[key].done:
                return
            np.copyto(buffer, self._mirrors[key])
            del self._under_way[0]
            if verb == SUM:
                self._store.emit(key)
            else:
                self._store.emit(key, verb)

    def _mirror(self, key: str, known: Tensor) -> Array:
        if key not in self._mirrors:
            dtype = known.dtype.numpy
            self._mirrors[key] = pinned(known.nbytes).view(dtype).reshape(known.sizes)
        return self._mirrors[key]

    def _copy(self, mirror: Array, value: Any, *, down: bool) -> None:
        """Copy between a mirror and the device, after all earlier work on the steps' stream."""
        self._ready.record(self._stream)
        self._copies.wait_event(self._ready)
        runtime, ends = self._cuda.runtime, (value.data.ptr, mirror.ctypes.data)
        if mirror.nbytes:
            kind = runtime.memcpyDeviceToHost if down else runtime.memcpyHostToDevice
            runtime.memcpyAsync(*(reversed(ends) if down else ends), mirror.nbytes, kind, self._copies.ptr)

    def _refuse_in_capture(self) -> None:
        if self._stream.is_capturing():
            raise ExecutionError("exchange with a KVStore cannot be part of a CUDA graph")
