"""Sessions: signatures, data-dependent shapes, states, feeds, limits, forks."""

from __future__ import annotations

import copy
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mezzo as mz
from mezzo.importers import load_onnx
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import Body, DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32, i64
from mezzo.runtime.execution import least_time
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.interpreter import evaluate

from .models import BOOL, INT64, model, node, ort_run, subgraph, value
from .peers import peer

FLAG = Tensor(DType.BOOL, ())


def detector() -> bytes:
    """Boxes kept by NonMaxSuppression, gathered with their scores: the count depends on the data."""
    nodes = [
        node("NonMaxSuppression", "boxes scores most iou score", "kept"),
        node("Slice", "kept two three one", "last"),
        node("Squeeze", "last one", "which"),
        node("Gather", "boxes which", "found", axis=1),
        node("Gather", "scores which", "certainty", axis=2),
        node("Shape", "kept", "shape"),
        node("ReduceSum", "certainty", "total", keepdims=0),
    ]
    constants = {
        "most": np.array([50]),
        "iou": np.array([0.5], np.float32),
        "score": np.array([0.6], np.float32),
        "two": np.array([2]),
        "three": np.array([3]),
        "one": np.array([1]),
    }
    outputs = [value("found", 1, None, 4), value("total"), value("shape", 2, kind=INT64)]
    made = model(nodes, [value("boxes", 1, 100, 4), value("scores", 1, 1, 100)], outputs, initializers=constants)
    return bytes(made.SerializeToString())


def test_changing_counts_do_not_plan_again() -> None:
    session, rng, counts = mz.load(detector()), np.random.default_rng(0), set()
    for i in range(200):
        corners = rng.random((1, 100, 2), np.float32)
        feeds = {
            "boxes": np.concatenate([corners, corners + 0.3 * rng.random((1, 100, 2), np.float32)], 2),
            "scores": rng.random((1, 1, 100), np.float32) * (0.6 + i / 400),
        }
        got = session.run(feeds)
        counts.add(int(got["shape"][0]))
        if i % 40 == 0:
            for name, y in ort_run(detector(), feeds).items():
                np.testing.assert_allclose(got[name], y, rtol=1e-5)
    assert len(counts) > 10
    assert session.stats().planned == 1
    assert session.program.dynamic
    assert session.stats().pool.in_use == 0


def growing() -> bytes:
    body = subgraph(
        [
            node("Concat", "held row", "longer", axis=0),
            node("Cast", "i", "number", to=1),
            node("Mul", "row number", "scaled"),
            node("Less", "i limit", "again"),
        ],
        [value("i", kind=INT64), value("go", kind=BOOL), value("held", None, 2)],
        [value("again", kind=BOOL), value("longer", None, 2), value("scaled", 1, 2)],
    )
    made = model(
        [node("Loop", "most - start", "held_out rows", body=body)],
        [value("most", kind=INT64), value("limit", kind=INT64), value("start", "n", 2), value("row", 1, 2)],
        [value("held_out", None, 2), value("rows", None, 1, 2)],
    )
    return bytes(made.SerializeToString())


def test_a_growing_loop_does_not_plan_again() -> None:
    session, start, row = mz.load(growing()), np.ones((3, 2), np.float32), np.full((1, 2), 2, np.float32)
    for i in range(200):
        feeds = {"most": np.array(i % 23), "limit": np.array(i % 7 + 3), "start": start, "row": row}
        got = session.run(feeds)
        trips = min(i % 23, i % 7 + 4)
        assert got["held_out"].shape == (3 + trips, 2)
        assert got["rows"].shape == (trips, 1, 2)
        if i % 40 == 0:
            for name, y in ort_run(growing(), feeds).items():
                np.testing.assert_array_equal(got[name], y)
    assert session.stats().planned == 1
    assert session.stats().pool.in_use == 0


def test_outputs_belong_to_the_caller() -> None:
    session, digits = mz.load(digits_model()), held_out().inputs
    first = session(digits[:2])
    kept = first.copy()
    session(digits[2:4])
    np.testing.assert_array_equal(first, kept)
    buffer = np.empty((2, 10), np.float32)
    assert session.run({"image": digits[:2]}, outputs={"logits": buffer})["logits"] is buffer
    np.testing.assert_array_equal(buffer, kept)
    with pytest.raises(mz.InputError, match="logits"):
        session.run({"image": digits[:2]}, outputs={"logits": np.empty((2, 9), np.float32)})


def test_an_output_may_be_an_input_or_a_constant_or_another() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(2))
    y = g.Neg(x)
    graph = g.graph([x, y, y, g.const([1.0], DType.FLOAT), g.Identity(x)])
    session = Session(graph)
    for _ in range(2):
        fed = np.array([1, 2], np.float32)
        compiled = session.run({"x": fed})
        assert not any(np.shares_memory(fed, r) for r in compiled.values())
        assert [r.tolist() for r in compiled.values()] == [[1, 2], [-1, -2], [1], [1, 2]]


def test_only_what_is_asked_for_is_computed() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(4))
    session = Session(g.graph([g.Exp(x), g.Neg(x)]))
    assert list(session.run({"x": np.zeros(4, np.float32)}, names=["Neg_1"])) == ["Neg_1"]
    assert [s.node.op for s in session.program.steps] == ["Neg"]
    with pytest.raises(mz.InputError, match=r"no output 'nope'[\s\S]*Exp_0, Neg_1"):
        session.run({"x": np.zeros(4, np.float32)}, names=["nope"])


def test_programs_are_bounded() -> None:
    session = mz.load(digits_model(), max_programs=3)
    for n in (1, 2, 3, 4, 5, 1):
        session(held_out().inputs[:n])
    stats = session.stats()
    assert (stats.planned, stats.programs, stats.evicted) == (6, 3, 3)


def test_branches_of_different_sizes_outlive_their_workspace() -> None:
    g = GraphBuilder()
    flag, x = g.input("flag", FLAG), g.input("x", f32(2))
    two, three = (Body([], lambda g, n=n: (g.Exp(g.const([n] * n, DType.FLOAT)),)) for n in (2, 3))
    picked = g.If(flag, then_branch=two, else_branch=three)
    again = g.If(g.Not(flag), then_branch=two, else_branch=three)
    session = Session(g.graph([g.Neg(picked), g.Exp(g.Neg(g.Neg(x))), again, picked]))
    for flag_now in (True, False, True):
        feeds = {"flag": np.array(flag_now), "x": np.ones(2, np.float32)}
        for name, y in evaluate(session.graph, feeds).items():
            np.testing.assert_array_equal(session.run(feeds)[name], y)
    assert session.program.dynamic


# States


def counter(update: Any) -> Graph:
    g = GraphBuilder("counter")
    x = g.input("x", f32(2))
    total = g.state("total", np.zeros(2, np.float32))
    new = update(g, total, x)
    g.update(total, new)
    return g.graph([g.Mul(total, g.const(2.0, DType.FLOAT))])


@pytest.mark.parametrize(
    "update",
    [
        pytest.param(lambda g, s, x: g.Add(s, x), id="in place"),
        pytest.param(lambda g, s, x: g.Add(g.Neg(s), x), id="through another"),
        pytest.param(lambda g, s, x: g.Where(g.Greater(x, g.const(0.0, DType.FLOAT)), x, s), id="conditional"),
        pytest.param(lambda g, s, x: x, id="an input"),
        pytest.param(lambda g, s, x: s, id="itself"),
    ],
)
def test_states_go_from_run_to_run(update: Any) -> None:
    graph = counter(update)
    session, total = Session(graph), np.zeros(2, np.float32)
    for i in range(4):
        x = np.array([i + 1, -i], np.float32)
        (shown,) = session.run({"x": x}).values()
        np.testing.assert_array_equal(shown, total * 2)
        step = Graph(graph.inputs, (graph.states[0].output,), graph.nodes, {**graph.initializers, "total": total})
        total = next(iter(evaluate(step, {"x": x}).values()))
        np.testing.assert_array_equal(session.states["total"], total)


def test_states_may_change_places() -> None:
    g = GraphBuilder()
    a, b = g.state("a", np.array([1], np.float32)), g.state("b", np.array([2], np.float32))
    c = g.state("c", np.array([3], np.float32))
    g.update(a, b)
    g.update(b, a)
    g.update(c, g.Add(c, a))
    session = Session(g.graph([g.Add(a, b)]))
    for swapped, third in ((False, 3), (True, 4), (False, 6), (True, 7)):
        now = (2, 1) if swapped else (1, 2)
        assert tuple(float(s[0]) for s in session.states.values()) == (*now, third)
        assert session()[0] == 3


def test_a_state_keeps_its_type() -> None:
    g = GraphBuilder()
    g.update(g.state("s", np.array([1], np.float32)), g.const([1.0, 2.0], DType.FLOAT))
    with pytest.raises(mz.ShapeError, match=r"float32\[1\].*float32\[2\]"):
        Session(g.graph([]))


def test_a_state_that_its_writer_may_overwrite_is_not_copied() -> None:
    session = Session(counter(lambda g, s, x: g.Add(s, x)))
    session.run({"x": np.zeros(2, np.float32)})
    # the reader of the old value comes after the writer in the graph, so that a copy at the end is needed
    assert [s.node.op for s in session.program.steps] == ["Add", "Mul", "Identity"]
    g = GraphBuilder()
    total = g.state("total", np.zeros(2, np.float32))
    g.update(total, g.Add(total, g.input("x", f32(2))))
    session = Session(g.graph([]))
    session.run({"x": np.ones(2, np.float32)})
    assert [s.node.op for s in session.program.steps] == ["Add"]
    assert session.states["total"].tolist() == [1, 1]


# Feeds


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({}, "is not fed"),
        ({"picture": np.zeros((1, 1, 8, 8), np.float32)}, "no input 'picture'"),
        ({"image": np.zeros((1, 1, 8, 8))}, "float64, expected float32"),
        ({"image": np.zeros((1, 8, 8), np.float32)}, "expected rank 4"),
        ({"image": np.zeros((1, 1, 8, 9), np.float32)}, "9 in axis 3, expected 8"),
        ({"image": "zero"}, "string"),
        ({"image": [[1, 2], [3]]}, "no array"),
        ({"image": object()}, ""),
        ({"image": None}, "is None"),
    ],
)
def test_wrong_feeds(feeds: dict[str, Any], said: str) -> None:
    session = mz.load(digits_model())
    with pytest.raises(mz.InputError) as caught:
        session.run(feeds)
    assert said in caught.value.message
    assert caught.value.where
    assert "image: float32[batch,1,8,8]" in caught.value.hint
    assert session(held_out().inputs[:1]).shape == (1, 10)


def test_arrays_that_are_not_given_by_name() -> None:
    session, zeros = mz.load(digits_model()), np.zeros((1, 1, 8, 8), np.float32)
    for _ in range(3):  # later runs take other ways
        for feeds in ([zeros], (zeros,), zeros, None, 3, {"image"}):
            with pytest.raises(mz.InputError, match="feeds are a mapping, not a"):
                session.run(feeds)  # type: ignore[arg-type]
        for buffers in ([zeros], zeros, ()):
            with pytest.raises(mz.InputError, match="outputs are a mapping, not a"):
                session.run({"image": zeros}, outputs=buffers)  # type: ignore[arg-type]
        for names in ("logits", 3, [None], [["logits"]]):
            with pytest.raises(mz.InputError, match="names are a list of outputs, not"):
                session.run({"image": zeros}, names=names)  # type: ignore[arg-type]
        session.run({"image": zeros})
    for sizes in (3, "1188", (-1, 1, 8, 8), (1.5, 1, 8, 8)):
        with pytest.raises(mz.InputError, match="no shape of the input 'image'"):
            session.warmup({"image": sizes})  # type: ignore[dict-item]


def test_all_misfits_are_told_at_once_and_named_dims_agree() -> None:
    g = GraphBuilder("pair")
    a, b = g.input("a", f32("n", 2)), g.input("b", f32("n", 2))
    session = Session(g.graph([g.Add(a, b)]))
    with pytest.raises(mz.InputError, match="dim 'n' is 3 in input 'a' and 4 in input 'b'"):
        session.run({"a": np.zeros((3, 2), np.float32), "b": np.zeros((4, 2), np.float32)})
    with pytest.raises(mz.InputError, match=r"no input 'c'; .*'a'.* not fed; input 'b' is int64"):
        session.run({"c": 1, "b": np.zeros((4, 2), np.int64)})


def test_any_strides_and_any_nesting_of_lists() -> None:
    g = GraphBuilder()
    session = Session(g.graph([g.Neg(g.input("x", f32("n", "m")))]))
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (x.T, x[::-2, 1::2], np.asfortranarray(x), x[:0]):
        np.testing.assert_array_equal(session(view), -view)
    assert session([[1, 2.5]]).tolist() == [[-1, -2.5]]


# Limits


def test_an_endless_loop_ends_at_the_step_budget() -> None:
    g = GraphBuilder("endless")
    x = g.input("x", f32(2))
    body = Body([i64(), FLAG, f32(2)], lambda g, i, go, x: (g.Identity(go), g.Neg(x)))
    graph = g.graph([g.Loop(None, g.const(True), x, body=body)])
    session = Session(graph, budget=mz.Budget(steps=1000))
    with pytest.raises(mz.BudgetError, match="1000 iterations") as caught:
        session.run({"x": np.zeros(2, np.float32)})
    assert "Loop" in caught.value.where
    assert "Budget(steps=" in caught.value.hint


def test_a_huge_constant_is_refused_before_it_is_made() -> None:
    huge = model(
        [node("ConstantOfShape", "shape", "y")],
        [value("shape", 1, kind=INT64)],
        [value("y", None)],
    ).SerializeToString()
    session = mz.load(huge)
    with pytest.raises(mz.BudgetError, match="1099511627776") as caught:
        session.run({"shape": np.array([2**40])})
    assert "ConstantOfShape" in caught.value.where
    fixed = model(
        [node("ConstantOfShape", "shape", "y")], [], [value("y", None)], initializers={"shape": np.array([2**40])}
    ).SerializeToString()
    with pytest.raises(mz.BudgetError, match="1099511627776"):
        mz.load(fixed)


def test_a_huge_value_in_a_dynamic_segment_is_refused() -> None:
    g = GraphBuilder("dynamic")
    rows = g.NonZero(g.input("mask", Tensor(DType.BOOL, (3,))))
    big = g.Expand(g.ReduceSum(rows, keepdims=0), g.Mul(g.Shape(rows), g.const([1, 2**20])))
    graph = g.graph([g.ReduceMax(big, keepdims=0)])
    session = Session(graph, budget=mz.Budget(dynamic_bytes=1 << 20))
    with pytest.raises(mz.BudgetError, match="data-dependent size"):
        session.run({"mask": np.ones(3, bool)})
    assert session.stats().pool.in_use == 0


def test_waiting_has_a_deadline() -> None:
    session, started, go = mz.load(digits_model(), instances=1), threading.Event(), threading.Event()

    def slow(*_: Any) -> None:
        started.set()
        go.wait(60)

    image = held_out().inputs[:1]
    thread = threading.Thread(target=session.run, args=({"image": image},), kwargs={"observe": slow})
    thread.start()
    started.wait(60)
    with pytest.raises(mz.DeadlineError, match="no instance was free"):
        session.run({"image": image}, deadline=0.05)
    go.set()
    thread.join(60)
    assert session(image).shape == (1, 10)


def test_a_failing_step_names_its_node_and_leaves_the_session_usable() -> None:
    g = GraphBuilder("lookup")
    table, where = g.input("table", f32(4, 2)), g.input("where", i64(3))
    session = Session(g.graph([g.Gather(table, where)]))
    feeds = {"table": np.zeros((4, 2), np.float32), "where": np.array([0, 1, 9])}
    with pytest.raises(mz.ExecutionError, match="outside of 4 elements") as caught:
        session.run(feeds)
    assert "Gather" in caught.value.where
    assert session.run(feeds | {"where": np.array([0, -1, 3])})["Gather_0"].shape == (3, 2)


# Processes


def _in_child(session: Session, image: Any, pipe: Any) -> None:
    try:
        session(image)
        pipe.send("ran")
    except mz.ForkedProcess as error:
        pipe.send(str(error))
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")
    fresh = Session(_wide(), threads=2)  # of products that are split: the parent's team of threads is gone
    pipe.send(fresh(np.ones((300, 512), np.float32)))


def _wide() -> Any:
    g = GraphBuilder()
    return g.graph([g.MatMul(g.input("x", f32(300, 512)), g.const(np.ones((512, 512), np.float32)))])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_and_runs_what_it_loads() -> None:
    session, image = mz.load(digits_model()), held_out().inputs[:1]
    session(image)
    wide = Session(_wide(), threads=2)
    want = wide(np.ones((300, 512), np.float32))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(session, image, theirs))
    child.start()
    try:
        assert ours.poll(60)
        said = ours.recv()
        assert ours.poll(60), "a session that the child made does not run"
        assert (ours.recv() == want).all()
    finally:
        child.kill()
        child.join(60)
    assert "was forked from" in said
    assert "load the model in the child" in said
    assert (wide(np.ones((300, 512), np.float32)) == want).all()


# ONNX Runtime's calls


def test_inference_session_speaks_like_onnxruntime() -> None:
    ort = peer("onnxruntime")
    ours, theirs = mz.InferenceSession(str(digits_model())), ort.InferenceSession(str(digits_model()))
    for get in ("get_inputs", "get_outputs"):
        mine = [(a.name, a.type, a.shape) for a in getattr(ours, get)()]
        assert mine == [(a.name, a.type, a.shape) for a in getattr(theirs, get)()]
    feeds = {"image": held_out().inputs[:5]}
    for names in (None, ["logits"]):
        for a, b in zip(ours.run(names, feeds), theirs.run(names, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


# Generated graphs


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """A random graph over a handful of operators, with values used again and several outputs."""
    g = GraphBuilder("random")
    values = [g.input("x", f32(2, 3)), g.input("y", f32(2, 3)), g.const([[0.5], [2.0]], DType.FLOAT)]
    for _ in range(draw(st.integers(1, 12))):
        pick = st.sampled_from(values)
        kind = draw(st.sampled_from(["Add", "Mul", "Sigmoid", "Relu", "Twice", "Split", "Identity", "If"]))
        if kind in ("Add", "Mul"):
            values.append(g.op(kind, draw(pick), draw(pick)))
        elif kind == "Twice":
            values.append(g.Transpose(g.Transpose(draw(pick), perm=[1, 0]), perm=[1, 0]))
        elif kind == "Split":
            whole = g.Add(draw(pick), values[0])
            left, right = g.op("Split", whole, g.const([1, 2]), outputs=2, axis=1)
            values.append(g.Concat(right, left, axis=1))
        elif kind == "If":
            a, b = draw(pick), draw(pick)
            test = g.Greater(g.ReduceSum(values[0], keepdims=0), g.const(0.0, DType.FLOAT))
            values.append(g.If(test, then_branch=_branch("Neg", a), else_branch=_branch("Identity", b)))
        else:
            values.append(g.op(kind, draw(pick)))
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
    return g.graph(outputs)


def _branch(op: str, outer: str) -> Body:
    return Body([], lambda g: (g.op(op, outer),))


@given(chains(), st.integers(0, 9), st.sampled_from(["none", "inplace", "sharing", "both"]))
def test_any_graph_runs_as_it_is_interpreted(graph: Graph, seed: int, strategy: str) -> None:
    rng = np.random.default_rng(seed)
    feeds = {n: rng.standard_normal((2, 3)).astype(np.float32) for n in graph.inputs}
    want, session = evaluate(graph, feeds), Session(graph, strategy=strategy, onednn=False)
    for _ in range(2):
        for name, y in session.run(feeds).items():
            np.testing.assert_array_equal(y, want[name])


def test_default_inputs_may_be_left_out() -> None:
    proto = model(
        [node("Add", "x bias", "y")],
        [value("x", 2), value("bias", 2)],
        [value("y", 2)],
        initializers={"bias": np.array([1, 2], np.float32)},
    )
    session = Session(load_onnx(proto))
    x = np.zeros(2, np.float32)
    assert session.run({"x": x})["y"].tolist() == [1, 2]
    assert session.run({"x": x, "bias": np.array([5, 5], np.float32)})["y"].tolist() == [5, 5]
    assert [a.name for a in mz.InferenceSession(proto.SerializeToString()).get_inputs()] == ["x"]


# Services


def test_a_run_ends_at_its_deadline_or_when_it_is_cancelled() -> None:
    g = GraphBuilder("endless")
    body = Body([i64(), FLAG, f32(2)], lambda g, i, go, x: (g.Identity(go), g.Neg(x)))
    graph = g.graph([g.Loop(None, g.const(True), g.input("x", f32(2)), body=body)])
    session, feeds = Session(graph, budget=mz.Budget(steps=1 << 40)), {"x": np.zeros(2, np.float32)}
    session.warmup({})  # which takes its time too
    with pytest.raises(mz.DeadlineError, match="passed its deadline") as caught:
        session.run(feeds, deadline=0.5)
    assert "Loop" in caught.value.where
    stop = threading.Event()
    future = session.run_async(feeds, cancel=stop)
    assert not future.done()
    stop.set()
    with pytest.raises(mz.Cancelled):
        future.result(60)


def test_a_step_that_takes_longer_than_is_left_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    g = GraphBuilder()
    y = g.Relu(g.MatMul(g.input("x", f32(4, "n")), g.input("w", f32("n", 8))))
    session = Session(g.graph([y]), fuse=True)
    feeds = {"x": np.ones((4, 6), np.float32), "w": np.ones((6, 8), np.float32)}
    assert (session.run(feeds, deadline=600)[y] == 6).all()
    monkeypatch.setattr(least_time, "PEAK", 4 * 6 * 8 / 1e6)  # in a second
    twin = Session(session.graph)
    with pytest.raises(mz.DeadlineError, match=r"takes at least \S+e\+0\d s, and [56]\d\d s are left") as caught:
        twin.run(feeds, deadline=600)
    assert "Relu" in caught.value.where  # the name of the chain
    assert (twin.run(feeds)[y] == 6).all()  # nobody waits


@pytest.mark.parametrize(
    ("op", "x", "w", "attrs", "count"),
    [
        ("Conv", (2, 6, 9, 9), (4, 3, 3, 3), {"group": 2}, 2 * 4 * 7 * 7 * 3 * 9),
        ("Conv", (1, 4, 1, 1), (8, 4, 3, 3), {"pads": (1, 1, 1, 1)}, 8 * 4),  # eight of nine places are padding
        ("Conv", (1, 4, 5), (8, 4, 3), {"pads": (2, 2), "dilations": (2,)}, 8 * 4 * (5 + 3 + 3)),
        ("ConvTranspose", (2, 6, 4, 4), (6, 5, 3, 3), {}, 2 * 6 * 16 * 5 * 9),
        ("ConvTranspose", (1, 2, 4), (2, 3, 3), {"pads": (1, 1)}, 2 * 3 * (4 + 3 + 3)),
        ("MatMul", (5, 3, 7), (7, 4), {}, 5 * 3 * 4 * 7),
        ("Gemm", (7, 3), (7, 4), {"transA": 1}, 3 * 4 * 7),
        ("Add", (7, 3), (7, 3), {}, 0),
    ],
)
def test_multiplications_are_those_of_the_definition(op: str, x: Any, w: Any, attrs: Any, count: int) -> None:
    g = GraphBuilder()
    session = Session(g.graph([g.op(op, g.input("x", f32(*x)), g.input("w", f32(*w)), **attrs)]))
    program = session.program
    assert [m for s in program.steps if (m := least_time.multiplications(s, program.types))] == [count] * (count > 0)


def test_futures_answer_like_calls() -> None:
    session, digits = mz.load(digits_model()), held_out().inputs
    futures = [session.run_async({"image": digits[i : i + 2]}) for i in range(20)]
    for i, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(60)["logits"], session(digits[i : i + 2]))


def test_an_error_of_a_future_names_the_line_that_asked_for_it() -> None:
    future = mz.load(digits_model()).run_async({"picture": np.zeros(3, np.float32)})
    with pytest.raises(mz.InputError, match="no input 'picture'") as caught:
        future.result()
    assert f"workload 'run', pushed at {__file__}:" in caught.value.__notes__[0]
    assert future.exception() is caught.value


@pytest.mark.parametrize("copied", [lambda session: session.__reduce_ex__(4), copy.copy, copy.deepcopy])
def test_a_session_is_not_copied(copied: Callable[[Session], object]) -> None:
    with pytest.raises(InputError, match=r"neither copied nor pickled(.|\n)*load the model in each process"):
        copied(mz.load(digits_model()))
