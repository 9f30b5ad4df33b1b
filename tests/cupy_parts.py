"""Parts of the stand-in for CuPy that hang on its state: events, graphs, modules, kernels, devices, pools."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mezzo.runtime.backends.cuda.launch import Source

from .stream_order import Span, written_by

if TYPE_CHECKING:
    from .cupy_standin import Standin, Stream


class CUDARuntimeError(RuntimeError):
    """As CuPy's: the name of a status of CUDA, and words."""


class OutOfMemoryError(MemoryError):
    """As CuPy's."""


class Hook:
    """Is told of allocations while it is entered, as CuPy's MemoryHook."""

    standin: Standin

    def __enter__(self) -> Self:
        self.standin.hooks.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.standin.hooks.remove(self)


class Event:
    """Where a stream was when it was recorded."""

    def __init__(self, standin: Standin) -> None:
        self._standin = standin
        self.seen: dict[Stream, int] = {}
        self.at, self.device = 0.0, standin.device
        self.on: Stream | None = None
        self.until = 0
        self.captured = False

    def record(self, stream: Stream | None = None) -> None:
        on = stream or self._standin._current[-1]
        if not on.null and on.device != self.device:
            raise CUDARuntimeError("cudaErrorInvalidResourceHandle: an event and a stream of two devices")
        root = self._standin._capturing
        self.captured = root is not None and (root is on or on in root.forked)
        if self.captured:  # it is part of the graph, and happens whenever that is launched
            assert root is not None
            if on is not root:
                root.forked[on] = self
            root.recorded.append((lambda: self._happen(on), "record"))
            return
        self._happen(on)

    def _happen(self, on: Stream) -> None:
        self.at, self.on, self.until, self.seen = self._standin.clock, on, on.issued, dict(on.seen)

    def finish(self) -> None:
        """Do all that was asked of its stream before."""
        if self.on is not None:
            self._standin.flush(self.on, self.until)

    @property
    def done(self) -> bool:
        """No and yes by turns: a program has to do with either answer."""
        self._standin.refuse_in_capture("asking an event")
        self._standin.over = over = not self._standin.over
        if not over:
            self.finish()
            self._standin.order.waited(self.seen)
        return not over

    def synchronize(self) -> None:
        self._standin.host_waits(self)


class Graph:
    """What was recorded; `nodes` names it."""

    def __init__(self, standin: Standin, recorded: Sequence[tuple[Callable[[], None], str]]) -> None:
        self._standin, self._recorded = standin, list(recorded)
        self.nodes = [what for _, what in recorded]

    def upload(self, stream: Stream) -> None:
        self._standin.say("upload", "", 0, stream)

    def launch(self, stream: Stream) -> None:
        self._standin.belongs(stream.device, "a graph is launched on a stream")
        self._standin.say("graph", f"{len(self.nodes)} nodes", 0, stream)
        with self._standin._busy:
            for action, _ in self._recorded:
                action()


class Module:
    """A module whose image is the name of a source."""

    def __init__(self, standin: Standin) -> None:
        self._standin = standin

    def load(self, image: bytes) -> None:
        self._standin.refuse_in_capture("loading a module")
        self._standin.say("load", image.decode())
        self._device = self._standin.device

    def get_function(self, name: str) -> Function:
        return Function(self._standin, name, self._device)


class Function:
    """A kernel: run through the shim, or only recorded."""

    def __init__(self, standin: Standin, name: str, device: int = 0) -> None:
        self._standin, self.name, self.ptr, self._device = standin, name, 1, device

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_mem: int = 0,
        stream: Stream | None = None,
    ) -> None:  # fmt: skip
        standin, on, threads = self._standin, stream or self._standin._current[-1], block
        assert all(isinstance(a, np.generic) for a in args), f"{self.name}: operands are numbers of a width"
        standin.belongs(self._device, f"the kernel {self.name}")
        if not on.null:
            standin.belongs(on.device, "a stream")

        def launch() -> None:
            spans: dict[bool, list[Span]] = {False: [], True: []}
            for a, written in zip(args, written_by(standin.sources[self.name].text), strict=True):
                held = standin.block_of(int(a)) if a.dtype == np.uint64 else None
                if held is not None:
                    standin.belongs(standin._owners[held.ctypes.data], f"{self.name} is given memory")
                    spans[written].append((int(a), int(a) + 1))
            standin.touch(on, spans[False], spans[True])
            standin.say("launch", self.name, 0, on)
            if standin.computes:
                source = standin.sources[self.name]
                standin.later(on, lambda: run(source, grid, threads, args, shared_mem))

        standin.submit(on, launch, self.name)


def run(source: Source, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared: int) -> None:
    """One launch on the processor, through the shim."""
    from .cuda_shim import _LOADED, load

    load([source])
    kernel = _LOADED[source.name]
    assert len(args) == len(kernel.sizes), f"{source.name} has {len(kernel.sizes)} parameters"
    assert int(np.prod(block)) <= kernel.most, f"{source.name}: more threads than its launch bounds, {kernel.most}"
    held = [ctypes.create_string_buffer(a.tobytes(), 16) for a in args]
    pointers = (ctypes.c_void_p * max(1, len(held)))(*(ctypes.addressof(h) for h in held))
    three = ctypes.c_uint * 3
    said = kernel.library.mz_run(kernel.number, pointers, three(*grid), three(*block), shared, next(_ORDERS))
    assert said is None, f"{source.name}: {said.decode()}"


_ORDERS = itertools.count(2)  # no two launches have one order of threads


class Device:
    """A device, which is the thread's current one while it is entered."""

    def __init__(self, standin: Standin, index: int = 0) -> None:
        if index >= standin.devices:
            raise CUDARuntimeError(f"cudaErrorInvalidDevice: there are {standin.devices}")
        self.id, self._standin, self._before = index, standin, list[int]()

    def __enter__(self) -> Self:
        self._before.append(self._standin.device)
        self._standin._here.device = self.id
        return self

    def __exit__(self, *_: object) -> None:
        self._standin._here.device = self._before.pop()

    def synchronize(self) -> None:
        """Wait for all that was asked of this device, and of others."""
        self._standin.host_waits()


class Pool:
    """The figures of CuPy's memory pool."""

    def __init__(self, standin: Standin) -> None:
        self._standin = standin

    def total_bytes(self) -> int:
        return self._standin.used

    used_bytes = total_bytes

    def free_bytes(self) -> int:
        return 0

    n_free_blocks = free_bytes


class Refusing:
    """A part of CuPy that cannot be captured."""

    def __init__(self, standin: Standin, name: str) -> None:
        self._standin, self._name = standin, name

    def __getattr__(self, name: str) -> Any:
        if self._standin._capturing is not None:
            raise NotImplementedError(f"{self._name}.{name} during stream capture is not supported")
        raise AttributeError(name)
