"""Networks at real size as a GPU gets them, forward and in training: no step on the host, and how many steps, launches
and reordering copies there are.

They are planned by rule, without libraries. A line of `gpu_golden/real.txt` that changes is looked at, and then stored.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.convnets import no_weights
from mezzo.models.gpt2 import gpt2
from mezzo.models.training import LESSONS
from mezzo.models.workloads import WORKLOADS
from mezzo.runtime.backends.cuda.cublaslt.product import LtProduct
from mezzo.runtime.backends.cuda.host import host_fallbacks
from mezzo.runtime.backends.cuda.launch import Written
from mezzo.runtime.compile.program import Program, ProgramStep

GOLDEN = Path(__file__).parent / "gpu_golden" / "real.txt"
DEVICE = "gpu:0@sm_90"
soak = pytest.mark.soak


def forward(name: str, batch: int, **how: Any) -> Program:
    made: Any = WORKLOADS[name] if name in WORKLOADS else LESSONS[name]
    shapes = {n: np.shape(x) for n, x in made.feeds(batch).items() if n != "target"}
    return mz.Session(made.build(batch), device=DEVICE, **how).warmup(shapes)


def training(name: str, batch: int, **how: Any) -> Program:
    """A step with Adam: forward, loss, metrics, backward, update."""
    made: Any = LESSONS[name] if name in LESSONS else WORKLOADS[name]
    trainer = mz.Trainer(made.build(batch), optimizer=mz.optimizer.Adam(), device=DEVICE, **how)
    feeds = made.feeds(batch) if name in LESSONS else {**made.feeds(batch), "target": np.zeros(batch, np.int64)}
    program: Program = trainer._update.warmup({n: np.shape(x) for n, x in feeds.items()})
    return program


def decoding(name: str, batch: int, **how: Any) -> Program:
    """One more token of texts of 127."""
    session = mz.Session(gpt2(batch, no_weights), device=DEVICE, **how)
    shapes: dict[str, tuple[int, ...]] = {
        "input_ids": (batch, 1),
        "position_ids": (batch, 1),
        "attention_mask": (batch, 128),
    }
    shapes |= {f"past_key_values.{n}.{kind}": (batch, 12, 127, 64) for n in range(12) for kind in ("key", "value")}
    return session.warmup(shapes)


CASES: list[Any] = [
    (forward, "resnet50", 64, {}),
    (forward, "bert", 32, {}),
    (training, "resnet18", 32, {}),
    (training, "lstm_classifier", 32, {}),
    *(
        pytest.param(*case, marks=soak)
        for case in (
            *((forward, name, batch, {"precision": p}) for name, batch in (("resnet50", 64), ("bert", 32))
              for p in ("fp32", "fp16")),
            (forward, "lstm", 16, {}), (forward, "resnet18", 32, {}), (forward, "googlenet_v1", 32, {}),
            (forward, "mobilenetv2", 64, {}), (decoding, "gpt2", 1, {}), (decoding, "gpt2", 8, {"precision": "fp16"}),
            (training, "resnet18", 32, {"precision": "fp32"}), (training, "resnet18", 32, {"amp": "bf16"}),
            (training, "resnet50", 64, {}), (training, "googlenet_v1", 32, {}), (training, "gru_classifier", 32, {}),
            (training, "transformer", 32, {}), (training, "vgg_a", 32, {}),
        )
    ),
]  # fmt: skip


def launches(step: ProgramStep) -> int:
    """How many kernels a step launches: none for a copy that the plan may leave out."""
    (made,) = step.choice.primitives
    if isinstance(made, Written):
        return sum(launch.copies is None for launch in made.launches)
    return len(made.starts) if isinstance(made, LtProduct) else 1


def line(what: str, program: Program) -> str:
    reorders = sum(s.node.op == "Reorder" for s in program.steps)
    facts = {
        "steps": len(program.steps), "launches": sum(map(launches, program.steps)), "reorders": reorders,
        "arena MiB": program.arena_bytes >> 20,
    }  # fmt: skip
    return f"{what:36} " + ", ".join(f"{n} {name}" for name, n in facts.items())


@pytest.mark.parametrize(("make", "name", "batch", "how"), CASES)
def test_a_network_of_real_size(make: Callable[..., Program], name: str, batch: int, how: dict[str, str]) -> None:
    program = make(name, batch, **how)
    assert [str(a) for a in host_fallbacks(program)] == []
    what = " ".join([make.__name__, name, str(batch), *how.values()])
    known = {told[:36].strip(): told for told in GOLDEN.read_text("utf8").splitlines()}
    assert line(what, program) == known.get(what), "if this is meant: store the line"
