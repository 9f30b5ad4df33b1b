"""Ours, as an engine that trains: `mezzo_training.py CHILD`, CHILD being the path of tools/compare_child.py.

Settings: `net`, a name of mezzo.models.training, `batch`, and `precision` fp32 or bf16 (`Trainer(amp="bf16")`).
"""

from __future__ import annotations

import runpy
import sys
from importlib.metadata import version
from time import perf_counter

import numpy as np

from mezzo.models.training import LESSONS
from mezzo.train.amp import LOW, RECURRENT, policy_named
from mezzo.train.trainer import Trainer

PRODUCTS = LOW | RECURRENT  # operators whose time goes into products


def make(settings, feeds):
    lesson, amp = LESSONS[settings["net"]], None if settings["precision"] == "fp32" else settings["precision"]
    graph = lesson.build(settings["batch"])
    begin = perf_counter()
    trainer = Trainer(graph, optimizer=lesson.optimizer, amp=amp, threads=settings["threads"])
    took = perf_counter() - begin
    facts = {"version": version("mezzo"), "precision": "fp32"}
    if amp:
        wide = {n.op for n in graph.nodes} & PRODUCTS - policy_named(amp).low
        facts["precision"] = f"{amp} amp" + "".join(f", {op} fp32" for op in sorted(wide))
    return Ready(lambda: trainer.step(feeds), lambda loss: [np.float32(loss)], took, facts)


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)
