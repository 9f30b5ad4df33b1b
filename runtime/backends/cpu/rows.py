"""Row-sparse gradients of embedding tables, and optimizer steps of these rows alone.

The cost of a step depends on the rows of a batch, not on the size of the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ....ops.core.evaluate import Blocks
from ....ops.core.rules import in_table
from ....ops.training.update import steps_of
from ....ops.types import Array
from ...compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed, tensors
from ...memory.liveness import aligned
from .update import BLOCK, flat

SCARCE = 16  # times fewer indices than rows: beyond, sorting them is faster than going over the table


def both(outputs: Sequence[Array | None], width: Sequence[int], dtype: Any) -> tuple[Array, Array]:
    """Numbers of rows, and these rows; where one of them is not wanted an array of its own."""
    ids, rows = (*outputs, None)[:2]
    if ids is None:
        assert rows is not None
        return np.empty(len(rows), np.int64), rows
    return ids, np.empty((len(ids), *width), dtype) if rows is None else rows


class GatherGradRows(Listed):
    """Sums in the order of the indices, as `numpy.scatter` computes them, with the same bits."""

    name = "numpy.gather_rows"
    operators = listed("mezzo::GatherGradRows")

    def select(self, request: KernelRequest) -> Choice | Declined:
        dy, shape = request.inputs[0], request.inputs[2]
        if not all(isinstance(t, Tensor) and t.static for t in (dy, *request.outputs)) or not isinstance(dy, Tensor):
            return Declined("sizes are not known")
        if not isinstance(shape, Tensor) or shape.ints() is None:
            return Declined("the size of the table is not known before the run")
        if dy.dtype not in (DType.FLOAT, DType.DOUBLE):
            return Declined(f"sums of {dy.dtype} are taken in float32")
        return Choice(self.name, workspace=(dy.elements or 0) * DType.INT64.itemsize)

    def prepare(self, args: KernelArgs) -> Call:
        dy, indices, shape = args.inputs
        assert dy is not None and indices is not None and shape is not None
        ids, rows = both(args.outputs, [int(n) for n in shape[1:]], dy.dtype)
        size, width = int(shape[0]), math.prod(rows.shape[1:])
        places = args.scratch(DType.INT64, dy.shape).reshape(indices.size, width)
        columns, sums, news = np.arange(width), rows.reshape(-1), dy.reshape(-1)
        slices, into = dy.reshape(indices.size, width), rows.reshape(len(ids), width)
        marked = np.empty(size, np.intp) if indices.size * SCARCE > size else None

        def run() -> None:
            at = indices.reshape(-1)
            in_table(at, -size, size)
            at = np.where(at < 0, at + size, at)
            if marked is not None and not (at == size).any():
                distinct, order = _by_marks(at, marked)
                sums.fill(0)
                np.add((order * width)[:, None], columns, out=places)
                np.add.at(sums, places.reshape(-1), news)  # in one dimension it is many times as fast
                ids[: len(distinct)], ids[len(distinct) :] = distinct, size
                return
            distinct, first, order = np.unique(at, return_index=True, return_inverse=True)
            if distinct.size and distinct[-1] == size:  # which is no row
                distinct, first = distinct[:-1], first[:-1]
            count = distinct.size
            ids[:count], ids[count:] = distinct, size
            np.take(slices, first, 0, out=into[:count], mode="clip")
            into[:count] += 0  # as the sum with zero is
            into[count:] = 0
            if count == at.size:
                return
            again = order < count
            again[first] = False
            more = np.flatnonzero(again)  # in their order
            later = places[: len(more)]
            np.add((order[more] * width)[:, None], columns, out=later)
            np.add.at(sums, later.reshape(-1), slices[more].reshape(-1))

        return run


def _by_marks(at: Array, marked: Array) -> tuple[Array, Array]:
    """The numbers that are there, ascending, and of each one of `at` its place among them: without sorting."""
    marked.fill(0)
    marked[at] = 1
    distinct = np.flatnonzero(marked)
    marked[distinct] = np.arange(len(distinct))
    return distinct, marked[at]


class UpdateRows(Listed):
    """Optimizer steps of rows: they are gathered, stepped as `numpy.update` steps tensors, and written back, over W and
    its states."""

    name = "numpy.update_rows"
    operators = listed("mezzo::UpdateRows")

    def select(self, request: KernelRequest) -> Choice | Declined:
        inputs, outputs = tensors(request.inputs), tensors(request.outputs)
        if inputs is None or outputs is None or not all(t.static for t in (*inputs, *outputs)):
            return Declined("an operand is no tensor of known sizes")
        states, draws = request.node.attrs.get("states", 0), request.node.attrs.get("draws", 0)
        first = len(inputs) - states
        tables, several = [inputs[0], *inputs[first:]], [inputs[2], *inputs[first - draws : first]]
        rows = (*inputs[1].sizes, *inputs[0].sizes[1:])
        if any(t.sizes != inputs[0].sizes for t in tables) or len(outputs) < 1 + states:
            return Declined("the table and its states differ in shape, or a result is not wanted")
        if any(t.sizes != rows for t in several):
            return Declined("there are not as many rows as numbers of them")
        dtypes, size = tuple(t.dtype for t in (inputs[0], *inputs[2:])), math.prod(rows)
        room = sum(aligned(min(BLOCK, size) * d.itemsize) for d in steps_of(dtypes, **request.node.attrs).code.temps)
        room += sum(aligned(size * t.dtype.itemsize) for t in tables)
        aliases = tuple(Alias(o, i) for o, i in enumerate([0, *range(first, len(inputs))]))
        return Choice(self.name, workspace=room, aliases=aliases)

    def prepare(self, args: KernelArgs) -> Call:
        xs = [x for x in args.inputs if x is not None]
        outs = [y for y in args.outputs if y is not None]
        states, ids, dw = len(outs) - 1, xs[1], xs[2]
        first = len(xs) - states
        tables = [xs[0], *xs[first:]]
        steps = steps_of(tuple(DType.of(x.dtype) for x in (xs[0], *xs[2:])), **args.node.attrs)
        rows = [args.scratch(DType.of(x.dtype), dw.shape) for x in tables]
        temps = [args.scratch(d, (min(BLOCK, dw.size),)) for d in steps.code.temps]
        arrays = flat(steps.code, [rows[0], *xs[2:first], *rows[1:]])
        step = Blocks(steps, arrays, [x.reshape(-1) for x in rows], temps, BLOCK).run
        copies = [(y, x) for y, x in zip(outs, tables, strict=True) if y.ctypes.data != x.ctypes.data]
        pairs = [*zip(outs, rows, strict=True)]

        def run() -> None:
            for y, x in copies:
                np.copyto(y, x)
            step_rows(ids, pairs, step)

        return run


def step_rows(ids: Array, pairs: list[tuple[Array, Array]], step: Call) -> None:
    """Step the rows `ids` of tables in place: each table is beside the place for its rows, which `step` steps."""
    size = len(pairs[0][0])
    in_table(ids, 0, size)
    if not size:
        return
    for table, rows in pairs:
        np.take(table, ids, 0, out=rows, mode="clip")  # they were checked, and what is no row is not put back
    step()
    kept = ids < size
    all_kept = bool(kept.all())
    at = ids if all_kept else ids[kept]
    for table, rows in pairs:
        table[at] = rows if all_kept else rows[kept]
