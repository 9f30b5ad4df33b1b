"""Kernels of the CPU, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Sequence

from ...ops import Type
from ...ops.errors import PlanError
from ..graph import Node
from .kernel import Alias, Call, Choice, Declined, Kernel, Target, Work
from .matmul import Gemm, MatMul
from .movement import Movement, Take
from .pointwise import Pointwise
from .reference import Reference

KERNELS: tuple[Kernel, ...] = (Pointwise(), MatMul(), Gemm(), Movement(), Take(), Reference())
BY_NAME: dict[str, Kernel] = {k.name: k for k in KERNELS}


def choose(
    node: Node, inputs: Sequence[Type | None], outputs: Sequence[Type], target: Target
) -> tuple[Choice, tuple[tuple[str, str], ...]]:
    """The first kernel that serves, and (kernel, reason) of each that declined before it."""
    declined: list[tuple[str, str]] = []
    for kernel in (k for k in KERNELS if k.serves(node)):
        answer = kernel.select(node, inputs, outputs, target)
        if isinstance(answer, Choice):
            return answer, tuple(declined)
        declined.append((kernel.name, answer.reason))
    raise PlanError(f"no kernel serves {node.op}", where=node.place)


__all__ = ["BY_NAME", "KERNELS", "Alias", "Call", "Choice", "Declined", "Kernel", "Target", "Work", "choose"]
