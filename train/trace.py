"""One training step as a trace: the steps of its program beside the engine's work for the store."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from ..ops.training.exchange import AWAIT, EMIT
from ..runtime.compile.program import ProgramStep
from ..runtime.engine import Trace, engine
from ..runtime.execution.instance import Instance
from .trainer import Trainer

FORWARD, BACKWARD, UPDATE, WAIT = "forward", "backward", "update", "wait"  # kinds of spans


def traced(trainer: Trainer, feeds: Mapping[str, Any]) -> Trace:
    """Train one step and return what ran where and when; `Trace.save` writes it for chrome://tracing or
    ui.perfetto.dev.

    Steps of the program are spans of the caller's row: `forward` until the loss is there, `backward` until the first
    Await, each `wait` of an Await, and `update` behind. Operations of the store are spans of network rows, from their
    Emit until they have ended.

    >>> from mezzo.models.digits import digits_model, held_out
    >>> trainer = Trainer(digits_model(), kvstore="local")
    >>> trace = traced(trainer, {"image": held_out().inputs[:8], "target": held_out().labels[:8]})
    >>> kinds = [event["cat"] for event in trace.events() if event["ph"] == "X"]
    >>> kinds[0], kinds.count("wait"), kinds[-1]
    ('forward', 8, 'update')
    """
    kind, open_spans = FORWARD, list[AbstractContextManager[None]]()

    def observe(phase: str, index: int, step: ProgramStep, instance: Instance) -> None:
        nonlocal kind
        if phase == "after":
            open_spans.pop().__exit__(None, None, None)
            if trainer.loss in step.writes() or any(trainer.loss in name for name in step.node.origin):
                kind = BACKWARD
            return
        if step.node.op == AWAIT:
            kind = UPDATE
        key = f" {step.node.attrs['key']}" if step.node.op in (EMIT, AWAIT) else ""
        span = trace.span(f"{step.node.op}{key}", WAIT if step.node.op == AWAIT else kind)
        span.__enter__()
        open_spans.append(span)

    with engine().trace() as trace:
        trainer.step(feeds, observe=observe)
    return trace
