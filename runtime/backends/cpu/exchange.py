"""Emit, Await and SumRows: values sent to a store, and received when others have added theirs.

Without a store both are the identity, which costs nothing where operand and result share their bytes.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ....ops import DType, Tensor
from ....ops.errors import InputError
from ....ops.training.exchange import AWAIT, DOMAIN, EMIT, SUM_ROWS
from ....ops.types import Array
from ...compile.kernel import Alias, Call, Choice, Declined, Exchange, KernelArgs, KernelRequest, nothing
from ...ir.graph import Node
from .rows import both


class Exchanges:
    """Kernels of Emit and Await. The plan puts operand and result of an Emit into the store's own buffer where it can
    (see lower.py); else they are copied."""

    name = "exchange"

    def serves(self, node: Node) -> bool:
        return node.domain == DOMAIN and node.op in (EMIT, AWAIT)

    def select(self, request: KernelRequest) -> Choice | Declined:
        x = request.inputs[0]
        if not isinstance(x, Tensor):
            return Declined("no tensor")
        alias = Alias(0, 0, "view" if request.node.op == EMIT else "inplace")
        return Choice(self.name, aliases=(alias,), capturable=False)

    def prepare(self, args: KernelArgs) -> Call:
        x, out = args.inputs[0], args.outputs[0]
        assert x is not None and out is not None
        exchange, key = args.exchange, str(args.node.attrs["key"])
        if exchange is None:
            return nothing if _same(x, out) else partial(np.copyto, out, x)
        if args.node.op == EMIT:
            return _emit(exchange, key, x, exchange.buffer(key, Tensor(DType.of(x.dtype), x.shape)), out)

        def taken() -> None:
            answer = exchange.wait(key)
            if answer is not out:
                np.copyto(out, answer)

        return taken


class SumRows:
    """Rows are sent to the store and received in one step."""

    name = "exchange.rows"

    def serves(self, node: Node) -> bool:
        return node.domain == DOMAIN and node.op == SUM_ROWS

    def select(self, request: KernelRequest) -> Choice | Declined:
        if not all(isinstance(t, Tensor) and t.static for t in (*request.inputs, *request.outputs)):
            return Declined("sizes are not known")
        return Choice(self.name, capturable=False)

    def prepare(self, args: KernelArgs) -> Call:
        (ids, rows), exchange = args.inputs, args.exchange
        assert ids is not None and rows is not None
        numbers, sums = both(args.outputs, rows.shape[1:], rows.dtype)
        key, size = str(args.node.attrs["key"]), int(args.node.attrs["size"])

        def run() -> None:
            kept = ids < size
            selected = ids[kept], rows[kept]
            if exchange is not None:
                selected = exchange.sum_rows(key, *selected)
            count = len(selected[0])
            if count > len(numbers):
                raise InputError(
                    f"the workers have read {count} rows together, and there is room for {len(numbers)}",
                    where=f"key {key!r}",
                    hint="give every worker as many indices: pad what is shorter",
                )
            numbers[:count], numbers[count:] = selected[0], size
            sums[:count], sums[count:] = selected[1], 0

        return run


def _emit(exchange: Exchange, key: str, x: Array, buffer: Array, out: Array) -> Call:
    copies = [(y, x) for y in (out, buffer) if not _same(y, x)]
    if not copies:
        return partial(exchange.emit, key)

    def call() -> None:
        for y, source in copies:
            np.copyto(y, source)
        exchange.emit(key)

    return call


def _same(a: Array, b: Array) -> bool:
    """True if two arrays are the same bytes in the same order."""
    return a.shape == b.shape and bool(a.ctypes.data == b.ctypes.data)
