"""Pointwise operators as numpy calls with `out=`, generated from their scalar expressions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ....ops import DType, Tensor
from ....ops.core.evaluate import Steps, call_all, steps_of
from ...compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, tensors
from ...ir.graph import Node
from ...memory.liveness import aligned


def _steps(node: Node, dtypes: Sequence[DType | None]) -> Steps:
    record = node.record
    assert record.tree is not None
    return steps_of(record.tree, dtypes, record.bind(node.attrs))


class Pointwise:
    """One call of NumPy per instruction of the lowered expression, temporaries in the workspace."""

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
        code = _steps(node, dtypes).code
        (out,) = result
        size = out.elements or 0
        workspace = sum(aligned(size * d.itemsize) for d in code.temps)
        # in place only over an operand of exactly the result's layout: broadcasting would read what was overwritten
        aliases = [Alias(0, i) for i in code.inplace if inputs[i] == out and out.static]
        twice = {i for i, name in enumerate(node.inputs) if node.inputs.count(name) > 1}
        return Choice(self.name, workspace=workspace, aliases=tuple(a for a in aliases if a.input not in twice))

    def prepare(self, args: KernelArgs) -> Call:
        (out,) = args.outputs
        assert out is not None
        steps = _steps(args.node, [None if x is None else DType.of(x.dtype) for x in args.inputs])
        scalars, _ = steps.scalars(args.inputs)
        temps = [args.scratch(d, out.shape) for d in steps.code.temps]
        calls = steps.bound((*args.inputs, out, *temps, *scalars.values()))
        if len(calls) > 1:
            return partial(call_all, calls)
        ((function, sources, result),) = calls
        return partial(function, *sources, out=result)
