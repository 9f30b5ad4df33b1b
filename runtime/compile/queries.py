"""Asynchronous kernel queries: slow ones run in a thread while others are answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from threading import Thread

from ...ops import MezzoError, Tensor, Type
from ..ir.graph import Node
from .kernel import KernelRequest
from .target import Target

# How the inputs and the outputs of a node lay when it was asked about, by its first output
LayoutHistory = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]


class AsyncQueries:
    """Queries of the nodes that kernels call `lengthy`, with new sizes and the layouts of earlier plans.

    The answers are those that `target.choose` remembers. Where the layouts are others this time, the question is asked
    again in its turn, and nothing is lost but time.
    """

    def __init__(self, target: Target, history: LayoutHistory) -> None:
        self._target, self._history = target, history
        self._thread: Thread | None = None

    def begin(self, requests: Iterable[KernelRequest]) -> None:
        """Ask in a thread; `requests` are made at once, of nodes that `knows`."""
        todo = list(requests)
        if todo:
            self._thread = Thread(target=self._answer, args=(todo,), name="mezzo-ahead", daemon=True)
            self._thread.start()

    def knows(self, node: Node) -> bool:
        """Return True if the node was met before, with as many operands."""
        ins, outs = self._history.get(node.outputs[0], ((), ())) if node.outputs else ((), ())
        return 0 < len(ins) == len(node.inputs) and len(outs) == sum(node.wanted)

    def types(self, node: Node, types: Mapping[str, Type]) -> tuple[list[Type | None], list[Type]]:
        """The types of a node's inputs and outputs, in the layouts that they had."""
        ins, outs = self._history[node.outputs[0]]
        return (
            [_laid(types[n], layout) if n else None for n, layout in zip(node.inputs, ins, strict=True)],
            [_laid(types[n], layout) for n, layout in zip(filter(None, node.outputs), outs, strict=True)],
        )

    def meet(self, request: KernelRequest) -> None:
        """Wait for the thread where its answer is now wanted, and note how the node lies."""
        if not request.node.outputs or not self._target.lengthy(request.node):
            return
        if self._thread is not None:
            self._thread.join()
        layouts = (tuple(map(_layout, request.inputs)), tuple(map(_layout, request.outputs)))
        self._history[request.node.outputs[0]] = layouts

    def _answer(self, requests: list[KernelRequest]) -> None:
        for request in requests:
            with suppress(MezzoError):  # it is raised again where the step is made
                self._target.choose(request)


def _layout(type: Type | None) -> str:
    return type.layout if isinstance(type, Tensor) else ""


def _laid(type: Type, layout: str) -> Type:
    return type.laid(layout) if isinstance(type, Tensor) and type.layout != layout else type
