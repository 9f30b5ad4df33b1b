"""Gradients of Gather and Slice: the slot is cleared, then the incoming gradient is added or copied to its places."""

from __future__ import annotations

import math

import numpy as np

from ....ops import DType, Tensor
from ....ops.core.rules import axis_of, sliced
from ....ops.errors import ShapeError
from ....ops.types import Array
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed


class Scatter(Listed):
    """Indexed additions and copies, with the indices in the workspace."""

    name = "numpy.scatter"
    operators = listed("mezzo::GatherGrad mezzo::SliceGrad")

    def select(self, request: KernelRequest) -> Choice | Declined:
        dy, (out,) = request.inputs[0], request.outputs
        if not isinstance(dy, Tensor) or not isinstance(out, Tensor) or not dy.static or not out.static:
            return Declined("sizes are not known")
        if request.node.op == "SliceGrad":
            if any(isinstance(t, Tensor) and t.value is None for t in request.inputs[2:]):
                return Declined("the slice is not known before the run")
            return Choice(self.name)
        if dy.dtype not in (DType.FLOAT, DType.DOUBLE):
            return Declined(f"sums of {dy.dtype} are taken in float32")
        return Choice(self.name, workspace=(dy.elements or 0) * DType.INT64.itemsize)

    def prepare(self, args: KernelArgs) -> Call:
        dy, (out,) = args.inputs[0], args.outputs
        assert dy is not None and out is not None
        if args.node.op == "GatherGrad":
            indices = args.inputs[1]
            assert indices is not None
            axis = axis_of(args.node.attrs.get("axis", 0), out.ndim)
            return _added(dy, indices, out, axis, args.scratch(DType.INT64, dy.shape))
        starts, ends, axes, steps = (*args.inputs[2:], None, None)[:4]
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
