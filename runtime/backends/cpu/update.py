"""Optimizer steps in blocks that stay in a core's cache: numpy calls with `out=`, generated from the expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import DType
from ....ops.core.evaluate import Blocks
from ....ops.core.lowered import Lowered
from ....ops.training.update import steps_of
from ...compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed, tensors
from ...memory.liveness import aligned

BLOCK = 16 << 10  # elements: with a handful of temporaries they fit into a second-level cache


class Update(Listed):
    """Optimizer steps with the temporaries of one block in the workspace; the results of a block overwrite W and its
    states."""

    name = "numpy.update"
    operators = listed("mezzo::Update")

    def select(self, request: KernelRequest) -> Choice | Declined:
        inputs, outputs = tensors(request.inputs), tensors(request.outputs)
        if inputs is None or outputs is None or not all(t.static for t in (*inputs, *outputs)):
            return Declined("an operand is no tensor of known sizes")
        states, draws = request.node.attrs.get("states", 0), request.node.attrs.get("draws", 0)
        alike = [0, 1, *range(len(inputs) - draws - states, len(inputs))]
        if any(inputs[i].sizes != inputs[0].sizes for i in alike) or len(outputs) < 1 + states:
            return Declined("the tensor, its gradient and its states differ in shape, or a result is not wanted")
        code = steps_of(tuple(t.dtype for t in inputs), **request.node.attrs).code
        size = min(BLOCK, inputs[0].elements or 0)
        aliases = tuple(Alias(o, i) for o, i in enumerate([0, *range(len(inputs) - states, len(inputs))]))
        return Choice(self.name, workspace=sum(aligned(size * d.itemsize) for d in code.temps), aliases=aliases)

    def prepare(self, args: KernelArgs) -> Call:
        xs = [x for x in args.inputs if x is not None]
        outs = [y.reshape(-1) for y in args.outputs if y is not None]
        steps = steps_of(tuple(DType.of(x.dtype) for x in xs), **args.node.attrs)
        temps = [args.scratch(d, (min(BLOCK, xs[0].size),)) for d in steps.code.temps]
        return Blocks(steps, flat(steps.code, xs), outs, temps, BLOCK).run


def flat(code: Lowered, xs: Sequence[Any]) -> list[Any]:
    """Operands as the blocks of an update take them: in one dimension, numbers as they are."""
    return [x if s else x.reshape(-1) for x, s in zip(xs, code.scalar, strict=False)]


def update_in_place(rule: str, xs: Sequence[Any], states: int = 0, draws: int = 0) -> None:
    """One step of an optimizer now, over W and its states: `xs` are the inputs of the operator Update
    (ops/training/update.py), where the tensor, its gradient and its states are contiguous, of one size, and may be
    parts of larger ones.

    >>> W, dW = np.ones(2, np.float32), np.full(2, 2, np.float32)
    >>> update_in_place("mul rate dW; sub W #0 -> #1", [W, dW, np.asarray(0.25, np.float32)])
    >>> W
    array([0.5, 0.5], dtype=float32)
    """
    steps = steps_of(tuple(DType.of(x.dtype) for x in xs), rule, states, draws)
    arrays = flat(steps.code, xs)
    outs = [arrays[0], *arrays[len(xs) - states :]]
    temps = [np.empty(min(BLOCK, arrays[0].size), d.numpy) for d in steps.code.temps]
    with np.errstate(all="ignore"):
        Blocks(steps, arrays, outs, temps, BLOCK).run()
