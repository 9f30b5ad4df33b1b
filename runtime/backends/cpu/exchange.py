"""Emit, Await and SumRows: values sent to a store, and received when others have added theirs.

Without a store both are the identity, which costs nothing where operand and result share their bytes.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ....ops import DType, Tensor
from ....ops.errors import InputError
from ....ops.training.exchange import AWAIT, DOMAIN, EMIT, SUM, SUM_ROWS, alone
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
        return Choice(self.name, aliases=aliases(request.node), capturable=False)

    def prepare(self, args: KernelArgs) -> Call:
        x, out = args.inputs[0], args.outputs[0]
        assert x is not None and out is not None
        exchange, key, verb = args.exchange, str(args.node.attrs["key"]), verb_of(args.node)
        if exchange is None and verb != SUM and args.node.op == AWAIT:
            return partial(_alone, x, out, verb, int(args.node.attrs.get("rank", 0)))
        if exchange is None:
            return nothing if _same(x, out) else partial(np.copyto, out, x)
        if args.node.op == EMIT:
            return _emit(exchange, key, verb, x, exchange.buffer(key, Tensor(DType.of(x.dtype), x.shape)), out)

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


def verb_of(node: Node) -> str:
    """The verb of an Emit or an Await."""
    return str(node.attrs.get("verb", SUM))


def aliases(node: Node) -> tuple[Alias, ...]:
    """The bytes that operand and result of an Emit or an Await may share: all, unless the result has another size."""
    if node.op == EMIT:
        return (Alias(0, 0, "view"),)
    return (Alias(0, 0, "inplace"),) if verb_of(node) == SUM else ()


def _alone(x: Array, out: Array, verb: str, rank: int) -> None:
    out[...] = 0
    alone(x, out, verb, rank)


def _emit(exchange: Exchange, key: str, verb: str, x: Array, buffer: Array, out: Array) -> Call:
    copies = [(y, x) for y in (out, buffer) if not _same(y, x)]
    start = partial(exchange.emit, key) if verb == SUM else partial(exchange.emit, key, verb)
    if not copies:
        return start

    def call() -> None:
        for y, source in copies:
            np.copyto(y, source)
        start()

    return call


def _same(a: Array, b: Array) -> bool:
    """True if two arrays are the same bytes in the same order."""
    return a.shape == b.shape and bool(a.ctypes.data == b.ctypes.data)
