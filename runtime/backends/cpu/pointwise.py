"""Pointwise operators as numpy calls with `out=`, generated from their scalar expressions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ....ops import OPS, DType, Tensor
from ....ops.core.expr import Lowered, Register, lower
from ...compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, tensors
from ...ir.graph import Node


@lru_cache(maxsize=4096)
def _lowered(domain: str, op: str, dtypes: tuple[DType | None, ...], attrs: tuple[tuple[str, Any], ...]) -> Lowered:
    tree = OPS[domain, op].tree
    assert tree is not None
    return lower(tree(dtypes, **dict(attrs)))


def _code(node: Node, dtypes: Sequence[DType | None]) -> Lowered:
    attrs = tuple(sorted(node.record.bind(node.attrs).items()))
    return _lowered(node.domain, node.op, tuple(dtypes), attrs)


class Pointwise:
    """One ufunc call per instruction of the lowered expression, temporaries in the workspace."""

    name = "numpy.pointwise"
    remembers = True

    def serves(self, node: Node) -> bool:
        return node.record.tree is not None

    def select(self, request: KernelRequest) -> Choice | Declined:
        node, inputs = request.node, request.inputs
        present = tensors([t for t in inputs if t is not None])
        result = tensors(request.outputs)
        if present is None or result is None:
            return Declined("an operand is no tensor of numbers")
        dtypes = [t.dtype if isinstance(t, Tensor) else None for t in inputs]
        code = _code(node, dtypes)
        (out,) = result
        size = out.elements or 0
        workspace = sum(_padded(size * d.itemsize) for d in code.temps)
        # in place only over an operand of exactly the result's layout: broadcasting would read what was overwritten
        aliases = [Alias(0, i) for i in code.inplace if inputs[i] == out and out.static]
        twice = {i for i, name in enumerate(node.inputs) if node.inputs.count(name) > 1}
        return Choice(self.name, workspace=workspace, aliases=tuple(a for a in aliases if a.input not in twice))

    def prepare(self, args: KernelArgs) -> Call:
        (out,) = args.outputs
        assert out is not None
        code = _code(args.node, [None if x is None else DType.of(x.dtype) for x in args.inputs])
        temps = [args.scratch(d, out.shape) for d in code.temps]

        def buffer(register: Register) -> Any:
            if register.space == "input":
                return args.inputs[register.index]
            if register.space == "temp":
                return temps[register.index]
            if register.space == "out":
                return out
            return np.asarray(register.value, register.dtype.numpy)

        calls = [_call(c.ufunc, [buffer(s) for s in c.srcs], buffer(c.dst)) for c in code.code]
        return calls[0] if len(calls) == 1 else _chain(calls)


def _padded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _call(ufunc: str, srcs: list[Any], dst: Any) -> Call:
    if ufunc == "copy":
        return lambda: np.copyto(dst, srcs[0], casting="unsafe")
    if ufunc == "put":
        return lambda: np.copyto(dst, srcs[0], where=srcs[1])
    function = getattr(np, ufunc)
    if len(srcs) == 1:
        (x,) = srcs
        return lambda: function(x, out=dst, casting="unsafe")
    x, y = srcs
    return lambda: function(x, y, out=dst, casting="unsafe")


def _chain(calls: list[Call]) -> Call:
    def run() -> None:
        for call in calls:
            call()

    return run
