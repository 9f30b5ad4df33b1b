"""The order of streams that the stand-in for CuPy watches: what is a race, and what is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from mezzo.runtime.backends.cuda.launch import Source

from .cupy_parts import Function
from .cupy_standin import Standin
from .stream_order import written_by

TEXT = """struct alignas(16) add_16 { unsigned int v[4]; };
extern "C" __global__ void __launch_bounds__(256) add(const float* __restrict__ x, float* __restrict__ y, int n) {
    if (threadIdx.x < n) { y[threadIdx.x] += x[threadIdx.x]; }
}
"""


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Standin:
    made = Standin()
    made.install(monkeypatch)
    made.sources["add"] = Source("add", TEXT)
    return made


class Two:
    """Two streams of a device, and two arrays."""

    def __init__(self, standin: Standin) -> None:
        self.cupy: Any = import_module("cupy")
        self.standin, self.kernel = standin, Function(standin, "add")
        self.one, self.other = (self.cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self.x, self.y, self.z = (self.cupy.asarray(np.zeros(8, np.float32)) for _ in range(3))

    def add(self, stream: Any, x: Any, y: Any) -> None:
        """Read x, read and write y."""
        self.kernel((1, 1, 1), (8, 1, 1), (np.uint64(x.data.ptr), np.uint64(y.data.ptr), np.int32(8)), 0, stream)


def test_parameters_that_a_kernel_writes() -> None:
    assert written_by(TEXT) == (False, True, False)


# what one stream does, what another does then, and what is told of it where nobody waits
Order = tuple[Callable[[Two], None], Callable[[Two], None], list[str]]


def twice(t: Two) -> None:
    t.add(t.one, t.x, t.y)
    t.add(t.one, t.x, t.y)


ORDERS: dict[str, Order] = {
    "both read": (lambda t: t.add(t.one, t.x, t.y), lambda t: t.add(t.other, t.x, t.z), []),
    "nothing is shared": (lambda t: t.add(t.one, t.x, t.x), lambda t: t.add(t.other, t.y, t.z), []),
    "read, then written": (lambda t: t.add(t.one, t.x, t.y), lambda t: t.add(t.other, t.z, t.x), ["writes read"]),
    "written, then read": (lambda t: t.add(t.one, t.x, t.y), lambda t: t.add(t.other, t.y, t.z), ["takes written"]),
    "both write": (lambda t: t.add(t.one, t.x, t.y), lambda t: t.add(t.other, t.z, t.y), ["writes written"]),
    "written twice": (twice, lambda t: t.add(t.other, t.y, t.z), ["takes written"]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_streams_that_do_not_wait(name: str, standin: Standin) -> None:
    first, then, told = ORDERS[name]
    two = Two(standin)
    first(two)
    then(two)
    one, other = two.one.ptr, two.other.ptr
    words = [pair.split() for pair in told]
    assert standin.races == [f"stream {other} {v} bytes that stream {one} has not {p} yet" for v, p in words]


@pytest.mark.parametrize("way", ["an event", "the stream", "the device", "an event, on the host", "an event by asking"])
@pytest.mark.parametrize("name", ORDERS)
def test_streams_that_wait(name: str, way: str, standin: Standin) -> None:
    first, then, _ = ORDERS[name]
    two = Two(standin)
    first(two)
    event = two.one.record(two.cupy.cuda.Event())
    match way:
        case "an event":
            two.other.wait_event(event)
        case "the stream":
            two.one.synchronize()
        case "the device":
            two.cupy.cuda.runtime.deviceSynchronize()
        case "an event, on the host":
            event.synchronize()
        case "an event by asking":
            while not event.done:
                pass
    then(two)
    assert standin.races == []


def test_an_event_is_no_later_than_it_was_recorded(standin: Standin) -> None:
    two = Two(standin)
    event = two.one.record(two.cupy.cuda.Event())
    two.add(two.one, two.x, two.y)
    two.other.wait_event(event)
    event.synchronize()
    two.add(two.other, two.y, two.z)
    assert len(standin.races) == 1


def test_fetching_is_behind_the_current_stream(standin: Standin) -> None:
    two = Two(standin)
    two.add(two.one, two.x, two.y)
    with two.one:
        two.y.get()
    assert standin.races == []
    two.add(two.one, two.x, two.y)
    with two.other:
        two.y.get()
    assert len(standin.races) == 1


def test_memory_is_given_back_when_it_is_done_with(standin: Standin) -> None:
    """CuPy's pool gives it to the next who asks on the stream that it was allocated on: nobody else still uses it."""
    two = Two(standin)
    with two.one:
        two.y = two.cupy.asarray(np.zeros(8, np.float32))
    two.add(two.one, two.x, two.y)
    two.y = two.z
    assert standin.races == []
    two.add(two.other, two.x, two.z)
    two.y = two.z = None
    assert standin.races == [f"bytes are freed that stream {two.other.ptr} has not finished with"]


def test_allocators_and_streams_are_those_of_a_thread(standin: Standin) -> None:
    """Who captures, and so forbids allocations, forbids them to itself alone."""
    cupy: Any = import_module("cupy")

    def refuse(nbytes: int) -> None:
        raise MemoryError

    found: list[int] = []
    with cupy.cuda.using_allocator(refuse), cupy.cuda.Stream(non_blocking=True):
        with pytest.raises(MemoryError):
            cupy.cuda.alloc(8)
        other = threading.Thread(
            target=lambda: found.extend([cupy.cuda.alloc(8).ptr, cupy.cuda.get_current_stream().ptr])
        )
        other.start()
        other.join()
    assert len(found) == 2
    assert found[1] == 0


def test_a_number_is_one_streams(standin: Standin) -> None:
    cupy: Any = import_module("cupy")
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: cupy.cuda.Stream(non_blocking=True), range(200)))
    assert len({stream.ptr for stream in made}) == 200
