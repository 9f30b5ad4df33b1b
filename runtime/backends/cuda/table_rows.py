"""Row-sparse gradients of embedding tables, and optimizer steps of these rows alone.

The cost of a step depends on the rows of a batch, not on the size of the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ....ops import Tensor
from ....ops.core.lowered import lower
from ....ops.training.update import trees
from ...compile.kernel import Alias, Declined, KernelRequest, listed
from .generated import Generated
from .indexing import INDICES, index_of_row, reduced
from .launch import In, Launch, Operand, Out, Written
from .segments import Segments, bearable
from .source import element_of, write
from .text import each, elements, index_type, raw, reads, writes


class CudaGatherGradRows(Generated):
    """mezzo::GatherGradRows: the rows that have updates, and the sums of these in their order."""

    name = "gpu.gather_rows"
    operators = listed("mezzo::GatherGradRows")

    def write(self, request: KernelRequest) -> Written | Declined:
        (dy, indices, shape), (ids, rows) = request.inputs, request.outputs
        forms = elements([dy, indices, ids, rows])
        sizes = shape.ints() if isinstance(shape, Tensor) else None
        if forms is None or not sizes or not isinstance(indices, Tensor) or indices.dtype not in INDICES:
            return Declined("an operand is no tensor of numbers, or the size of the table is not known before the run")
        e, kind, count, size = forms[0], forms[1], indices.elements or 0, sizes[0]
        if not e.dtype.floating:
            return Declined("integers have no gradient")
        if not min(count, size):
            return Written(())
        if not bearable(count, size):
            return Declined("too many updates, or too many rows, to be sorted")
        lines = ["long long row = 0;", *index_of_row(kind, "at[i]", size)]
        segments = Segments.of([reads(kind, "at", In(1))], lines, count, size, Out(0))
        inner = math.prod(sizes[1:])
        if not inner:
            return Written(segments.launches, segments.workspace)
        summed, workspace = segments.summed(
            *("sum_rows", e, partial(reduced, e, "add"), 1, inner, f"({e.wide})0", (), In(0), Out(1))
        )
        return Written((*segments.launches, *summed), workspace)


class CudaUpdateRows(Generated):
    """mezzo::UpdateRows: one thread for each element of the rows, which are written over the table and its states."""

    name = "gpu.update_rows"
    operators = listed("mezzo::UpdateRows")

    def write(self, request: KernelRequest) -> Written | Declined:
        types = [t for t in request.inputs if isinstance(t, Tensor) and t.static]
        if len(types) < len(request.inputs) or types[1].dtype not in INDICES:
            return Declined("an operand is no tensor of numbers, or its sizes are not known")
        attrs = request.node.record.bind(request.node.attrs)
        states, draws = attrs.get("states", 0), attrs.get("draws", 0)
        first = len(types) - states
        tables, several = [0, *range(first, len(types))], [2, *range(first - draws, first)]
        table, rows = types[0].sizes, (*types[1].sizes, *types[0].sizes[1:])
        if any(types[i].sizes != table for i in tables) or any(types[i].sizes != rows for i in several):
            return Declined(
                "the table and its states differ in shape, or there are not as many rows as numbers of them"
            )
        results = trees([t.dtype for t in (types[0], *types[2:])], attrs)
        return self._written(request, types, tables, several, results)

    def _written(
        self,
        request: KernelRequest,
        types: Sequence[Tensor],
        tables: Sequence[int],
        several: Sequence[int],
        results: Sequence[object],
    ) -> Written:
        """Copies of the tables, which are left out where they lie in one place, and the step."""
        aliases = tuple(Alias(o, i) for o, i in enumerate(tables) if not request.constant(i))
        copies = [_copy(types[i], i, o) for o, i in enumerate(tables) if types[i].elements]
        size, count, inner = types[0].sizes[0], types[1].sizes[0], math.prod(types[0].sizes[1:])
        if not size * count * inner:
            return Written(tuple(copies), 0, aliases)
        code = lower(results, len(types) - 1)  # type: ignore[arg-type]
        forms = {i: element_of(t.dtype) for i, t in enumerate(types)}
        parameters: list[tuple[str, str, Operand]] = [reads(forms[1], "ids", In(1))]
        names, lines = [""] * (len(types) - 1), list[str]()
        for n in code.reads:
            i = n + (n > 0)  # the numbers of the rows are no operand of the rule
            names[n] = f"v{i}"
            if i not in tables:
                parameters.append(reads(forms[i], f"x{i}", In(i)))
            place = f"y{tables.index(i)}[p]" if i in tables else f"x{i}[{'i' if i in several else '0'}]"
            lines.append(f"const {forms[i].wide} v{i} = {forms[i].read(place)};")
        parameters += [(f"{forms[i].stored}*", f"y{o}", Out(o)) for o, i in enumerate(tables)]
        source = write(code, names)
        index = index_type(size * inner)
        stores = [
            f"y{o}[p] = {forms[i].write(r)};" for (o, i), r in zip(enumerate(tables), source.results, strict=True)
        ]
        body = [
            "const long long row = ids[c0];",
            f"if (row < 0 || row >= {size}) return;",
            f"const {index} p = ({index})row * {inner} + c1;",
            *(*lines, *source.lines, *stores),
        ]
        step = each(
            *("update_rows", parameters, (count, inner), "\n".join(body)),
            largest=size * inner,
            before="".join(source.functions),
        )
        return Written((*copies, step), 0, aliases)


def _copy(known: Tensor, source: int, target: int) -> Launch:
    """The copy of a table to its new place, if that is another one."""
    unit = raw(known.dtype.itemsize)
    parameters = [reads(unit, "x", In(source)), writes(unit, "y", Out(target))]
    copy = each("copy", parameters, (known.elements or 0,), "y[i] = x[i];")
    return replace(copy, copies=Alias(target, source))
