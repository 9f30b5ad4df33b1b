"""What is prepared is what was selected: descriptions in the choice, bytes compared at binding, defects of kernels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import Tensor
from mezzo.ops.dataclasses import replace
from mezzo.ops.errors import PlanError
from mezzo.ops.types import f32
from mezzo.runtime.backends.onednn.conv import Conv
from mezzo.runtime.backends.onednn.elementwise import Eltwise
from mezzo.runtime.backends.onednn.kernel import _ANSWERS, OneDnn
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.backends.onednn.matmul import MatMul
from mezzo.runtime.backends.onednn.primitive import Draft
from mezzo.runtime.compile.defects import DEFECTS, KernelDefect
from mezzo.runtime.devices import DEVICES
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.tools.explain import explain

needs_onednn = pytest.mark.skipif(library() is None, reason="oneDNN is not installed")
DRAWN = np.random.default_rng(0)


def forget() -> None:
    """Let go of the defects, and of what was chosen without the kernels that have them."""
    DEFECTS.forget()
    DEVICES["cpu"].target._chosen.clear()
    _ANSWERS.clear()


@pytest.fixture(autouse=True)
def no_defects() -> Iterator[None]:
    forget()
    yield
    forget()


def product(*, transposed: bool = True) -> Graph:
    """A product whose reader would like it transposed, so that it is asked otherwise than it lies in the end."""
    g = GraphBuilder()
    y = g.MatMul(g.input("x", f32(1, 16, 64)), g.const(DRAWN.standard_normal((64, 32)).astype(np.float32)))
    y = g.Relu(g.Add(y, g.const(DRAWN.standard_normal(32).astype(np.float32))))
    return g.graph([g.Transpose(y, perm=(0, 2, 1)) if transposed else y])


def image() -> Graph:
    g = GraphBuilder()
    w, b = DRAWN.standard_normal((24, 3, 3, 3)), DRAWN.standard_normal(24)
    y = g.Conv(g.input("x", f32(2, 3, 9, 9)), g.const(w.astype(np.float32)), g.const(b.astype(np.float32)))
    return g.graph([g.Softmax(g.MaxPool(g.Relu(y), kernel_shape=[2, 2]), axis=1)])


def feeds(graph: Graph) -> dict[str, Any]:
    found = {n: graph.types[n] for n in graph.inputs}
    return {n: DRAWN.standard_normal(t.sizes).astype(np.float32) for n, t in found.items() if isinstance(t, Tensor)}


def agree(graph: Graph, session: Session) -> None:
    fed = feeds(graph)
    want = Session(graph, onednn=False).run(fed)
    for name, y in session.run(fed).items():
        assert abs(y - want[name]).max() <= 1e-5 * abs(want[name]).max()


@needs_onednn
@pytest.mark.parametrize("make", [product, image])
def test_nothing_is_asked_again(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances are made of what the steps hold: families that would answer no more change nothing."""
    graph = make()
    session = Session(graph)
    assert any(s.choice.primitives for s in session.program.steps)

    def no_answer(*_: Any) -> Any:
        raise AssertionError("asked again")

    for name in ("plans", "select", "_first_plan", "_answer"):
        monkeypatch.setattr(OneDnn, name, no_answer)
    for family in (MatMul, Conv, Eltwise):
        monkeypatch.setattr(family, "drafts", no_answer)
    fed = feeds(graph)
    answer = session.run(fed)
    monkeypatch.undo()
    want = Session(graph, onednn=False).run(fed)
    assert all(abs(answer[n] - want[n]).max() <= 1e-5 * abs(want[n]).max() for n in want)


@needs_onednn
@pytest.mark.parametrize("make", [product, image])
def test_a_file_holds_what_was_selected(make: Any, tmp_path: Path) -> None:
    """The stored program is taken although its kernels were asked otherwise than values lie in the end."""
    graph = make()
    session = Session(graph)
    kept = [s.choice for s in session.program.steps]
    session.save(tmp_path / "m.mezzo")
    again = mz.load(tmp_path / "m.mezzo")
    agree(graph, again)
    assert again.bound_from == "variant"
    assert [s.choice for s in again.program.steps] == kept


@needs_onednn
def test_a_file_whose_primitives_are_others_is_planned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = product()
    session = Session(graph)
    assert session.program.steps
    monkeypatch.setattr(Draft, "__repr__", lambda self: f"another {self.kind}")
    session.save(tmp_path / "m.mezzo")
    monkeypatch.undo()
    again = mz.load(tmp_path / "m.mezzo")
    agree(graph, again)
    assert again.bound_from.startswith("graph (onednn.matmul would now run")


def widened(draft: Draft) -> Draft:
    """The same primitive over more rows than its operands have."""

    def more(operand: Any) -> Any:
        memory = operand.memory
        if memory.layout == "any" or operand.argument not in (1, 17):  # source and destination
            return operand
        return replace(operand, memory=replace(memory, dims=(memory.dims[0] * 1024, *memory.dims[1:])))

    return replace(draft, operands=tuple(map(more, draft.operands)))


@needs_onednn
def test_bytes_are_compared_before_anything_is_touched() -> None:
    """A primitive that would read behind its operands is refused, however it came into the step."""
    session = Session(product(transposed=False), threads=1)  # several want more workspace for more rows
    bound = session.executable
    (step,) = bound.program.steps
    choice = replace(step.choice, primitives=tuple(map(widened, step.choice.primitives)))
    program = replace(bound.program, steps=(replace(step, choice=choice),))
    wrong = replace(bound, program=program)
    session._executables = type(session._executables)((k, wrong) for k in session._executables)
    with pytest.warns(KernelDefect, match="oneDNN would touch"):
        session.run({"x": np.ones((1, 16, 64), np.float32)})
    assert DEFECTS.count == 1


@needs_onednn
def test_a_defect_while_choosing_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a slip")

    graph = image()
    monkeypatch.setattr(Conv, "drafts", broken)
    with pytest.warns(KernelDefect, match=r"onednn\.conv has a defect.*a slip"):
        session = Session(graph)
    assert session.stats().defects
    report = explain(session, feeds(graph))
    assert report.facts["kernel_defects"] == session.program.defects > 0
    assert "a defect, while it chose: KeyError" in str(report.tables)
    with warnings.catch_warnings(record=True) as said:  # it is named once
        warnings.simplefilter("always")
        agree(graph, Session(graph))
    assert not said


@needs_onednn
def test_a_defect_while_preparing_is_planned_around(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, args: Any) -> Any:
        raise IndexError("a slip")

    graph = product()
    monkeypatch.setattr(MatMul, "prepare", broken)
    session = Session(graph)
    with pytest.warns(KernelDefect, match=r"onednn\.matmul has a defect, while it prepared"):
        agree(graph, session)
    assert {s.choice.kernel for s in session.program.steps}.isdisjoint({"onednn.matmul"})
    agree(graph, session)
    forget()
    with pytest.raises(KernelDefect):  # what a test meets is an error
        Session(product()).run(feeds(graph))


def test_no_kernel_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every kernel fails, the error blames nobody's operands."""
    from mezzo.runtime.backends.cpu.reference import Reference

    def broken(self: Any, args: Any) -> Any:
        raise IndexError("a slip")

    monkeypatch.setattr(Reference, "prepare", broken)
    g = GraphBuilder()
    graph = g.graph([g.Einsum(g.input("x", f32(3, 4)), equation="ij->ji")])
    with pytest.warns(KernelDefect), pytest.raises(PlanError, match="defect") as caught:
        Session(graph, onednn=False).run({"x": np.ones((3, 4), np.float32)})
    assert "operands do not fit" not in str(caught.value)
