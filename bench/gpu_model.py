"""What the model of tools/gpu_time.py expects of networks on an H200, beside their floors (gpu_floors.py). Nothing is
measured: a table to look at while there is no GPU, and to compare with one as soon as there is.

    python bench/gpu_model.py [--only resnet50/b1]

`floor` counts products alone; `ratio` is the expected time over it.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable

import numpy as np
from gpu_floors import floor_ms

import mezzo as mz
from mezzo.models.convnets import no_weights
from mezzo.models.digits import digits_model
from mezzo.models.gpt2 import gpt2
from mezzo.models.workloads import WORKLOADS
from mezzo.runtime.compile.program import Program
from mezzo.runtime.ir.graph import Graph
from mezzo.tools.gpu_time import CARDS, step_times

DEVICE, CARD = "gpu:0@sm_90", CARDS["H200"]
Made = tuple[Program, Graph | None]  # the floors know graphs of Conv, Gemm and MatMul


def forward(name: str, batch: int) -> Made:
    work = WORKLOADS[name]
    graph = work.build(batch, no_weights)
    return mz.Session(graph, device=DEVICE, precision="fp16").program, graph


def training(name: str, batch: int) -> Made:
    work = WORKLOADS[name]
    trainer = mz.Trainer(work.build(batch, no_weights), optimizer=mz.optimizer.Adam(), device=DEVICE, amp="bf16")
    shapes = {n: np.shape(x) for n, x in work.feeds(batch).items()} | {"target": (batch,)}
    return trainer._update.warmup(shapes), None


def decoding() -> Made:
    """One more token of a text of 127."""
    graph = gpt2(1, no_weights)
    shapes = {"input_ids": (1, 1), "position_ids": (1, 1), "attention_mask": (1, 128)}
    shapes |= {f"past_key_values.{n}.{kind}": (1, 12, 127, 64) for n in range(12) for kind in ("key", "value")}
    return mz.Session(graph, device=DEVICE, precision="fp16").warmup(shapes), None


def digits() -> Made:
    session = mz.load(digits_model(), device=DEVICE, precision="fp16")
    return session.warmup({"image": (64, 1, 8, 8)}), None


CASES: dict[str, Callable[[], Made]] = {
    **{f"resnet50/b{b}": lambda b=b: forward("resnet50", b) for b in (1, 64, 256)},  # type: ignore[misc]
    **{f"bert/b{b}": lambda b=b: forward("bert", b) for b in (1, 32)},  # type: ignore[misc]
    "gpt2/one token": decoding,
    "lstm/b1": lambda: forward("lstm", 1),
    "digits (a LeNet)/b64": digits,
    "resnet50/training b64": lambda: training("resnet50", 64),
    "bert/training b32": lambda: training("bert", 32),
}


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true", help="the small ones")
    given = parser.parse_args()
    print(f"{CARD.name}, by a model: nothing was measured")
    print(f"{'network':24} {'launches':>8} {'expected us':>12} {'floor us':>9} {'ratio':>6}  bound by")
    for name, make in CASES.items():
        if given.only not in name or (given.quick and not name.endswith(("b1", "(a LeNet)/b64"))):
            continue
        try:
            program, graph = make()
        except mz.MezzoError as error:
            print(f"{name:24} {error}")
            continue
        times = step_times(program, CARD)
        total = sum(t.seconds for t in times)
        floor = floor_ms(graph, "fp16") * 1e-3 if graph is not None else 0.0
        bounds: dict[str, float] = {}
        for t in times:
            bounds[t.bound] = bounds.get(t.bound, 0.0) + t.seconds / total
        said = ", ".join(f"{b} {s:.0%}" for b, s in sorted(bounds.items(), key=lambda b: -b[1]) if s > 0.01)
        beside = f"{floor * 1e6:9.1f} {total / floor:6.2f}" if floor else f"{'':9} {'':6}"
        print(f"{name:24} {sum(t.launches for t in times):8} {total * 1e6:12.1f} {beside}  {said}", flush=True)


if __name__ == "__main__":
    main()
