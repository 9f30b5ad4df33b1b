"""Concat and Split in the layouts of images: channels-last and blocked.

https://oneapi-src.github.io/oneDNN/dev_guide_concat.html. Row-major parts that follow one another in memory are left to
numpy.copy, whose parts are views; what lies so in another layout is a view here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ....ops import Tensor
from ....ops.layouts import nbytes, padded, parse, row_major, usual
from ....ops.types import Array
from ...compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, nothing, tensors
from .api import DST, MULTIPLE_SRC, SRC, Refused
from .kernel import OneDnn, unavailable
from .memory import Memory, moved
from .postops import Link
from .primitive import Draft, Operand, address, repacked


class Concat(OneDnn):
    """Concat of tensors in one layout: that which most of their bytes have."""

    name = "onednn.concat"
    ops = frozenset({"Concat"})
    remembers = True
    slow = ("ref",)  # `simple:any` copies whole runs of bytes

    def select(self, request: KernelRequest) -> Choice | Declined:
        """Parts of the result where those follow one another, else one primitive."""
        choice = super().select(request)
        types = tensors([*request.inputs, *request.outputs])
        if isinstance(choice, Declined) or types is None or not choice.layouts or len(request.inputs) < 2:
            return choice
        *parts, y = types
        begins = _begins(parts, y, _axis(request, y), choice.layouts[-1])
        if begins is None:
            return choice
        aliases = tuple(Alias(0, i, "part", at) for i, at in enumerate(begins))
        return Choice(self.name, aliases=aliases, layouts=choice.layouts, implementation="copies")

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """The layouts of the inputs, the one of most bytes first."""
        types = tensors([*request.inputs, *request.outputs])
        if len(links) > 1 or types is None:
            raise Refused("post-ops of Concat" if len(links) > 1 else "an operand is no tensor")
        *parts, y = types
        axis = _axis(request, y)
        for layout in _layouts(parts):
            if not layout and _begins(parts, y, axis, row_major(y.rank)) is not None:
                raise Refused("row-major parts that follow one another are views")
            operands = [
                Operand(MULTIPLE_SRC + i, ("in", i), Memory(t.sizes, moved(t.dtype), layout), layout)
                for i, t in enumerate(parts)
            ]
            target = Operand(DST, ("out", 0), Memory(y.sizes, moved(y.dtype), layout), layout)
            yield Draft("concat", (*operands, target), (axis,))

    def prepare(self, args: KernelArgs) -> Call:
        """Copies of what is not in place already, or the primitive."""
        if not args.choice.aliases:
            return super().prepare(args)
        (out,) = args.outputs
        assert out is not None
        target = _bytes(out)
        parts = [a for a in args.inputs if a is not None]
        pairs = zip(args.choice.aliases, parts, strict=True)
        return _copied((target[a.delta :][: p.nbytes], _bytes(p)) for a, p in pairs)

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """A constant part in the layout of the others, where no primitive says how it reads it."""
        known = request.inputs[index]
        if choice.primitives or not isinstance(known, Tensor):
            return super().pack(request, choice, index, array)
        dtype = moved(known.dtype)
        plain, laid = Memory(known.sizes, dtype), Memory(known.sizes, dtype, choice.layouts[index])
        return repacked(np.ascontiguousarray(array), plain, laid.handle.value)


class Split(OneDnn):
    """Split of a tensor in its own layout: each part is reordered out of it, or is a view."""

    name = "onednn.split"
    ops = frozenset({"Split"})
    remembers = True

    def select(self, request: KernelRequest) -> Choice | Declined:
        """Views where the parts follow one another, else one primitive for each."""
        types = tensors([request.inputs[0], *request.outputs])
        if types is None or unavailable(request) or not types[0].layout or not all(request.node.outputs):
            return super().select(request)
        x, *parts = types
        begins = _begins(parts, x, _axis(request, x), x.layout)
        if begins is None:
            return super().select(request)
        aliases = tuple(Alias(i, 0, "view", at) for i, at in enumerate(begins))
        others = [t.layout if isinstance(t, Tensor) else "" for t in request.inputs[1:]]
        layouts = (x.layout, *others, *(usual(x.layout, t.sizes) for t in parts))
        return Choice(self.name, aliases=aliases, layouts=layouts, implementation="copies")

    def plans(self, request: KernelRequest) -> Iterator[tuple[Draft, ...]]:
        """Yield the reorders of the parts, all in the layout of the whole."""
        x = request.inputs[0]
        if not isinstance(x, Tensor) or not x.layout or "=" in x.layout:
            raise Refused("a row-major tensor is split into views, or by copies")
        axis = _axis(request, x)
        outputs = iter(request.outputs)
        types = [next(outputs) if name else None for name in request.node.outputs]
        if not all(isinstance(t, Tensor) for t in types):
            raise Refused("a part is not requested")
        at, drafts, dtype = 0, [], moved(x.dtype)
        for i, part in enumerate(types):
            assert isinstance(part, Tensor)
            begin = tuple(at if d == axis else 0 for d in range(x.rank))
            source = Memory(part.sizes, dtype, x.layout, inside=(x.sizes, begin))
            target = Memory(part.sizes, dtype, x.layout)
            operands = Operand(SRC, ("in", 0), source, x.layout), Operand(DST, ("out", i), target, x.layout)
            drafts.append(Draft("reorder", operands))
            at += part.sizes[axis]
        yield tuple(drafts)

    def prepare(self, args: KernelArgs) -> Call:
        """Copies of what is not in place already, or the primitives."""
        if not args.choice.aliases:
            return super().prepare(args)
        x = args.inputs[0]
        assert x is not None
        source = _bytes(x)
        parts = [a for a in args.outputs if a is not None]
        pairs = zip(args.choice.aliases, parts, strict=True)
        return _copied((_bytes(p), source[a.delta :][: p.nbytes]) for a, p in pairs)


def _axis(request: KernelRequest, tensor: Tensor) -> int:
    axis = request.node.attrs.get("axis", 0)
    return int(axis) % tensor.rank


def _layouts(parts: Sequence[Tensor]) -> list[str]:
    """The layouts of the parts, the one of most bytes first; row-major at last."""
    weight = Counter[str]()
    for t in parts:
        weight[t.layout if "=" not in t.layout else ""] += t.nbytes
    return list(dict.fromkeys([*(layout for layout, _ in weight.most_common()), ""]))


def _begins(parts: Sequence[Tensor], tensor: Tensor, axis: int, layout: str) -> list[int] | None:
    """Return the byte offset of each part in the whole, if they are contiguous in this layout; else None."""
    order, blocks, extra = parse(layout, tensor.rank)
    if extra or any(tensor.sizes[d] != 1 for d in order[: order.index(axis)]):
        return None
    if any(d == axis for d, _ in blocks) and any(padded(layout, t.sizes)[axis] != t.sizes[axis] for t in parts):
        return None
    at, begins = 0, []
    for t in parts:
        begins.append(at)
        at += nbytes(layout, t.sizes, t.dtype.itemsize)
    return begins


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _copied(pairs: Iterable[tuple[Array, Array]]) -> Call:
    """Copies of bytes, without those that are in place."""
    copies = [(d, s) for d, s in pairs if address(d) != address(s)]
    if not copies:
        return nothing

    def run() -> None:
        for target, source in copies:
            np.copyto(target, source)

    return run
