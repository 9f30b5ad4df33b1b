"""Planned programs equal the interpreter, for every operator sample; and each step writes its own bytes only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops import OPS, DType, Op, Sample
from mezzo.ops.types import f32
from mezzo.runtime.compile.program import Program, ProgramStep
from mezzo.runtime.execution.instance import Instance
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.interpreter import evaluate
from mezzo.runtime.memory.plan import Space, Strategy

from .graphs import sample_graph

CASES = [pytest.param(o, s, id=f"{o.name}-{i}") for o in OPS.values() for i, s in enumerate(o.samples)]


def rounds(kernel: str) -> bool:
    """Whether a kernel's sums and functions round otherwise than its reference, within 1e-5 of the largest element."""
    own = ("numpy.conv_relu_pool", "numpy.sum_squares", "numpy.total_norm")
    return kernel in own or kernel.startswith(("onednn.", "machine."))


def assert_same(
    got: dict[str, Any], want: dict[str, Any], program: Program | None = None, *, parts: bool = False
) -> None:
    """Equal bit for bit, unless a kernel of the program may round otherwise, or `parts` of an operator run in its
    place."""
    assert list(got) == list(want)
    close = parts or (program is not None and any(rounds(s.choice.kernel) for s in program.all_steps()))
    for name, y in want.items():
        if close:
            assert_close(got[name], y, name)
        else:
            assert_equal(got[name], y, name)


def assert_close(got: Any, want: Any, name: str) -> None:
    """Numbers within 1e-5 of the largest; everything else equal."""
    if not isinstance(want, np.ndarray) or want.dtype.kind != "f":
        return assert_equal(got, want, name)
    assert (got.shape, got.dtype) == (want.shape, want.dtype), name
    finite = np.isfinite(want)
    assert np.array_equal(got[~finite], want[~finite], equal_nan=True), name
    error = np.abs(got[finite].astype(np.float64) - want[finite]).max(initial=0)
    assert error <= 1e-5 * np.abs(want[finite]).max(initial=0), f"{name}: {error}"


def assert_equal(got: Any, want: Any, name: str) -> None:
    assert type(got) is type(want)
    if isinstance(want, list):
        assert len(got) == len(want)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_equal(a, b, f"{name}[{i}]")
    elif not isinstance(want, np.ndarray):
        assert got == want
    else:
        assert got.dtype == want.dtype
        # the types of ml_dtypes have NaN, but numpy does not know that
        both = [a.astype(np.float64) if DType.of(want.dtype).bits == 8 else a for a in (got, want)]
        np.testing.assert_array_equal(both[0], both[1], name)


@pytest.mark.parametrize("fed", ["all", "types", "dynamic"])
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_program_equals_interpreter(op: Op, sample: Sample, fed: str) -> None:
    graph, feeds = sample_graph(op, sample, fed=fed)
    session = Session(graph)
    for run in range(2):
        parts = op.written_out
        assert_same(session.run(feeds), evaluate(graph, feeds, key=(0, run)), session.program, parts=parts)
    if fed == "dynamic" and op.name not in ("Shape", "Size", "OptionalHasElement") and "x0_rows" in feeds:
        assert session.program.dynamic


class Poison:
    """Fills bytes of the arena as soon as nothing lives in them, and holds each step to its planned bytes."""

    def __init__(self) -> None:
        self.steps = 0
        self.before: Any = None

    def __call__(self, phase: str, index: int, step: ProgramStep, instance: Instance) -> None:
        plan = instance.program.plan
        arena = instance.arena[: plan.size]  # behind it lie the small inputs and outputs
        if phase == "before":
            if index == 0:
                arena[:] = 0xA5
            alive = [s for s in plan.arena() if s.life.first < index <= s.life.last]
            for slot in plan.arena():
                if slot.life.last == index - 1:
                    dead = np.ones(slot.life.nbytes, bool)
                    for other in alive:
                        if other.offset < slot.end and slot.offset < other.end:
                            dead[max(other.offset - slot.offset, 0) : other.end - slot.offset] = False
                    arena[slot.offset : slot.end][dead] = 0xA5
            self.before = arena.copy()
            return
        self.steps += 1
        outside = arena.copy()
        for name in (*step.writes(), step.workspace):
            place = plan.by_value.get(name)
            if place is None or place.life.space is not Space.ARENA or not place.life.nbytes:
                continue
            outside[place.offset : place.end] = self.before[place.offset : place.end]
            if name != step.workspace:
                array = instance.arrays[name]
                assert np.shares_memory(array, arena[place.offset : place.end])
                assert array.nbytes == place.life.nbytes
        assert outside.data == self.before.data, f"{step.node} wrote outside of its slots"


def poisoned(graph: Graph, feeds: dict[str, Any], strategy: Strategy = Strategy.BOTH) -> tuple[dict[str, Any], Program]:
    """Run a graph with poison in every byte that is not in use; returns the outputs and the program."""
    session, watch = Session(graph, strategy=strategy), Poison()
    session.run(feeds)
    results = session.run(feeds, observe=watch)
    assert watch.steps == len(session.program.steps)
    return results, session.program


@pytest.mark.parametrize("strategy", list(Strategy), ids=lambda s: s.value)
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_steps_write_their_planned_bytes_only(op: Op, sample: Sample, strategy: Strategy) -> None:
    graph, feeds = sample_graph(op, sample)
    got, program = poisoned(graph, feeds, strategy)
    assert_same(got, evaluate(graph, feeds, key=(0, 1)), program, parts=op.written_out)


def test_program_holds_no_array() -> None:
    """Attributes of nodes apart (which are part of the model), a program is data that many instances share."""
    op = OPS["", "Gemm"]
    session = Session(sample_graph(op, op.samples[0])[0])
    assert not any(isinstance(getattr(session.program, f), np.ndarray) for f in session.program.__dataclass_fields__)
    assert all(t.value is None for t in session.program.types.values() if hasattr(t, "value"))


def test_a_value_is_part_of_one_concatenation_alone() -> None:
    """Where two have a part in common it is in place in one of them, and copied into the other."""
    g = GraphBuilder()
    x = g.input("x", f32(16))
    part = g.Neg(x)
    first, second = g.Concat(part, g.Exp(x), axis=0), g.Concat(part, g.Mul(x, x), axis=0)
    graph = g.graph([g.Add(first, second)])
    feeds = {"x": np.linspace(-1, 1, 16, dtype=np.float32)}
    got, program = poisoned(graph, feeds)
    assert_same(got, evaluate(graph, feeds), program)
