"""Copies from GPU to GPU between the parts of a program: who reads a value orders the copy on its own stream, behind
what makes it on the other GPU."""

from __future__ import annotations

from typing import Any, cast

from ...compile.kernel import Call, KernelArgs
from ...compile.parts import CopyKernel
from .driver import cupy, reach


class Passing:
    """The passage between devices, for the steps of an instance that `stream` runs."""

    def __init__(self, passage: Any, stream: Any) -> None:
        self.put, self.take, self.stream = passage.put, passage.take, stream

    def forget(self) -> None:
        """Nothing of a run is left over: the passage forgets it with the next."""


class CudaCopies(CopyKernel):
    """Copies on the streams of GPUs, with an event for who reads."""

    def prepare(self, args: KernelArgs) -> Call:
        (out,), key, passing = args.outputs, str(args.node.attrs["key"]), cast(Passing, args.exchange)
        cuda, stream, given = cupy().cuda, passing.stream, cast(Any, args.inputs)
        y: Any = out
        if given:
            (x,) = given
            there = cuda.Event(disable_timing=True)

            def send() -> None:
                if x.data.ptr != y.data.ptr and x.nbytes:
                    kind = cuda.runtime.memcpyDeviceToDevice
                    cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, x.nbytes, kind, stream.ptr)
                there.record(stream)
                passing.put(key, (y, there))

            return send
        here, reached = y.device.id, set[int]()

        def receive() -> None:
            source, there = passing.take(key)
            stream.wait_event(there)
            if y.nbytes:
                if source.device.id not in reached:
                    reached.add(source.device.id)
                    reach(here, source.device.id)
                ends = y.data.ptr, here, source.data.ptr, source.device.id
                cuda.runtime.memcpyPeerAsync(*ends, y.nbytes, stream.ptr)

        return receive
