"""Movement of elements: views where the bytes are the same, strided copies, borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ....ops.layouts import is_permutation, turned, with_units
from ....ops.tensor.movement import BLOCK_ORDER
from ....ops.tensor.pad import pad_pairs
from ...compile.kernel import Choice, Declined, KernelArgs, KernelRequest, listed
from ...ir.graph import Node
from ..cpu.movement import MOVES
from .copies import Shadow, StridedCopy, launches, shadow
from .generated import ALL, Generated
from .launch import In, Out, Written
from .text import constant, dot, each, permuted, raw, reads, strides_of, writes
from .unwanted import completed

Pairs = Sequence[tuple[Shadow, Shadow]]


def _depth_to_space(out: Shadow, x: Shadow, attrs: dict[str, Any]) -> Pairs:
    (n, c, h, w), side, mode = x.shape, attrs["blocksize"], attrs.get("mode", "DCR")
    depth = c // side**2
    blocks = x.reshape(n, *((side, side, depth) if mode == "DCR" else (depth, side, side)), h, w)
    return [(out.reshape(n, depth, h, side, w, side), blocks.transpose(BLOCK_ORDER[mode]))]


def _space_to_depth(out: Shadow, x: Shadow, attrs: dict[str, Any]) -> Pairs:
    return [(b, a) for a, b in _depth_to_space(x, out, attrs)]


BLOCKS: dict[str, Callable[[Shadow, Shadow, dict[str, Any]], Pairs]] = {
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
IN_ANY_ORDER = ("Concat", "Split", "Slice", "Transpose")  # whose copies only take slices and turn axes


class CudaMovement(Generated):
    """Copies described by the same views as the CPU's; an operand that is a contiguous part of another costs
    nothing."""

    name = "gpu.copy"
    spares = ALL

    def serves(self, node: Node) -> bool:
        moves = node.op in MOVES or node.op in BLOCKS or node.op == "BitCast"
        return (not node.domain and moves and node.op != "Cast") or (node.domain, node.op) == ("mezzo", "Reorder")

    def write(self, request: KernelRequest) -> Written | Declined:
        wanted, request = request.node.outputs, completed(request, ())  # a part begins where those before it end
        node, (x, *others) = request.node, request.inputs
        (y, *_), many = request.outputs, node.op == "Concat"
        for t in (x, *(others if many else ()), *request.outputs):
            if not isinstance(t, Tensor) or not t.static:
                return Declined("an operand is no tensor of numbers, or its sizes are not known")
            if t.layout and not is_permutation(t.layout):
                return Declined(f"{t} has no order of axes")
        if node.op == "BitCast" and isinstance(x, Tensor) and x.dtype.bits < 8:
            return Declined(f"one element of {x.dtype} has a byte, whose other bits are its sign")
        assert isinstance(x, Tensor) and isinstance(y, Tensor)
        layouts = _layouts(request, x, y)
        laid = [
            t.laid(a) if isinstance(t, Tensor) else t
            for t, a in zip((x, *others, *request.outputs), layouts, strict=True)
        ]
        pairs = self._pairs(request, laid)
        if isinstance(pairs, Declined):
            return pairs
        copies = [
            StridedCopy.between(i, out, to, j, source, of)
            for (i, out, to), (j, source, of) in pairs
            if to.size and wanted[i]
        ]
        launched = launches(node.op.lower(), copies, (laid[: len(request.inputs)], laid[len(request.inputs) :]))
        aliases = tuple(launch.copies for launch in launched if launch.copies is not None)
        return Written(launched, aliases=aliases, layouts=tuple(layouts) if any(layouts) else ())

    def _pairs(self, request: KernelRequest, laid: list[Any]) -> list[Any] | Declined:
        """Return each copy as ((output, its shadow, the view), (input, its shadow, the view))."""
        node, count = request.node, len(request.inputs)
        x, y = laid[0], laid[count]
        xs, ys = [shadow(t) if isinstance(t, Tensor) else None for t in laid[:count]], [shadow(t) for t in laid[count:]]
        assert xs[0] is not None
        if node.op in ("Reorder", "BitCast") or node.record.moves == "view":
            flat = [np.lib.stride_tricks.as_strided(a, (a.size,), (a.itemsize,)) for a in (ys[0], xs[0])]
            same = node.op != "Reorder"
            return [((0, ys[0], flat[0] if same else ys[0]), (0, xs[0], flat[1] if same else xs[0]))]
        if node.op == "Transpose" and x.rank and y.layout == turned(x.layout, _order(node, x), x.sizes):
            flat = [np.lib.stride_tricks.as_strided(a, (a.size,), (a.itemsize,)) for a in (ys[0], xs[0])]
            return [((0, ys[0], flat[0]), (0, xs[0], flat[1]))]
        if node.op in BLOCKS:
            ((to, of),) = BLOCKS[node.op](ys[0], xs[0], dict(node.attrs))
            return [((0, ys[0], to), (0, xs[0], of))]
        move, needed = MOVES[node.op]
        for i in (i for i in needed if i < count and request.inputs[i] is not None):
            values = constant(request, i)
            if values is None:
                return Declined(f"{node.record.inputs[i].name} is no small constant")
            xs[i] = np.array(values, np.int64)
        views = move(KernelArgs(request, Choice(self.name), xs, ys, _no_scratch))
        if node.op == "Concat":
            return [((0, ys[0], to), (i, xs[i], of)) for i, (to, of) in enumerate(views)]
        return [((i, ys[i], to), (0, xs[0], of)) for i, (to, of) in enumerate(views)]


def _no_scratch(dtype: DType, shape: tuple[int, ...]) -> Any:
    raise AssertionError("copies need no workspace")


def _order(node: Node, x: Tensor) -> tuple[int, ...]:
    return tuple(node.attrs.get("perm") or reversed(range(x.rank)))


def _layouts(request: KernelRequest, x: Tensor, y: Tensor) -> list[str]:
    """Return the layouts of the inputs and of the outputs."""
    node, others = request.node, [""] * (len(request.inputs) - 1)
    if node.op == "Reorder":
        return [x.layout, node.attrs.get("layout", "")]
    if node.op == "Transpose" and 0 < x.rank <= 8:
        return [x.layout, turned(x.layout, _order(node, x), x.sizes)]
    if node.record.moves == "view" and x.layout:
        layout = with_units(x.layout, x.sizes, y.sizes)
        return ["" if layout is None else x.layout, *others, layout or ""]
    if node.op == "Concat":
        taken = [t.layout if isinstance(t, Tensor) else "" for t in request.inputs]
        sizes = [t.nbytes if isinstance(t, Tensor) else 0 for t in request.inputs]
        return [*taken, taken[sizes.index(max(sizes))]]
    if node.op in IN_ANY_ORDER:
        return [x.layout, *others, *[x.layout] * len(request.outputs)]
    return [""] * (len(request.inputs) + len(request.outputs))


class Pad(Generated):
    """Pad in every mode by known widths, and CenterCropPad: one thread for each element of the result."""

    name = "gpu.pad"
    operators = listed("Pad CenterCropPad")

    def write(self, request: KernelRequest) -> Written | Declined:
        x, y, node = request.inputs[0], request.outputs[0], request.node
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not x.static or not y.static:
            return Declined("an operand is no tensor of numbers, or its sizes are not known")
        if x.dtype.itemsize > 8:
            return Declined(f"elements of {x.dtype.itemsize} bytes")
        pads, axes = constant(request, 1), constant(request, 3)
        if node.op == "Pad" and (
            pads is None or (axes is None and len(request.inputs) > 3 and request.inputs[3] is not None)
        ):
            return Declined("pads or axes are no small constants")
        layout = permuted(x)
        others = [""] * (len(request.inputs) - 1)
        layouts = (layout, *others, layout) if layout else ()
        if not y.elements:
            return Written((), layouts=layouts)
        mode = node.attrs.get("mode", "constant")
        if node.op == "Pad":
            pairs = pad_pairs(pads or [], axes, x.rank)
        else:  # what is cropped and what is added are halved, the smaller half first
            pairs = [(_half(n - m), m - n - _half(n - m)) for n, m in zip(x.sizes, y.sizes, strict=True)]
        if mode not in _PLACES:
            return Declined(f"mode {mode!r}")
        if not x.elements and mode != "constant":
            return Declined("an axis without elements has no border")
        unit = raw(x.dtype.itemsize)
        lines, inside = [], []
        for d, ((before, after), n, m) in enumerate(zip(pairs, x.sizes, y.sizes, strict=True)):
            if not before and not after:
                lines.append(f"const int s{d} = {f'c{d}' if m != 1 else 0};")
                continue
            first = max(-before, 0)
            size = n - max(-after, 0) - first
            place = _PLACES[mode].format(at=f"((int)c{d} - {max(before, 0)})", n=size, last=size - 1, p=2 * (size - 1))
            lines.append(f"const int s{d} = {place if size > 1 or mode == 'constant' else 0} + {first};")
            if mode == "constant" and before > 0:
                inside.append(f"s{d} >= {first}")
            if mode == "constant" and after > 0:
                inside.append(f"s{d} < {first + size}")
        fill = len(request.inputs) > 2 and request.inputs[2] is not None and node.op == "Pad"
        at = f"x[{dot(strides_of(x.sizes, layout), 's', x.sizes)}]"
        value = f"{' && '.join(inside)} ? {at} : {'*fill' if fill else f'({unit})0'}" if inside else at
        parameters = [
            reads(unit, "x", In(0)),
            *([reads(unit, "fill", In(2))] if fill else []),
            writes(unit, "y", Out(0)),
        ]
        body = "\n".join([*lines, f"y[i] = {value};"])
        padded = each("pad", parameters, y.sizes, body, layout=layout, largest=x.elements or 0)
        return Written((padded,), layouts=layouts)


def _half(less: int) -> int:
    """Return the number of elements before the tensor if it has `less` elements more than the result; negative for
    cropping."""
    return -(less // 2) if less > 0 else -less // 2


# where the element at a place before or behind the tensor comes from
_PLACES = {
    "constant": "{at}",
    "edge": "min(max({at}, 0), {last})",
    "wrap": "(({at} % {n} + {n}) % {n})",
    "reflect": "min(({at} % {p} + {p}) % {p}, {p} - ({at} % {p} + {p}) % {p})",
}
