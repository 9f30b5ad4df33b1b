"""Split of a training program for a KVStore: values sent to it, and values received.

Both are the identity: in a program without a store, in an exported model, and for derivatives. With a store, an Emit
says that a value is final, so that it travels while the steps behind it run, and an Await waits for what the store
makes of it. SumRows does both at once, for the rows of a table. Which verbs that are is the affair of whoever gives the
program its store (train/exchange.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..op import Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor, Type, f32

DOMAIN, EMIT, AWAIT, SUM_ROWS = "mezzo", "Emit", "Await", "SumRows"
SAMPLES = [Sample([f32(2, 3)], {"key": "weight"}), Sample([np.ones((2, 2))], {"key": "bias"})]


@op("Emit", domain="mezzo", complex_numbers="taken", samples=SAMPLES)
def emit(k: Context, X: Array, *, key: str) -> Array:
    """X, which is final and goes to the store under `key`."""
    return k.xp.array(X)


@op("Await", domain="mezzo", complex_numbers="taken", samples=[*SAMPLES, Sample([f32(3), f32(3)], {"key": "weight"})])
def await_(k: Context, X: Array, Emitted: Array | None = None, *, key: str) -> Array:
    """Return the store's value of `key`, or X if there is no store. `Emitted` must be on its way before."""
    return k.xp.array(X)


@emit.infer
def _(X: Tensor) -> Type:
    return X.forget()


@await_.infer
def _(X: Tensor, Emitted: Tensor | None = None) -> Type:
    return X.forget()


@emit.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value, ...]:
    return (dys[0],)


@await_.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, **attrs: Any) -> tuple[Value | None, ...]:
    return (dys[0], None)[: len(xs)]


@emit.body
def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...]:
    return (g.Identity(xs[0]),)


@await_.body
def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...]:
    return (g.Identity(xs[0]),)


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
