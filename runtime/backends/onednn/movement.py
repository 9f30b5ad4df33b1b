"""Changes of layout: reordering, and transposing without a copy.

https://oneapi-src.github.io/oneDNN/dev_guide_reorder.html
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....ops import DType, Tensor
from ....ops.layouts import is_permutation, turned, with_units
from ....ops.types import Array
from ...compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, nothing
from ...ir.graph import Node
from .api import DST, SRC, Refused
from .kernel import REFERENCE, OneDnn
from .library import library
from .memory import Memory, moved
from .postops import Link
from .primitive import Draft, Operand, describe

REORDERED = (DType.FLOAT, DType.BFLOAT16, DType.INT32, DType.INT8, DType.UINT8)  # float16 is not, on every machine


class Reorder(OneDnn):
    """The same elements in another layout, or in another float type."""

    name = "onednn.reorder"
    ops = frozenset({"Reorder"})
    remembers = True

    def serves(self, node: Node) -> bool:
        return (node.domain, node.op) == ("mezzo", "Reorder")

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """One reorder."""
        (x,) = request.inputs
        assert isinstance(x, Tensor)
        layout = links[0].attrs.get("layout", "")
        dtype = moved(x.dtype)
        source = Operand(SRC, ("in", 0), Memory(x.sizes, dtype, x.layout), x.layout)
        yield Draft("reorder", (source, Operand(DST, ("out", 0), Memory(x.sizes, dtype, layout), layout)))


class Units:
    """Squeeze, Unsqueeze and Reshape that only remove or add axes of size 1, in the layout of the input."""

    name = "layout.units"
    remembers = True

    def serves(self, node: Node) -> bool:
        return not node.domain and node.record.moves == "view" and node.op != "Identity"

    def select(self, request: KernelRequest) -> Choice | Declined:
        """A view, if the input has its axes in another order; in row-major order NumPy's view does as well."""
        x, y = request.inputs[0], request.outputs[0]
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not x.static or not y.static:
            return Declined("sizes are not known")
        if not is_permutation(x.layout):
            return Declined(f"the input is {x.layout or 'row-major'}")
        layout = with_units(x.layout, x.sizes, y.sizes)
        if layout is None:
            return Declined("axes of other sizes change")
        others = ("",) * (len(request.inputs) - 1)
        return Choice(self.name, aliases=(Alias(0, 0, "view"),), layouts=(x.layout, *others, layout))

    def prepare(self, args: KernelArgs) -> Call:
        """Return a call that does nothing if the plan has both in one place."""
        return _as_they_lie(args)

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """Constants are folded before kernels are chosen; none is packed for a view."""
        raise AssertionError("a view reads its input as it is")


def _as_they_lie(args: KernelArgs) -> Call:
    x, y = args.inputs[0], args.outputs[0]
    assert x is not None and y is not None
    source, target = _bytes(x), _bytes(y)
    if source.__array_interface__["data"] == target.__array_interface__["data"]:
        return nothing
    return lambda: np.copyto(target, source)


def _reorders(memory: Memory) -> bool:
    """True if an efficient reorder to row-major order exists."""
    operands = (Operand(SRC, ("in", 0), memory), Operand(DST, ("out", 0), memory.row_major()))
    try:
        descriptor = describe(Draft("reorder", operands), 1)
    except Refused:
        return False
    return not descriptor.implementation.startswith(REFERENCE)


class Transpose:
    """Transpose as another layout of the same bytes: nothing moves until a consumer needs row-major order."""

    name = "layout.transpose"
    remembers = True

    def serves(self, node: Node) -> bool:
        return (node.domain, node.op) == ("", "Transpose")

    def select(self, request: KernelRequest) -> Choice | Declined:
        """A view, if everything that may read it can be given another layout."""
        (x,) = request.inputs
        if not request.target.onednn or library() is None:
            return Declined("nothing would reorder the result")
        if (
            not isinstance(x, Tensor)
            or not x.static
            or not x.elements
            or x.dtype not in REORDERED
            or not 0 < len(x.sizes) <= 6
        ):
            return Declined(f"oneDNN reorders no {x}")
        if x.layout and not is_permutation(x.layout):
            return Declined(f"the input is blocked: {x.layout}")
        order = request.node.attrs.get("perm") or tuple(reversed(range(len(x.sizes))))
        layout = turned(x.layout, order, x.sizes)
        if layout and not _reorders(Memory(tuple(x.sizes[d] for d in order), moved(x.dtype), layout)):
            return Declined(f"oneDNN reorders no {x} here")
        layouts = (x.layout, layout)
        return Choice(self.name, aliases=(Alias(0, 0, "view"),), layouts=layouts if any(layouts) else ())

    def prepare(self, args: KernelArgs) -> Call:
        """Return a call that does nothing if the plan has both in one place."""
        return _as_they_lie(args)

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """Constants are folded before kernels are chosen; none is packed for a view."""
        raise AssertionError("a transposed view reads its input as it is")


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
