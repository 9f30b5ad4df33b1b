"""Devices that share products of matrices: answers and trainings of one device, with parts of the weights on each."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.importers import load_graph
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError
from mezzo.runtime.compile.auto_place import needs_of
from mezzo.runtime.compile.parts import copies
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.passes.split import tensor_parallel, untied
from mezzo.runtime.passes.split_rules import RULES

from .cupy_standin import Standin
from .peers import peer

WIDTH, HEADS = 16, 4


def cpus(count: int) -> mz.TensorParallel:
    return mz.TensorParallel([f"cpu:{i}" for i in range(count)])


class Blocks:
    """Builds transformers in a float type; weights have names, so that a Trainer finds them."""

    def __init__(self, dtype: DType = DType.DOUBLE) -> None:
        self.g, self.dtype, self.rng = GraphBuilder("blocks"), dtype, np.random.default_rng(0)
        self.held: dict[str, Any] = {}

    def weight(self, name: str, *shape: int) -> str:
        self.held[name] = (self.rng.standard_normal(shape) * shape[0] ** -0.5).astype(self.dtype.numpy)
        return name

    def norm(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.scale", WIDTH), self.weight(f"{name}.bias", WIDTH)
        return str(self.g.LayerNormalization(x, scale, bias, axis=-1))

    def heads(self, x: str) -> str:
        return str(self.g.Transpose(self.g.Reshape(x, self.g.const([0, 0, HEADS, -1])), perm=(0, 2, 1, 3)))

    def attention(self, x: str, name: str, *, fused: bool) -> str:
        g, normed = self.g, self.norm(x, f"{name}.norm")
        if fused:
            w, b = self.weight(f"{name}.qkv", WIDTH, 3 * WIDTH), self.weight(f"{name}.qkv.bias", 3 * WIDTH)
            together = g.Add(g.MatMul(normed, w), b)
            parts = g.op("Split", together, g.const([WIDTH] * 3), outputs=3, axis=-1)
        else:
            parts = [g.MatMul(normed, self.weight(f"{name}.{p}", WIDTH, WIDTH)) for p in "qkv"]
        q, k, v = (self.heads(p) for p in parts)
        scores = g.Softmax(g.MatMul(q, g.Transpose(k, perm=(0, 1, 3, 2))), axis=-1)
        mixed = g.Transpose(g.MatMul(scores, v), perm=(0, 2, 1, 3))
        flat = g.Reshape(mixed, g.const([0, 0, WIDTH]))
        return str(g.Add(x, g.MatMul(flat, self.weight(f"{name}.out", WIDTH, WIDTH))))

    def feed_forward(self, x: str, name: str) -> str:
        g = self.g
        wide = g.MatMul(self.norm(x, f"{name}.norm"), self.weight(f"{name}.up", WIDTH, 4 * WIDTH))
        active = g.Gelu(g.Add(wide, self.weight(f"{name}.up.bias", 4 * WIDTH)))
        narrow = g.Add(g.MatMul(active, self.weight(f"{name}.down", 4 * WIDTH, WIDTH)), self.weight(f"{name}.b", WIDTH))
        return str(g.Add(x, narrow))

    def graph(self, output: str) -> Graph:
        self.g._constants |= self.held
        return self.g.graph([output])


def transformer(dtype: DType = DType.DOUBLE) -> Graph:
    """Two blocks, the first with one matrix for queries, keys and values, and numbers of four classes."""
    b = Blocks(dtype)
    x = b.g.input("x", Tensor(dtype, ("batch", "length", WIDTH)))
    for i, fused in enumerate((True, False)):
        x = b.feed_forward(b.attention(x, f"{i}.attention", fused=fused), f"{i}.mlp")
    return b.graph(b.g.MatMul(b.g.ReduceMean(x, b.g.const([1]), keepdims=0), b.weight("classes", WIDTH, 4)))


def near(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def batch(size: int, length: int = 5, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng([size, length])
    return {"x": rng.standard_normal((size, length, WIDTH)).astype(dtype), "target": rng.integers(0, 4, size)}


@pytest.mark.parametrize("count", [2, 4])
def test_answers_are_those_of_one_device(count: int) -> None:
    graph = transformer()
    alone, apart = mz.Session(graph), mz.Session(graph, place=cpus(count))
    for size, length in ((2, 5), (1, 1), (3, 8), (2, 5)):
        x = {"x": batch(size, length)["x"]}
        near(next(iter(apart.run(x).values())), next(iter(alone.run(x).values())))
    copied = copies(apart.program)
    assert len(copied) == 2 * 4 * (count - 1), "what each of four pairs of products reads, and its sums"
    assert {c.type.sizes[-1] for c in copied} == {WIDTH}
    needs = needs_of(apart.program, apart.executable.constants, "cpu:0")
    weights = sum(graph.initializers[n].nbytes for n in graph.initializers if ".bias" not in n and ".norm" not in n)
    assert needs["cpu:1"].weights == pytest.approx(weights / count, rel=0.1)


def test_sums_are_of_the_devices_in_their_order() -> None:
    b = Blocks(DType.FLOAT)
    x = b.g.input("x", Tensor(DType.FLOAT, (3, 8)))
    up, down = b.weight("up", 8, 12), b.weight("down", 12, 6)
    graph = b.graph(b.g.MatMul(b.g.Relu(b.g.MatMul(x, up)), down))
    fed = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    apart = mz.Session(graph, place=cpus(3)).run({"x": fed})
    total: Any = None
    for i in range(3):
        part = {"up": np.split(b.held["up"], 3, 1)[i], "down": np.split(b.held["down"], 3, 0)[i]}
        own = next(
            iter(mz.Session(graph.but(initializers=part, types={"x": graph.types["x"]})).run({"x": fed}).values())
        )
        total = own if total is None else total + own
    np.testing.assert_array_equal(next(iter(apart.values())), total)


@pytest.mark.parametrize(
    ("optimizer", "how"),
    [
        (mz.optimizer.SGD(rate=0.05, momentum=0.9), {}),
        (mz.optimizer.Adam(), {"clip_norm": 0.5}),
        (mz.optimizer.AdamW(groups=(mz.optimizer.Group(("*.up", "*.qkv"), 0.5, 0.1),)), {"gather": 2}),
        (mz.optimizer.Adam(rate=mz.schedule.Cosine(0.01, 10)), {"freeze": ["0.*"], "metrics": ["accuracy"]}),
    ],
    ids=["sgd", "adam", "groups", "frozen"],
)
def test_trainings_are_those_of_one_device(optimizer: Any, how: dict[str, Any], tmp_path: Path) -> None:
    graph = transformer()
    alone, apart = (mz.Trainer(graph, optimizer=optimizer, place=p, **how) for p in (None, cpus(2)))
    for i in range(6):
        near(apart.step(batch(6, 3 + i % 2)), alone.step(batch(6, 3 + i % 2)))
    near(apart.last.norm, alone.last.norm)
    before, after = apart.snapshot(), alone.snapshot()
    assert before.keys() == after.keys()
    for name in after:
        near(before[name], after[name], 1e-9)
    near(apart.evaluate([batch(4)]).loss, alone.evaluate([batch(4)]).loss)
    for name, weight in alone.graph().initializers.items():
        near(apart.graph().initializers[name], weight, 1e-9)
    copied = [c.type.dims for c in copies(apart._update.program) if len(c.type.dims or ()) > 1]
    assert all(d and d[-1] == WIDTH and len(d) == 3 for d in copied), "no weight and no gradient of one travels"

    apart.save(tmp_path)
    others = [mz.Trainer(graph, optimizer=optimizer, place=p, **how) for p in (None, cpus(4), cpus(2))]
    expected = apart.step(batch(5))
    for other in others:
        other.resume(tmp_path)
        near(other.step(batch(5)), expected)
    apart.restore(before)
    assert all(np.array_equal(a, apart.snapshot()[n]) for n, a in before.items())


@pytest.mark.parametrize("amp", [None, "fp16"])
def test_gpus_have_the_answers_of_one(standin: Standin, amp: str | None) -> None:
    standin.devices = 2
    graph = transformer(DType.FLOAT)
    gpus = mz.TensorParallel(["gpu:0", "gpu:1"])
    alone = mz.Trainer(graph, device="gpu:0", amp=amp)
    apart = mz.Trainer(graph, place=gpus, amp=amp)
    fed = batch(4, dtype=np.float32)
    for _ in range(3):
        near(apart.step(fed), alone.step(fed), 1e-5 if amp is None else 5e-3)
    assert standin.races == []
    assert {standin._owners[p] for p in standin._blocks} == {0, 1}
    near(mz.Session(graph, place=gpus).run({"x": fed["x"]}).popitem()[1],
         mz.Session(graph, device="gpu:0").run({"x": fed["x"]}).popitem()[1], 1e-5)  # fmt: skip


def test_a_file_has_the_parts(tmp_path: Path) -> None:
    session, x = mz.Session(transformer(), place=cpus(2)), {"x": batch(2)["x"]}
    session.save(tmp_path / "m.mezzo")
    expected = next(iter(session.run(x).values()))
    for again in (mz.load(tmp_path / "m.mezzo"), mz.load(tmp_path / "m.mezzo", place={"*": "cpu"})):
        np.testing.assert_array_equal(next(iter(again.run(x).values())), expected)


def test_an_export_is_the_whole_model(tmp_path: Path) -> None:
    graph = transformer(DType.FLOAT)
    trainer = mz.Trainer(graph, place=cpus(2))
    trainer.step(batch(4, dtype=np.float32))
    trainer.export(tmp_path / "m.onnx")
    trainer.export_step(tmp_path / "step.onnx")
    assert [*mz.load(tmp_path / "m.onnx").graph.initializers] == [*infer(graph).initializers]
    fed = batch(4, dtype=np.float32)
    states = trainer.snapshot()
    step = mz.load(tmp_path / "step.onnx")
    given = {n: states[n] for n in step.signature.inputs if n in states} | fed
    near(step.run(given)[trainer.loss], trainer.step(fed), 1e-5)


def test_a_value_may_be_cut_along_several_axes() -> None:
    """One product reads its rows, another its columns, and each device has the part that its product wants."""
    rng, g = np.random.default_rng(0), GraphBuilder("two cuts")

    def const(*shape: int) -> str:
        return g.const(rng.standard_normal(shape))

    x, both = g.input("x", Tensor(DType.DOUBLE, (2, 8))), const(8, 8)
    columns = g.Add(g.Unsqueeze(g.MatMul(x, const(8, 8)), g.const([1])), both)
    rows = g.Add(g.Unsqueeze(g.MatMul(x, const(8, 8)), g.const([2])), both)
    ends = [g.MatMul(columns, const(8, 4)), g.MatMul(g.Transpose(rows, perm=(0, 2, 1)), const(8, 4))]
    graph, fed = g.graph(ends), {"x": rng.standard_normal((2, 8))}
    assert len(tensor_parallel(infer(graph), cpus(2)).weights) == 4
    alone = mz.Session(graph).run(fed)
    for name, value in mz.Session(graph, place=cpus(2)).run(fed).items():
        near(value, alone[name])


def test_weights_may_be_chosen() -> None:
    graph = infer(transformer())
    assert {n.split(".")[1] for n in tensor_parallel(graph, mz.TensorParallel("cpu:0,cpu:1", ["*.mlp.*"])).weights} == {
        "mlp"
    }


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: mz.TensorParallel(["cpu:0"]), "devices="),
        (lambda: mz.TensorParallel(["cpu:0", "cpu:0"]), "devices="),
        (lambda: mz.TensorParallel(2), "devices=2"),
        (lambda: mz.Session(transformer(), place=mz.TensorParallel(["cpu:0", "cpu:1"], ["no"])), "no two products"),
        (lambda: mz.Session(transformer(), place=cpus(3)), "divisible by 3"),
        (lambda: mz.Session(transformer(), place=cpus(2), device="gpu:0"), "beside place="),
        (lambda: mz.Trainer(transformer(), place=cpus(2), kvstore="local"), "place= beside kvstore="),
        (lambda: mz.Trainer(transformer(), place=cpus(2), micro_batches=2), "micro_batches= beside TensorParallel"),
        (lambda: mz.Trainer(transformer(), place=cpus(2), optimizer="lamb"), "measures whole weights"),
    ],
)
def test_what_cannot_be_shared_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


# -- rules ------------------------------------------------------------------------------------------------------------


def drawn(seed: int) -> tuple[Graph, dict[str, Any]]:
    """A random way from one product to another, through operators that have rules and some that have none."""
    rng, g = np.random.default_rng(seed), GraphBuilder("way")
    size, heads, depth = int(rng.integers(1, 4)), 4, int(rng.choice([2, 4]))
    wide = heads * depth
    x = g.input("x", Tensor(DType.DOUBLE, ("n", 3, 6)))

    def const(*shape: int) -> str:
        return g.const(rng.standard_normal(shape))

    def dims() -> tuple[Any, ...]:
        known = infer(g.graph([y]), {"x": Tensor(DType.DOUBLE, (size, 3, 6))}).types[y]
        assert isinstance(known, Tensor)
        assert known.dims is not None
        return known.dims

    y = g.MatMul(x, const(6, wide))
    for kind in rng.choice(sorted(STEPS), int(rng.integers(1, 7))):
        y = STEPS[kind](g, y, dims(), rng, const) or y
    sizes = dims()[1:]
    y = g.Reshape(y, g.const([0, -1, next(s for s in (*rng.permutation([wide, depth]), 1) if prod(sizes) % s == 0)]))
    return g.graph([g.MatMul(y, const(dims()[-1], 4))]), {"x": rng.standard_normal((size, 3, 6))}


def _biased(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str:
    shape = [d if isinstance(d, int) and rng.random() < 0.8 else 1 for d in dims[int(rng.integers(0, len(dims))) :]]
    return str(rng.choice([g.Add, g.Mul, g.Sub])(y, const(*shape)))


def _twice(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str:
    return str(g.Mul(g.Sigmoid(y), y))


def _heads(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str | None:
    last = dims[-1]
    return None if last % 4 or len(dims) > 4 else str(g.Reshape(y, g.const([*[0] * (len(dims) - 1), 4, last // 4])))


def _turned(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str:
    rest = [int(p) for p in 1 + rng.permutation(len(dims) - 1)]
    return str(g.Transpose(y, perm=(0, *rest)))


def _softmax(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str:
    return str(g.Softmax(y, axis=int(rng.integers(1, len(dims)))))


def _halves(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str | None:
    if dims[-1] % 2 or dims[-1] < 4:
        return None
    a, b = g.op("Split", y, g.const([dims[-1] // 2] * 2), outputs=2, axis=-1)
    return str(g.Concat(g.Tanh(a), b, axis=-1) if rng.random() < 0.3 else g.Mul(a, g.Sigmoid(b)))


def _joined(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str:
    return str(g.Concat(y, g.Relu(y), axis=1))


def _sliced(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str:
    axis = int(rng.integers(1, len(dims)))
    return str(g.Slice(y, g.const([0]), g.const([max(1, dims[axis] // 2)]), g.const([axis])))


def _normed(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str:
    return str(g.LayerNormalization(y, const(dims[-1]), axis=-1))


def _products(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str | None:
    last = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
    return None if len(dims) < 3 else str(g.MatMul(g.MatMul(y, g.Transpose(y, perm=tuple(last))), y))


def _mean(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str:
    return str(g.ReduceMean(y, g.const([int(rng.integers(1, len(dims)))]), keepdims=1))


def _by_its_shape(g: Any, y: str, dims: Sequence[Any], rng: Any, const: Any) -> str:
    return str(g.Reshape(g.Relu(y), g.Shape(y)))


STEPS: dict[str, Callable[..., str | None]] = {
    "biased": _biased, "twice": _twice, "heads": _heads, "turned": _turned, "softmax": _softmax, "halves": _halves,
    "joined": _joined, "sliced": _sliced, "normed": _normed, "products": _products, "mean": _mean,
    "shape": _by_its_shape,
}  # fmt: skip


def shares(graph: Graph, count: int) -> bool:
    """True if there is anything that devices could share."""
    try:
        return bool(tensor_parallel(infer(graph), cpus(count)))
    except InputError:
        return False


@pytest.mark.parametrize("part", range(8))
def test_random_ways_between_products(part: int) -> None:
    shared = 0
    for seed in range(part * 25, part * 25 + 25):
        graph, fed = drawn(seed)
        alone = mz.Session(graph).run(fed)
        for count in (2, 4):
            found = tensor_parallel(infer(graph), cpus(count), None if shares(graph, count) else {})
            if not found.weights:
                continue
            apart, shared = mz.Session(found.graph), shared + 1
            for name, value in apart.run(fed).items():
                assert np.abs(value - alone[name]).max() <= 1e-11 * np.abs(alone[name]).max(), (seed, count)
    assert shared >= 12, "most are shared"


def test_every_rule_is_of_an_operator() -> None:
    assert all(("", name) in mz.ops.OPS for name in RULES)


# -- beside PyTorch ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False])
def test_exported_transformers_are_shared_whole(dynamo: bool) -> None:
    torch = peer("torch")
    peer("onnxscript")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    model, x = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 6, 32)
    for weight in model.parameters():  # the layers are copies, and the exporters write equal weights once
        weight.data.normal_(0, 0.2)
    written = io.BytesIO()
    dynamic: dict[str, Any] = (
        {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},)} if dynamo else {"dynamic_axes": {"x": {0: "batch"}}}
    )
    torch.onnx.export(model, (x,), written, dynamo=dynamo, input_names=["x"], **dynamic)
    found = tensor_parallel(infer(untied(load_graph(written.getvalue()))), cpus(2))
    matrices = [n for n in found.weights if found.graph.initializers[found.parts(n)[0]].ndim == 2]
    assert len(matrices) == 8, "queries, keys and values, the projection, and both of the feed-forward layer, twice"
    session = mz.load(written.getvalue(), place=cpus(2))
    for size in (2, 1, 5):
        fed = torch.randn(size, 6, 32)
        near(session.run({"x": fed.numpy()}).popitem()[1], model(fed).detach(), 1e-5)
