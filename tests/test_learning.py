"""What learns of a file: all floats that a gradient reaches but for what is no weight by its place; as in PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import save_onnx
from mezzo.importers import load_onnx
from mezzo.ops import OPS, DType, Tensor, op
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import PRODUCER, SIGNATURE, Graph, GraphBuilder
from mezzo.runtime.ir.typed import TypedBuilder
from mezzo.tools.check import check
from mezzo.tools.check_options import Options
from mezzo.train.learning import BUFFER, INTEGERS, MASK, NUMBER, SCALE, STATISTICS, says, weights
from mezzo.train.trainer import Trainer

from .peers import peer

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
PYTORCH = {PRODUCER: "pytorch 2.13.0"}


def drawn(*sizes: int) -> Array:
    return RNG.standard_normal(sizes).astype(np.float32)


def number(value: float) -> Array:
    return np.array(value, np.float32)


def made(build: Any, weights: dict[str, Array], metadata: dict[str, str] | None = None) -> Graph:
    """The graph of a function of `g`, an input x of four numbers a sample, and named arrays."""
    g = TypedBuilder()
    for name, array in weights.items():
        g.hold(name, array)
    y = build(g, g.input("x", f32("n", 4)))
    return g.graph([y]).but(metadata=metadata or {})


def trained(graph: Graph, **how: Any) -> Trainer:
    return Trainer(graph, loss="mse", **how)


def moves(trainer: Trainer, names: set[str]) -> None:
    """These learn, and a step moves each of them."""
    assert set(trainer.trained) == names
    before = {n: a.copy() for n, a in trainer.parameters.items()}
    x = drawn(3, 4)
    (y,) = mz.Session(trainer.graph()).run({"x": x}).values()
    trainer.step({"x": x, "target": y + 1})
    for name, array in trainer.parameters.items():
        assert not np.array_equal(array, before[name]), name


# Whatever operators lie between


def test_a_scale_that_is_divided_by_and_a_token_that_is_expanded() -> None:
    def build(g: Any, x: Any) -> Any:
        token = g.Expand("token", g.Concat(g.Shape(x, start=0, end=1), g.const([4]), axis=0))
        return g.Div(g.MatMul(g.Concat(x, token, axis=1), "w"), "heat")

    moves(trained(made(build, {"token": drawn(1, 4), "heat": drawn(2), "w": drawn(8, 2)})), {"token", "heat", "w"})


def test_weights_behind_slice_and_concat() -> None:
    def build(g: Any, x: Any) -> Any:
        parts = [g.Slice("w", g.const([a]), g.const([a + 2]), g.const([0])) for a in (2, 0)]
        return g.MatMul(x, g.Transpose(g.Concat(*parts, axis=0)))

    moves(trained(made(build, {"w": drawn(4, 4)})), {"w"})


@pytest.fixture
def own() -> Iterator[None]:
    """Operators of one's own: with a rule for the gradient, with a body, and with neither."""

    @op("Ruled", domain="test.learning")
    def ruled(k: Any, x: Any, w: Any) -> Any:
        return x * w

    @ruled.grad
    def _(g: Any, dys: Any, ys: Any, xs: Any) -> Any:
        return g.Mul(dys[0], xs[1]), g.sum_to(g.Mul(dys[0], xs[0]), xs[1])

    @op("Written", domain="test.learning")
    def bodied(k: Any, x: Any, w: Any) -> Any:
        return x + w

    @bodied.body
    def _(g: Any, xs: Any, types: Any) -> Any:
        return g.Add(*xs)

    @op("Bare", domain="test.learning")
    def bare(k: Any, x: Any, w: Any) -> Any:
        return x - w

    yield
    for name in ("Ruled", "Written", "Bare"):
        del OPS["test.learning", name]


def test_weights_of_custom_operators(own: None) -> None:
    def build(g: Any, x: Any) -> Any:
        y = g.op("Written", g.op("Ruled", x, "a", domain="test.learning"), "b", domain="test.learning")
        return g.MatMul(y, "w")

    moves(trained(made(build, {"a": drawn(4), "b": drawn(4), "w": drawn(4, 2)})), {"a", "b", "w"})


def test_what_looks_like_a_weight_is_named(own: None) -> None:
    """A custom operator without a derivative reads one: nobody knows what its gradient is."""
    graph = made(
        lambda g, x: g.MatMul(g.op("Bare", x, "a", domain="test.learning"), "w"), {"a": drawn(4), "w": drawn(4, 2)}
    )
    with pytest.warns(UserWarning, match=r"'a': .*\(test.learning::Bare\).* no derivative|'a': .*Bare.*no derivative"):
        trainer = trained(graph)
    assert trainer.trained == ["w"]
    assert "no derivative" in trainer.frozen["a"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(graph, freeze=["a"])


def test_weights_of_fused_operators() -> None:
    def build(g: Any, x: Any) -> Any:
        y = g.op("FusedMatMul", x, "w", domain="com.microsoft", alpha=0.5)
        return g.op("BiasGelu", y, "b", domain="com.microsoft")

    moves(trained(made(build, {"w": drawn(4, 2), "b": drawn(2)})), {"w", "b"})


def test_weights_inside_of_bodies() -> None:
    """What both ways of an If read, one from outside and one as a constant of its own."""
    inner = GraphBuilder(prefix="then/")
    then = inner.graph([inner.MatMul("x", inner.const(drawn(4, 2)))])
    other = GraphBuilder(prefix="else/")
    rest = other.graph([other.MatMul("x", "w")])
    (own,) = then.initializers

    def build(g: Any, x: Any) -> Any:
        positive = g.Greater(g.ReduceSum(x, keepdims=0), g.const(-1e9, DType.FLOAT))
        return g.Add(g.If(positive, then_branch=then, else_branch=rest), g.MatMul(x, "w"))

    moves(trained(made(build, {"w": drawn(4, 2)})), {"w", own})


# What is no weight by its place


def test_what_is_left_out_by_structure_has_a_reason() -> None:
    def build(g: Any, x: Any) -> Any:
        y = g.MatMul(x, "w")
        y = g.Where(g.Equal("tril", g.const(0.0, DType.FLOAT)), g.const(-1e9, DType.FLOAT), g.Add(y, "causal"))
        y = g.Mul(y, "kept")
        y = g.BatchNormalization(y, "scale", "shift", "seen", "spread")
        narrow = g.DequantizeLinear(g.QuantizeLinear(y, "step", "zero"), "step", "zero")
        return g.Add(y, g.Mul(narrow, "half"))

    four = np.float32
    arrays = {
        "w": drawn(4, 4), "tril": np.tril(np.ones((1, 4), four)), "causal": np.array([0, -np.inf, 0, 0], four) * 1,
        "kept": np.array([1, 1, 0, 1], four), "scale": np.ones(4, four), "shift": np.zeros(4, four),
        "seen": np.zeros(4, four), "spread": np.ones(4, four), "step": np.array(0.1, four),
        "zero": np.array(0, np.uint8), "half": np.array(0.5, four),
    }  # fmt: skip
    arrays["causal"][np.isnan(arrays["causal"])] = 0
    arrays["tril"][0, 1:] = 0
    trainer = trained(made(build, arrays))
    assert set(trainer.trained) == {"w", "scale", "shift"}
    reasons = {
        "tril": INTEGERS, "causal": MASK, "kept": MASK, "seen": STATISTICS, "spread": STATISTICS, "step": SCALE,
        "half": NUMBER,
    }  # fmt: skip
    assert {n: trainer.frozen[n] for n in reasons} == reasons
    with pytest.raises(InputError, match="running statistics"):
        trained(made(build, arrays), train=["seen"])


def test_a_weight_that_is_rounded_on_its_way_is_named() -> None:
    """By QuantizeLinear alone, whose numbers go on as integers: of a pair the gradient is known."""

    def build(g: Any, x: Any) -> Any:
        narrow = g.Cast(g.QuantizeLinear("w", "step", "zero"), to=DType.FLOAT.onnx)
        return g.Add(g.MatMul(x, narrow), "b")

    arrays = {"w": drawn(4, 2), "b": drawn(2), "step": number(0.1), "zero": np.array(0, np.int8)}
    with pytest.warns(UserWarning, match="'w': .* rounds it to integers"):
        assert trained(made(build, arrays)).trained == ["b"]


def test_single_numbers_learn_where_the_file_says_that_they_are_weights() -> None:
    def build(g: Any, x: Any) -> Any:
        return g.Mul(g.MatMul(x, "head.weight"), g.Exp("logit_scale"))

    arrays = {"head.weight": drawn(4, 2), "logit_scale": number(1.5)}
    graph = made(build, arrays)
    assert trained(graph).trained == ["head.weight"]
    assert trained(graph).frozen["logit_scale"] == NUMBER
    moves(trained(graph, train=["logit_scale"]), {"logit_scale"})
    moves(trained(graph.but(metadata=PYTORCH)), {"head.weight", "logit_scale"})
    with pytest.warns(UserWarning, match="'logit_scale': a single number"):  # it has an axis, as numbers rarely have
        trained(made(build, {**arrays, "logit_scale": number(1.5).reshape(1)}))


def test_buffers_of_the_module_are_none_of_the_optimizer(tmp_path: Path) -> None:
    """The newer exporter of PyTorch lists what is a parameter; the list survives an export of ours."""
    said = "\n# inputs\np_w: PARAMETER target='w'\nb_table: BUFFER target='table' persistent=True\nx: USER_INPUT\n"
    graph = made(
        lambda g, x: g.Add(g.MatMul(x, "w"), "table"), {"w": drawn(4, 2), "table": drawn(2)},
        {PRODUCER: "pytorch 2.13.0", SIGNATURE: said},
    )  # fmt: skip
    trainer = trained(graph)
    assert (trainer.trained, trainer.frozen) == (["w"], {"table": BUFFER})
    trainer.export(tmp_path / "again.onnx")
    assert trained(load_onnx(tmp_path / "again.onnx")).frozen == {"table": BUFFER}
    moves(trained(graph, train=["w", "table"]), {"w", "table"})


def test_masks_and_weights_that_look_alike() -> None:
    """An identity matrix in a product is a weight, whatever its elements are."""
    graph = made(
        lambda g, x: g.MatMul(g.MatMul(x, "first"), "w"), {"first": np.eye(4, dtype=np.float32), "w": drawn(4, 2)}
    )
    moves(trained(graph), {"first", "w"})


# What exporters make of modules


def test_equal_weights_behind_identity_learn_apart() -> None:
    """The older exporter writes equal weights once; elsewhere Identity ties."""

    def build(g: Any, x: Any) -> Any:
        y = g.Add(g.Mul(x, "a"), "b")
        return g.MatMul(g.Add(g.Mul(g.Relu(y), g.Identity("a")), "b"), "w")

    arrays = {"a": np.ones(4, np.float32), "b": drawn(4), "w": drawn(4, 2)}
    apart = trained(made(build, arrays, PYTORCH), optimizer=mz.optimizer.SGD(rate=0.1))
    assert len(apart.trained) == 4
    (more,) = set(apart.trained) - set(arrays)
    moves(apart, {*arrays, more})
    assert not np.array_equal(apart.parameters["a"], apart.parameters[more])
    moves(trained(made(build, arrays)), {*arrays})


def test_statistics_that_are_shared_or_computed() -> None:
    """Two normalisations begin with the same statistics, which part; of a third they are computed from constants, and
    of a fourth from the input: that one stays as it is."""

    def build(g: Any, x: Any) -> Any:
        y = g.BatchNormalization(x, "s1", "b1", "mean", "var")
        z = g.BatchNormalization(g.MatMul(y, "w"), "s2", "b2", "mean", "var")
        z = g.BatchNormalization(z, "s3", "b3", g.Mul("mean", "two"), g.Exp("mean"))
        return g.BatchNormalization(z, "s4", "b4", g.ReduceMean(x, g.const([0]), keepdims=0), "var")

    arrays = {f"{n}{i}": drawn(4) for n in "sb" for i in (1, 2, 3, 4)}
    arrays |= {
        "mean": np.zeros(4, np.float32),
        "var": np.ones(4, np.float32),
        "w": drawn(4, 4),
        "two": np.full(4, 2, np.float32),
    }
    trainer = trained(made(build, arrays))
    assert set(trainer.trained) == {*arrays} - {"mean", "var", "two"}
    x = drawn(64, 4) + 3
    for _ in range(40):
        trainer.step({"x": x, "target": np.zeros((64, 4), np.float32)})
    kept = {s.input: trainer.states[s.input] for s in trainer.graph_of_step.states if s.input.endswith(".mean")}
    assert len(kept) == 3
    first = next(iter(kept.values()))
    np.testing.assert_allclose(first, x.mean(0), rtol=0.1)
    assert len({a.tobytes() for a in kept.values()}) == 3
    done = trainer.graph()
    for name, array in kept.items():
        np.testing.assert_array_equal(done.initializers[name], array)


def test_what_a_file_of_an_exporter_has_lost_is_said() -> None:
    said = "\n# inputs\np_w: PARAMETER target='w'\np_1_weight: PARAMETER target='1.weight'\n"
    graph = made(lambda g, x: g.MatMul(x, "w"), {"w": drawn(4, 2)}, {SIGNATURE: said})
    (text,) = says(graph)
    assert "'1.weight'" in text
    assert "optimize=False" in text
    (text,) = says(made(lambda g, x: g.MatMul(x, "onnx::MatMul_7"), {"onnx::MatMul_7": drawn(4, 2)}, PYTORCH))
    assert "TrainingMode.TRAINING" in text
    assert not list(says(made(lambda g, x: g.MatMul(x, "w"), {"w": drawn(4, 2)}, PYTORCH)))


def test_a_check_tells_what_training_would_lose(tmp_path: Path) -> None:
    said = "\n# inputs\np_w: PARAMETER target='w'\np_1_weight: PARAMETER target='1.weight'\nb_t: BUFFER target='t'\n"
    graph = made(lambda g, x: g.Add(g.MatMul(x, "w"), "t"), {"w": drawn(4, 2), "t": drawn(2)}, {SIGNATURE: said})
    save_onnx(graph, tmp_path / "m.onnx")
    verdict = check(tmp_path / "m.onnx", Options(train=True))
    assert (verdict.facts["weights_to_train"], verdict.facts["elements_to_train"]) == (1, 8)
    rows = {table.title: list(table.rows) for table in verdict.tables}
    assert rows["What does not learn"] == [("t", "left out", BUFFER)]
    assert "'1.weight'" in str(rows["What the file has lost for training"])


def test_normalisations_are_as_precise_as_their_numbers() -> None:
    """Files say float32 for the first stage, whatever they hold."""
    g = TypedBuilder()
    x, four = g.input("x", Tensor(DType.DOUBLE, ("n", 4))), g.const(np.ones(4))
    layer, root = g.LayerNormalization(x, four), g.RMSNormalization(x, four)
    group = g.GroupNormalization(x, four, g.const(np.zeros(4)), num_groups=1)
    graph = g.graph([layer, root, group])
    fed = RNG.standard_normal((3, 4)) + 5
    wanted = (fed - fed.mean(1, keepdims=True)) / np.sqrt(fed.var(1, keepdims=True) + 1e-5)
    scaled = fed / np.sqrt((fed * fed).mean(1, keepdims=True) + 1e-5)
    for mine, want in zip(mz.Session(graph).run({"x": fed}).values(), (wanted, scaled, wanted), strict=True):
        np.testing.assert_allclose(mine, want, rtol=0, atol=1e-11)


def test_patterns_find_what_is_left_out_only_by_its_name() -> None:
    graph = made(lambda g, x: g.Mul(g.MatMul(x, "w"), "half"), {"w": drawn(4, 2), "half": number(0.5)})
    assert trained(graph, train=["*"]).trained == ["w"]
    assert trained(graph, train=["w", "half"]).trained == ["w", "half"]
    assert weights(graph) == ["w"]


# As in PyTorch


NETWORKS = ("resnet", "mobilenet", "vit", "bert", "gpt", "lstm", "gru", "unet", "detector")
DETECTION = {"classes": "cross_entropy", "boxes": (0.5, "l1"), "objects": (2.0, "binary_cross_entropy")}
SAMPLE = {("vit", "dynamo", "AdamW"), ("lstm", "torchscript", "Adam"), ("resnet", "dynamo", "SGD")}
OPTIMIZERS = {
    "SGD": ({"lr": 0.05, "momentum": 0.9}, {"rate": 0.05, "momentum": 0.9}),
    "Adam": ({"lr": 0.003}, {"rate": 0.003}),
    "AdamW": ({"lr": 0.003, "weight_decay": 0.05}, {"rate": 0.003, "weight_decay": 0.05}),
}


CASES = [
    pytest.param(*case, marks=() if case in SAMPLE else pytest.mark.soak, id="-".join(case))
    for case in product(NETWORKS, ("torchscript", "dynamo"), OPTIMIZERS)
]


@pytest.mark.filterwarnings("ignore")  # the exporters', about their own dependencies
@pytest.mark.parametrize(("name", "exporter", "optimizer"), CASES)
def test_trajectories_of_pytorch(name: str, exporter: str, optimizer: str) -> None:
    """Thirty steps in float64 of a module, and of the file that an exporter made of it: as many elements learn, and
    none is further away than 1e-9 of the largest of its array.

    But for those whose gradient is zero in exact arithmetic (a bias before a normalisation, the keys' bias): optimizers
    that divide by its size make steps of the rounding."""
    peer("onnxscript")
    torch = peer("torch")
    from .torch_lessons import LESSONS, exported, module

    theirs, ours = OPTIMIZERS[optimizer]
    lesson = LESSONS[name]
    net = module(lesson)
    several = len(lesson.outputs) > 1
    loss = DETECTION if several else "cross_entropy"
    targets = [f"{o}_target" for o in lesson.outputs] if several else ["target"]
    optimized = getattr(mz.optimizer, optimizer)(**ours)
    trainer = Trainer(exported(lesson, net, exporter), loss=loss, optimizer=optimized)
    learned = {n: p for n, p in net.named_parameters() if p.requires_grad}
    assert sum(p.size for p in trainer.parameters.values()) == sum(p.numel() for p in learned.values())
    stepper, rng = getattr(torch.optim, optimizer)(net.parameters(), **theirs), np.random.default_rng(1)
    largest = {n: torch.zeros_like(p) for n, p in learned.items()}
    for _ in range(30):
        xs, ts = lesson.draw(rng, 6)
        stepper.zero_grad()
        found = net(*map(torch.from_numpy, xs))
        told = lesson.loss(found if several else (found,), [*map(torch.from_numpy, ts)])
        told.backward()
        for n, p in learned.items():
            largest[n] = torch.maximum(largest[n], p.grad.abs())
        stepper.step()
        feeds = dict(zip((*lesson.inputs, *targets), (*xs, *ts), strict=True))
        assert trainer.step(feeds) == pytest.approx(float(told.detach()), rel=1e-9)
    whole = max(float(a.max()) for a in largest.values())
    tied = {"word.weight": "head.weight"}
    for n, p in learned.items():
        mine = trainer.parameters[n if n in trainer.parameters else tied[n]]
        want, felt = p.detach().numpy(), (largest[n] > 1e-10 * whole).numpy()
        assert np.abs(np.where(felt, mine - want, 0)).max() <= 1e-9 * np.abs(want).max(), n
