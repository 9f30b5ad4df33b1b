"""Planning for further sizes: results and kernels of a session that met no others, for a fraction of the work."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mezzo.importers import load_onnx
from mezzo.models.transformer import encoder
from mezzo.ops.types import f32, type_of
from mezzo.runtime.backends.cpu import CPU_KERNELS
from mezzo.runtime.backends.cpu.reference import Reference
from mezzo.runtime.backends.onednn.kernel import OneDnn
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.compile import lower, order
from mezzo.runtime.compile.cache_keys import cache_key
from mezzo.runtime.compile.executable import Executable
from mezzo.runtime.compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest
from mezzo.runtime.compile.queries import AsyncQueries
from mezzo.runtime.compile.recipe import Recipe
from mezzo.runtime.compile.specialize import compile_graph, specialise
from mezzo.runtime.compile.target import Target
from mezzo.runtime.devices import DEVICES, options_for
from mezzo.runtime.execution.executor import Executor
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.memory import offsets
from mezzo.runtime.memory import shared_constants as shared
from mezzo.runtime.memory.liveness import Life
from mezzo.runtime.memory.plan import plan
from mezzo.runtime.memory.pool import aligned_empty
from mezzo.runtime.passes.chains import Chains, fuse_chains

from .models import Real, real_models

needed = pytest.mark.skipif(library() is None, reason="oneDNN is not installed")


def network() -> Graph:
    """Convolutions of images of any size, with what rewriting is for: normalisation, a written-out HardSwish, padding,
    a residual, a shape that is computed, and a branch that sizes decide."""
    g, rng = GraphBuilder(), np.random.default_rng(0)

    def weights(*dims: int) -> str:
        return g.const(rng.standard_normal(dims).astype(np.float32) / 8)

    x = g.input("x", f32("n", 3, "h", "w"))
    y = g.Conv(g.Pad(x, g.const([0, 0, 1, 1, 0, 0, 1, 1])), weights(16, 3, 3, 3))
    y = g.BatchNormalization(y, weights(16), weights(16), weights(16), g.const(rng.random(16).astype(np.float32) + 1))
    three, zero, six = (g.const(np.float32(v)) for v in (3, 0, 6))
    y = g.Div(g.Mul(y, g.Clip(g.Add(y, three), zero, six)), six)
    y = g.Relu(g.Add(y, g.Conv(y, weights(16, 16, 3, 3), weights(16), pads=(1, 1, 1, 1))))
    y = g.ConvTranspose(y, weights(16, 2, 2, 2), strides=(2, 2))
    rows = g.Reshape(y, g.Concat(g.Shape(x, start=0, end=1), g.const([2, -1]), axis=0))
    return g.graph([g.Softmax(rows), y])


MODELS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "encoder": (
        lambda: encoder(2, 64, 2),
        [(1, 9, 64), (2, 31, 64), (1, 1, 64), (1, 64, 64), (3, 9, 64), (1, 200, 64)],
    ),
    "network": (network, [(1, 3, 8, 8), (2, 3, 9, 31), (1, 3, 1, 1), (1, 3, 1, 40), (4, 3, 16, 16), (1, 3, 2, 3)]),
}


def fed(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def kernels(session: Session) -> Counter[tuple[str, str]]:
    return Counter((s.choice.kernel, s.choice.implementation) for s in session.program.all_steps())


@pytest.mark.parametrize("options", [{}, {"onednn": False}, {"fuse": True}, {"precision": "bf16"}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_further_sizes_are_planned_as_the_first(name: str, options: dict[str, Any]) -> None:
    found = library()
    if "precision" in options and not (found and found.bf16):
        pytest.skip("this machine computes no bfloat16")
    make, shapes = MODELS[name]
    graph = make()
    session = Session(graph, threads=1, **options)
    for shape in shapes + shapes[:1]:
        fresh, feeds = Session(graph, threads=1, **options), {"x": fed(shape)}
        for got, want in zip(session.run(feeds).values(), fresh.run(feeds).values(), strict=True):
            assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
        assert kernels(session) == kernels(fresh)
        session.plan.check()
        assert session.plan.size <= 1.25 * fresh.plan.size, "another order of execution may be the best one"


@real_models
def test_a_value_that_keeps_its_name_keeps_its_type(real: Real) -> None:
    """What `infer` believes of rewritten graphs."""
    feeds = real.feeds()
    graph = load_onnx(real.path())
    compiled = compile_graph(graph, options=options_for("cpu"))
    types = {n: type_of(feeds[n]) if n in feeds else graph.types[n] for n in graph.inputs}
    for typed, again in (
        (compiled.graph, infer(compiled.graph)),
        (made := specialise(compiled, types).graph, infer(made, types)),
    ):
        for node in typed.nodes:
            assert [str(typed.types[o]) for o in node.outputs if o] == [str(again.types[o]) for o in node.outputs if o]


def test_constants_of_one_type_are_not_taken_for_each_other() -> None:
    """Types are worked out once for operands of a kind; elements that are known belong to the kind."""
    g = GraphBuilder()
    a, b = (g.Identity(g.const(np.full(64, v, np.float32))) for v in (1, 2))
    session = Session(g.graph([g.Add(g.Mul(g.input("x", f32("n", 64)), a), b)]))
    assert (session(np.ones((2, 64), np.float32)) == 3).all()


@needed
def test_weights_are_packed_once_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for make, shapes in MODELS.values():
        compiled = compile_graph(make(), options=options_for("cpu"))
        first = specialise(compiled, {"x": f32(*shapes[0])})
        packed = {n for n in first.constants if ":" in n and first.constants[n].nbytes >= shared.SMALL}
        if not packed:  # below AVX-512 products read their weights as they lie
            held = library()
            assert held is not None
            assert not held.isa.startswith("avx512")
            continue
        with monkeypatch.context() as patch:
            patch.setattr(OneDnn, "pack", forbidden)
            again = specialise(compiled, {"x": f32(shapes[0][0] + 2, *shapes[0][1:])})
        assert all(again.constants[n] is first.constants[n] for n in packed & set(again.constants))
        assert packed & set(again.constants)


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("this was done before")


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)


@needed
def test_a_second_size_takes_one_plan_and_asks_no_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_graph(encoder(2, 64, 2), options=options_for("cpu"))
    specialise(compiled, {"x": f32(1, 9, 64)})
    plans, asked, choose = Counted(plan), list[Any](), Target.choose

    def noted(target: Target, request: KernelRequest) -> Any:
        asked.append(cache_key(request))
        return choose(target, request)

    monkeypatch.setattr(lower, "plan", plans)
    monkeypatch.setattr(Target, "choose", noted)
    bound = specialise(compiled, {"x": f32(1, 12, 64)})
    assert plans.calls == 1
    assert len(set(asked)) == len(asked) < len(bound.program.steps) / 2  # each question once
    specialise(compiled, {"x": f32(1, 13, 64)})
    assert plans.calls == 1  # it lies as before


@needed
def test_a_second_size_where_a_layout_differs_is_lowered_as_if_it_were_new(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_graph(network(), options=options_for("cpu"))
    again = Counted(Recipe.again)
    monkeypatch.setattr(Recipe, "again", lambda *args: again(*args))
    for n, h, w in ((2, 8, 8), (2, 10, 6), (1, 8, 8), (1, 1, 1), (1, 9, 9)):
        types = {"x": f32(n, 3, h, w)}
        bound, fresh = (
            specialise(compiled, types),
            specialise(compile_graph(network(), options=options_for("cpu")), types),
        )
        assert selected(bound) == selected(fresh)
    assert again.calls


def selected(bound: Executable) -> Any:
    """What was selected for a graph, by the values that steps write."""
    program = bound.program
    steps = {s.writes(): (str(s.node), s.choice, s.declined, s.asked) for s in program.steps}
    return steps, program.types, program.inputs, program.outputs, program.weights, {*bound.constants}


@needed
@pytest.mark.parametrize("lay", [None, (("dcba", "", ""), ("dcba",)), (("",), ("",))], ids=str)
def test_what_takes_long_is_asked_ahead(monkeypatch: pytest.MonkeyPatch, lay: Any) -> None:
    g, rng = GraphBuilder(), np.random.default_rng(0)
    weights, bias = (g.const(rng.random(dims, np.float32)) for dims in ((3, 16, 2, 2), (16,)))
    x = g.Relu(g.input("x", f32("n", 3, "h", "w")))
    graph = g.graph([g.Relu(g.ConvTranspose(x, weights, bias, strides=(2, 2)))])
    compiled, asked = compile_graph(graph, options=options_for("cpu")), list[str]()
    specialise(compiled, {"x": f32(1, 3, 8, 8)})
    compiled.learned.recipes.clear()  # which do not depend on what was foreseen
    lying = compiled.learned.history
    assert [(len(ins), len(outs)) for ins, outs in lying.values()] == [(3, 1)]
    if lay is not None:  # what was foreseen wrongly is asked again
        lying.update(dict.fromkeys(lying, lay))

    def answer(ahead: AsyncQueries, asks: list[KernelRequest]) -> None:
        asked.extend(threading.current_thread().name for _ in asks)
        answers(ahead, asks)

    answers = AsyncQueries._answer
    monkeypatch.setattr(AsyncQueries, "_answer", answer)
    found = specialise(compiled, {"x": f32(1, 3, 9, 8)})
    assert asked == (["mezzo-ahead"] if lay is None or len(lay[0]) == 3 else [])
    fresh = specialise(compile_graph(graph, options=options_for("cpu")), {"x": f32(1, 3, 9, 8)})
    assert [s.choice for s in found.program.steps] == [s.choice for s in fresh.program.steps]


def test_known_chains_are_fused_again_without_asking() -> None:
    g = GraphBuilder()
    x = g.input("x", f32("n", 3))
    graph = g.graph([g.Neg(g.Exp(g.Sqrt(g.Abs(x))))])
    chains: Chains = {}

    def at(n: int) -> Graph:
        return infer(graph, {"x": f32(n, 3)})

    short = fuse_chains(at(4), lambda _, node: "too long" if len(node.attrs["chain"]) > 2 else None, chains=chains)
    assert [len(n.attrs["chain"]) for n in short.nodes] == [2, 2]
    again = fuse_chains(at(5), forbidden, chains=chains)
    assert [n.attrs for n in again.nodes] == [n.attrs for n in short.nodes]
    # a dim of 1 may change what kernels take
    assert [len(n.attrs["chain"]) for n in fuse_chains(at(1), lambda *_: None, chains=chains).nodes] == [4]
    assert [len(n.attrs["chain"]) for n in fuse_chains(at(6), forbidden, chains=chains).nodes] == [2, 2]


class Picky(Reference):
    """Computes chains of few elements at once."""

    name = "test.picky"

    def serves(self, node: Node) -> bool:
        return node.op == "Fused"

    def select(self, request: KernelRequest) -> Choice | Declined:
        (t,) = (o for o in request.outputs)
        few = getattr(t, "sizes", (99,))[0] <= 4
        return Choice(self.name, allocates=True, implementation="picky") if few else Declined("too many rows")

    def prepare(self, args: KernelArgs) -> Call:
        return super().prepare(args)


@pytest.fixture
def picky() -> Iterator[str]:
    DEVICES["picky"] = Executor(Target("picky", (Picky(), *CPU_KERNELS)), aligned_empty)
    yield "picky"
    del DEVICES["picky"]


def test_a_kernel_that_declines_a_known_chain_is_noticed(picky: str) -> None:
    g = GraphBuilder()
    session = Session(g.graph([g.Neg(g.Exp(g.input("x", f32("n", 3))))]), device=picky)
    for n, ops in ((4, ["Fused"]), (8, ["Exp", "Neg"]), (3, ["Exp", "Neg"])):
        x = fed((n, 3))
        np.testing.assert_allclose(session(x), -np.exp(x), rtol=1e-6)
        assert [s.node.op for s in session.program.steps] == ops
    # the size for which the chains were found last decides, until a kernel declines again
    assert [s.node.op for s in Session(session.graph, device=picky).warmup({"x": (3, 3)}).steps] == ["Fused"]


def test_one_order_is_kept_for_each_graph() -> None:
    compiled = compile_graph(encoder(2, 64, 2), options=options_for("cpu"))
    orders = set()
    for n in (4, 9, 100, 200):
        specialise(compiled, {"x": f32(1, n, 64)})
        orders.add(tuple(order for order, _ in compiled.learned.orders.values()))
    assert all(len(kept) == 1 and kept[0] in order.ORDERS for kept in orders)


def test_another_size_is_placed_at_the_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt that was the best for one size is tried first for the next, odd ones included: values whose bytes are
    no multiple of a cache line leave no gap that another attempt could fill."""
    compiled = compile_graph(encoder(2, 64, 2), options=options_for("cpu"))
    specialise(compiled, {"x": f32(1, 100, 64)})
    placed = Counted(offsets._placed)
    monkeypatch.setattr(offsets, "_placed", placed)
    for n in (57, 64, 103, 201):
        program = specialise(compiled, {"x": f32(1, n, 64)}).program
        assert program.plan.size == program.plan.floor
    assert placed.calls == 1  # the others lie as the first of them


def test_the_search_ends_at_the_bytes_of_the_busiest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are no multiple of a cache line take more than their bytes."""
    placed = Counted(offsets._placed)
    monkeypatch.setattr(offsets, "_placed", placed)
    made = plan([Life(f"v{i}", 100 + i, i, i + 3) for i in range(40)])
    assert made.bound < made.size == 4 * 192
    assert placed.calls <= 3, "one for each set of offers"


def test_threads_that_plan_share_what_they_make() -> None:
    graph = encoder(1, 64, 2)
    sessions = [Session(graph, threads=1) for _ in range(2)]
    want = {n: Session(graph, threads=1)(fed((1, n, 64))) for n in range(2, 10)}

    def work(i: int) -> bool:
        n = 2 + i % 8
        got = sessions[i % 2](fed((1, n, 64)))
        return bool(np.abs(got - want[n]).max() <= 1e-6 * np.abs(want[n]).max())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(32)))
    bounds: list[Executable] = [b for s in sessions for b in s._executables.values()]
    large = {n: a for n, a in bounds[0].constants.items() if a.nbytes >= shared.SMALL}
    assert all(b.constants.get(n, a) is a for b in bounds for n, a in large.items())


def test_what_is_derived_goes_with_its_source() -> None:
    def times(source: np.ndarray[Any, Any], n: int) -> Any:
        return shared.derived(source, "twice", lambda: source * n)

    source = np.arange(9000.0)
    key = id(source)
    assert key not in shared._derived
    twice = times(source, 2)
    assert times(source, 3) is twice
    assert shared.derived(source, "half", lambda: np.zeros(9000)) is not twice
    assert [*shared._derived[key]] == ["twice"]
    del twice
    assert times(source, 4)[1] == 4, "made again after nobody used it"
    del source
    gc.collect()
    assert key not in shared._derived
