"""Indexing: reads and writes by position, in an order that depends on the operands alone.

A kernel cannot raise an error: from an index outside of its axis zeros are read, and to it nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ....ops import DType, Tensor
from ....ops.core.rules import axis_of
from ....ops.dataclasses import dataclass
from ....ops.errors import ShapeError
from ...compile.kernel import Declined, KernelRequest, listed
from ...memory.liveness import aligned
from .copies import StridedCopy, launches, shadow
from .generated import Generated
from .launch import In, Launch, Out, Scratch, Written
from .segments import Parameter, Segments, bearable
from .text import (
    Element,
    constant,
    coordinates,
    dot,
    each,
    element,
    index_type,
    raw,
    reads,
    strides_of,
    writes,
)  # fmt: skip

INDICES = (DType.INT32, DType.INT64)
PATIENCE = 2**28  # comparisons of places in one step: beyond, updates are sorted


def _static(request: KernelRequest) -> tuple[list[Tensor], Tensor] | None:
    """The inputs and the first output, if all are tensors of numbers whose sizes are known, of at most 8 bytes."""
    tensors = [
        t for t in (*request.inputs, request.outputs[0]) if isinstance(t, Tensor) and t.static and t.dtype.itemsize <= 8
    ]
    return (tensors[:-1], tensors[-1]) if len(tensors) == len(request.inputs) + 1 else None


def _index(e: str, place: str, size: int, name: str = "k") -> str:
    """A statement that reads an index, counted from the front."""
    return f"long long {name} = {place}; if ({name} < 0) {name} += {size};"


def index_of_row(kind: Element, place: str, size: int) -> list[str]:
    """Statements that count an index of one more axis in the number `row`, which is -1 once one is outside."""
    return [
        f"{{ {_index(kind.stored, place, size)}",
        f"row = row < 0 || k < 0 || k >= {size} ? -1 : row * {size} + k; }}",
    ]


class Gather(Generated):
    """Gather, GatherElements and GatherND: one thread for each element, or for each 16 bytes of a row."""

    name = "gpu.gather"
    operators = listed("Gather GatherElements GatherND")

    def write(self, request: KernelRequest) -> Written | Declined:
        operands = _static(request)
        if operands is None or operands[0][1].dtype not in INDICES:
            return Declined("an operand is no tensor of numbers up to 8 bytes, or its sizes are not known")
        (x, indices), y = operands
        if not y.elements:
            return Written(())
        attrs, kind = request.node.attrs, element(indices.dtype)
        assert kind is not None
        if request.node.op == "Gather":
            axis = axis_of(attrs.get("axis", 0), x.rank)
            at = constant(request, 1) if indices.rank == 0 else None
            return _slice(x, y, axis, at[0]) if at else Written((_rows(x, indices, kind, axis),))
        if not x.elements:
            return Declined("there is nothing to take")
        if request.node.op == "GatherElements":
            return Written((_one_by_one(x, indices, y, kind, axis_of(attrs.get("axis", 0), x.rank)),))
        return Written((_blocks(x, indices, y, kind, attrs.get("batch_dims", 0)),))


def _slice(x: Tensor, y: Tensor, axis: int, at: int) -> Written:
    """Return the copy for a known index, which may be a view of the input. Raises ShapeError for an index out of
    range."""
    n = x.sizes[axis]
    if not -n <= at < n:
        raise ShapeError(f"index {at} is outside of the {n} elements of axis {axis}")
    of, to = shadow(x), shadow(y)
    part = of[(*[slice(None)] * axis, slice(at % n, at % n + 1))]
    copies = launches("gather", [StridedCopy.between(0, to, np.expand_dims(to, axis), 0, of, part)], ([x], [y]))
    return Written(copies, aliases=tuple(m.copies for m in copies if m.copies is not None))


def _rows(x: Tensor, indices: Tensor, kind: Element, axis: int) -> Launch:
    n, after = x.sizes[axis], math.prod(x.sizes[axis + 1 :]) * x.dtype.itemsize
    unit = math.gcd(16, after)
    sizes = (math.prod(x.sizes[:axis]), indices.elements or 1, after // unit)
    zero = "{}" if unit == 16 else "0"
    body = f"""
{_index(kind.stored, "at[c1]", n)}
const {raw(unit)} nothing = {zero};
y[i] = k >= 0 && k < {n} ? x[(c0 * {n} + k) * {sizes[2]} + c2] : nothing;
"""
    parameters = [reads(raw(unit), "x", In(0)), reads(kind, "at", In(1)), writes(raw(unit), "y", Out(0))]
    return each("gather", parameters, sizes, body, largest=x.elements or 0)


def _one_by_one(x: Tensor, indices: Tensor, y: Tensor, kind: Element, axis: int) -> Launch:
    unit, n, strides = raw(x.dtype.itemsize), x.sizes[axis], list(strides_of(x.sizes))
    step, strides[axis] = strides[axis], 0
    body = f"{_index(kind.stored, 'at[i]', n)}\ny[i] = k >= 0 && k < {n} ? x[{dot(strides)} + k * {step}] : ({unit})0;"
    parameters = [reads(unit, "x", In(0)), reads(kind, "at", In(1)), writes(unit, "y", Out(0))]
    return each("gather_elements", parameters, y.sizes, body, largest=x.elements or 0)


def _blocks(x: Tensor, indices: Tensor, y: Tensor, kind: Element, batch: int) -> Launch:
    depth, strides, unit = indices.sizes[-1], strides_of(x.sizes), raw(x.dtype.itemsize)
    lead, inner = indices.sizes[:-1], math.prod(x.sizes[batch + depth :])
    lines = [
        f"long long from = {dot([*strides[:batch], *[0] * (len(lead) - batch)], 'c', lead)};",
        "bool there = true;",
    ]
    row = dot(strides_of(lead), "c", lead)
    for j in range(depth):
        n = x.sizes[batch + j]
        lines.append(f"{{ {_index(kind.stored, f'at[({row}) * {depth} + {j}]', n)}")
        lines.append(f"there = there && k >= 0 && k < {n}; from += k * {strides[batch + j]}; }}")
    lines.append(f"y[i] = there ? x[from + c{len(lead)}] : ({unit})0;")
    # without indices each tuple picks the whole of its batch
    parameters = [reads(unit, "x", In(0)), *([reads(kind, "at", In(1))] if depth else []), writes(unit, "y", Out(0))]
    return each("gather_nd", parameters, (*lead, inner), "\n".join(lines), largest=x.elements or 0)


class CudaScatter(Generated):
    """ScatterND and ScatterElements, and GatherGrad. Updates are taken in their order: without a reduction the last one
    stays."""

    name = "gpu.scatter"
    operators = listed("ScatterND ScatterElements mezzo::GatherGrad")

    def write(self, request: KernelRequest) -> Written | Declined:
        tensors, y = _static(request), request.outputs[0]
        if tensors is None or not isinstance(y, Tensor) or tensors[0][1].dtype not in INDICES:
            return Declined("an operand is no tensor of numbers up to 8 bytes, or its sizes are not known")
        e, kind = element(y.dtype), element(tensors[0][1].dtype)
        reduction = "add" if request.node.op == "GatherGrad" else request.node.attrs.get("reduction", "none")
        if kind is None or (reduction != "none" and (e is None or e.dtype is DType.BOOL)):
            return Declined(f"{y.dtype} is not computed with here")
        if not y.elements:
            return Written(())
        unit = raw(y.dtype.itemsize)
        e = Element(y.dtype, unit, unit) if reduction == "none" else e
        assert e is not None
        if reduction not in STEPS:
            return Declined(f"reduction {reduction!r}")
        if request.node.op == "ScatterElements":
            x, indices, _ = tensors[0]
            axis = axis_of(request.node.attrs.get("axis", 0), x.rank)
            if not indices.elements or y.elements * indices.sizes[axis] <= PATIENCE:
                return Written((_along(indices, y, e, kind, axis, reduction),))
            row, index = _place_along(indices, y, kind, axis), [reads(kind, "at", In(1))]
            updates = _Updates(row, index, (1, y.elements, 1), indices.elements, In(0), In(2))
        elif request.node.op == "GatherGrad":
            indices = tensors[0][1]
            axis = axis_of(request.node.attrs.get("axis", 0), y.rank)
            sizes = (math.prod(y.sizes[:axis]), y.sizes[axis], math.prod(y.sizes[axis + 1 :]))
            row = ["long long row = 0;", *index_of_row(kind, "at[i]", y.sizes[axis])]
            updates = _Updates(row, [reads(kind, "at", In(1))], sizes, indices.elements or 0, None, In(0))
        else:
            x, indices, _ = tensors[0]
            depth = indices.sizes[-1]
            row = ["long long row = 0;"]
            for j, n in enumerate(x.sizes[:depth]):
                row += index_of_row(kind, f"at[i * {depth} + {j}]", n)
            sizes = (1, math.prod(x.sizes[:depth]), math.prod(x.sizes[depth:]))
            index = [reads(kind, "at", In(1))] if depth else []
            updates = _Updates(row, index, sizes, math.prod(indices.sizes[:-1]), In(0), In(2))
        if max(updates.count, updates.sizes[1]) >= 2**31 - 1:
            return Declined("more updates, or more places for them, than 32 bits count")
        if reduction == "none":
            return _last(updates, e)
        if updates.count and not bearable(updates.count, updates.sizes[1]):
            return Declined("too many updates to be sorted")
        return _summed(updates, e, reduction)


@dataclass(frozen=True, slots=True)
class _Updates:
    """The updates of blocks: the statements `row` tell the block of update `i` in `row`, -1 for none, from what `index`
    reads. `sizes` are the axes before the blocks, how many these are, and the elements of one; `count` is the number of
    updates, `data` what they are added to (None: zeros), `news` what they are."""

    row: Sequence[str]
    index: Sequence[Parameter]
    sizes: tuple[int, int, int]
    count: int
    data: In | None
    news: In

    def old(self, e: Element) -> tuple[list[Parameter], str]:
        """The parameter and the source of what an element was."""
        return ([], f"({e.wide})0") if self.data is None else ([reads(e, "x", self.data)], e.read("x[i]"))


STEPS = {
    "none": "{1}",
    "add": "({0} + {1})",
    "mul": "({0} * {1})",
    "max": "({1} > {0} || {1} != {1} ? {1} : {0})",
    "min": "({1} < {0} || {1} != {1} ? {1} : {0})",
}


def reduced(e: Element, reduction: str, sum: str, update: str) -> str:
    """The statement that takes an update in; sums of integers go round."""
    if reduction in ("add", "mul") and not e.dtype.floating:
        sum, update = f"({e.sums}){sum}", f"({e.sums}){update}"
    return f"({e.wide}){STEPS[reduction].format(sum, update)}"


def _along(indices: Tensor, y: Tensor, e: Element, kind: Element, axis: int, reduction: str) -> Launch:
    """Along one axis: each element looks through its own line of indices."""
    count, n = indices.sizes[axis], y.sizes[axis]
    strides = list(strides_of(indices.sizes))
    step, strides[axis] = strides[axis], 0
    near = [f"c{d} < {m}" for d, m in enumerate(indices.sizes) if d != axis and m < y.sizes[d]]
    body = f"""
{e.wide} sum = {e.read("x[i]")};
if ({" && ".join(near) or "true"}) for (int j = 0; j < {count}; ++j) {{
    {_index(kind.stored, f"at[{dot(strides)} + ({index_type(indices.elements or 0)})j * {step}]", n)}
    if (k != c{axis}) continue;
    const {e.wide} update = {e.read(f"news[{dot(strides)} + ({index_type(indices.elements or 0)})j * {step}]")};
    sum = {reduced(e, reduction, "sum", "update")};
}}
y[i] = {e.write("sum")};
"""
    parameters = [reads(e, "x", In(0)), reads(kind, "at", In(1)), reads(e, "news", In(2)), writes(e, "y", Out(0))]
    return each("scatter_elements", parameters, y.sizes, body, largest=indices.elements or 0)


def _place_along(indices: Tensor, y: Tensor, kind: Element, axis: int) -> list[str]:
    """The place of update `i` among all elements, where each line of indices goes along an axis."""
    strides = list(strides_of(y.sizes))
    step, strides[axis] = strides[axis], 0
    return [
        *coordinates("long long", "i", indices.sizes, "q"),
        _index(kind.stored, "at[i]", y.sizes[axis]),
        f"const long long row = k < 0 || k >= {y.sizes[axis]} ? -1 : {dot(strides, 'q')} + k * {step};",
    ]


def _last(updates: _Updates, e: Element) -> Written:
    """The last update of each block stays: it is found by the largest of their numbers."""
    (_, rows, inner), count = updates.sizes, updates.count
    last = ("int*", "last", Scratch(0))
    steps = [each("scatter_begin", [last], (rows,), "last[i] = -1;")]
    if count:
        lines = [*updates.row, "if (row >= 0) atomicMax(&last[row], (int)i);"]
        steps.append(each("scatter_last", [*updates.index, last], (count,), "\n".join(lines)))
    body = f"const int m = last[c1];\ny[i] = m < 0 ? x[i] : news[(long long)m * {inner} + c2];"
    parameters = [*updates.old(e)[0], reads("int", "last", Scratch(0)), reads(e, "news", updates.news)]
    parameters.append(writes(e, "y", Out(0)))
    steps.append(each("scatter", parameters, updates.sizes, body, largest=count * inner))
    return Written(tuple(steps), aligned(rows * 4))


def _summed(updates: _Updates, e: Element, reduction: str) -> Written:
    """All updates of a block, one behind the other (segments.py)."""
    (before, rows, inner), count = updates.sizes, updates.count
    old, x = updates.old(e)
    if not count:
        return Written((each("scatter", [*old, writes(e, "y", Out(0))], updates.sizes, f"y[i] = {e.write(x)};"),))
    segments = Segments.of(updates.index, updates.row, count, rows, None)
    summed, workspace = segments.summed(
        *("scatter", e, partial(reduced, e, reduction), before, inner, x, old, updates.news, Out(0))
    )
    return Written((*segments.launches, *summed), workspace)
