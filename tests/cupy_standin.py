"""A recording stand-in for CuPy, for machines without a GPU. It is no GPU: what it runs, the processor runs.

    standin = Standin()
    standin.install(monkeypatch)         # `import cupy` finds it; device("gpu:0") is an sm_90 that is not there
    ... a session on "gpu:0" ...
    standin.log                          # what was asked, in order: Launch, Copy, Sync, Alloc, ...

Arrays lie in memory of the host, at addresses that count as the device's. It refuses during capture what
reference/gpu.md says that CuPy refuses or that CUDA does: synchronising, copies to pageable memory, allocation, the
default stream, cuBLAS on a stream, random numbers. It counts allocations and host synchronisations, and finds the use
of bytes that another stream has not finished with (`standin.races`, of stream_order.py).

Kernels run through tests/cuda_shim.py where `computes` is set, and are only recorded otherwise, each as late as the
rules of streams allow: when the host waits for them, or a stream does that the host waits for. What is read before, on
the host or by another stream, shows what stood there before. Images that are loaded are the sources themselves:
nothing is compiled for a GPU here.

There may be several devices, of which each thread has a current one: kernels, streams, events, modules and memory
belong to one, and the use of another's is refused. CAPTURE says which calls a capture allows.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import ModuleSpec
from typing import Any, Self

import numpy as np
import pytest

from mezzo.runtime.backends.cuda import driver
from mezzo.runtime.backends.cuda.launch import Source

from .cupy_parts import CUDARuntimeError, Device, Event, Graph, Hook, Module, OutOfMemoryError, Pool, Refusing
from .stream_order import Order

Array = np.ndarray[Any, Any]
MODES = {"streamCaptureModeGlobal": 0, "streamCaptureModeThreadLocal": 1, "streamCaptureModeRelaxed": 2}
KINDS = {"memcpyHostToDevice": 1, "memcpyDeviceToHost": 2, "memcpyDeviceToDevice": 3}


# Calls that a capture of the thread's own mode refuses, with what CUDA (or CuPy) has against them; others are recorded,
# or only ask the host. https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs
CAPTURE = {
    "allocation": "cudaMalloc waits for the device",
    "allocating pinned memory": "cudaHostAlloc waits for the device",
    "synchronising": "what is captured has not run",
    "asking an event": "what is captured has not run",
    "loading a module": "cuModuleLoad may wait for the device",
    "making a stream": "",
    "making an event": "",
    "setting an attribute": "",
    "copying pageable memory": "cudaMemcpyAsync waits for it",
    "cudnnCreate": "it allocates",
    "cudnnSetStream": "",
    "cudnn: building plans": "kernels are loaded",
    "cublasLtCreate": "it allocates",
    "cublasLtMatmulAlgoGetHeuristic": "",
}


@dataclass(frozen=True, slots=True)
class Done:
    """What happened: `what` is launch, copy, sync, alloc, graph, pinned, load or capture."""

    what: str
    detail: str = ""
    nbytes: int = 0
    stream: int = 0


@dataclass
class Standin:
    """The state of a device that is not there. `memory` is how many bytes it has; `computes` runs kernels and copies,
    which are only recorded otherwise; `quick` compiles kernels without optimising them: where there are many."""

    computes: bool = False
    memory: int = 1 << 30
    devices: int = 1
    quick: bool = False
    log: list[Done] = field(default_factory=list)
    order: Order = field(default_factory=Order)
    fault: str = ""  # of a kernel that has failed: whoever waits is told
    over: bool = False  # what an event that is asked says next
    clock: float = 0.0  # milliseconds, which stand-ins for libraries let pass
    _blocks: dict[int, Array] = field(default_factory=dict)
    _owners: dict[int, int] = field(default_factory=dict)  # the device of each block
    _pins: list[Any] = field(default_factory=list)
    _gone: list[Array] = field(default_factory=list)  # blocks that were freed while streams still had work
    _streams: list[Stream] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1000))  # of streams
    _here: threading.local = field(default_factory=threading.local)  # what a thread captures, its streams, allocators
    _busy: threading.RLock = field(default_factory=threading.RLock)  # the shim runs one kernel at a time
    hooks: list[Any] = field(default_factory=list)
    sources: dict[str, Source] = field(default_factory=dict)
    reached: set[tuple[int, int]] = field(default_factory=set)  # who may read whose memory
    library: dict[str, Any] = field(default_factory=dict)  # what stands in for other modules, recorded alike

    def __post_init__(self) -> None:
        self._changed = threading.Condition(self._busy)
        self.null = Stream(null=True, standin=self)

    @property
    def _current(self) -> list[Stream]:
        if not hasattr(self._here, "current"):
            self._here.current = [self.null]
        return self._here.current  # type: ignore[no-any-return]

    @property
    def _allocators(self) -> list[Callable[[int], Any]]:
        if not hasattr(self._here, "allocators"):
            self._here.allocators = []
        return self._here.allocators  # type: ignore[no-any-return]

    @property
    def _capturing(self) -> Stream | None:
        return getattr(self._here, "capturing", None)

    @_capturing.setter
    def _capturing(self, stream: Stream | None) -> None:
        self._here.capturing = stream

    # -- for tests --------------------------------------------------------------------------------------------------

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let `import cupy` find this, and forget it when the test ends."""
        from mezzo.runtime import devices

        for name, module in self.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(devices, "DEVICES", {n: d for n, d in devices.DEVICES.items() if not n.startswith("gpu")})
        monkeypatch.setattr(driver, "LOADED", driver._Loaded())
        monkeypatch.setattr("mezzo.runtime.backends.cuda.instance.LOADED", driver.LOADED)
        monkeypatch.setattr(driver, "compiled", self._compiled)

    @property
    def races(self) -> list[str]:
        """Who has taken what another had not finished with."""
        return self.order.races

    @property
    def used(self) -> int:
        """Bytes in blocks."""
        return sum(block.nbytes for block in list(self._blocks.values()))

    def count(self, what: str) -> int:
        """How often something has happened."""
        return sum(e.what == what for e in self.log)

    def _compiled(self, sources: Any, arch: str) -> dict[str, bytes]:
        found = {}
        for source in sources:
            assert self.sources.setdefault(source.name, source).text == source.text, f"two texts: {source.name}"
            found[source.name] = source.name.encode()
        if self.computes:  # together, which takes a tenth of the time
            from .cuda_shim import load

            load([self.sources[name] for name in found], quick=self.quick)
        return found

    # -- what happens ------------------------------------------------------------------------------------------------

    def say(self, what: str, detail: str = "", nbytes: int = 0, stream: Stream | None = None) -> None:
        self.log.append(Done(what, detail, nbytes, stream.ptr if stream else 0))

    @property
    def device(self) -> int:
        """This thread's current device."""
        return getattr(self._here, "device", 0)

    def refuse_in_capture(self, what: str) -> None:
        """As CUDA does, where CAPTURE says so: the capture is spoilt, too."""
        refused = CAPTURE.get(what.partition(" on the default stream")[0], "the default stream") != ""
        if self._capturing is not None and refused:
            self._capturing.spoilt = True
            raise CUDARuntimeError(f"cudaErrorStreamCaptureUnsupported: {what} while a stream is captured")

    def later(self, stream: Stream, work: Callable[[], object]) -> None:
        """What a stream does when it must: see `flush`."""
        stream.waiting.append(work)
        stream.issued += 1

    def flush(self, stream: Stream, until: int) -> None:
        """Let a stream do what was asked of it, up to so many things; and others before, for which it waits."""
        me = threading.get_ident()
        with self._busy:
            while stream.done < until:
                before = stream.runner
                if before not in (0, me):  # a thread is at it, which waits for others
                    self.wait_for_others()
                    continue
                work, stream.runner = stream.waiting.popleft(), me
                try:
                    work()
                finally:
                    stream.done += 1
                    stream.runner = before
                    self._changed.notify_all()
            if self._gone and not any(s.waiting for s in (*self._streams, self.null)):
                self._gone.clear()

    def wait_for_others(self) -> None:
        """Let other threads go on, until one has done something."""
        assert self._changed.wait(60), "all threads wait for each other"

    def belongs(self, device: int, what: str) -> None:
        if device != self.device:
            raise CUDARuntimeError(
                f"cudaErrorInvalidResourceHandle: {what} of gpu:{device} while gpu:{self.device} is current"
            )

    def submit(self, stream: Stream, action: Callable[[], None], what: str) -> None:
        """Ask something of a stream now, or with the graph that is being captured."""
        root = self._capturing
        if root is not None and (root is stream or stream in root.forked):
            root.recorded.append((action, what))
            if stream is not root:
                root.forked[stream] = None  # until an event behind it is waited for
            return
        if stream.null:
            self.refuse_in_capture(f"{what} on the default stream")
        with self._busy:
            action()

    def touch(self, stream: Stream, reads: Sequence[tuple[int, int]], writes: Sequence[tuple[int, int]]) -> None:
        """Bytes from address to address are read or written on a stream."""
        with self._busy:
            stream.tick()
            self.order.touch(stream, reads, writes)

    def host_waits(self, on: Stream | Event | None = None) -> None:
        """The host has waited, for a stream, for an event or for the device: what was done till then is over."""
        self.refuse_in_capture("synchronising")
        if self.fault:
            raise CUDARuntimeError(self.fault)
        self.say("sync", "", 0, on if isinstance(on, Stream) else None)
        with self._busy:
            for over in [on] if on else [*self._streams, self.null]:
                over.finish()
                self.order.waited(over.seen)

    def alloc(self, nbytes: int) -> MemoryPointer:
        if self._allocators:
            return self._allocators[-1](nbytes)  # type: ignore[no-any-return]
        self.refuse_in_capture("allocation")
        if self.used + nbytes > self.memory:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes")
        self.say("alloc", "", nbytes)
        for hook in self.hooks:
            hook.malloc_preprocess(device_id=0, size=nbytes, mem_size=nbytes)
        return MemoryPointer(Memory(self, nbytes), 0)

    # -- modules ----------------------------------------------------------------------------------------------------

    def modules(self) -> dict[str, types.ModuleType]:
        """What `sys.modules` gets."""
        cupy, cuda, runtime, memory, function, driver_ = (
            types.ModuleType(n)
            for n in ("cupy", "cupy.cuda", "cupy.cuda.runtime", "cupy.cuda.memory", "cupy.cuda.function",
                      "cupy.cuda.driver")
        )  # fmt: skip
        self._fill_runtime(runtime)
        self._fill(memory, OutOfMemoryError=OutOfMemoryError)
        self._fill(function, Module=lambda: Module(self))
        self._fill(driver_, funcSetAttribute=lambda *given: self.say("attribute", str(given)))
        self._fill(
            cuda,
            runtime=runtime, memory=memory, function=function, driver=driver_, alloc=self.alloc,
            Stream=type("Stream", (Stream,), {"standin": self}),
            MemoryHook=type("MemoryHook", (Hook,), {"standin": self}),
            Event=lambda block=False, disable_timing=False: Event(self),
            Device=lambda index=0: Device(self, index), using_allocator=self._using,
            get_current_stream=lambda: self._current[-1], ExternalStream=self.stream_at,
            alloc_pinned_memory=self._pinned,
            is_available=lambda: True, get_elapsed_time=lambda start, end: end.at - start.at,
        )  # fmt: skip
        self._fill(
            cupy,
            cuda=cuda, ndarray=type("ndarray", (DeviceArray,), {"standin": self}), __version__="stand-in",
            get_default_memory_pool=lambda: Pool(self), random=Refusing(self, "cupy.random"),
            matmul=self._matmul, asarray=self._asarray, empty=self._empty, from_dlpack=self._from_dlpack,
            ascontiguousarray=lambda x: x if x.flags.c_contiguous else self._moved(x, x.host),
        )  # fmt: skip
        self._array = cupy.ndarray
        for module in (cupy, cuda, runtime, memory, function, driver_):
            module.__spec__ = ModuleSpec(module.__name__, None)
        found = {m.__name__: m for m in (cupy, cuda, runtime, memory, function, driver_)}
        return found | self.library

    def _fill(self, module: types.ModuleType, **names: Any) -> None:
        for name, value in names.items():
            setattr(module, name, value)

    def _fill_runtime(self, runtime: types.ModuleType) -> None:
        properties = {
            "name": b"no GPU at all",
            "major": 9,
            "minor": 0,
            "totalGlobalMem": self.memory,
            "l2CacheSize": 4096,
        }
        self._fill(
            runtime, **MODES, **KINDS, CUDARuntimeError=CUDARuntimeError,
            getDeviceCount=lambda: self.devices, getDeviceProperties=lambda index: properties,
            memGetInfo=lambda: (self.memory - self.used, self.memory), memcpyAsync=self._memcpy,
            memcpyPeerAsync=lambda to, _, source, __, nbytes, stream: self._memcpy(to, source, nbytes, 3, stream),
            deviceCanAccessPeer=lambda device, other: int(device != other), deviceEnablePeerAccess=self._enable_peer,
            driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000,
            deviceGetPCIBusId=lambda index: "0000:00:00.0", deviceSynchronize=lambda: self.host_waits(),
        )  # fmt: skip

    def _enable_peer(self, other: int) -> None:
        pair = self.device, other
        if pair in self.reached:
            raise CUDARuntimeError("cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled")
        self.reached.add(pair)

    @contextmanager
    def _using(self, allocator: Callable[[int], Any]) -> Iterator[None]:
        self._allocators.append(allocator)
        try:
            yield
        finally:
            self._allocators.pop()

    def _pinned(self, nbytes: int) -> Any:
        self.refuse_in_capture("allocating pinned memory")
        self.say("pinned", "", nbytes)
        self._pins.append(ctypes.create_string_buffer(max(nbytes, 1)))
        return self._pins[-1]

    def pinned(self, address: int) -> bool:
        """True if an address of the host is in memory that copies may read and write later."""
        return any(ctypes.addressof(p) <= address < ctypes.addressof(p) + len(p) for p in self._pins)

    def stream_at(self, ptr: int) -> Stream:
        """The stream with this handle."""
        return next(s for s in (*self._streams, self.null) if s.ptr == ptr)

    def _memcpy(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        on = self.stream_at(stream)
        name = next(n for n, k in KINDS.items() if k == kind)
        assert (self.block_of(to) is None) is (kind == 2), f"{name}: where it goes is on the wrong side"
        assert (self.block_of(source) is None) is (kind == 1), f"{name}: where it comes from is on the wrong side"

        def move() -> None:
            reads = [(source, source + nbytes)] if kind != 1 else []
            writes = [(to, to + nbytes)] if kind != 2 else []
            self.touch(on, reads, writes)
            self.say("copy", name, nbytes, on)
            if self.computes:
                self.later(on, lambda: ctypes.memmove(to, source, nbytes))

        here = to if kind == 2 else source
        pageable = kind != 3 and not self.pinned(here)
        if pageable:
            self.refuse_in_capture("copying pageable memory")
        self.submit(on, move, name)
        if pageable:  # the host goes on when it is done
            on.finish()

    def block_of(self, address: int) -> Any:
        """The block of the device that an address lies in."""
        for begin in list(self._blocks):
            block = self._blocks.get(begin)  # another thread may just have freed it
            if block is not None and begin <= address < begin + block.nbytes:
                return block
        return None

    def _matmul(self, *_: Any) -> None:
        if self._capturing is not None:
            raise NotImplementedError("calling cublasSetStream during stream capture is not supported")

    def _asarray(self, value: Any) -> Any:
        if isinstance(value, DeviceArray):
            return value
        held = np.ascontiguousarray(value)
        made = self._array(held.shape, held.dtype, memptr=self.alloc(held.nbytes))
        made.host[...] = held
        return made

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._asarray(np.full(shape, 77, dtype))

    def _from_dlpack(self, value: Any) -> Any:
        made = value if isinstance(value, DeviceArray) else value.__dlpack__()
        assert isinstance(made, DeviceArray), "a capsule of the device's memory"
        return made

    def _moved(self, source: DeviceArray, elements: Array, to: DeviceArray | None = None) -> Any:
        """What a kernel of CuPy's own makes of elements of the device, on the current stream."""
        made = self._array(elements.shape, elements.dtype) if to is None else to
        on = self._current[-1]

        def move() -> None:
            reads, writes = [(p, p + 1) for p in (source.data.ptr,)], [(p, p + 1) for p in (made.data.ptr,)]
            self.touch(on, reads, writes)
            self.say("cupy", "elementwise", made.nbytes, on)
            if self.computes:
                self.later(on, lambda: np.copyto(made.host, elements))

        self.submit(on, move, "elementwise")
        return made


class Memory:
    """A block of the device."""

    def __init__(self, standin: Standin, nbytes: int) -> None:
        raw = np.full(nbytes + 512, 0xFF, np.uint8) if standin.computes else np.empty(nbytes + 512, np.uint8)
        self.bytes = raw[-raw.ctypes.data % 256 :][: max(nbytes, 1)]
        self.ptr, self.standin, self._on = self.bytes.ctypes.data, standin, standin._current[-1]
        standin._blocks[self.ptr] = self.bytes
        standin._owners[self.ptr] = standin.device

    def __del__(self) -> None:
        if any(s.waiting for s in (*self.standin._streams, self.standin.null)):
            self.standin._gone.append(self.bytes)
        self.standin.order.free((self.ptr, self.ptr + self.bytes.nbytes), self._on)
        self.standin._blocks.pop(self.ptr, None)


class MemoryPointer:
    """An address in a block, which it keeps."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem, self.ptr, self._offset = mem, mem.ptr + offset, offset

    def __add__(self, more: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self._offset + more)

    def memset_async(self, value: int, nbytes: int) -> None:
        standin, on = self.mem.standin, self.mem.standin._current[-1]

        def fill() -> None:
            standin.touch(on, [], [(self.ptr, self.ptr + nbytes)])
            standin.later(on, partial(self.mem.bytes[self._offset : self._offset + nbytes].fill, value))

        standin.submit(on, fill, "memset")


class DeviceArray:
    """The part of cupy.ndarray that the runtime uses. `host` is the same bytes, for tests."""

    standin: Standin

    def __init__(self, shape: tuple[int, ...], dtype: Any = float, memptr: MemoryPointer | None = None) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.size = int(np.prod(self.shape, dtype=np.int64))
        self.nbytes = self.size * self.dtype.itemsize
        self.data = memptr or self.standin.alloc(self.nbytes)
        self.device = types.SimpleNamespace(id=self.standin._owners.get(self.data.mem.ptr, 0))
        self.ndim = len(self.shape)
        within = self.data.mem.bytes[self.data._offset : self.data._offset + self.nbytes]
        assert within.nbytes == self.nbytes, "a view beyond its block"
        self.host: Array = within.view(self.dtype).reshape(self.shape)

    @property
    def flags(self) -> Any:
        return types.SimpleNamespace(c_contiguous=self.host.flags.c_contiguous)

    def __getitem__(self, key: Any) -> Any:
        """A view, as basic indices give it."""
        part = self.host[key if isinstance(key, tuple) else (key,)] if self.ndim else self.host[key]
        part = part if isinstance(part, np.ndarray) else self.host[(*np.atleast_1d(key), None)].reshape(())
        made = type(self)((0,), self.dtype, self.data + (part.ctypes.data - self.host.ctypes.data))
        made.shape, made.size, made.ndim, made.nbytes = part.shape, part.size, part.ndim, part.nbytes
        made.host = part
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self[key]
        assert isinstance(value, DeviceArray)
        self.standin._moved(value, np.broadcast_to(value.host, part.shape), part)

    def view(self, dtype: Any) -> Any:
        assert self.ndim == 1
        return type(self)((self.nbytes // np.dtype(dtype).itemsize,), dtype, self.data)

    def reshape(self, *shape: Any) -> Any:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return type(self)(sizes, self.dtype, self.data)

    def get(self) -> Array:
        on = self.standin._current[-1]
        self.standin.submit(on, lambda: self.standin.touch(on, [(self.data.ptr, self.data.ptr + 1)], []), "get")
        self.standin.host_waits(on)
        return self.host.copy()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.data.ptr, False)}

    def __dlpack__(self, **_: Any) -> Any:
        return self  # in place of a capsule, which stand-ins cannot make

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id


class Stream:
    """A stream: what is asked of it waits in a queue until somebody waits for it. `seen` says behind what it happens (a
    clock for each stream)."""

    standin: Standin  # of the class that a module has

    def __init__(self, null: bool = False, non_blocking: bool = False, standin: Standin | None = None) -> None:
        standin = standin or self.standin
        self._standin, self.null = standin, null
        self.ptr = 0 if null else next(standin._numbers)
        self.seen: dict[Stream, int] = {}
        self.recorded: list[tuple[Callable[[], None], str]] = []
        self.forked: dict[Stream, Any] = {}  # streams that a capture here has taken in, and the last event of each
        self.spoilt = False
        self.device = standin.device
        self.waiting: deque[Callable[[], object]] = deque()
        self.issued = self.done = 0
        self.runner = 0  # the thread that does what was asked
        if not null:
            standin._streams.append(self)

    def finish(self) -> None:
        """Do all that was asked."""
        self._standin.flush(self, self.issued)

    def tick(self) -> None:
        self.seen[self] = self.seen.get(self, 0) + 1

    def __enter__(self) -> Self:
        self._standin._current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._standin._current.pop()

    def begin_capture(self, mode: int) -> None:
        if self.null:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        assert mode == MODES["streamCaptureModeThreadLocal"], "other threads are disturbed"
        assert self._standin._capturing is None
        self._standin._capturing, self.recorded, self.spoilt, self.forked = self, [], False, {}

    def end_capture(self) -> Graph:
        self._standin._capturing = None
        if self.spoilt:
            raise CUDARuntimeError("cudaErrorStreamCaptureInvalidated: operation failed due to a previous error")
        if self.forked:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnjoined: a stream was taken in and is not waited for")
        self._standin.say("capture", f"{len(self.recorded)} nodes", 0, self)
        return Graph(self._standin, self.recorded)

    def is_capturing(self) -> bool:
        root = self._standin._capturing
        return root is self or (root is not None and self in root.forked)

    def synchronize(self) -> None:
        self._standin.host_waits(self)

    def record(self, event: Event) -> Event:
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """As CUDA does: a stream that waits for an event of a capture is part of it from there on, until the stream
        that is captured has waited for its last event."""
        root = self._standin._capturing
        if root is not None and event.captured:
            if self is root:
                for stream in [s for s, last in root.forked.items() if last is event]:
                    del root.forked[stream]
            else:
                root.forked.setdefault(self, None)
            root.recorded.append((lambda: self._wait(event), "wait"))
            return
        self._wait(event)

    def _wait(self, event: Event) -> None:
        for stream, tick in event.seen.items():
            self.seen[stream] = max(self.seen.get(stream, -1), tick)
        if event.on is not None and event.on is not self:
            on, until = event.on, event.until
            self._standin.later(self, lambda: self._standin.flush(on, until))
