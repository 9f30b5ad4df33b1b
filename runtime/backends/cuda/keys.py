"""The random keys of a run in device memory, where captured graphs read them; copied there before each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops.math.random import words_of
from ...compile.program import ProgramStep
from ...ir.interpreter import node_key
from .driver import cupy
from .memory import allocated, pinned

APART = 64  # bytes from one step's words to the next one's


class Keys:
    """Two words of 32 bits for each step that draws random numbers, on GPU `index`."""

    def __init__(self, steps: Sequence[ProgramStep], index: int) -> None:
        self._steps, self._places = steps, {s.node: i * APART for i, s in enumerate(steps)}
        nbytes = APART * len(steps)
        self._device = allocated(nbytes, index) if steps else None
        self._host = pinned(nbytes).view(np.uint32).reshape(len(steps), APART // 4)

    def words(self, step: ProgramStep) -> Any:
        """Return the words of a step; None for one that draws nothing."""
        at = self._places.get(step.node)
        return None if at is None or self._device is None else self._device[at : at + APART]

    def send(self, key: tuple[int, ...], stream: Any) -> None:
        """Copy the words of a run with this key, before what `stream` does next. The former run is over."""
        for place, step in zip(self._host, self._steps, strict=True):
            place[:2] = words_of(node_key(step.node, key), step.node.attrs.get("seed"))
        if self._device is not None:
            runtime = cupy().cuda.runtime
            ends = self._device.data.ptr, self._host.ctypes.data, self._host.nbytes
            runtime.memcpyAsync(*ends, runtime.memcpyHostToDevice, stream.ptr)
