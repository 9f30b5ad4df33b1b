"""Tables that only Gather reads: gradients that are rows, and steps of these rows alone; beside dense steps, which they
equal or leave on purpose, and beside PyTorch's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mezzo.importers import load_onnx
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError, MezzoError
from mezzo.runtime.compile.specialize import compile_graph, specialise
from mezzo.runtime.devices import options_for
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.runtime.ir.interpreter import evaluate
from mezzo.runtime.optimizer import KINDS, LAMB, SGD, Adagrad, Adam, Optimizer, RMSprop, Signum, from_dict
from mezzo.train.building import Scaling, Step
from mezzo.train.step import MANY, training_step
from mezzo.train.trainer import Trainer

from .peers import peer

Array = np.ndarray[Any, Any]
SIZE, WIDTH, BATCH, LENGTH = MANY + 176, 4, 6, 5
KINDS_OF = (np.int64, np.int32)


def table(dtype: str = "float64") -> Array:
    return (np.random.default_rng(3).standard_normal((SIZE, WIDTH)) * 0.5).astype(dtype)


def network(dtype: str = "float64", *, words: str = "table", index: Any = np.int64, tied: bool = False) -> Graph:
    """The mean of a text's words, and a linear layer; with `tied` the table is multiplied with, too."""
    g = GraphBuilder("words")
    texts = g.input("text", Tensor(DType.of(np.dtype(index)), ("n", "length")))
    rng = np.random.default_rng(4)
    weights = g.const(table(dtype))
    mean = g.ReduceMean(g.Gather(weights, texts), g.const([1]), keepdims=0)
    bias = g.const((rng.standard_normal(WIDTH) * 0.1).astype(dtype))
    head = g.const((rng.standard_normal((WIDTH, 7))).astype(dtype))
    hidden = g.Tanh(g.Add(mean, bias))
    out = g.MatMul(hidden, g.Transpose(weights, perm=[1, 0])) if tied else g.MatMul(hidden, head)
    graph = g.graph([out])
    names = {weights: words, bias: "bias"} | ({} if tied else {head: "head"})
    held = {names.get(n, n): a for n, a in graph.initializers.items()}
    return graph.rename(names).but(initializers=held).verify()


def batch(number: int, index: Any = np.int64, size: int = BATCH) -> dict[str, Array]:
    """Strings of few words, so that many stand twice, and of some that are counted from the end."""
    rng = np.random.default_rng([5, number])
    words = rng.integers(0, 25, (size, LENGTH)) * 40
    words = np.where(rng.random(words.shape) < 0.3, words - SIZE, words)
    return {"text": words.astype(index), "target": rng.integers(0, 7, size)}


def ops_of(trainer: Trainer) -> set[str]:
    return {n.op for n in trainer.graph_of_step.nodes}


def states_of(trainer: Trainer) -> dict[str, Array]:
    return {n: np.array(a) for n, a in trainer.states.items()}


def same(ours: Any, theirs: Any) -> None:
    """Every state to the bit."""
    assert ours.keys() == theirs.keys()
    for name, a in ours.items():
        assert a.dtype == theirs[name].dtype
        np.testing.assert_array_equal(a, theirs[name], err_msg=name)


# -- which optimizers leave alone what has no gradient -----------------------------------------------------------------

VARIANTS: list[Optimizer] = [
    *(kind() for kind in KINDS.values() if kind().elementwise),
    *(SGD(momentum=0.9), SGD(weight_decay=0.1), SGD(momentum=0.9, nesterov=True), Adagrad(rate_decay=0.1)),
    *(Adagrad(weight_decay=0.1), Signum(momentum=0.0), Signum(momentum=0.0, wd_lh=0.1), RMSprop(momentum=0.9)),
]
STILL = {"SGD()", "Adagrad()", "Adagrad(rate_decay=0.1)", "Signum(momentum=0.0)"}


def told(optimizer: Optimizer) -> str:
    plain = type(optimizer)()
    fields = vars(optimizer).items()
    return f"{optimizer.kind}({', '.join(f'{n}={v}' for n, v in fields if getattr(plain, n) != v)})"


@pytest.mark.parametrize("optimizer", VARIANTS, ids=told)
def test_what_a_rule_says_of_zero_is_what_it_does(optimizer: Optimizer) -> None:
    rng, g = np.random.default_rng(0), GraphBuilder()
    count = len(optimizer.numbers_at(GraphBuilder(), "t")) - 1
    W, zero = rng.standard_normal(50), np.zeros(50)
    numbers = [np.float64(x) for x in rng.uniform(0.1, 0.9, 1 + count)]
    draws = [rng.standard_normal(50) for _ in range(optimizer.draws)]
    states = [rng.uniform(0.5, 2, 50) for _ in optimizer.slots]
    given = {f"i{i}": np.asarray(x) for i, x in enumerate([W, zero, *numbers, *draws, *states])}
    names = [g.input(n, Tensor(DType.DOUBLE, x.shape)) for n, x in given.items()]
    first, last = 2 + len(numbers), 2 + len(numbers) + len(draws)
    made = optimizer.add(g, names[0], names[1], names[2:first], names[first:last], names[last:])
    found = evaluate(g.graph([*made]), given)
    moved = [not np.array_equal(a, b) for a, b in zip(found.values(), [W, *states], strict=True)]
    assert optimizer.still is not any(moved)
    assert optimizer.still is (told(optimizer) in STILL)


def test_what_carries_its_rule_along_is_asked_the_same() -> None:
    data = {**Adagrad().to_dict(), "kind": "Elsewhere", "rules": Adagrad().rules().to_dict()}
    assert from_dict(data).still
    assert from_dict({**data, "lazy_update": True}).lazy_update
    assert from_dict(Adam(lazy_update=True).to_dict()) == Adam(lazy_update=True)


# -- the operators -----------------------------------------------------------------------------------------------------

# of few rows, whose numbers are marked, and of many, whose are sorted
indices_of = (st.integers(1, 9) | st.just(500)).flatmap(
    lambda size: st.tuples(
        st.just(size), st.lists(st.integers(-size, size) | st.integers(0, min(size, 4)), max_size=20)
    )
)


@settings(max_examples=120, deadline=None)
@given(indices_of, st.integers(0, 3), st.sampled_from(KINDS_OF), st.sampled_from(["float32", "float64", "float16"]))
def test_rows_are_the_dense_sum(drawn: tuple[int, list[int]], width: int, index: Any, dtype: str) -> None:
    """Reference, kernel and standard form: each row that is shown, once and in order, with the bits of the dense sum;
    behind them what is no row, and zeros. The number of rows as an index counts for nothing."""
    size, numbers = drawn
    indices = np.array(numbers, index)
    slices = np.random.default_rng(len(numbers)).standard_normal((len(numbers), width)).astype(dtype)
    slices[::3] = -0.0
    kept = indices < size
    g = GraphBuilder()
    dy, places = (
        g.input("dy", Tensor(DType.of(slices.dtype), slices.shape)),
        g.input("i", Tensor(DType.of(indices.dtype), indices.shape)),
    )
    made = g.graph([*g.op("GatherGradRows", dy, places, g.const([size, width]), domain="mezzo", outputs=2)])
    dense = evaluate(dense_of(slices[kept], indices[kept], size), {"dy": slices[kept], "i": indices[kept]})["dx"]
    feeds = {"dy": slices, "i": indices}
    shown = np.unique(np.where(indices < 0, indices + size, indices)[kept])
    for found in (evaluate(made, feeds), Session(made).run(feeds)):
        ids, rows = found.values()
        assert ids.dtype == np.int64
        assert len(ids) == len(rows) == min(len(indices), size)
        np.testing.assert_array_equal(ids, [*shown, *[size] * (len(ids) - len(shown))])
        assert rows[: len(shown)].tobytes() == dense[shown].tobytes()
        assert not rows[len(shown) :].any()


def dense_of(slices: Array, indices: Array, size: int) -> Graph:
    g = GraphBuilder()
    dy, i = (g.input(n, Tensor(DType.of(x.dtype), x.shape)) for n, x in (("dy", slices), ("i", indices)))
    shape = g.const([size, *slices.shape[1:]])
    g.add(Node("GatherGrad", (dy, i, shape), ("dx",), {}, "mezzo"))
    return g.graph(["dx"])


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 8)), st.integers(0, 3), st.sampled_from(range(len(VARIANTS))), st.booleans())
def test_rows_are_stepped_as_a_table_of_them_would_be(shown: set[int], more: int, which: int, wide: bool) -> None:
    optimizer, size = VARIANTS[which], 9
    ids = np.array([*sorted(shown), *[size] * more], np.int64)
    dtype, rng = np.dtype("float64" if wide else "float32"), np.random.default_rng(more)
    count = len(optimizer.numbers_at(GraphBuilder(), "t")) - 1
    W, *states = (np.abs(rng.standard_normal((size, 2))).astype(dtype) for _ in range(1 + len(optimizer.slots)))
    dW, *draws = (rng.standard_normal((len(ids), 2)).astype(dtype) for _ in range(1 + optimizer.draws))
    numbers = [np.asarray(x, dtype) for x in rng.uniform(0.1, 0.9, 1 + count)]
    valid = len(shown)

    def stepped(
        W: Array, dW: Array, draws: list[Array], states: list[Array], *rows: Array
    ) -> tuple[Graph, dict[str, Array]]:
        g = GraphBuilder()
        feeds = {f"i{i}": x for i, x in enumerate([W, dW, *numbers, *draws, *states, *rows])}
        names = [g.input(n, Tensor(DType.of(x.dtype), x.shape)) for n, x in feeds.items()]
        a, b, c = 3 + count, 3 + count + len(draws), 3 + count + len(draws) + len(states)
        return g.graph(
            [*optimizer.add(g, names[0], names[1], names[2:a], names[a:b], names[b:c], names[c] if rows else None)]
        ), feeds

    alone = stepped(W[ids[:valid]], dW[:valid], [z[:valid] for z in draws], [s[ids[:valid]] for s in states])
    wanted = [x.copy() for x in (W, *states)]
    for whole, part in zip(wanted, evaluate(*alone).values(), strict=True):
        whole[ids[:valid]] = part
    graph, feeds = stepped(W, dW, draws, states, ids)
    for found in (evaluate(graph, feeds), Session(graph).run({n: x.copy() for n, x in feeds.items()})):
        for a, b in zip(found.values(), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


# -- the training step -------------------------------------------------------------------------------------------------

EXACT: list[Optimizer] = [SGD(rate=0.5), Adagrad(rate=0.1), Signum(rate=0.1, momentum=0.0)]


@pytest.mark.parametrize("index", KINDS_OF)
@pytest.mark.parametrize("optimizer", EXACT, ids=told)
def test_where_it_is_the_same_rows_are_stepped(optimizer: Optimizer, index: Any) -> None:
    """To the bit, with words that stand twice, from the end, and in batches of several sizes."""
    trainer = Trainer(network(index=index), optimizer=optimizer)
    assert {"GatherGradRows", "UpdateRows"} <= ops_of(trainer)
    assert "GatherGrad" not in ops_of(trainer)
    dense = whole(trainer)
    for i in range(10):
        feeds = batch(i, index, BATCH + i % 2)
        trainer.step(feeds)
        dense.run(feeds)
    same(states_of(trainer), dense.states)
    assert (states_of(trainer)["table"] != table()).any(axis=1).sum() > 20


def whole(trainer: Trainer, **other: Any) -> Session:
    """The dense step of a trainer's graph."""
    graph = network(index=next(iter(trainer.source.types[i].dtype.numpy for i in trainer.source.inputs)))  # type: ignore[union-attr]
    twin = Trainer(graph, optimizer=replace(trainer.plan.optimizer, lazy_update=False))
    judged, loss = twin._judged(twin.source)
    step = replace(trainer.plan, optimizer=twin.plan.optimizer, rows=False, **other)
    made = training_step(judged, loss, twin.trained, step)
    assert "UpdateRows" not in {n.op for n in made.nodes}
    return Session(made)


def test_what_would_not_be_the_same_is_stepped_whole() -> None:
    for optimizer in (SGD(momentum=0.9), SGD(weight_decay=0.1), Adam(), Adagrad(weight_decay=0.1)):
        assert "UpdateRows" not in ops_of(Trainer(network(), optimizer=optimizer))
    assert "UpdateRows" in ops_of(Trainer(network(), optimizer=Adam(lazy_update=True)))
    small = Trainer(
        network().but(initializers={**network().initializers, "table": table()[: MANY - 1]}), optimizer=SGD()
    )
    assert "UpdateRows" not in ops_of(small)
    with pytest.raises(InputError, match="LAMB measures whole tensors"):
        Trainer(network(), optimizer=LAMB(lazy_update=True))


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam(weight_decay=0.1), RMSprop()], ids=told)
def test_lazy_steps_leave_the_other_rows_alone(optimizer: Optimizer) -> None:
    trainer = Trainer(network(), optimizer=replace(optimizer, lazy_update=True))
    for i in range(3):
        before, feeds = states_of(trainer), batch(i)
        read = np.unique(np.where(feeds["text"] < 0, feeds["text"] + SIZE, feeds["text"]))
        trainer.step(feeds)
        for name, now in states_of(trainer).items():
            if now.shape == (SIZE, WIDTH):
                assert np.unique(np.nonzero(now != before[name])[0]).tolist() == read.tolist()


def test_a_table_that_is_read_twice_has_rows_of_both_reads() -> None:
    g = GraphBuilder()
    a, b = (g.input(n, Tensor(DType.of(np.dtype(d)), ("n", k))) for n, d, k in (("a", np.int32, 2), ("b", np.int64, 3)))
    t = g.const(table())
    both = [g.ReduceMean(g.Gather(t, x), g.const([1]), keepdims=0) for x in (a, b)]
    graph = g.graph([g.Mul(*both)])
    trainer = Trainer(graph, optimizer=SGD(rate=0.5), loss="mse")
    assert "UpdateRows" in ops_of(trainer)
    (name,) = trainer.trained
    rng = np.random.default_rng(0)
    feeds = {
        "a": rng.integers(0, 9, (4, 2)).astype(np.int32),
        "b": rng.integers(-9, 9, (4, 3)),
        "target": rng.standard_normal((4, WIDTH)),
    }
    judged, loss = trainer._judged(trainer.source)
    dense = Session(training_step(judged, loss, [name], replace(trainer.plan, rows=False)))
    for _ in range(5):
        trainer.step(feeds)
        dense.run(feeds)
    assert np.abs(trainer.states[name] - dense.states[name]).max() <= 1e-14


def test_a_table_that_is_read_twice_at_the_same_places_has_their_rows_once() -> None:
    g = GraphBuilder()
    texts, t = g.input("text", Tensor(DType.INT64, ("n", "length"))), g.const(table())
    graph = g.graph([g.ReduceMean(g.Mul(g.Gather(t, texts), g.Tanh(g.Gather(t, texts))), g.const([1]), keepdims=0)])
    trainer = Trainer(graph, optimizer=SGD(rate=0.5), loss="mse")
    assert "UpdateRows" in ops_of(trainer)
    assert "Concat" not in ops_of(trainer)
    judged, loss = trainer._judged(trainer.source)
    dense = Session(training_step(judged, loss, trainer.trained, replace(trainer.plan, rows=False)))
    for i in range(5):
        feeds = {"text": batch(i)["text"], "target": np.ones((BATCH, WIDTH))}
        trainer.step(feeds)
        dense.run(feeds)
    (name,) = trainer.trained
    assert np.abs(trainer.states[name] - dense.states[name]).max() <= 1e-14
    assert (trainer.states[name] != table()).any()


def test_a_tied_table_is_stepped_whole() -> None:
    for optimizer in (SGD(), Adam(lazy_update=True)):
        trainer = Trainer(network(tied=True), optimizer=optimizer)
        assert "GatherGrad" in ops_of(trainer)
        assert "UpdateRows" not in ops_of(trainer)
        trainer.step(batch(0))


def test_norms_and_bounds_are_those_of_the_dense_gradient() -> None:
    trainer = Trainer(network(), optimizer=SGD(rate=0.5), clip_norm=0.05, clip_value=0.01)
    dense = whole(trainer)
    for i in range(10):
        trainer.step(batch(i))
        dense.run(batch(i))
    for name, state in dense.states.items():
        assert np.abs(trainer.states[name] - state).max() <= 1e-13, name


@pytest.mark.parametrize("optimizer", [Adagrad(rate=0.1), Adam(rate=0.01, lazy_update=True)], ids=told)
def test_an_overflow_steps_no_row(optimizer: Optimizer) -> None:
    trainer = Trainer(network("float32"), optimizer=optimizer, amp="fp16")
    assert "UpdateRows" in ops_of(trainer)
    trainer.step(batch(0))
    before, scale = states_of(trainer), trainer.loss_scale
    trainer.states["optimizer/scale"][...] = 3e38
    trainer.step(batch(1))
    after = states_of(trainer)
    assert scale
    assert trainer.updates == 1
    for name in before:
        if name.startswith(("table", "optimizer/square", "optimizer/mean")):
            np.testing.assert_array_equal(before[name], after[name])


def test_loss_scaling_changes_no_number() -> None:
    graph = network()
    plain = Trainer(graph, optimizer=Adagrad(rate=0.1))
    judged, loss = plain._judged(plain.source)
    scaled = Session(training_step(judged, loss, plain.trained, replace(plain.plan, scaling=Scaling(first=1024.0))))
    for i in range(5):
        plain.step(batch(i))
        scaled.run(batch(i))
    np.testing.assert_array_equal(plain.states["table"], scaled.states["table"])


def test_gathered_gradients_step_the_rows_of_all_their_batches() -> None:
    """Two batches of half the size make the lazy step of the whole one; sums of tables are kept between."""
    whole_, parts = batch(0, size=8), [{n: x[i : i + 4] for n, x in batch(0, size=8).items()} for i in (0, 4)]
    one = Trainer(network(), optimizer=Adam(rate=0.01, lazy_update=True))
    two = Trainer(network(), optimizer=Adam(rate=0.01, lazy_update=True), gather=2)
    for _ in range(3):
        one.step(whole_)
        for part in parts:
            two.step(part)
    assert one.updates == two.updates == 3
    for name, state in states_of(one).items():
        if state.dtype == np.float64:
            assert np.abs(two.states[name] - state).max() <= 1e-12, name
    assert not two.states["optimizer/touched/table"].any()
    exact, dense = Trainer(network(), optimizer=SGD(rate=0.5), gather=2), Trainer(network(), optimizer=SGD(rate=0.5))
    for part in parts:
        exact.step(part)
    dense.step(whole_)
    assert np.abs(exact.states["table"] - dense.states["table"]).max() <= 1e-14


def test_a_word_that_the_table_has_not_is_refused_and_nothing_moves() -> None:
    trainer = Trainer(network(), optimizer=SGD(rate=0.5))
    trainer.step(batch(0))
    before = states_of(trainer)
    for odd in (SIZE, -SIZE - 1):
        feeds = batch(1)
        feeds["text"][0, 0] = odd
        with pytest.raises(MezzoError, match=str(SIZE)):
            trainer.step(feeds)
    np.testing.assert_array_equal(before["table"], trainer.states["table"])


def test_texts_without_words() -> None:
    """No row is read: none moves."""
    g = GraphBuilder()
    texts = g.input("text", Tensor(DType.INT64, ("n", "length")))
    t = g.const(table())
    graph = g.graph([g.ReduceSum(g.Gather(t, texts), g.const([1]), keepdims=0)])
    trainer = Trainer(graph, optimizer=Adam(lazy_update=True), loss="mse")
    trainer.step({"text": np.zeros((3, 0), np.int64), "target": np.ones((3, WIDTH))})
    np.testing.assert_array_equal(trainer.states[trainer.trained[0]], table())


# -- beside PyTorch ----------------------------------------------------------------------------------------------------

# PyTorch adds the epsilon of SparseAdam before it undoes the bias: here it is too small to count
TORCH: list[tuple[Optimizer, str, dict[str, Any]]] = [
    (SGD(rate=0.3), "SGD", {"lr": 0.3}),
    (Adagrad(rate=0.1), "Adagrad", {"lr": 0.1}),
    (
        Adagrad(rate=0.1, rate_decay=0.1, initial=0.5),
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5},
    ),
    (Adam(rate=0.01, epsilon=1e-30, lazy_update=True), "SparseAdam", {"lr": 0.01, "eps": 1e-30}),
    (
        Adam(rate=0.01, beta1=0.8, beta2=0.95, epsilon=1e-30, lazy_update=True),
        "SparseAdam",
        {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-30},
    ),
]


@pytest.mark.parametrize(("optimizer", "name", "settings"), TORCH, ids=[f"{t[1]}-{i}" for i, t in enumerate(TORCH)])
def test_trajectories_are_those_of_pytorch(optimizer: Optimizer, name: str, settings: dict[str, Any]) -> None:
    torch = peer("torch")
    graph = network()
    trainer = Trainer(graph, optimizer=optimizer, train=["table"])
    words = torch.nn.Embedding(SIZE, WIDTH, sparse=True, dtype=torch.float64)
    words.weight.data = torch.tensor(table())
    bias, head = (torch.tensor(graph.initializers[n]) for n in ("bias", "head"))
    theirs = getattr(torch.optim, name)(words.parameters(), **settings)
    for i in range(30):
        feeds = batch(i)
        feeds["text"] %= SIZE
        theirs.zero_grad()
        mean = words(torch.tensor(feeds["text"])).mean(1)
        loss = torch.nn.functional.cross_entropy(torch.tanh(mean + bias) @ head, torch.tensor(feeds["target"]))
        loss.backward()
        assert words.weight.grad.is_sparse
        with torch.sparse.check_sparse_tensor_invariants():  # it warns where nobody says whether it is to look
            theirs.step()
        assert trainer.step(feeds) == pytest.approx(loss.item(), rel=1e-9)
    learned = words.weight.detach().numpy()
    assert np.abs(trainer.states["table"] - learned).max() <= 1e-9 * np.abs(learned).max()
    assert np.abs(learned - table()).max() > 1e-3


# -- memory, files -----------------------------------------------------------------------------------------------------


def skip_gram(size: int, width: int, index: int) -> Graph:
    """Words and their neighbours, of two tables."""
    g = GraphBuilder("skip-gram")
    word, near = (g.input(n, Tensor(DType.INT64, (index,))) for n in ("word", "near"))
    tables = [g.const(np.zeros((size, width), np.float32)) for _ in range(2)]
    pair = g.Mul(*(g.Gather(t, i) for t, i in zip(tables, (word, near), strict=True)))
    return g.graph([g.ReduceMean(g.Neg(g.ReduceSum(pair, g.const([1]), keepdims=0)), keepdims=0)])


@pytest.mark.parametrize("optimizer", [SGD(), Adagrad(), Adam(lazy_update=True)], ids=told)
def test_no_gradient_takes_the_memory_of_a_table(optimizer: Optimizer) -> None:
    size, width, count = 50_000, 64, 100
    graph = skip_gram(size, width, count)
    tables = [n for n, a in graph.initializers.items() if a.ndim == 2]
    (loss,) = graph.outputs

    def planned(step: Step) -> int:
        return specialise(
            compile_graph(training_step(graph, loss, tables, step), options=options_for("cpu")), {}
        ).program.arena_bytes

    assert planned(Step(optimizer)) < 20 * count * width * 4
    assert planned(Step(replace(optimizer, lazy_update=False), rows=False)) > size * width * 4


def test_files_have_dense_tables_and_standard_operators(tmp_path: Path) -> None:
    trainer = Trainer(network(), optimizer=Adam(rate=0.01, lazy_update=True))
    for i in range(3):
        trainer.step(batch(i))
    trainer.export(tmp_path / "words.onnx")
    model = load_onnx(tmp_path / "words.onnx")
    np.testing.assert_array_equal(model.initializers["table"], trainer.states["table"])
    assert {(n.domain, n.op) for n in model.nodes} == {
        ("", o) for o in ("Gather", "ReduceMean", "Add", "Tanh", "MatMul")
    }
    trainer.export_step(tmp_path / "step.onnx")
    again = Session(load_onnx(tmp_path / "step.onnx"))
    step = load_onnx(tmp_path / "step.onnx")
    assert {n.domain for n in step.nodes} == {""}
    names = {s.input: s.output for s in trainer.graph_of_step.states}
    found = again.run(batch(7))
    trainer.step(batch(7))
    for name, state in states_of(trainer).items():
        if state.dtype == np.float64:
            assert np.abs(np.asarray(found[names[name]]) - state).max(initial=0) <= 1e-12, name


def test_a_lazy_step_in_onnx_runtime(tmp_path: Path) -> None:
    ort = peer("onnxruntime")
    trainer = Trainer(network("float32"), optimizer=Adam(rate=0.01, lazy_update=True), clip_norm=1.0)
    trainer.step(batch(0))
    trainer.export_step(tmp_path / "step.onnx")
    session = ort.InferenceSession(str(tmp_path / "step.onnx"))
    names = [o.name for o in session.get_outputs()]
    after = {s.input: s.output for s in trainer.graph_of_step.states}
    states: dict[str, Array] = {}
    for i in range(5):
        feeds = batch(i)
        found = dict(zip(names, session.run(None, {**feeds, **states}), strict=True))
        states = {n: found[o] for n, o in after.items()}
        trainer.step(feeds)
    assert np.linalg.norm(states["table"] - trainer.states["table"]) <= 1e-5 * np.linalg.norm(trainer.states["table"])
    assert np.abs(states["table"] - table("float32")).max() > 1e-3


def test_on_a_gpu_rows_are_stepped_where_that_is_asked_for() -> None:
    """Rows are found, summed and stepped on the device, with no step on the host, and no table leaves it."""
    kernels = {}
    for rows, optimizer in ((True, SGD()), (False, SGD()), (False, Adam(lazy_update=True))):
        graph = skip_gram(2000, 8, 10)
        tables = [n for n, a in graph.initializers.items() if a.ndim == 2]
        made = training_step(graph, graph.outputs[0], tables, Step(optimizer, rows=rows))
        program = Session(made, device="gpu:0@sm_90").program
        steps = program.all_steps()
        assert "host" not in {s.choice.kernel for s in steps}
        assert ("GatherGrad" in {s.node.op for s in steps}) is (not rows and not optimizer.lazy_update)
        kernels[rows, optimizer.lazy_update] = {
            s.node.op: s.choice.kernel for s in steps if s.node.op in ("GatherGradRows", "UpdateRows")
        }
    stepped = {"GatherGradRows": "gpu.gather_rows", "UpdateRows": "gpu.update_rows"}
    assert kernels == {(True, False): stepped, (False, False): {}, (False, True): stepped}
