"""NaN, infinities and -0 in every operator, in compositions and in training: what the references make of them.

A value is planted in a feed; the program must have the same NaN, the same infinities and near numbers where the
reference, run operator by operator, has them.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.ops import OPS, MezzoError, Op
from mezzo.ops.types import f32, i64
from mezzo.runtime.backends.onednn import batches, invalid
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.execution.alarm import raise_alarm, readable
from mezzo.runtime.execution.exact_rerun import Met, exact
from mezzo.runtime.execution.instance import Instance
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.interpreter import InvalidOperation, evaluate
from mezzo.runtime.optimizer import SGD
from mezzo.train.trainer import Trainer

from .graphs import hosted, sample_graph

PLANTED = (np.nan, np.inf, -np.inf, -0.0)
native = pytest.mark.skipif(library() is None, reason="oneDNN is not here")
SWITCHES: list[dict[str, Any]] = [{"onednn": False}, {"onednn": True}, {"onednn": True, "fuse": True, "threads": 2}]

# where oneDNN and the reference differ, and both are right: an element times 0 that is not computed at all
UNSEEN = {
    ("", "Conv", "x1"): "a weight that meets the padding",
    ("com.microsoft", "FusedConv", "x1"): "a weight that meets the padding",
    ("", "PRelu", "x1"): "a slope of a positive element, which oneDNN multiplies by 0",
    ("", "Resize", "x0"): "an element whose weight is 0",
    ("mezzo", "ConvGradWeights", "x0"): "a gradient that meets the padding",
    ("mezzo", "ReluGrad", "x0"): "a gradient of an element below 0, which oneDNN multiplies by 0",
    ("", "Attention", "x1"): "a query whose scores are all -inf, though no mask hides its keys: 0 or NaN",
    ("", "Attention", "x2"): "a value whose probability is 0",
}


# the slope at a NaN or an infinity, which training meets with a gradient that is NaN already
UNSEEN |= {("mezzo", f"{op}Grad", "x1"): "the slope there" for op in ("Relu", "LeakyRelu", "Elu", "Mish")}


def difference(got: Any, want: Any, tolerance: float = 1e-4) -> str:
    """What is wrong with a result; empty if nothing is."""
    if want.dtype.kind in "OUSbiu":
        return "" if np.array_equal(got, want) else "other elements"
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    for name, mask in (("NaN", np.isnan), ("infinities", np.isinf)):
        if not np.array_equal(mask(got), mask(want)):
            return f"{mask(got).sum()} {name}, not {mask(want).sum()}"
    if not np.array_equal(got[np.isinf(want)], want[np.isinf(want)]):
        return "infinities of another sign"
    finite = np.isfinite(want)
    most = np.abs(want[finite]).max(initial=0)
    return "" if np.abs(got[finite] - want[finite]).max(initial=0) <= tolerance * most + 1e-30 else "other numbers"


def planted(feeds: dict[str, Any], name: str) -> Iterator[tuple[float, dict[str, Any]]]:
    """The feeds with one element of `name` replaced, for each value and a place in the middle."""
    for value in PLANTED:
        array = feeds[name].copy()
        array.reshape(-1)[array.size // 3] = value
        yield value, {**feeds, name: array}


def outcome(run: Any, feeds: dict[str, Any]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return run(feeds)
    except MezzoError as error:
        return error


def check(graph: Graph, feeds: dict[str, Any], sessions: list[Session], where: str, skipped: Any = ()) -> None:
    for name in [n for n, a in feeds.items() if a.dtype.kind == "f" and a.size and n not in skipped]:
        for value, fed in planted(feeds, name):
            want = outcome(lambda f: evaluate(graph, f), fed)
            for session in sessions:
                got = outcome(session.run, fed)
                told = f"{where}, {value} in {name}, {session._options.target}"
                assert isinstance(got, MezzoError) == isinstance(want, MezzoError), (
                    f"{told}: {got!r:.200} {want!r:.200}"
                )
                if not isinstance(want, MezzoError):
                    wrong = {o: difference(got[o], want[o]) for o in want}
                    assert not any(wrong.values()), f"{told}: {wrong}"


def float_samples(op: Op) -> list[tuple[Graph, dict[str, Any]]]:
    made = []
    for sample in op.samples if op.deterministic else ():
        if not hosted(op, sample):
            graph, feeds = sample_graph(op, sample, fed="types")
            made += [(graph, feeds)] if any(a.dtype.kind == "f" and a.size for a in feeds.values()) else []
    return made


def check_record(key: tuple[str, str], samples: int | None = None) -> None:
    for graph, feeds in float_samples(OPS[key])[:samples]:
        sessions = [Session(graph, **switch) for switch in SWITCHES[: 2 if samples else None]]
        skipped = {name for domain, op, name in UNSEEN if (domain, op) == key}
        check(graph, feeds, sessions, ".".join(key), skipped)


# records whose kernels are oneDNN's or written by hand; all others are their references and generated from them
SERVED = [("", op) for op in """Abs Add ArgMax AveragePool BatchNormalization Cast Clip Conv Elu Exp Gelu Gemm
    GlobalAveragePool GlobalMaxPool GroupNormalization HardSigmoid HardSwish LRN LSTM LayerNormalization LeakyRelu
    LogSoftmax MatMul Max MaxPool Min Mish Mul Pow ReduceLogSum ReduceMax ReduceMean ReduceMin ReduceSum Relu Round
    Sigmoid Softmax SoftmaxCrossEntropyLoss Sqrt Swish Tanh TopK Where""".split()]  # fmt: skip


@pytest.mark.parametrize("key", SERVED, ids=lambda k: k[1])
def test_operators(key: tuple[str, str]) -> None:
    check_record(key, samples=1)


@pytest.mark.soak
@pytest.mark.parametrize("key", sorted(OPS), ids=lambda k: ".".join(filter(None, k)))
def test_every_sample_of_every_operator(key: tuple[str, str]) -> None:
    check_record(key)


# -- compositions

SIZES = (2, 16, 9, 7)
_RNG = np.random.default_rng(3)


def _weights(*dims: int) -> Any:
    return (_RNG.standard_normal(dims) / np.sqrt(np.prod(dims[1:]))).astype(np.float32)


PRODUCERS: dict[str, Any] = {
    "Conv": lambda g, x: g.Conv(x, g.const(_weights(32, 16, 3, 3)), g.const(_weights(32)), pads=[1, 1, 1, 1]),
    "depthwise": lambda g, x: g.Conv(x, g.const(_weights(16, 1, 3, 3)), group=16, pads=[1, 1, 1, 1]),
    "MatMul": lambda g, x: g.MatMul(x, g.const(_weights(7, 16))),
    "Gemm": lambda g, x: g.Gemm(g.Flatten(x), g.const(_weights(16 * 63, 600)), g.const(_weights(600))),
    "Add": lambda g, x: g.Add(x, g.Mul(x, g.const(_weights(16, 1, 1)))),
    "input": lambda g, x: x,
    "Transpose": lambda g, x: g.Transpose(x, perm=[0, 2, 3, 1]),
}
CONSUMERS: dict[str, Any] = {
    "Relu": lambda g, y: g.Relu(y),
    "Clip": lambda g, y: g.Clip(y, g.const(np.float32(0)), g.const(np.float32(6))),
    "HardSwish": lambda g, y: g.HardSwish(y),
    "HardSigmoid": lambda g, y: g.HardSigmoid(y),
    "Exp": lambda g, y: g.Exp(y),
    "Gelu": lambda g, y: g.Gelu(y),
    "Sigmoid": lambda g, y: g.Sigmoid(y),
    "Max": lambda g, y: g.Max(y, g.const(np.float32(0.25))),
    "residual": lambda g, y: g.Relu(g.Add(y, g.Mul(y, g.const(np.float32(0.5))))),
    "LeakyRelu": lambda g, y: g.LeakyRelu(y, alpha=0.1),
    "ReduceMax": lambda g, y: g.ReduceMax(g.Relu(y), g.const(np.array([-1]))),
    "Softmax": lambda g, y: g.Softmax(y, axis=1),
    "LogSoftmax": lambda g, y: g.Mul(g.LogSoftmax(y, axis=-1), g.const(np.float32(0.5))),
    "attention": lambda g, y: g.Einsum(g.Softmax(y, axis=-1), y, equation="...ij,...kj->...ik"),
    "one element of a row": lambda g, y: g.Slice(g.Softmax(y, axis=-1), g.const(1), g.const(2), g.const(-1)),
}
POOLS: dict[str, Any] = {
    "MaxPool": lambda g, y: g.MaxPool(g.Relu(y), kernel_shape=[2, 2], strides=[2, 2]),
    "padded": lambda g, y: g.MaxPool(y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "GlobalMaxPool": lambda g, y: g.GlobalMaxPool(y),
}
TABLE = [*itertools.product(PRODUCERS, CONSUMERS), *itertools.product(("Conv", "Add", "input", "depthwise"), POOLS)]


def composed(producer: str, consumer: str) -> tuple[Graph, dict[str, Any]]:
    g = GraphBuilder()
    x = g.input("x", f32(*SIZES))
    y = {**CONSUMERS, **POOLS}[consumer](g, PRODUCERS[producer](g, x))
    return g.graph([y]), {"x": np.random.default_rng(0).standard_normal(SIZES).astype(np.float32)}


def check_composition(producer: str, consumer: str, **options: Any) -> None:
    graph, feeds = composed(producer, consumer)
    check(graph, feeds, [Session(graph, **options)], f"{producer}, {consumer}")


@pytest.mark.parametrize("consumer", [*CONSUMERS, *POOLS])
def test_compositions(consumer: str) -> None:
    for threads, (producer, _) in enumerate(case for case in TABLE if case[1] == consumer):
        check_composition(producer, consumer, fuse=bool(threads % 3), threads=1 + threads % 2)


@pytest.mark.soak
@native
@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE", "AVX512_CORE_BF16"])
def test_compositions_with_other_instructions(isa: str) -> None:
    code = "from tests import test_nan as t\nfor case in t.TABLE: t.check_composition(*case, threads=2)"
    root, environment = Path(__file__).parent.parent, {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@native
@pytest.mark.parametrize("consumer", ["Relu", "Clip", "MaxPool", "Exp"])
def test_bfloat16(consumer: str) -> None:
    found = library()
    if found is None or not found.bf16:
        pytest.xfail("this machine computes no bfloat16")
    graph, feeds = composed("Conv", consumer)
    session = Session(graph, precision="bf16")
    for value, fed in planted(feeds, "x"):
        got, want = session.run(fed), evaluate(graph, fed)
        for name, y in want.items():
            assert np.array_equal(np.isnan(got[name]), np.isnan(y)), (value, name)
            assert np.array_equal(np.isinf(got[name]), np.isinf(y)), (value, name)


# -- how it is found out


@native
@pytest.mark.skipif(not readable(), reason="the flag is read on Linux with x86-64 processors alone")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at", [0, -1])
def test_only_runs_that_meet_a_nan_are_made_again(threads: int, at: int) -> None:
    """Wherever it is, and so whichever thread meets it; the run after it is a quick one again."""
    graph, feeds = composed("Conv", "Clip")
    session = Session(graph, threads=threads)
    x = feeds["x"].copy()
    x.reshape(-1)[at] = np.nan
    before = session.run(feeds)
    assert session._exact is None
    (y,) = session.run({"x": x}).values()
    assert np.isnan(y).any()
    assert session._exact is not None
    runs = session._exact._arenas.counts()[0]
    after = session.run(feeds)
    assert all(np.array_equal(before[n], after[n]) for n in before)
    assert session._arenas.counts()[0] == runs + 1


@native
def test_numpy_in_between_takes_nothing_away() -> None:
    """Steps of NumPy clear the flag of their thread."""
    g = GraphBuilder()
    x = g.input("x", f32(2, 4096))
    y = g.Relu(g.Softplus(g.Relu(g.Neg(x))))
    graph = g.graph([g.Softplus(y), g.Cos(g.Relu(x))])
    check(graph, {"x": np.ones((2, 4096), np.float32)}, [Session(graph, threads=n) for n in (1, 2)], "between")


def test_random_numbers_are_those_of_the_run() -> None:
    """A run that is made again draws the same numbers, and the next one the next."""
    g = GraphBuilder()
    x = g.input("x", f32(64, 100))
    graph = g.graph([g.Add(g.Relu(x), g.RandomUniformLike(x)), g.Exp(x)])
    feeds = {"x": np.ones((64, 100), np.float32)}
    broken = {"x": feeds["x"].copy()}
    broken["x"][3, 4] = np.nan
    plain, met = Session(graph), Session(graph)
    for fed in (feeds, broken, feeds, feeds):
        (a, _), (b, _) = plain.run(feeds).values(), met.run(fed).values()
        same = np.isfinite(b)
        assert np.array_equal(a[same], b[same])


# -- training


def network() -> Graph:
    g, rng = GraphBuilder(), np.random.default_rng(0)

    def weights(*dims: int) -> Any:
        return g.const(rng.standard_normal(dims).astype(np.float32) / 8)

    x = g.input("x", f32("batch", 3, 12, 12))
    y = g.MaxPool(g.Relu(g.Conv(x, weights(16, 3, 3, 3), weights(16))), kernel_shape=[2, 2], strides=[2, 2])
    return g.graph([g.Gemm(g.Flatten(y), weights(16 * 25, 10), weights(10))])


@pytest.mark.parametrize("onednn", [True, False])
def test_a_batch_with_nan_has_no_finite_loss(onednn: bool) -> None:
    trainer = Trainer(network(), optimizer=SGD(rate=0.1), onednn=onednn)
    rng = np.random.default_rng(1)
    x, labels = rng.standard_normal((4, 3, 12, 12)).astype(np.float32), np.arange(4)
    assert np.isfinite(trainer.step({"x": x, "target": labels}))
    x[2, 1, 5, 5] = np.nan
    assert np.isnan(trainer.step({"x": x, "target": labels}))


def test_where_every_run_meets_a_nan_the_exact_program_is_first() -> None:
    g = GraphBuilder()
    graph = g.graph([g.Relu(g.MatMul(g.input("x", f32(64, 96)), g.const(np.ones((96, 128), np.float32))))])
    session = Session(graph, threads=1)
    x = np.ones((64, 96), np.float32)
    session.run({"x": x})
    if not readable() or library() is None:
        pytest.skip("nothing is looked at here")
    x[3, 5] = np.nan
    for _ in range(40):
        (y,) = session.run({"x": x}).values()
        assert np.isnan(y[3]).all()
        assert np.isfinite(np.delete(y, 3, 0)).all()
    assert 16 < session.stats().alarms < 30
    x[3, 5] = 1
    (y,) = session.run({"x": x}).values()
    assert (y == 96).all()


def test_a_flag_without_a_nan_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag may be up for no reason: then the quick program's answer is given, the same bits as ever."""
    g = GraphBuilder()
    w = np.random.default_rng(0).standard_normal((96, 128)).astype(np.float32)
    graph = g.graph([g.Gelu(g.MatMul(g.input("x", f32(64, 96)), g.const(w)), approximate="tanh")])
    session = Session(graph, threads=1)
    x = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)
    (want,) = session.run({"x": x}).values()
    if not readable() or library() is None:
        pytest.skip("nothing is looked at here")

    def up(look: Any) -> None:
        if isinstance(look, batches.Batch):
            run(look)
        raise_alarm()

    run = batches.Batch.__call__

    monkeypatch.setattr(invalid.Look, "check", up)
    monkeypatch.setattr(batches.Batch, "__call__", up)
    for _ in range(3):
        (y,) = session.run({"x": x}).values()
        assert (y == want).all()
    assert session._exact is not None
    assert session.stats().alarms == 0


def test_a_nan_inside_of_a_body_is_met() -> None:
    inner = GraphBuilder(prefix="body/")
    state, x = inner.input("state", f32(4, 8)), inner.input("x", f32(4, 8))
    new = inner.Tanh(inner.Add(inner.Mul(state, inner.const(np.float32(0.5))), x))
    body = inner.graph([new, inner.Relu(new)])
    g = GraphBuilder()
    _, y = g.op("Scan", g.input("h", f32(4, 8)), g.input("xs", f32(3, 4, 8)), body=body, num_scan_inputs=1, outputs=2)
    session = Session(g.graph([y]), threads=1)
    xs = np.ones((3, 4, 8), np.float32)
    xs[0, 1, 2] = np.nan
    for _ in range(2):
        (made,) = session.run({"h": np.zeros((4, 8), np.float32), "xs": xs}).values()
        assert np.isnan(made[:, 1, 2]).all()
        assert np.isnan(made).sum() == 3


@native
def test_a_body_that_fails_is_watched_no_longer() -> None:
    inner = GraphBuilder(prefix="body/")
    h, x, at = inner.input("in0", f32(4, 8)), inner.input("in1", f32(4, 8)), inner.input("in2", i64(1))
    new = inner.Relu(inner.Add(h, x))
    body = inner.graph([inner.Identity(h), inner.Gather(new, at)])
    g = GraphBuilder()
    inputs = g.input("h", f32(4, 8)), g.input("xs", f32(3, 4, 8)), g.input("at", i64(3, 1))
    _, y = g.op("Scan", *inputs, body=body, num_scan_inputs=2, outputs=2)
    session = Session(g.graph([y]))
    fed = {"h": np.ones((4, 8), np.float32), "xs": np.ones((3, 4, 8), np.float32), "at": np.zeros((3, 1), np.int64)}
    wrong = {**fed, "xs": np.full((3, 4, 8), np.nan, np.float32), "at": np.full((3, 1), 9)}
    met = Met(None, session.device)
    with pytest.raises(MezzoError):
        exact(session).run(wrong, observe=met)
    assert met._bodies
    around = met._bodies[0][0]
    assert around.watch is met
    met.leave()
    assert around.watch is None
    assert not met._bodies
    with pytest.raises(MezzoError):
        session.run(wrong)
    assert around.watch is None
    assert np.array_equal(session.run(fed)[y], np.full((3, 1, 8), 2, np.float32))


def test_an_alarm_without_a_cause_makes_programs_careful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not exact: that takes a second plan."""
    g = GraphBuilder()
    x = g.input("x", f32(64, 400))
    session = Session(g.graph([g.Relu(g.Sigmoid(x))]), threads=1)
    given = np.ones((64, 400), np.float32)
    first = session(given)
    raised = [True]

    def raises(look: Any) -> None:
        if raised:
            raised.clear()
            raise InvalidOperation
        if isinstance(look, batches.Batch):
            run(look)

    run = batches.Batch.__call__
    monkeypatch.setattr(invalid.Look, "check", raises)
    monkeypatch.setattr(batches.Batch, "__call__", raises)
    for _ in range(3):
        np.testing.assert_array_equal(session(given), first)
    assert not raised
    assert session._careful
    assert session._exact is None
    assert session.stats().alarms == 0


class _Checked:
    """A step's call that must leave the flag raised where it was: the look comes behind several of them."""

    def __init__(self, call: Any, what: str, cleared: list[str]) -> None:
        self._call, self._what, self._cleared = call, what, cleared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __call__(self) -> Any:
        function, place = invalid._lowering()
        with np.errstate(all="ignore"):
            np.subtract(np.inf, np.inf)
        status = self._call()
        if not function(place):
            self._cleared.append(self._what)
        return status


@native
@pytest.mark.skipif(not readable(), reason="the flag is read on Linux with x86-64 processors alone")
def test_no_step_of_onednn_clears_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy between primitives of a step took it down: a NaN that an earlier step had replaced was lost."""
    cleared: list[str] = []
    seen: set[str] = set()
    prepared = Instance._prepared

    def checked(self: Instance, i: int) -> Any:
        call, step = prepared(self, i), self.program.steps[i]
        if not step.choice.implementation or self.program.target.nan != "watched":
            return call
        seen.add(step.choice.kernel)
        return _Checked(call, f"{step.choice.kernel}: {step.node}", cleared)

    monkeypatch.setattr(Instance, "_prepared", checked)
    for key in sorted(OPS):
        for graph, feeds in float_samples(OPS[key])[:6]:
            with suppress(MezzoError):
                Session(graph, threads=1).run(feeds)
    assert len(seen) > 20, seen
    assert not cleared, "\n".join(sorted(set(cleared)))
