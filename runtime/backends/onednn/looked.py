"""Primitives guarded by a check of an operand: where a NaN would be lost, the reference runs instead.

For programs that cannot be run again because they overwrite their states (docs/decisions/0011)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import numpy as np

from ....ops import Context, Tensor
from ....ops.types import Array
from ...compile.kernel import KernelArgs
from .invalid import flag_kept
from .memory import Memory
from .primitive import Place, repacked

INFINITY: Final = {"bfloat16": 0x7F80, "float16": 0x7C00}  # its bits
LOWEST: Final = np.finfo(np.float32).min


def has_nan(x: Array) -> bool:
    """True if an element of a flat array is NaN."""
    infinity = INFINITY.get(x.dtype.name)
    if infinity is None:
        largest = np.maximum.reduce(x, initial=-np.inf)
        return bool(largest != largest)
    return bool(np.maximum.reduce(x.view(np.uint16) << 1, initial=0) > infinity << 1)


def has_nan_or_infinity(x: Array) -> bool:
    """True if an element is NaN or +inf."""
    infinity = INFINITY.get(x.dtype.name)
    if infinity is None:
        return not np.maximum.reduce(x, initial=-np.inf) < np.inf
    return bool(np.maximum.reduce(x.view(np.int16), initial=0) >= infinity) or has_nan(x)


def has_lowest(x: Array) -> bool:
    """True if an element is -inf or the lowest finite number, for arrays without NaN. The processor's flags stay
    unchanged; NumPy's minimum would clear them."""
    infinity = INFINITY.get(x.dtype.name)
    if infinity is None:
        return bool(x[x.argmin()] <= LOWEST)
    bits = x.view(np.uint16)
    return bool(bits[bits.argmax()] >= (1 << 15) + infinity - 1)


def has_nan_or_lowest(x: Array) -> bool:
    """True if an element is NaN, -inf or the lowest finite number."""
    return has_nan(x) or has_lowest(x)


class Looked:
    """The call of a step, replaced by its reference if one of the `odd` checks holds for an operand before the call, or
    for a result after it."""

    def __init__(self, call: Any, args: KernelArgs, odd: Mapping[Place, Callable[[Array], bool]]) -> None:
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
        self._odd = odd
        self._aside = flag_kept if args.request.target.nan == "watched" else nullcontext
        self._bind()

    def rebind(self, place: Place, array: Array) -> None:
        """Let an operand or a result be another array of the same type."""
        self._arrays[place] = array
        self._call.rebind(place, array)
        self._bind()

    def _bind(self) -> None:
        """Pair each check with the elements that it looks at, flat."""
        checks: dict[str, list[tuple[Callable[[Array], bool], Array]]] = {"in": [], "out": []}
        for place, odd in self._odd.items():
            memory, array = (self._sources if place[0] == "in" else self._targets)[place[1]], self._arrays[place]
            assert memory is not None
            assert array.flags.c_contiguous  # else this would be a copy, of what lies there now
            if odd is not has_lowest:
                odd = partial(self._checked, odd)
            checks[place[0]].append((odd, array.reshape(-1).view(memory.dtype.numpy)))
        self._before, self._after = checks["in"], checks["out"]

    def __call__(self) -> int:
        for odd, elements in self._before:
            if odd(elements):
                return self._by_reference()
        status = int(self._call())
        if status:
            return status
        for odd, elements in self._after:
            if odd(elements):
                return self._by_reference()
        return 0

    def _checked(self, odd: Callable[[Array], bool], elements: Array) -> bool:
        with self._aside():
            return odd(elements)

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
