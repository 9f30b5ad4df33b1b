"""GroupedRows with its caches in place: new rows are written behind those that there are."""

from __future__ import annotations

import numpy as np

from ....ops import Context, Tensor
from ....ops.contrib.grouped import HeadCounts, Scoring, rows_into
from ....ops.types import Array
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed


class GroupedRows(Listed):
    """The reference's arithmetic, into the buffers of the results; scores and turned rows are arrays of a run."""

    name = "numpy.grouped_rows"
    operators = listed("mezzo::GroupedRows")

    def select(self, request: KernelRequest) -> Choice | Declined:
        tensors = [t for t in (*request.inputs, *request.outputs) if t is not None]
        if not all(isinstance(t, Tensor) and t.static for t in tensors):
            return Declined("sizes are not known")
        return Choice(self.name) if len(request.outputs) == 3 else Declined("a cache is not wanted")

    def prepare(self, args: KernelArgs) -> Call:
        return _Appended(args)


class _Appended:
    """One call. It keeps no buffer that is bound for a run behind that: see `let_go`."""

    def __init__(self, args: KernelArgs) -> None:
        attrs = args.node.attrs
        query, key = args.inputs[1:3]
        assert query is not None
        self._heads, self._scoring = HeadCounts.of(query, key, attrs), Scoring.of(attrs)
        self._context = Context(np, check=args.check)
        self._arrays: dict[tuple[str, int], Array] = {}
        for side, arrays in (("in", args.inputs), ("out", args.outputs)):
            self._arrays |= {(side, i): a for i, a in enumerate(arrays) if a is not None}
        self._moving = set[tuple[str, int]]()

    def rebind(self, place: tuple[str, int], array: Array) -> None:
        """Let an input or an output be another array."""
        self._moving.add(place)
        self._arrays[place] = array

    def __call__(self) -> None:
        counts, query, key, value, old_keys, old_values, last, *others = (
            self._arrays.get(("in", i)) for i in range(12)
        )
        y, keys, values = (self._arrays["out", i] for i in range(3))
        assert counts is not None and old_keys is not None and old_values is not None and last is not None
        past, results = (old_keys, old_values), (y, keys, values)
        new = (query, key, value)
        rows_into(self._context, counts, new, past, last, others, self._heads, self._scoring, results)

    def let_go(self) -> None:
        """Forget what was bound."""
        for place in self._moving:
            self._arrays.pop(place, None)
