"""Data movement: one strided copy (or a few) into the slot, nothing allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ....ops import Tensor, Type
from ....ops.core.rules import sliced
from ....ops.errors import ShapeError
from ....ops.types import Array
from ...compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed, nothing, tensors
from ...ir.graph import Node

Copies = Callable[[KernelArgs], list[tuple[Array, Array]]]


def _attr(args: KernelArgs, name: str) -> Any:
    return args.node.attrs.get(name, args.node.record.attrs.get(name))


def _reshaped(args: KernelArgs) -> list[tuple[Array, Array]]:
    x, out = args.inputs[0], args.outputs[0]
    assert x is not None and out is not None
    return [(out.reshape(x.shape), x)]


def _cast(args: KernelArgs) -> list[tuple[Array, Array]]:
    x, out = args.inputs[0], args.outputs[0]
    return [(out, x)]


def _transposed(args: KernelArgs) -> list[tuple[Array, Array]]:
    x, out = args.inputs[0], args.outputs[0]
    assert x is not None
    return [(out, x.transpose(_attr(args, "perm") or None))]


def _expanded(args: KernelArgs) -> list[tuple[Array, Array]]:
    x, out = args.inputs[0], args.outputs[0]
    assert x is not None and out is not None
    return [(out, np.broadcast_to(x, out.shape))]


def _concatenated(args: KernelArgs) -> list[tuple[Array, Array]]:
    (out,) = args.outputs
    assert out is not None
    axis, at, pairs = _attr(args, "axis") % out.ndim, 0, []
    for x in args.inputs:
        assert x is not None
        pairs.append((out[_along(axis, at, at + x.shape[axis])], x))
        at += x.shape[axis]
    return pairs


def _split(args: KernelArgs) -> list[tuple[Array, Array]]:
    x = args.inputs[0]
    assert x is not None
    axis, at, pairs = _attr(args, "axis") % x.ndim, 0, []
    for out in args.outputs:
        assert out is not None
        pairs.append((out, x[_along(axis, at, at + out.shape[axis])]))
        at += out.shape[axis]
    return pairs


def _along(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (slice(None),) * axis + (slice(start, stop),)


def _sliced(args: KernelArgs) -> list[tuple[Array, Array]]:
    x, starts, ends, axes, steps = (*args.inputs, None, None)[:5]
    assert x is not None and starts is not None and ends is not None
    return [(args.outputs[0], x[sliced(x.shape, starts, ends, axes, steps)])]


def _tiled(args: KernelArgs) -> list[tuple[Array, Array]]:
    x, repeats = args.inputs
    (out,) = args.outputs
    assert x is not None and repeats is not None and out is not None
    pairs = [n for r, d in zip(repeats.tolist(), x.shape, strict=True) for n in (r, d)]
    spread = x.reshape([n for d in x.shape for n in (1, d)])
    return [(out.reshape(pairs), np.broadcast_to(spread, pairs))]


# operator -> its copies, and the inputs whose elements must be known when the kernel is prepared
MOVES: dict[str, tuple[Copies, tuple[int, ...]]] = {
    "Identity": (_reshaped, ()),
    "Reshape": (_reshaped, ()),
    "Flatten": (_reshaped, ()),
    "Squeeze": (_reshaped, ()),
    "Unsqueeze": (_reshaped, ()),
    "Cast": (_cast, ()),
    "Transpose": (_transposed, ()),
    "Expand": (_expanded, (1,)),
    "Concat": (_concatenated, ()),
    "Split": (_split, ()),
    "Slice": (_sliced, (1, 2, 3, 4)),
    "Tile": (_tiled, (1,)),
}


class Movement:
    """Strided copies between slices that are fixed once the buffers are."""

    name = "numpy.copy"
    remembers = True

    def serves(self, node: Node) -> bool:
        return not node.domain and node.op in MOVES

    def select(self, request: KernelRequest) -> Choice | Declined:
        node, inputs, outputs = request.node, request.inputs, request.outputs
        if tensors([t for t in inputs if t is not None]) is None or tensors(outputs) is None:
            return Declined("an operand is no tensor of numbers")
        if node.record.moves == "view" and not _as_many(inputs[0], outputs[0]):
            return Declined("the result has another number of elements")  # which the reference tells in its words
        if node.op == "Split" and not all(node.outputs):
            return Declined("a part is not requested")
        for i in MOVES[node.op][1]:
            t = inputs[i] if i < len(inputs) else None
            if isinstance(t, Tensor) and t.value is None:
                return Declined(f"{node.record.inputs[i].name} is not known before the run")
        if node.op == "Cast" and (reason := _odd_cast(inputs[0], outputs[0])):
            return Declined(reason)
        return Choice(self.name, aliases=tuple(_aliases(node, inputs, outputs)))

    def prepare(self, args: KernelArgs) -> Call:
        pairs = [(d, s) for d, s in MOVES[args.node.op][0](args) if d.size and not _same_place(d, s)]
        if not pairs:
            return nothing
        if len(pairs) == 1:
            dst, src = pairs[0]
            return lambda: np.copyto(dst, src, casting="unsafe")

        def run() -> None:
            for dst, src in pairs:
                np.copyto(dst, src, casting="unsafe")

        return run


def _as_many(x: Type | None, y: Type) -> bool:
    """False if both are known and have different numbers of elements."""
    known = [t.elements for t in (x, y) if isinstance(t, Tensor) and t.static]
    return len(set(known)) < 2


def _aliases(node: Node, inputs: Sequence[Type | None], outputs: Sequence[Type]) -> Iterator[Alias]:
    """Yield the copies that move nothing if the plan puts both ends into the same bytes."""
    wholes = tensors([t for t in (*inputs, *outputs) if t is not None])
    if wholes is None or not all(t.static for t in wholes):
        return
    x, y = wholes[0], tensors(outputs)
    assert y is not None
    axis = node.attrs.get("axis", 0)
    if node.record.moves == "view":
        yield Alias(0, 0, "view")
    elif node.op in ("Concat", "Split") and all(n == 1 for n in x.sizes[: axis % x.rank]):
        at = 0
        for i, part in enumerate(wholes[: len(inputs)] if node.op == "Concat" else y):
            yield Alias(0, i, "part", at) if node.op == "Concat" else Alias(i, 0, "view", at)
            at += part.nbytes
    elif node.op == "Slice" and (begin := _first_byte(node, inputs, x, y[0])) is not None:
        yield Alias(0, 0, "view", begin)


def _first_byte(node: Node, inputs: Sequence[Type | None], x: Tensor, y: Tensor) -> int | None:
    """Return the first byte of a slice in its input; None if the slice is not contiguous there."""
    places = [t if t is None or not isinstance(t, Tensor) else t.value for t in (*inputs[1:], None, None)[:4]]
    if any(isinstance(t, Tensor) and v is None for t, v in zip(inputs[1:], places, strict=False)):
        return None
    where = sliced(x.sizes, *places)
    if any(part.step not in (None, 1) for part in where):
        return None
    cut = [a for a, (n, m) in enumerate(zip(x.sizes, y.sizes, strict=True)) if n != m]
    if not cut or any(n != 1 for n in y.sizes[: cut[-1]]):
        return None if cut else 0
    at, row = 0, x.dtype.itemsize
    for part, n in zip(reversed(where), reversed(x.sizes), strict=True):
        at += (part.start or 0) * row
        row *= n
    return at


def _odd_cast(before: Type | None, after: Type) -> str | None:
    """Casts between kinds that numpy itself has are plain copies; the others follow ONNX's own tables."""
    for t in (before, after):
        if not isinstance(t, Tensor) or t.dtype.numpy.isbuiltin != 1:
            return f"{t} is not one of numpy's own types"
    return None


def _same_place(a: Array, b: Array) -> bool:
    return bool(a.dtype == b.dtype and a.ctypes.data == b.ctypes.data and a.strides == b.strides)


class Take(Listed):
    """Gather along one axis with `np.take(out=)`; for a single known index, a slice that may be a view."""

    name = "numpy.take"
    operators = listed("Gather")
    remembers = True

    def select(self, request: KernelRequest) -> Choice | Declined:
        inputs = tensors([t for t in request.inputs if t is not None])
        if inputs is None:
            return Declined("an operand is no tensor of numbers")
        x, indices = inputs
        at = indices.ints() if request.constant(1) and indices.rank == 0 and x.static else None
        if at is None:
            return Choice(self.name)
        axis = request.node.attrs.get("axis", 0) % x.rank
        size = x.sizes[axis]
        if not -size <= at[0] < size:
            raise ShapeError(f"index {at[0]} is outside of the {size} elements of axis {axis}")
        contiguous = all(n == 1 for n in x.sizes[:axis])
        begin = at[0] % size * (x.nbytes // max(size, 1))
        return Choice(self.name, {"index": at[0]}, aliases=(Alias(0, 0, "view", begin),) if contiguous else ())

    def prepare(self, args: KernelArgs) -> Call:
        x, indices = args.inputs
        (out,) = args.outputs
        assert x is not None and indices is not None and out is not None
        axis = _attr(args, "axis") % x.ndim
        n = x.shape[axis]
        if "index" in args.choice.params:
            part = x[(*_along(axis, 0, n)[:-1], args.choice.params["index"], ...)]
            return nothing if _same_place(out, part) else lambda: np.copyto(out, part)

        def run() -> None:
            # mode "wrap" writes straight into `out` (mode "raise" buffers it) and gives negative indices their
            # meaning; the bounds are checked first
            if indices.size and (indices.min() < -n or indices.max() >= n):
                raise IndexError(f"an index of {indices.min()}..{indices.max()} is outside of {n} elements")
            np.take(x, indices, axis, out=out, mode="wrap")

        return run
