"""The sum of the squares of all elements, for the norm of a gradient: read once, in any order."""

from __future__ import annotations

from ....ops import DType, Tensor
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest
from ...ir.graph import Node
from .extremes import axes_of

BLOCK = 8192  # elements of a dot product: BLAS wakes other threads for more than 10,000


class SumSquares:
    """ReduceSumSquare over all axes: dot products of blocks, added up in float64."""

    name = "numpy.sum_squares"

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op == "ReduceSumSquare"

    def select(self, ask: KernelRequest) -> Choice | Declined:
        why = declined(ask)
        if why is not None:
            return Declined(why)
        layout = ask.inputs[0].layout if isinstance(ask.inputs[0], Tensor) else ""
        return Choice(self.name, layouts=(layout, *[""] * (len(ask.inputs) - 1), "") if layout else ())

    def prepare(self, work: KernelArgs) -> Call:
        x, out = work.inputs[0], work.outputs[0]
        assert x is not None and out is not None
        flat, sum_ = x.reshape(-1).view(out.dtype), out.reshape(-1)
        blocks = [flat[at : at + BLOCK] for at in range(0, flat.size, BLOCK)]

        def run() -> None:
            total = 0.0
            for block in blocks:
                total += block.dot(block)
            sum_[0] = total

        return run


def declined(ask: KernelRequest) -> str | None:
    """Why the squares cannot be added up so, if they cannot."""
    x = ask.inputs[0]
    if not isinstance(x, Tensor) or not x.static or not x.elements:
        return "sizes are not known, or there are no elements"
    if x.dtype not in (DType.FLOAT, DType.DOUBLE):
        return f"BLAS has no products of {x.dtype}"
    if x.nbytes != x.elements * x.dtype.itemsize:
        return "bytes between the elements are no part of the sum"
    axes = axes_of(ask, x)
    kept = None if axes is None else [n for a, n in enumerate(x.sizes) if a not in axes and n > 1]
    return None if kept == [] else "some axes stay, or are not known"
