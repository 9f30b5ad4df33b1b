"""Operators that only move elements, on large arrays: the copy kernels of graphs, into memory of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..runtime.backends.cpu.movement import MOVES, Movement
from ..runtime.compile.kernel import Choice, KernelArgs, KernelRequest
from ..runtime.ir.graph import Node
from ..runtime.memory.allocate import LEAST, new_array
from .specs import Constant, TensorSpec

KERNEL = Movement()


class Moved:
    """An operator for one signature of operands, as a call: every result is a fresh array."""

    __slots__ = ("_ask", "_choice", "_fixed", "_name", "_outs")

    def __init__(
        self, request: KernelRequest, choice: Choice, fixed: tuple[Any, ...], outs: tuple[TensorSpec, ...]
    ) -> None:
        self._ask, self._choice, self._fixed, self._outs = request, choice, fixed, outs
        self._name = request.node.op

    def __call__(self, *xs: Any) -> Any:
        given = iter(xs)
        inputs = [next(given) if f is ... else f for f in self._fixed]
        outputs = [new_array(k.shape, k.dtype, self._name) for k in self._outs]
        KERNEL.prepare(KernelArgs(self._ask, self._choice, inputs, outputs, _no_scratch))()
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def moves(
    domain: str,
    name: str,
    template: tuple[TensorSpec | Constant | None, ...],
    attrs: Mapping[str, Any],
    outs: tuple[TensorSpec | None, ...],
) -> Moved | None:
    """The call for operands of these kinds; None where the operator does more, or its results are small."""
    if domain or name not in MOVES or None in outs:
        return None
    kinds = tuple(k for k in outs if k is not None)
    if sum(k.tensor.nbytes for k in kinds) < LEAST:
        return None
    names = tuple("" if t is None else f"i{i}" for i, t in enumerate(template))
    node = Node(name, names, tuple(f"o{i}" for i in range(len(outs))), attrs)
    request = KernelRequest(node, [None if t is None else t.tensor for t in template], [k.tensor for k in kinds])
    choice = KERNEL.select(request)
    if not isinstance(choice, Choice):
        return None
    fixed = tuple(None if t is None else t.value if isinstance(t, Constant) else ... for t in template)
    return Moved(request, choice, fixed, kinds)


def _no_scratch(*_: Any) -> Any:
    raise AssertionError("copies need no workspace")
