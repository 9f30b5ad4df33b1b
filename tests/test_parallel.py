"""A parallel-safe plan answers alike in whatever order the steps run that their operands allow."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mezzo.models.convnets import googlenet
from mezzo.ops import Tensor
from mezzo.ops.budget import Budget
from mezzo.ops.types import type_of
from mezzo.runtime.compile.executable import Executable
from mezzo.runtime.compile.order import needs
from mezzo.runtime.compile.specialize import compile_graph, specialise
from mezzo.runtime.devices import DEVICES, options_for
from mezzo.runtime.execution.instance import ExecutionContext
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.ir.interpreter import Meter, evaluate
from mezzo.runtime.memory.pool import Pool, aligned_empty

from .test_session import chains


def shuffled(bound: Executable, luck: Random) -> Executable:
    """The same slots, the steps in a random order that their operands allow."""
    steps = bound.program.steps
    before = [set(n) for n in needs(steps)]
    done: list[int] = []
    while len(done) < len(steps):
        ready = [i for i in range(len(steps)) if i not in done and before[i] <= set(done)]
        done.append(luck.choice(ready))
    moved = tuple(replace(steps[i], frees=()) for i in done)  # the last reader of a dynamic value may be another now
    return replace(bound, program=replace(bound.program, steps=moved))


@given(chains(), st.integers(0, 2**16))
def test_any_order_answers_alike(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    feeds = {n: rng.standard_normal((2, 3)).astype(np.float32) for n in graph.inputs}
    compiled = compile_graph(graph, options=options_for("cpu", parallel=True, onednn=False))
    bound = specialise(compiled, {n: type_of(x) for n, x in feeds.items()})
    want, budget = evaluate(graph, feeds), Budget()
    for turn in range(3):
        made = shuffled(bound, Random(seed + turn))
        around = ExecutionContext(bound.constants, budget, Pool(1 << 20), Meter(budget.steps))
        instance = DEVICES["cpu"].instantiate(made.program, aligned_empty(made.program.arena_bytes), around)
        static = [isinstance(p.type, Tensor) and p.type.static for p in made.program.outputs]
        buffers = [np.empty_like(want[o]) if known else None for o, known in zip(graph.outputs, static, strict=True)]
        results = instance.run([feeds[n] for n in graph.inputs], buffers)
        for name, got in zip(graph.outputs, results, strict=True):
            np.testing.assert_array_equal(got, want[name])


def test_branches_cost_bytes_when_they_may_run_together() -> None:
    graph = googlenet()
    one = specialise(compile_graph(graph, options=options_for("cpu")), {}).program.plan
    many = specialise(compile_graph(graph, options=options_for("cpu", parallel=True)), {}).program.plan
    assert many.check() is many
    assert one.size <= many.size < one.total()
