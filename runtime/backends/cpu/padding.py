"""FillTail in place, ConcatHeads and ReverseHead: graphs whose sizes are rounded up have some in each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....ops import Tensor
from ....ops.errors import ShapeError
from ....ops.layouts import padded, parse
from ....ops.tensor.padding import fitting
from ....ops.types import Array, DType
from ...compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed


class FillTail(Listed):
    """FillTail over the bytes of its operand, in any layout that keeps the rows of the axis whole."""

    name = "numpy.fill_tail"
    operators = listed("mezzo::FillTail")
    remembers = True
    any_layout = True

    def select(self, request: KernelRequest) -> Choice | Declined:
        x = request.inputs[0]
        if not isinstance(x, Tensor) or not x.static:
            return Declined("sizes are not known")
        layout = x.layout if _may_stay(x, request.node.attrs) else ""
        return Choice(self.name, aliases=(Alias(0, 0),), layouts=(layout, "", layout) if layout else ())

    def prepare(self, args: KernelArgs) -> Call:
        x, count, (out,), known = args.inputs[0], args.inputs[1], args.outputs, args.request.inputs[0]
        assert x is not None and count is not None and out is not None and isinstance(known, Tensor)
        axis, blocks = args.node.attrs["axis"], args.node.attrs.get("outer", 1)
        value = fitting(args.node.attrs.get("value", 0.0), known.dtype)
        there = _rows(out, known, axis, blocks)
        size, same = len(there), x.ctypes.data == out.ctypes.data

        def run() -> None:
            if not same:
                np.copyto(out, x)
            n = int(count)
            if not 0 <= n <= size:
                raise ShapeError(f"the first {n} of {size}")
            there[n:] = value

        return run


def _may_stay(x: Tensor, attrs: Mapping[str, Any]) -> bool:
    """True if FillTail can be computed in the layout of its operand. Kernels of blocked layouts count on zeros where
    blocks are not full."""
    if not x.layout or "=" in x.layout or attrs.get("outer", 1) != 1:
        return False
    _, blocks, more = parse(x.layout, x.rank)
    full = padded(x.layout, x.sizes) == x.sizes
    return not more and all(dim != attrs["axis"] for dim, _ in blocks) and (full or attrs.get("value", 0.0) == 0)


def _rows(memory: Array, known: Tensor, axis: int, blocks: int) -> Array:
    """The rows of an axis (of `blocks` equal blocks of it) as the first axis of a view of the bytes of a tensor."""
    if not known.layout:
        sizes = (*known.sizes[:axis], blocks, known.sizes[axis] // blocks, *known.sizes[axis + 1 :])
        return np.moveaxis(memory.reshape(sizes), axis + 1, 0)
    order, inner, _ = parse(known.layout, known.rank)
    whole = [math.prod(n for dim, n in inner if dim == d) for d in order]
    sizes = tuple(-(-known.sizes[d] // n) for d, n in zip(order, whole, strict=True))
    laid = memory.reshape(-1).view(known.dtype.numpy).reshape(*sizes, *(n for _, n in inner))
    return np.moveaxis(laid, order.index(axis), 0)


class ConcatHeads(Listed):
    """ConcatHeads by one copy of each operand but a first one whose place the result takes."""

    name = "numpy.concat_heads"
    operators = listed("mezzo::ConcatHeads")
    remembers = True

    def select(self, request: KernelRequest) -> Choice | Declined:
        tensors = [t for t in (*request.inputs, *request.outputs) if isinstance(t, Tensor) and t.static]
        if len(tensors) < len(request.inputs) + len(request.outputs) or any(t.dtype is DType.STRING for t in tensors):
            return Declined("sizes are not known, or elements are texts")
        return Choice(self.name)

    def prepare(self, args: KernelArgs) -> Call:
        (counts, *xs), (out,) = args.inputs, args.outputs
        assert counts is not None and out is not None
        return _Heads([counts, *(x for x in xs if x is not None)], out, args.node.attrs["axis"])


class _Heads:
    """One call of ConcatHeads. It keeps no buffer that is bound for a run behind that: see `let_go`."""

    def __init__(self, inputs: list[Array], out: Array, axis: int) -> None:
        self._outer, self._axis = math.prod(out.shape[:axis]), axis
        self._inner = math.prod(out.shape[axis + 1 :])
        self._arrays = {("in", i): x if i == 0 else self._seen(x) for i, x in enumerate(inputs)}
        self._arrays["out", 0] = self._seen(out)
        self._moving = set[tuple[str, int]]()

    def _seen(self, array: Array) -> Array:
        """The array as (outer, rows, inner)."""
        return array.reshape(self._outer, array.shape[self._axis], self._inner)

    def rebind(self, place: tuple[str, int], array: Array) -> None:
        """Let an input or the output be another array."""
        self._moving.add(place)
        self._arrays[place] = array if place == ("in", 0) else self._seen(array)

    def __call__(self) -> None:
        arrays, at = self._arrays, 0
        there = arrays["out", 0]
        for i, n in enumerate(arrays["in", 0].tolist()):
            part = arrays["in", i + 1]
            if not 0 <= n <= min(part.shape[1], there.shape[1] - at):
                raise ShapeError(f"{n} rows of {part.shape[1]}, behind {at}, are none of {there.shape[1]}")
            if i or part.shape != there.shape or part.ctypes.data != there.ctypes.data:
                there[:, at : at + n] = part[:, :n]
            at += n
        there[:, at:] = 0

    def let_go(self) -> None:
        """Forget what was bound."""
        for place in self._moving:
            self._arrays.pop(place, None)


class ReverseHead(Listed):
    """ReverseHead by one copy."""

    name = "numpy.reverse_head"
    operators = listed("mezzo::ReverseHead")
    remembers = True

    def select(self, request: KernelRequest) -> Choice | Declined:
        x = request.inputs[0]
        if not isinstance(x, Tensor) or not x.static or x.dtype is DType.STRING:
            return Declined("sizes are not known, or elements are texts")
        return Choice(self.name)

    def prepare(self, args: KernelArgs) -> Call:
        x, count, (out,) = args.inputs[0], args.inputs[1], args.outputs
        assert x is not None and count is not None and out is not None
        axis = args.node.attrs["axis"]
        at, size = (slice(None),) * axis, x.shape[axis]
        turned = x[(*at, slice(None, None, -1))]

        def run() -> None:
            n = int(count)
            if not 0 <= n <= size:
                raise ShapeError(f"the first {n} of {size}")
            out[(*at, slice(n))] = turned[(*at, slice(size - n, None))]
            out[(*at, slice(n, None))] = 0

        return run
