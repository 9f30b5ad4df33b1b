"""Kernels that claim to allocate nothing, and buffers that come from outside."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from mezzo.ops import OPS, DType, Op, Tensor
from mezzo.ops.budget import Budget
from mezzo.ops.types import f32, i64
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.compile.program import ProgramStep
from mezzo.runtime.compile.specialize import compile_graph, specialise
from mezzo.runtime.devices import DEVICES, options_for
from mezzo.runtime.execution.instance import ExecutionContext, Instance
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.interpreter import Meter, evaluate
from mezzo.runtime.memory.plan import Space
from mezzo.runtime.memory.pool import Pool, aligned_empty

ROWS, COLUMNS = 512, 1024
BUFFERED = 300_000  # bytes: numpy casts through blocks of 8192 elements; one of our arrays has seven times as many
FLOATS = [o for o in OPS.values() if o.tree and o.name not in ("And", "Or", "Xor", "Not", "Where", "BitShift")]
POINTWISE = [o for o in FLOATS if not o.name.startswith("Bitwise")]


def allocated_by_steps(graph: Graph, feeds: dict[str, Any]) -> dict[str, int]:
    """The most bytes that each step without `allocates` had alive beyond its start, by operator."""
    session, peaks, before = Session(graph, onednn=False), dict[str, int](), 0
    session.run(feeds)

    def observe(phase: str, index: int, step: ProgramStep, instance: Instance) -> None:
        nonlocal before
        if phase == "before":
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
        elif not step.choice.allocates:
            peaks[step.node.op] = max(tracemalloc.get_traced_memory()[1] - before, peaks.get(step.node.op, 0))

    tracemalloc.start()
    try:
        session.run(feeds, observe=observe)
    finally:
        tracemalloc.stop()
    return peaks


def random(*dims: int) -> Any:
    return np.random.default_rng(0).random(dims, np.float32) + np.float32(0.5)


@pytest.mark.parametrize("op", POINTWISE, ids=lambda o: o.name)
def test_pointwise_steps_allocate_nothing(op: Op) -> None:
    g = GraphBuilder()
    shapes = [(ROWS, COLUMNS), (COLUMNS,), (ROWS, 1)]
    needed = [p for p in op.inputs if not p.optional]
    count = 3 if any(p.variadic for p in op.inputs) else len(needed)
    names = [g.input(f"x{i}", f32(*shapes[i % 3])) for i in range(count)]
    feeds = {n: random(*shapes[i % 3]) for i, n in enumerate(names)}
    graph = g.graph([g.op(op.name, *names, domain=op.domain)])
    peaks = allocated_by_steps(graph, feeds)
    assert peaks[op.name] < BUFFERED


def test_matrix_and_movement_steps_allocate_nothing() -> None:
    g = GraphBuilder()
    x, w, b = g.input("x", f32(ROWS, COLUMNS)), g.input("w", f32(COLUMNS, COLUMNS)), g.input("b", f32(COLUMNS))
    rows = g.input("rows", i64(ROWS))
    y = g.Gemm(x, w, b, alpha=0.5, beta=2.0, transB=1)
    y = g.MatMul(y, w)
    y = g.Transpose(g.Reshape(y, g.const([ROWS, 32, 32])), perm=[0, 2, 1])
    left, right = g.op("Split", y, outputs=2, axis=1, num_outputs=2)
    y = g.Concat(right, left, axis=1)
    y = g.Slice(y, g.const([-1]), g.const([-1000]), g.const([1]), g.const([-1]))
    y = g.Gather(y, rows, axis=0)
    y = g.Expand(g.Unsqueeze(y, g.const([0])), g.const([2, 1, 1, 1]))
    y = g.Cast(g.Squeeze(g.Slice(y, g.const([0]), g.const([1])), g.const([0])), to=DType.DOUBLE.onnx)
    y = g.Tile(g.Flatten(y), g.const([1, 2]))
    graph = g.graph([y])
    order = np.random.default_rng(1).permutation(ROWS)
    feeds = {"x": random(ROWS, COLUMNS), "w": random(COLUMNS, COLUMNS), "b": random(COLUMNS), "rows": order}
    peaks = allocated_by_steps(graph, feeds)
    assert set(peaks) >= {"Gemm", "MatMul", "Transpose", "Split", "Concat", "Slice", "Gather", "Expand", "Cast", "Tile"}
    assert max(peaks.values()) < BUFFERED, peaks
    np.testing.assert_allclose(
        Session(graph).run(feeds)[graph.outputs[0]], evaluate(graph, feeds)[graph.outputs[0]], rtol=1e-4
    )


def test_a_reference_says_that_it_allocates() -> None:
    g = GraphBuilder()
    session = Session(g.graph([g.Softmax(g.Relu(g.input("x", f32(2, 3))))]), onednn=False)
    chosen = {s.node.op: s.choice for s in session.program.steps}
    assert chosen["Softmax"].allocates
    assert not chosen["Relu"].allocates
    assert session.program.allocating == 1
    assert {s.choice.kernel for s in session.program.steps} <= {k.name for k in DEVICES["cpu"].target.kernels}


def test_declining_kernels_give_their_reason() -> None:
    g = GraphBuilder()
    a, b = (g.input(n, Tensor(DType.INT32, (2, 2))) for n in "ab")
    (step,) = Session(g.graph([g.MatMul(a, b)])).program.steps
    assert [kernel for kernel, _ in step.declined] == ["onednn.matmul", "numpy.matmul"]
    assert "int32" in step.declined[0][1] or not library()
    assert step.declined[1][1] == "BLAS has no int32"


def test_a_value_may_live_in_a_buffer_from_outside() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(4))
    kept = g.Exp(x)
    graph = g.graph([g.Neg(kept)])
    bound = specialise(compile_graph(graph, options=options_for("cpu", extern={kept: "shared"})), {"x": f32(4)})
    assert bound.program.space(kept) is Space.EXTERN
    assert bound.program.plan.by_value[kept].life.name == "shared"
    assert bound.program.plan.size == 0
    shared, out = np.zeros(4, np.float32), np.empty(4, np.float32)
    budget = Budget()
    around = ExecutionContext(bound.constants, budget, Pool(1 << 20), Meter(budget.steps), extern={"shared": shared})
    fed = np.arange(4, dtype=np.float32)
    DEVICES["cpu"].instantiate(bound.program, aligned_empty(bound.program.arena_bytes), around).run([fed], [out])
    np.testing.assert_array_equal(shared, np.exp(fed))
    np.testing.assert_array_equal(out, -np.exp(fed))


@pytest.mark.parametrize("channels", [16, 10])
def test_squares_are_added_up_as_they_lie(channels: int) -> None:
    """In blocks of channels too, where no bytes lie between them; in another order than the reference's, from more
    blocks than one."""
    rng, g = np.random.default_rng(0), GraphBuilder()
    x = g.input("x", f32(2, channels, 20, 20))
    y = g.Relu(g.Conv(x, g.const(rng.standard_normal((channels, channels, 3, 3)).astype(np.float32))))
    session = Session(g.graph([y, g.ReduceSumSquare(y, keepdims=0)]))
    y, found = session(rng.standard_normal((2, channels, 20, 20)).astype(np.float32))
    assert "numpy.sum_squares" in {s.choice.kernel for s in session.program.steps}
    np.testing.assert_allclose(found, np.square(y.astype(np.float64)).sum(), rtol=1e-6)
