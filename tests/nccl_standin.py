"""A stand-in for NCCL as CuPy gives it: ranks are threads, arrays lie in host memory, and the calls of a rank are done
when it orders them. A rank that never comes leaves the others waiting until they are aborted, as NCCL does."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable
from threading import Condition
from typing import Any, Self

import numpy as np

from mezzo.kvstore.collective.calls import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Call
from mezzo.kvstore.collective.nccl import TYPES
from mezzo.kvstore.collective.threads import Ledger
from mezzo.ops import DType

BY_NUMBER = {number: name for name, number in TYPES.items()}


def view(address: int, count: int, kind: int) -> Any:
    dtype = np.dtype(DType.BFLOAT16.numpy if BY_NUMBER[kind] == "bfloat16" else BY_NUMBER[kind])
    raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memoryview(raw), dtype)


class World:
    """The ranks of one communicator: what they share."""

    def __init__(self, size: int) -> None:
        self.ledger, self.aborted, self.error = Ledger(size), set[int](), ""
        self.changed = Condition()
        self.sent: dict[tuple[int, int], list[Any]] = {}


class Pending:
    """An event, done once all ranks have made the call."""

    def __init__(self) -> None:
        self.turns: list[Any] = []
        self.receives: list[Callable[[], bool]] = []

    @property
    def done(self) -> bool:
        self.receives = [r for r in self.receives if not r()]
        return all(turn is None or turn.done for turn in self.turns) and not self.receives


class Comm:
    """NcclCommunicator."""

    def __init__(self, fake: FakeNccl, size: int, number: bytes, rank: int) -> None:
        self.world = fake.worlds.setdefault(bytes(number[:8]), World(size))
        self.fake, self.rank, self.calls = fake, rank, 0
        self.destroyed = self.aborted = False

    def _meet(self, call: Call, x: Any, out: Any) -> None:
        self.world.ledger.enter(self.calls, self.rank, call, x, out)
        self.fake.pending().turns.append(self.world.ledger.turn(self.calls))
        self.calls += 1

    def allReduce(self, source: int, to: int, count: int, kind: int, op: int, stream: int) -> None:  # noqa: N802
        x, out = view(source, count, kind), view(to, count, kind)
        out[...] = x
        self._meet(Call(ALL_REDUCE, BY_NUMBER[kind], count), out, out)

    def reduceScatter(self, source: int, to: int, count: int, kind: int, op: int, stream: int) -> None:  # noqa: N802
        size = self.world.ledger.size
        self._meet(Call(REDUCE_SCATTER, BY_NUMBER[kind], count * size), view(source, count * size, kind),
                   view(to, count, kind))  # fmt: skip

    def allGather(self, source: int, to: int, count: int, kind: int, stream: int) -> None:  # noqa: N802
        size = self.world.ledger.size
        call = Call(ALL_GATHER, BY_NUMBER[kind], count)
        self._meet(call, view(source, count, kind).copy(), view(to, count * size, kind))

    def broadcast(self, source: int, to: int, count: int, kind: int, root: int, stream: int) -> None:
        self._meet(Call(BROADCAST, BY_NUMBER[kind], count, root), view(source, count, kind), view(to, count, kind))

    def send(self, source: int, count: int, kind: int, peer: int, stream: int) -> None:
        with self.world.changed:
            self.world.sent.setdefault((self.rank, peer), []).append(view(source, count, kind).copy())

    def recv(self, to: int, count: int, kind: int, peer: int, stream: int) -> None:
        def receive() -> bool:
            with self.world.changed:
                waiting = self.world.sent.get((peer, self.rank))
                if not waiting:
                    return False
                view(to, count, kind)[...] = waiting.pop(0)
                return True

        self.fake.pending().receives.append(receive)

    def check_async_error(self) -> None:
        if self.world.error:
            raise RuntimeError(self.world.error)

    def abort(self) -> None:
        self.aborted = True

    def destroy(self) -> None:
        self.destroyed = True


class Array:
    """An array of CuPy over host memory."""

    def __init__(self, values: Any) -> None:
        self.host = values
        self.data = types.SimpleNamespace(ptr=values.ctypes.data, memset_async=self._zero)
        self.dtype, self.size, self.nbytes, self.shape = values.dtype, values.size, values.nbytes, values.shape
        self.flags = types.SimpleNamespace(c_contiguous=values.flags.c_contiguous)

    def _zero(self, value: int, nbytes: int) -> None:
        self.host[...] = value

    def __getitem__(self, key: Any) -> Array:
        return Array(self.host[key])


class FakeNccl:
    """`cupy` and `cupy.cuda.nccl`, as far as communicators know them."""

    def __init__(self) -> None:
        import threading

        self.worlds: dict[bytes, World] = {}
        self._here = threading.local()
        self.comms: list[Comm] = []

    def pending(self) -> Pending:
        if not hasattr(self._here, "pending"):
            self._here.pending = Pending()
        return self._here.pending  # type: ignore[no-any-return]

    def record(self, event: Any) -> Pending:
        found = self.pending()
        self._here.pending = Pending()
        return found

    def comm(self, size: int, number: bytes, rank: int) -> Comm:
        self.comms.append(Comm(self, size, number, rank))
        return self.comms[-1]

    def modules(self) -> dict[str, types.ModuleType]:
        cp, cuda, module = (types.ModuleType(n) for n in ("cupy", "cupy.cuda", "cupy.cuda.nccl"))

        class Device:
            def __init__(self, index: int) -> None: ...
            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None: ...
            def synchronize(self) -> None: ...

        stream = types.SimpleNamespace(ptr=5, record=self.record, is_capturing=lambda: False,
                                       synchronize=lambda: None)  # fmt: skip
        parts: list[tuple[Any, dict[str, Any]]] = [
            (cuda, {"Device": Device, "nccl": module,
                    "get_current_stream": lambda: stream, "Event": lambda disable_timing: None}),
            (cp, {"cuda": cuda, "empty": lambda shape, dtype: Array(np.empty(shape, dtype))}),
            (module, {"NcclCommunicator": self.comm, "get_unique_id": lambda: tuple(range(-64, 64))}),
        ]  # fmt: skip
        for target, names in parts:
            for name, value in names.items():
                setattr(target, name, value)
        return {"cupy": cp, "cupy.cuda": cuda, "cupy.cuda.nccl": module}
