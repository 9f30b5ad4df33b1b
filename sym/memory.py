"""Memory of an executor, predicted before there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops import Tensor
from ..runtime.execution.functions import compiled
from .binding import learnt, requests
from .expression import variables
from .programs import RunMode, gradient_of, program
from .shapes import closed
from .symbol import Symbol


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the arrays by their role, and of the arena of a run.

    >>> from mezzo import sym
    >>> print(sym.Variable("x").Cos().ReduceSum(keepdims=0).memory(x=(100, 100)))
    80068 bytes: arguments 40000, gradients 0, auxiliary states 0, outputs 4, arena 40064
    """

    arguments: int
    gradients: int
    auxiliary: int
    outputs: int
    arena: int

    @property
    def total(self) -> int:
        return self.arguments + self.gradients + self.auxiliary + self.outputs + self.arena

    def __str__(self) -> str:
        return (
            f"{self.total} bytes: arguments {self.arguments}, gradients {self.gradients}, auxiliary states "
            f"{self.auxiliary}, outputs {self.outputs}, arena {self.arena}"
        )


def memory(symbol: Symbol, shapes: Mapping[str, Sequence[int]], train: bool, grad_req: Any) -> Memory:
    """Return the memory of an executor; see `Symbol.memory`. The arrays that stand for those of an executor are never
    touched."""
    inferred = closed(symbol, shapes)
    arguments, states = symbol.list_arguments(), symbol.list_auxiliary_states()
    wanted = learnt(symbol, requests(grad_req if train else "null", arguments))
    types = {v.name: inferred.entries[v, 0] for v in variables(symbol.entries)}
    sizes = {n: t for n, t in types.items() if isinstance(t, Tensor)}
    arrays = {n: np.empty(sizes[n].sizes, sizes[n].dtype.numpy) for n in (*arguments, *states)}
    with_gradients = [n for n, r in wanted.items() if r != "null"]
    arrays |= {gradient_of(n): np.empty_like(arrays[n]) for n in with_gradients}
    mode = RunMode(train, gradients="state" if with_gradients else "")
    graph = program(symbol, inferred, mode, arrays, wanted)
    planned = compiled(graph, states={s.input: arrays[s.input] for s in graph.states}).program
    outputs = sum(p.type.nbytes for p in planned.outputs if isinstance(p.type, Tensor))

    def together(names: Sequence[str]) -> int:
        return sum(arrays[n].nbytes for n in names)

    gradients = together([gradient_of(n) for n in with_gradients])
    return Memory(together(arguments), gradients, together(states), outputs, planned.arena_bytes)
