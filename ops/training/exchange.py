"""Split of a training program for a KVStore: values sent to it, and values received.

Both are the identity: in a program without a store, in an exported model, and for derivatives. With a store, an Emit
says that a value is final, so that it travels while the steps behind it run, and an Await waits for what the store
makes of it: the sum over all workers, or with a `verb` this worker's part of the sum (`reduce_scatter`), or the parts
of all workers behind each other (`all_gather`). SumRows does both at once, for the rows of a table. How they travel is
the affair of whoever gives the program its store (train/exchange.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor, Type, f32

DOMAIN, EMIT, AWAIT, SUM_ROWS = "mezzo", "Emit", "Await", "SumRows"
SUM, PART, ALL = "all_reduce", "reduce_scatter", "all_gather"  # verbs
SAMPLES = [Sample([f32(2, 3)], {"key": "weight"}), Sample([np.ones((2, 2))], {"key": "bias"})]


@op("Emit", domain="mezzo", complex_numbers="taken", samples=[*SAMPLES, Sample([f32(3), f32(2)], {"key": "weight"})])
def emit(k: Context, X: Array, After: Array | None = None, *, key: str, verb: str = SUM) -> Array:
    """X, which is final and goes to the store under `key`, once `After` is there."""
    return k.xp.array(X)


@op(
    "Await",
    domain="mezzo",
    complex_numbers="taken",
    samples=[
        *SAMPLES,
        Sample([f32(3), f32(3)], {"key": "weight"}),
        Sample([f32(6)], {"key": "bucket", "verb": PART, "workers": 3, "rank": 1}),
        Sample([f32(2)], {"key": "bucket", "verb": ALL, "workers": 3, "rank": 2}),
    ],
)
def await_(
    k: Context, X: Array, Emitted: Array | None = None, *, key: str, verb: str = SUM, workers: int = 1, rank: int = 0
) -> Array:
    """Return the store's value of `key`. Without a store it is what this worker would add to it: X, the part of X that
    is worker `rank`'s, or X in its place between zeros. `Emitted` must be on its way before."""
    if verb == SUM:
        return k.xp.array(X)
    whole = k.xp.zeros(len(X) * workers if verb == ALL else len(X) // workers, X.dtype)
    alone(X, whole, verb, rank)
    return whole


def alone(x: Any, out: Any, verb: str, rank: int) -> None:
    """Write what an Await makes of x for a worker that has no others; `out` has zeros where that leaves it."""
    if verb == PART:
        out[...] = x[rank * len(out) : (rank + 1) * len(out)]
    else:
        out[rank * len(x) : (rank + 1) * len(x)] = x


@emit.infer
def _(X: Tensor, After: Tensor | None = None) -> Type:
    return X.forget()


@await_.infer
def _(X: Tensor, Emitted: Tensor | None = None, *, verb: str = SUM, workers: int = 1, rank: int = 0) -> Type:
    if verb == SUM:
        return X.forget()
    if verb not in (PART, ALL) or len(X.shape) != 1 or not 0 <= rank < workers:
        raise ShapeError(f"{verb} of {X} by worker {rank} of {workers}", where="Await")
    (count,) = X.shape
    if isinstance(count, int) and verb == PART and count % workers:
        raise ShapeError(f"{count} elements are no {workers} parts", where="Await", hint="pad them")
    if not isinstance(count, int):
        return Tensor(X.dtype, (None,))
    return Tensor(X.dtype, (count // workers if verb == PART else count * workers,))


@emit.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value, ...]:
    return (dys[0], None)[: len(xs)]


@await_.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, verb: str = SUM, **attrs: Any) -> tuple[Value | None, ...]:
    other = {PART: ALL, ALL: PART}.get(verb)
    dy = dys[0] if other is None else g.op(AWAIT, dys[0], domain=DOMAIN, verb=other, **attrs)
    return (dy, None)[: len(xs)]


@emit.body
def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...]:
    return (g.Identity(xs[0]),)


@await_.body
def _(
    g: Builder, xs: Any, types: Any, *, key: str, verb: str = SUM, workers: int = 1, rank: int = 0
) -> tuple[Value, ...]:
    x, count = xs[0], g.shape_of(xs[0])
    if verb == SUM:
        return (g.Identity(x),)
    if verb == ALL:
        after = g.Mul(count, g.const([workers - 1 - rank]))
        return (g.Pad(x, g.Concat(g.Mul(count, g.const([rank])), after, axis=0)),)
    each = g.Div(count, g.const([workers]))
    return (g.Slice(x, g.Mul(each, g.const([rank])), g.Mul(each, g.const([rank + 1]))),)


_ROWS = np.array([[0.5, -1], [2, 0.25], [0, 0]], np.float32)  # no row has the number 4


@op(
    "SumRows",
    domain="mezzo",
    outputs=("ids_sum", "rows_sum"),
    samples=[
        Sample([np.array([1, 3, 4]), _ROWS], {"key": "table", "size": 4, "workers": 2}, 2),
        Sample([np.array([0, 2]), f32(2)], {"key": "table", "size": 9, "workers": 3}, 2),
    ],
)
def sum_rows(k: Context, ids: Array, rows: Array, *, key: str, size: int, workers: int) -> tuple[Array, ...]:
    """The sum over `workers` of the rows that each has of a table with `size` rows, as `GatherGradRows` makes them:
    there is room for as many from each of them. Without a store there is one worker, and nothing to add."""
    room = min(size, workers * len(ids))
    numbers = k.xp.full(room, size, np.int64)
    sums = k.xp.zeros((room, *rows.shape[1:]), rows.dtype)
    numbers[: len(ids)], sums[: len(ids)] = ids, rows
    return numbers, sums


@sum_rows.infer
def _(ids: Tensor, rows: Tensor, *, size: int, workers: int) -> tuple[Tensor, ...]:
    room = min(size, workers * ids.elements) if ids.elements is not None else None
    return Tensor(DType.INT64, (room,)), rows.of(None if rows.dims is None else (room, *rows.dims[1:]))


@sum_rows.body
def _(g: Builder, xs: Any, types: Any, *, key: str, size: int, workers: int) -> tuple[Value, ...]:
    ids, rows = xs
    count, one = g.shape_of(ids), g.const([1])
    more = g.Sub(g.Min(g.Mul(count, g.const([workers])), g.const([size])), count)
    row = g.Slice(g.shape_of(rows), one, g.const([2**31 - 1]))
    zeros = g.Expand(g.scalar(0, rows), g.Concat(more, row, axis=0))
    return g.Concat(ids, g.Expand(g.const(size), more), axis=0), g.Concat(rows, zeros, axis=0)
