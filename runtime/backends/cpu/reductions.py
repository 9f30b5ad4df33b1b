"""Reductions along known axes, written into their slots: sums and means of types that oneDNN does not have, extremes
(of which oneDNN's would lose infinities and NaN) and their positions, sums of squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from ....ops import DType, Tensor
from ....ops.types import Array
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed, tensors
from ...ir.graph import Node

UFUNCS: Final = {
    "ReduceMax": np.maximum, "ReduceMin": np.minimum, "GlobalMaxPool": np.maximum, "ReduceSum": np.add,
    "ReduceMean": np.add,
}  # fmt: skip
PLACES: Final = {"ArgMax": np.argmax, "ArgMin": np.argmin}
BLOCK: Final = 8192  # elements of a dot product: BLAS wakes other threads for more than 10,000
FEW: Final = 8  # blocks that are added up one by one as fast


class Extremes:
    """`np.maximum.reduce(x, axis, out=)` along known axes."""

    name: ClassVar[str] = "numpy.extremes"
    ops: ClassVar[frozenset[str]] = frozenset({"ReduceMax", "ReduceMin", "GlobalMaxPool"})
    kinds: ClassVar[str] = "fiub"

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op in self.ops

    def select(self, request: KernelRequest) -> Choice | Declined:
        inputs = tensors([t for t in request.inputs if t is not None])
        if inputs is None or not inputs[0].static or not inputs[0].elements:
            return Declined("sizes are not known, or there are no elements")
        x = inputs[0]
        if x.dtype.numpy.isbuiltin != 1 or x.dtype.numpy.kind not in self.kinds:
            return Declined(f"NumPy does not reduce {x.dtype} in place")
        axes = axes_of(request, x)
        return Declined("the axes are not known") if axes is None else Choice(self.name, {"axes": axes})

    def prepare(self, args: KernelArgs) -> Call:
        x, out, axes = args.inputs[0], args.outputs[0], tuple(args.choice.params["axes"])
        assert x is not None and out is not None
        if not axes:
            return lambda: np.copyto(out, x.reshape(out.shape))
        reduce = UFUNCS[args.node.op].reduce
        kept = out.reshape([1 if d in axes else n for d, n in enumerate(x.shape)])
        return lambda: reduce(x, axis=axes, out=kept, keepdims=True)


class Sums(Extremes):
    """`np.add.reduce(x, axis, out=)` along known axes, divided by the number of elements for a mean."""

    name = "numpy.sums"
    ops = frozenset({"ReduceSum", "ReduceMean"})
    kinds = "f"

    def select(self, request: KernelRequest) -> Choice | Declined:
        known = request.inputs[0]
        if isinstance(known, Tensor) and known.dtype.narrow:
            return Declined(f"{known.dtype} is added up in 32 bits")
        return super().select(request)

    def prepare(self, args: KernelArgs) -> Call:
        x, out, axes = args.inputs[0], args.outputs[0], tuple(args.choice.params["axes"])
        run = super().prepare(args)
        if args.node.op != "ReduceMean" or not axes:
            return run
        assert x is not None and out is not None
        count = np.asarray(math.prod(x.shape[a] for a in axes), out.dtype)

        def mean() -> None:
            run()
            np.divide(out, count, out)

        return mean


class ExtremePlaces:
    """ArgMax and ArgMin: `np.argmax(x, axis, out=)`, the first of equals."""

    name = "numpy.places"

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op in PLACES

    def select(self, request: KernelRequest) -> Choice | Declined:
        operands = tensors([*request.inputs, *request.outputs])
        if operands is None or not all(t.static and t.elements for t in operands):
            return Declined("sizes are not known, or there are no elements")
        if operands[0].dtype.numpy.isbuiltin != 1:
            return Declined(f"{operands[0].dtype} is not one of NumPy's own types")
        if request.node.attrs.get("select_last_index"):
            return Declined("the last of equals is asked for")
        return Choice(self.name)

    def prepare(self, args: KernelArgs) -> Call:
        x, out = args.inputs[0], args.outputs[0]
        assert x is not None and out is not None
        axis = args.node.attrs.get("axis", 0) % x.ndim
        place = PLACES[args.node.op]
        kept = out.reshape([n for d, n in enumerate(x.shape) if d != axis])
        return lambda: place(x, axis, out=kept)


class SumSquares(Listed):
    """ReduceSumSquare over all axes: dot products of blocks, added up in float64."""

    name = "numpy.sum_squares"
    operators = listed("ReduceSumSquare")

    def select(self, request: KernelRequest) -> Choice | Declined:
        x = request.inputs[0]
        why = unsquared(x, axes_of(request, x) if isinstance(x, Tensor) and x.static else None)
        if why is not None:
            return Declined(why)
        layout = x.layout if isinstance(x, Tensor) else ""
        return Choice(self.name, layouts=(layout, *[""] * (len(request.inputs) - 1), "") if layout else ())

    def prepare(self, args: KernelArgs) -> Call:
        x, out = args.inputs[0], args.outputs[0]
        assert x is not None and out is not None
        sum_, (rows, blocks) = out.reshape(-1), _blocks(x.reshape(-1).view(out.dtype))

        def run() -> None:
            total = float(np.add.reduce(np.vecdot(rows, rows), dtype=np.float64)) if len(rows) else 0.0
            for block in blocks:
                total += float(block.dot(block))
            sum_[0] = total

        return run


class TotalNorm(Listed):
    """TotalNorm as the root of the same sums, in one step: each tensor of a model would be two more."""

    name = "numpy.total_norm"
    operators = listed("mezzo::TotalNorm")

    def select(self, request: KernelRequest) -> Choice | Declined:
        layouts = []
        for x in request.inputs:
            why = unsquared(x, range(x.rank or 0) if isinstance(x, Tensor) else None)
            if why is not None:
                return Declined(why)
            layouts.append(x.layout if isinstance(x, Tensor) else "")
        return Choice(self.name, layouts=(*layouts, "") if any(layouts) else ())

    def prepare(self, args: KernelArgs) -> Call:
        (out,) = args.outputs
        assert out is not None
        several, blocks = list[Array](), list[Array]()
        for x, known in zip(args.inputs, args.request.inputs, strict=True):
            assert x is not None
            assert isinstance(known, Tensor)
            rows, tail = _blocks(x.reshape(-1).view(known.dtype.numpy))
            several += [rows] if len(rows) else []
            blocks += tail
        dots = [block.dot for block in blocks]

        def run() -> None:
            total = 0.0
            for rows in several:
                total += float(np.add.reduce(np.vecdot(rows, rows), dtype=np.float64))
            for dot, block in zip(dots, blocks, strict=True):
                total += float(dot(block))
            out[...] = math.sqrt(total)

        return run


def _blocks(flat: Array) -> tuple[Array, list[Array]]:
    """A flat array as rows of a block each, where it is large, and the blocks of the rest."""
    split = flat.size // BLOCK * BLOCK if flat.size > FEW * BLOCK else 0
    rows, tail = flat[:split].reshape(-1, BLOCK), flat[split:]
    return rows, [tail[at : at + BLOCK] for at in range(0, tail.size, BLOCK)]


def unsquared(x: Any, axes: Sequence[int] | None) -> str | None:
    """Why dot products cannot add up the squares of `x` along these axes, if they cannot."""
    if not isinstance(x, Tensor) or not x.static or not x.elements:
        return "sizes are not known, or there are no elements"
    if x.dtype not in (DType.FLOAT, DType.DOUBLE):
        return f"BLAS has no products of {x.dtype}"
    if x.nbytes != x.elements * x.dtype.itemsize:
        return "bytes between the elements are no part of the sum"
    kept = None if axes is None else [n for a, n in enumerate(x.sizes) if a not in axes and n > 1]
    return None if kept == [] else "some axes stay, or are not known"


def axes_of(request: KernelRequest, x: Tensor) -> tuple[int, ...] | None:
    """The axes to go, in order; None where they are not known before the run."""
    if request.node.op == "GlobalMaxPool":
        return tuple(range(2, x.rank))
    axes = request.inputs[1] if len(request.inputs) > 1 else None
    if axes is None:
        chosen: list[int] | None = []
    else:
        chosen = axes.ints() if isinstance(axes, Tensor) and request.constant(1) else None
    if chosen is None:
        return None
    if not chosen and not request.node.attrs.get("noop_with_empty_axes", 0):
        chosen = list(range(x.rank))
    return tuple(sorted({a % x.rank for a in chosen}))
