"""Check of the file that `mezzo train` exports: its loss beside the Trainer's, its answers beside ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.errors import ExecutionError
from ..ops.types import Array
from ..runtime.ir.graph import Graph
from ..runtime.ir.infer import infer
from ..runtime.ir.interpreter import Eager
from ..train.head import logits_of
from ..train.judged import TARGET
from ..train.loss import loss_named
from ..train.trainer import Trainer
from .compare_export import in_onnxruntime
from .fit import Course
from .load import load

BATCHES = 8  # that the file is tried with
TOLERANCE = 1e-3
STEPS = 8  # of numbers that are rounded on their way, that answers may be apart by in all


def check_export(course: Course, path: Path, loss: str, threads: int | None = None) -> dict[str, str]:
    """Compare the file's loss with that of the Trainer's own evaluation, and its answers with those of ONNX Runtime
    where that is installed; returns what to tell. Raises ExecutionError where they are far apart."""
    session, data = load(path, threads=threads), course.validation or course.data

    def some() -> Iterable[dict[str, Array]]:
        return islice(data.batches(course.batch, whole=course.whole), BATCHES)

    expected = course.trainer.evaluate(some())
    total = 0.0
    for feeds in some():
        target = feeds.pop(TARGET)
        answers = session.run(feeds)
        total += _loss(course.trainer, loss, answers, target) * len(target)
    reloaded_loss, tolerance = total / expected.samples, _tolerance(course.trainer.graph())
    gap = abs(reloaded_loss - expected.loss) / max(abs(expected.loss), 1e-2)
    if not gap <= tolerance:
        raise ExecutionError(
            f"loaded again, the model has the loss {reloaded_loss:.6g}; it was {expected.loss:.6g}",
            where=str(path),
            hint="its numbers may barely fit into float32; if they do not, this is a bug of ours",
        )
    return {
        "loaded_again": f"the loss of {expected.samples} samples differs by {gap:.1e} from the Trainer's own",
        "onnx_runtime": _peer(path, feeds, [np.asarray(a) for a in answers.values()], tolerance),
    }


def _tolerance(graph: Graph) -> float:
    """Return the allowed difference between answers; larger where numbers are rounded to few bits, since a tie may fall
    to either side."""
    types = infer(graph).types
    bits = [t.dtype.bits for n in graph.nodes
            if n.op == "QuantizeLinear" and isinstance(t := types[n.outputs[0]], Tensor)]  # fmt: skip
    return TOLERANCE + (STEPS / 2 ** min(bits) if bits else 0.0)


def _peer(path: Path, feeds: Mapping[str, Array], answers: list[Array], tolerance: float) -> str:
    """Compare with ONNX Runtime on the same inputs, and return the result in words. Raises ExecutionError where the
    answers differ."""
    verdict = in_onnxruntime(path, feeds, answers)
    if verdict is None:
        return "not installed, so not compared (pip install onnxruntime)"
    if verdict.error is None:
        return f"{verdict.version} does not run the file ({verdict.failed}); --opset may help"
    if not verdict.error <= tolerance:
        raise ExecutionError(
            f"ONNX Runtime {verdict.version} answers otherwise, by {verdict.error:.1e}",
            where=str(path),
            hint="mezzo bench MODEL --against ort compares them in other ways",
        )
    return f"{verdict.version} answers the same, but for {verdict.error:.1e}"


def _loss(trainer: Trainer, loss: str, answers: Mapping[str, Any], target: Array) -> float:
    """The loss of answers; those of a Softmax are brought back to what a cross-entropy reads."""
    answer = np.asarray(answers[trainer.output]).astype(np.float32)
    graph = trainer.source
    value = logits_of(graph, trainer.output) if loss == "cross_entropy" else trainer.output
    if any(n.op == "Softmax" and n.inputs[0] == value for n in graph.nodes) and value != trainer.output:
        answer = np.log(np.maximum(answer, np.finfo(np.float32).tiny))
    return float(loss_named(loss).build(Eager(), answer, target))
