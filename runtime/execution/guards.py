"""Fast path of repeated runs: results of a session's checks, for arrays of the same signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from time import monotonic
from typing import Any

import numpy as np

from ...ops import Tensor
from ...ops.dataclasses import dataclass
from ...ops.types import Array
from ..compile.executable import Executable
from ..compile.kernel import answered
from ..ir.interpreter import blaming
from ..memory.allocate import new_array
from .instance import Instance

FedKey = tuple[tuple[str, tuple[int, ...], Any], ...]
Wanted = tuple[str, ...] | None  # the outputs that are asked for; None: all
# takes what is fed and the buffers that are given; answers None where arrays are of another kind
Replay = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any] | None]


def fed_key(feeds: Mapping[str, Any]) -> FedKey | None:
    """Names, shapes and element types of what is fed; None where anything is no contiguous array of numbers."""
    key = []
    for name, array in feeds.items():
        if array.__class__ is not np.ndarray or not array.flags.c_contiguous or array.dtype.kind in "OUS":
            return None
        key.append((name, array.shape, array.dtype))
    return tuple(key)


@dataclass(slots=True, eq=False)
class Guard:
    """A program and the buffers that it takes. `wanted` are the outputs that the caller names, `defaults` are inputs
    that were left out; `counted` is true if the run needs a meter and a random key of its own, `guarded` if NumPy
    computes anything; `used` is when it ran last (see KeptPrograms)."""

    executable: Executable
    wanted: Wanted
    fed: FedKey
    names: tuple[str, ...]
    defaults: Mapping[str, Array]
    results: tuple[tuple[str, tuple[int, ...] | None, Any], ...]
    counted: bool
    guarded: bool
    used: int

    @classmethod
    def of(cls, executable: Executable, wanted: Wanted, fed: FedKey, arrays: Mapping[str, Any], used: int) -> Guard:
        """Return the guard for runs like that of these arrays; `fed` is the key of those that the caller gave."""
        fed_names = {name for name, _, _ in fed}
        program, steps = executable.program, executable.program.all_steps()
        results: list[tuple[str, tuple[int, ...] | None, Any]] = []
        for port in program.outputs:
            if isinstance(port.type, Tensor) and port.type.static:
                results.append((port.name, port.type.sizes, port.type.dtype.numpy))
            else:
                results.append((port.name, None, None))
        return cls(
            executable,
            wanted,
            fed,
            tuple(arrays),
            {n: a for n, a in arrays.items() if n not in fed_names},
            tuple(results),
            counted=any(s.bodies or not s.choice.deterministic for s in steps),
            guarded=any(s.dynamic or not s.choice.implementation for s in steps),
            used=used,
        )

    def fits(self, feeds: Mapping[str, Any]) -> bool:
        """Return True if `fed_key` would return the same key again; faster, for the common case."""
        if len(feeds) != len(self.fed):
            return False
        for name, shape, dtype in self.fed:
            array = feeds.get(name)
            if array.__class__ is not np.ndarray or array.shape != shape or array.dtype is not dtype:
                return False
            if not array.flags.c_contiguous:
                return False
        return True

    def replay(
        self, instance: Instance, feeds: Mapping[str, Any], own: Mapping[str, Array], owner: str
    ) -> tuple[list[Array | None], list[Any]]:
        """The buffers of this run (`own` are the caller's; None for results of a size that data decides), and the
        results."""
        inputs = [feeds[n] if n in feeds else self.defaults[n] for n in self.names]
        buffers = [
            None if sizes is None else own[name] if name in own else new_array(sizes, dtype, owner)
            for name, sizes, dtype in self.results
        ]
        with np.errstate(all="ignore"):
            return buffers, instance.run(inputs, buffers)

    def short(self, instance: Instance) -> Replay | None:
        """A replay without any choice left, for programs whose buffers never change: what small models are made of.

        None for the others.
        """
        working = instance.fixed
        if working is None or self.counted or self.defaults:
            return None
        if any(sizes is None for _, sizes, _ in self.results) or any(s.dynamic for s in instance.program.steps):
            return None
        staged, program, count = instance.staged, instance.program, len(self.fed)
        # a large input that is not staged is one that no step reads: the steps that do would be bound anew each run
        inputs = [(name, shape, dtype, staged.get(name)) for name, shape, dtype in self.fed]
        results = [(name, staged[value]) for (name, _, _), value in zip(self.results, program.results, strict=True)]

        kinds = {name: (sizes, dtype) for name, sizes, dtype in self.results}
        guarded, watch = self.guarded, instance.order.watch

        # What is fed is looked at while it is copied (and may lie as it likes): for a small model, asking `fits` before
        # would take as long as one of its steps.
        def replay(feeds: Mapping[str, Any], buffers: Mapping[str, Any]) -> dict[str, Any] | None:
            if len(feeds) != count or (buffers and not _take(buffers, kinds)):
                return None
            if watch is not None and monotonic() >= watch.next:
                watch.look()
            for name, shape, dtype, place in inputs:
                array = feeds.get(name)
                if array.__class__ is not np.ndarray or array.shape != shape or array.dtype is not dtype:
                    return None
                if place is not None:
                    place[...] = array  # half as long as np.copyto, for small arrays
            i = 0
            try:
                if guarded:  # NumPy computes some of the steps, and may warn
                    with np.errstate(all="ignore"):
                        for i, call in working:  # noqa: B007 (the handler below reads the index)
                            status = call()
                            if status.__class__ is int and status:
                                answered(call, status)
                else:
                    for i, call in working:  # noqa: B007
                        status = call()
                        if status:
                            answered(call, status)
            except BaseException as error:
                instance.order.abandon()
                if not isinstance(error, Exception):
                    raise
                with blaming(program.steps[i].node.place):
                    raise
                raise AssertionError from error  # not reached: blaming raises
            answer = {}
            if not buffers:  # no comprehension, which is a call
                for name, place in results:
                    answer[name] = place.copy()
                return answer
            for name, place in results:  # all inputs have been read: a buffer may be one of them
                buffer = buffers.get(name)
                if buffer is None:
                    buffer = place.copy()
                else:
                    buffer[...] = place
                answer[name] = buffer
            return answer

        return replay


def _take(buffers: Mapping[str, Any], kinds: Mapping[str, tuple[Any, Any]]) -> bool:
    """True if results of these kinds can be written into the caller's buffers; what is wrong with others is said on the
    longer way."""
    for name, buffer in buffers.items():
        kind = kinds.get(name)
        if kind is None or buffer.__class__ is not np.ndarray or (buffer.shape, buffer.dtype) != kind:
            return False
        flags = buffer.flags
        if not (flags.c_contiguous and flags.writeable):
            return False
    return len(buffers) < 2 or not any(np.may_share_memory(a, b) for a, b in combinations(buffers.values(), 2))
