"""Softmax of many short rows: a library call goes over one row at a time, NumPy over one class of all rows."""

from __future__ import annotations

import math

import numpy as np

from ....ops import DType, Tensor
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed
from ...memory.liveness import aligned
from ..short_rows import short_rows


class ShortSoftmax(Listed):
    """The rows turned, in the workspace, where the largest, the sum and the quotient are those of whole rows."""

    name = "numpy.short_softmax"
    operators = listed("Softmax")
    remembers = True

    def select(self, request: KernelRequest) -> Choice | Declined:
        x = request.inputs[0]
        if not isinstance(x, Tensor) or not short_rows(x, request.node.attrs.get("axis", -1)):
            return Declined("the rows are not many and short")
        return Choice(self.name, workspace=aligned(x.nbytes) + aligned(x.nbytes // x.sizes[-1]))

    def prepare(self, args: KernelArgs) -> Call:
        (x,), (y,) = args.inputs, args.outputs
        assert x is not None and y is not None
        width = x.shape[-1]
        rows, result = x.reshape(-1, width), y.reshape(-1, width)
        turned = args.scratch(DType.of(x.dtype), (width, math.prod(x.shape[:-1])))
        one = args.scratch(DType.of(x.dtype), turned.shape[1:])

        def run() -> None:
            np.copyto(turned, rows.T)
            np.max(turned, 0, out=one)
            np.subtract(turned, one, out=turned)
            np.exp(turned, out=turned)
            np.sum(turned, 0, out=one)
            np.divide(turned, one, out=turned)
            np.copyto(result, turned.T)

        return run
