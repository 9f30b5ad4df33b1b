"""Gradients of Gather and Slice: the slot is cleared, then the incoming gradient is added or copied to its places."""

from __future__ import annotations

import math

import numpy as np

from ....ops import DType, Tensor
from ....ops.core.rules import axis_of, sliced
from ....ops.errors import ShapeError
from ....ops.types import Array
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest
from ...ir.graph import Node


class Scatter:
    """Indexed additions and copies, with the indices in the workspace."""

    name = "numpy.scatter"

    def serves(self, node: Node) -> bool:
        return node.domain == "mezzo" and node.op in ("GatherGrad", "SliceGrad")

    def select(self, ask: KernelRequest) -> Choice | Declined:
        dy, (out,) = ask.inputs[0], ask.outputs
        if not isinstance(dy, Tensor) or not isinstance(out, Tensor) or not dy.static or not out.static:
            return Declined("sizes are not known")
        if ask.node.op == "SliceGrad":
            if any(isinstance(t, Tensor) and t.value is None for t in ask.inputs[2:]):
                return Declined("the slice is not known before the run")
            return Choice(self.name)
        if dy.dtype not in (DType.FLOAT, DType.DOUBLE):
            return Declined(f"sums of {dy.dtype} are taken in float32")
        return Choice(self.name, workspace=(dy.elements or 0) * DType.INT64.itemsize)

    def prepare(self, work: KernelArgs) -> Call:
        dy, (out,) = work.inputs[0], work.outputs
        assert dy is not None and out is not None
        if work.node.op == "GatherGrad":
            indices = work.inputs[1]
            assert indices is not None
            axis = axis_of(work.node.attrs.get("axis", 0), out.ndim)
            return _added(dy, indices, out, axis, work.scratch(DType.INT64, dy.shape))
        starts, ends, axes, steps = (*work.inputs[2:], None, None)[:4]
        part = out[sliced(out.shape, starts, ends, axes, steps)]

        def run() -> None:
            out.fill(0)
            np.copyto(part, dy)

        return run


def _added(dy: Array, indices: Array, out: Array, axis: int, places: Array) -> Call:
    size, after = out.shape[axis], math.prod(out.shape[axis + 1 :])
    rows = np.arange(math.prod(out.shape[:axis])).reshape(-1, 1) * size
    columns, flat, sums = np.arange(after), places.reshape(-1), out.reshape(-1)
    places, news = places.reshape(len(rows), indices.size, after), dy.reshape(-1)

    def run() -> None:
        at = indices.reshape(-1)
        if at.size and not (-size <= at.min() and at.max() < size):
            raise ShapeError(f"an index is outside an axis of {size}", hint=f"indices run from {-size} to {size - 1}")
        np.add(((rows + np.where(at < 0, at + size, at)) * after)[:, :, None], columns, out=places)
        sums.fill(0)
        np.add.at(sums, flat, news)  # in one dimension it is many times as fast

    return run
