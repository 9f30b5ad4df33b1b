"""Primitives guarded by a check of an operand: where a NaN would be lost, the reference runs instead.

For programs that cannot be run again because they overwrite their states (docs/decisions/0011)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

from ....ops import Context, Tensor
from ....ops.types import Array
from ...compile.kernel import KernelArgs, failed
from .invalid import flag_kept
from .kernel import Calls, Moved
from .memory import Memory
from .primitive import Execution, Place, repacked
from .search import Odd, Search, searches

# calls whose `rows` are all that they do; a subclass may do more
PLAIN: Final = (Execution, Moved, Calls)


class Looked:
    """The call of a step, replaced by its reference if an `odd` number is found in an operand before the call, or in a
    result after it. `rows` are the same for machine code; `met` is for what they answer."""

    def __init__(self, call: Any, args: KernelArgs, odd: Mapping[Place, tuple[Odd, ...]]) -> None:
        self._call, self._node, self.threads = call, args.node, call.threads
        self.asks = getattr(call, "asks", False)
        types = [*args.request.inputs, *args.request.outputs]
        layouts = args.choice.layouts or ("",) * len(types)
        memories = [
            Memory(t.sizes, t.dtype, layout) if isinstance(t, Tensor) else None
            for t, layout in zip(types, layouts, strict=True)
        ]
        self._sources, self._targets = memories[: len(args.request.inputs)], memories[len(args.request.inputs) :]
        self._arrays = {("in", i): array for i, array in enumerate(args.inputs) if array is not None}
        self._arrays |= {("out", i): array for i, array in enumerate(args.outputs) if array is not None}
        self._moving: set[Place] = set()
        self._aside = flag_kept if args.request.target.nan == "watched" else nullcontext
        self._searches: dict[Place, list[Search]] = {}
        for place, kinds in odd.items():
            memory = (self._sources if place[0] == "in" else self._targets)[place[1]]
            assert memory is not None
            self._searches[place] = searches(kinds, memory.dtype.numpy)
            self._bind(place)
        self._before, self._after = (
            [s for place, placed in self._searches.items() if place[0] == side for s in placed]
            for side in ("in", "out")
        )
        every = [*self._before, call, *self._after]
        self.short = all(getattr(part, "short", False) for part in every)
        whole = call.__class__ in PLAIN and all(part.rows for part in every)
        self.rows = tuple(row for part in every for row in part.rows) if whole else ()

    def rebind(self, place: Place, array: Array) -> None:
        """Let an operand or a result be another array of the same type."""
        self._arrays[place] = array
        self._moving.add(place)
        self._call.rebind(place, array)
        self._bind(place)

    def let_go(self) -> None:
        """Keep no array that was bound for a run."""
        for place in self._moving:
            self._arrays.pop(place, None)
            for search in self._searches.get(place, ()):
                search.let_go()

    def _bind(self, place: Place) -> None:
        for search in self._searches.get(place, ()):
            search.bind(self._arrays[place])

    def __call__(self) -> int:
        for search in self._before:
            if search():
                return self._by_reference()
        status = int(self._call())
        if status:
            return status
        for search in self._after:
            if search():
                return self._by_reference()
        return 0

    def met(self, number: int, status: int) -> None:
        """Compute the step by its reference where a search has answered, by the number of its row. Raises
        ExecutionError for others."""
        if len(self._before) <= number < len(self.rows) - len(self._after):
            raise failed(status)
        self._by_reference()

    def _by_reference(self) -> int:
        inputs = [None if m is None else _plain(self._arrays["in", i], m) for i, m in enumerate(self._sources)]
        with self._aside(), np.errstate(invalid="ignore"):
            results = self._node.record.run(Context(np, wanted=self._node.wanted), inputs, self._node.attrs)
        for i, target in enumerate(self._targets):
            if target is not None:
                packed = repacked(np.ascontiguousarray(results[i]), target.row_major(), target.handle.value)
                np.copyto(self._arrays["out", i].reshape(-1).view(np.uint8), packed.view(np.uint8))
        return 0


def _plain(array: Array, memory: Memory) -> Array:
    """The elements in row-major order."""
    if not memory.layout:
        return array
    packed = repacked(array, memory, memory.row_major().handle.value)
    return packed.view(memory.dtype.numpy)[: math.prod(memory.dims)].reshape(memory.dims)
