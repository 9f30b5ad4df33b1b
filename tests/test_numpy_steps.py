"""The steps of the benchmarked models that NumPy, a reference or a slow form of a library runs: exactly those allowed.

`allowed_numpy_steps.txt` has a line for each kind of step: model, operator, kernel, how many, and why. Steps that are
views (their kernels copy nothing where the plan has both ends in one place) are not counted.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.importers import load_onnx
from mezzo.models.convnets import no_weights
from mezzo.models.workloads import WORKLOADS
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.compile.kernel import nothing
from mezzo.runtime.compile.program import Program, ProgramStep
from mezzo.runtime.execution.instance import Instance
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph
from mezzo.tools.explain import operators
from mezzo.train.quantize import quantize

from .models import REAL

ALLOWED = Path(__file__).with_name("allowed_numpy_steps.txt")
MODELS = {
    "silero_vad": ("silero_vad_16k_op15", {}),
    "pp-ocr-det": ("ch_PP-OCRv4_det_infer", {"x.2": 640, "x.3": 640}),
    "pp-ocr-rec": ("ch_PP-OCRv4_rec_infer", {"x.2": 48, "x.3": 320}),
    "magika": ("model", {}),
    "nudenet": ("320n", {}),
}
ELSE = " (without AMX)"
pytestmark = pytest.mark.skipif(library() is None, reason="oneDNN is not here: NumPy runs every step")


def model(name: str) -> tuple[Graph, dict[str, Any]]:
    if name == "resnet50-int8":
        workload = WORKLOADS["resnet50"]
        graph, feeds = workload.build(1, small=True), workload.feeds(1, small=True)
        return quantize(graph, [feeds]), feeds
    if name in WORKLOADS:
        return WORKLOADS[name].build(1, no_weights), WORKLOADS[name].feeds(1)
    stem, sizes = MODELS[name]
    real = next(r for r in REAL if r.name == stem)
    feeds = real.feeds()
    for place, size in sizes.items():
        value, axis = place.split(".")
        feeds[value] = np.repeat(feeds[value], size, int(axis)).take(range(size), int(axis))
    return load_onnx(real.path()), feeds


def slow_steps(session: Session, feeds: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Operators and kernels of the steps that do something and are no fast kernel of a library."""
    found: Counter[tuple[str, str]] = Counter()

    def count(phase: str, index: int, step: ProgramStep, instance: Instance) -> None:
        choice = step.choice
        slow = not choice.implementation or choice.implementation.startswith("ref")
        if phase == "before" and slow and (step.dynamic or instance.calls[index] is not nothing):
            found[operators(step), f"{choice.kernel} {choice.implementation}".strip()] += 1

    session.run(feeds)
    session.run(feeds, observe=count)
    return found


@pytest.mark.parametrize("name", [*WORKLOADS, "resnet50-int8", *MODELS])
def test_steps_without_a_fast_kernel_are_those_allowed(name: str) -> None:
    graph, feeds = model(name)
    session = Session(graph, threads=2)
    found = slow_steps(session, feeds)
    rows = [line.split("|") for line in ALLOWED.read_text("utf8").splitlines() if line and not line.startswith("#")]
    lines = {(op.strip(), kernel.strip()): int(n) for model, op, kernel, n, _ in rows if model.strip() == name}
    here = library()
    amx = here is not None and here.amx
    allowed = {(op, k.removesuffix(ELSE)): n for (op, k), n in lines.items() if not (amx and k.endswith(ELSE))}
    assert dict(found) == allowed, "\n".join(f"{name} | {op} | {k} | {n} |" for (op, k), n in found.items())
    assert all(reason.strip() for *_, reason in rows)


def test_every_step_names_its_implementation() -> None:
    """What `explain --kernels` shows: a library's kernel says what oneDNN calls it."""
    graph, feeds = model("mlp")
    session = Session(graph)
    session.run(feeds)
    program: Program = session.program
    named = [s for s in program.all_steps() if s.choice.kernel.startswith("onednn.")]
    assert named
    assert all(s.choice.implementation for s in named)
