"""The operator's own reference as a kernel: it allocates its results, which are copied into their slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops import Context
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest
from ...ir.graph import Node


class Reference:
    """The fallback for every operator; control flow runs through it too, with planned bodies behind `k.run`."""

    name = "reference"
    remembers = True

    def serves(self, node: Node) -> bool:
        return True

    def select(self, request: KernelRequest) -> Choice | Declined:
        return Choice(self.name, allocates=True, capturable=False, deterministic=request.node.record.deterministic)

    def prepare(self, args: KernelArgs) -> Call:
        record, node = args.node.record, args.node
        attrs = record.bind({**node.attrs, **args.bodies})
        inputs, wanted, reference = tuple(args.inputs), node.wanted, record.reference

        def run() -> tuple[Any, ...]:
            k = Context(np, wanted, _run_body, args.key(), args.numpy_random, args.check, args.room)
            result = reference(k, *inputs, **attrs)
            return result if isinstance(result, tuple) else (result,)

        return run


def _run_body(body: Any, *args: Any) -> tuple[Any, ...]:
    result: tuple[Any, ...] = body(*args)
    return result
