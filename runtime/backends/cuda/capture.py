"""Capture of calls as CUDA graphs. Calls that cannot be captured are found by trying, and reported with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ....ops.dataclasses import dataclass, field
from ....ops.errors import ExecutionError
from .driver import cupy

Numbered = tuple[int, Callable[[], Any]]  # the number of a step, and its call


@dataclass(frozen=True, slots=True)
class CaptureRefused:
    """A step that cannot be captured, and the reason."""

    index: int
    reason: str


@dataclass(slots=True)
class Captured:
    """The replay of captured calls: graphs, and between them the calls of steps that could not be captured.

    `parts` holds the number of the first step of each part and its call.
    """

    parts: list[Numbered] = field(default_factory=list[Numbered])
    refused: list[CaptureRefused] = field(default_factory=list[CaptureRefused])
    graphs: list[Any] = field(default_factory=list[Any])


def captured(calls: Sequence[Numbered], stream: Any) -> Captured:
    """Record calls that launch on `stream`, in as few graphs as they allow."""
    recorded = Captured()
    _capture(list(calls), stream, recorded)
    for graph in recorded.graphs:
        graph.upload(stream)
    return recorded


def _capture(calls: list[Numbered], stream: Any, recorded: Captured) -> None:
    if not calls:
        return
    at, reason, graph = _recorded(calls, stream)
    if not reason:
        recorded.graphs.append(graph)
        recorded.parts.append((calls[0][0], _Launch(graph, stream)))
        return
    if len(calls) == 1:
        recorded.refused.append(CaptureRefused(calls[0][0], reason))
        recorded.parts += calls
        return
    if at is None:  # told when the recording ended: one of them it was
        middle = len(calls) // 2
        _capture(calls[:middle], stream, recorded)
        _capture(calls[middle:], stream, recorded)
        return
    _capture(calls[:at], stream, recorded)
    recorded.refused.append(CaptureRefused(calls[at][0], reason))
    recorded.parts.append(calls[at])
    _capture(calls[at + 1 :], stream, recorded)


def _recorded(calls: Sequence[Numbered], stream: Any) -> tuple[int | None, str, Any]:
    """The graph of the calls; or which of them refused, where that is known, and why."""
    cp = cupy()
    at, reason, graph = None, "", None
    with stream, cp.cuda.using_allocator(_forbid):
        stream.begin_capture(cp.cuda.runtime.streamCaptureModeThreadLocal)
        try:
            for i, (_, call) in enumerate(calls):
                at = i
                call()
            at = None
        except Exception as error:  # whatever a library raises: the step is run without a graph and named
            reason = f"{type(error).__name__}: {error}"
        try:
            graph = stream.end_capture()
        except Exception as error:
            reason = reason or f"{type(error).__name__}: {error}"
    return at, reason, graph


def _forbid(nbytes: int) -> NoReturn:
    raise ExecutionError(f"a step allocates {nbytes} bytes while it is captured")


class _Launch:
    """The replay of one graph."""

    __slots__ = ("_graph", "_stream")

    def __init__(self, graph: Any, stream: Any) -> None:
        self._graph, self._stream = graph, stream

    def __call__(self) -> None:
        self._graph.launch(self._stream)
