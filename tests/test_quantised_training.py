"""Training through QuantizeLinear and DequantizeLinear: gradients beside PyTorch's, trajectories, what is exported, and
what it brings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mezzo as mz
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import DType, Tensor
from mezzo.ops.quantization.quantize import int_range
from mezzo.ops.types import f32
from mezzo.runtime.ir.autodiff import grad
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.runtime.ir.typed import TypedBuilder
from mezzo.runtime.passes.straight_through import straight_through
from mezzo.tools.cli import cli
from mezzo.train.integers import with_float_weights, with_integer_weights
from mezzo.train.learning import SCALE
from mezzo.train.quantize import quantize

from .models import ort_run, referee
from .peers import peer
from .test_quantised_kernels import VNNI

Array = np.ndarray[Any, Any]
TYPES = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT4, DType.UINT4)
types = pytest.mark.parametrize("dtype", TYPES, ids=str)
axes = pytest.mark.parametrize("axis", [None, 0, -1, 1])


def zero_of(dtype: DType, axis: int | None) -> Array:
    """Zero points in the middle of a type, one for all or for each of the sizes of `numbers`."""
    low, high = int_range(dtype)
    sizes = () if axis is None else ((4, 3, 5)[axis],)
    return (np.arange(np.prod(sizes, dtype=int)).reshape(sizes) + (low + high + 1) // 2).astype(dtype.numpy)


def scale_of(axis: int | None, kind: Any = np.float32) -> Array:
    rng = np.random.default_rng(3)
    return np.asarray(rng.uniform(0.02, 0.5, () if axis is None else ((4, 3, 5)[axis],)), kind)


def numbers(dtype: DType, scale: Array, zero: Array, axis: int | None) -> Array:
    """Numbers of shape [4, 3, 5] that are no ties, a fifth of them outside of the range on either side."""
    rng, (low, high) = np.random.default_rng(4), int_range(dtype)
    each, at = spread(scale, axis), spread(zero.astype(np.float64), axis)
    far = (high - low) // 5
    return ((rng.integers(low - far, high + far, (4, 3, 5)) + rng.uniform(-0.4, 0.4, (4, 3, 5)) - at) * each).astype(
        scale.dtype
    )


def spread(part: Array, axis: int | None) -> Array:
    if axis is None:
        return np.asarray(part)
    return part.reshape([-1 if i == axis % 3 else 1 for i in range(3)])


def pair(dtype: DType, zero: Array, axis: int | None, kind: DType = DType.FLOAT) -> Graph:
    """x and its scale, to what it is in steps."""
    g = GraphBuilder()
    x = g.input("x", Tensor(kind, (4, 3, 5)))
    scale = g.input("scale", Tensor(kind, zero.shape))
    attrs = {} if axis is None else {"axis": axis}
    steps = g.QuantizeLinear(x, scale, g.const(zero), **attrs)
    return g.graph([g.DequantizeLinear(steps, scale, g.const(zero.copy()), **attrs)])


def slopes(graph: Graph, feeds: dict[str, Array], pull: Array) -> tuple[Array, Array]:
    """The gradients to x and to the scale, with the factor of LSQ taken out again."""
    through = straight_through(graph)
    assert [n.op for n in through.nodes if not n.domain] in ([], ["Reshape"])
    (node,) = (n for n in through.nodes if n.domain)
    kind = Tensor(DType.of(pull.dtype), pull.shape)
    times = Node("Mul", (through.outputs[0], "pull"), ("pulled",))
    whole = through.but(
        inputs=(*through.inputs, "pull"), types={**through.types, "pull": kind}, nodes=(*through.nodes, times),
        outputs=("pulled",),
    )  # fmt: skip
    made = grad(whole, whole.outputs[0], ["x", "scale"])
    found = mz.Session(made).run({**feeds, "pull": pull})
    steps = node.attrs["high"] - node.attrs["low"]
    each = feeds["x"].size / feeds["scale"].size
    return found["x_grad"], found["scale_grad"] / np.sqrt(steps / each)


# Against what they stand for


@types
@axes
def test_one_operator_answers_as_the_two(dtype: DType, axis: int | None) -> None:
    """Bit for bit: ties, what saturates, and infinities among them."""
    zero, scale = zero_of(dtype, axis), scale_of(axis)
    x = numbers(dtype, scale, zero, axis)
    x[0] = np.broadcast_to((np.arange(5) - 2.5) * spread(scale, axis), (4, 3, 5))[0]
    x[1, 0, :2] = np.inf, -np.inf
    graph, feeds = pair(dtype, zero, axis), {"x": x, "scale": scale}
    (want,) = mz.Session(graph, onednn=False).run(feeds).values()
    for onednn in (True, False):
        session = mz.Session(straight_through(graph), onednn=onednn)
        np.testing.assert_array_equal(next(iter(session.run(feeds).values())), want)


@types
@axes
def test_the_gradient_is_that_of_the_numbers_with_their_rounding_held(dtype: DType, axis: int | None) -> None:
    """What the rounding of each number adds, in steps, is held, and which numbers saturate; the rest is differentiated
    by finite differences."""
    zero, scale = zero_of(dtype, axis), scale_of(axis, np.float64)
    x = numbers(dtype, scale, zero, axis)
    low, high = int_range(dtype)
    pull = np.array(np.random.default_rng(5).standard_normal(x.shape))
    at = spread(zero.astype(np.float64), axis)
    nearest: Array = np.rint(x / spread(scale, axis))
    rest, saturated = nearest - x / spread(scale, axis), np.clip(nearest + at, low, high) - at

    def held(x: Array, scale: Array) -> Array:
        each = spread(scale, axis)
        return np.asarray(np.where(saturated == nearest, x / each + rest, saturated) * each * pull)

    dx, dscale = slopes(pair(dtype, zero, axis, DType.DOUBLE), {"x": x, "scale": scale}, pull)
    little = 1e-6 * scale.min()
    np.testing.assert_allclose(dx, (held(x + little, scale) - held(x - little, scale)) / (2 * little), atol=1e-4)
    for i in np.ndindex(scale.shape):
        more, less = scale.copy(), scale.copy()
        more[i] += little
        less[i] -= little
        want = (held(x, more).sum() - held(x, less).sum()) / (2 * little)
        assert dscale[i] == pytest.approx(want, rel=1e-4, abs=1e-4 * np.abs(pull).sum())


@types
@axes
def test_gradients_beside_pytorch(dtype: DType, axis: int | None) -> None:
    torch = peer("torch")
    zero, scale = zero_of(dtype, axis), scale_of(axis)
    x, (low, high) = numbers(dtype, scale, zero, axis), int_range(dtype)
    pull = np.array(np.random.default_rng(5).standard_normal(x.shape), np.float32)
    dx, dscale = slopes(pair(dtype, zero, axis), {"x": x, "scale": scale}, pull)
    for learned in (False, True):
        tx, ts = torch.tensor(x, requires_grad=True), torch.tensor(scale, requires_grad=learned)
        points = torch.tensor(zero.astype(np.int32))
        if learned:
            ways = torch._fake_quantize_learnable_per_tensor_affine, torch._fake_quantize_learnable_per_channel_affine
            points, ts = points.float(), ts
        else:
            ways = torch.fake_quantize_per_tensor_affine, torch.fake_quantize_per_channel_affine
        at = () if axis is None else (axis % 3,)
        if learned and axis is None:
            points, ts = points.reshape(1), torch.tensor(scale.reshape(1), requires_grad=True)
        (ways[axis is not None](tx, ts, points, *at, low, high) * torch.tensor(pull)).sum().backward()
        np.testing.assert_array_equal(dx, tx.grad.numpy())
        if learned:
            theirs = ts.grad.numpy().reshape(dscale.shape)
            assert np.abs(dscale - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_nothing_divides_by_a_scale_that_learning_took_to_zero() -> None:
    zero = np.array(0, np.int8)
    graph, x = pair(DType.INT8, zero, None), numbers(DType.INT8, scale_of(None), zero, None)
    for scale in (0.0, -1.0):
        feeds = {"x": x, "scale": np.array(scale, np.float32)}
        dx, dscale = slopes(graph, feeds, np.ones((4, 3, 5), np.float32))
        assert not dx.any()
        assert np.isfinite(dscale)


# What a Trainer does with them


def digits(start: int = 0, stop: int = 256, size: int = 64) -> list[dict[str, Array]]:
    held = held_out()
    return [{"image": held.inputs[i : i + size], "target": held.labels[i : i + size]} for i in range(start, stop, size)]


OTHERS = digits(256, 360, 104)
FIRST = held_out().inputs[:64]


def right(graph: Graph) -> float:
    answers = mz.Session(graph, threads=1).run({"image": OTHERS[0]["image"]})["logits"]
    return float((answers.argmax(1) == OTHERS[0]["target"]).mean())


def test_two_bits_lose_the_digits_and_training_finds_them_again() -> None:
    """Weights of -2 to 1 steps: the numbers of docs/training.md."""
    after = right(quantize(digits_model(), [FIRST], weights="int2"))
    graph = quantize(digits_model(), [FIRST], weights="int2", train=True)
    trainer = mz.Trainer(graph, optimizer=mz.optimizer.Adam(rate=0.002), learn_scales=True, threads=1)
    before = trainer.evaluate(OTHERS)
    assert before.accuracy == after
    trainer.fit(digits(), epochs=10)
    learned = trainer.evaluate(OTHERS)
    assert right(mz.onnx.load(digits_model())) > 0.97
    assert after < 0.5
    assert learned.accuracy is not None
    assert learned.accuracy > 0.9
    assert right(trainer.graph()) == learned.accuracy


@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_what_was_learned_leaves_as_integers(activations: Any, tmp_path: Path) -> None:
    """In the file there are 8 bits for each weight; ONNX Runtime and kernels of whole numbers answer as the trained
    graph does in floats, to one step."""
    graph = quantize(digits_model(), [FIRST], activations=activations, train=True)
    trainer = mz.Trainer(graph, optimizer=mz.optimizer.Adam(rate=0.002), learn_scales=True, threads=1)
    trainer.fit(digits())
    assert not any(s.node.op.startswith(("QLinear", "QGemm", "Quantize")) for s in trainer._update.program.steps)
    trainer.export(tmp_path / "digits.onnx")
    found = {i.name: i for i in onnx.load(tmp_path / "digits.onnx").graph.initializer}
    for name in ("0.weight", "3.weight", "7.weight", "13.weight"):
        assert name not in found
        assert found[f"{name}:steps"].data_type == onnx.TensorProto.INT8
        assert not np.array_equal(trainer.parameters[f"{name}:scale"], graph.initializers[f"{name}:scale"])
    assert found["13.bias:steps"].data_type == onnx.TensorProto.INT32
    assert sum(len(i.raw_data) for i in found.values()) < 0.3 * Path(digits_model()).stat().st_size
    whole = mz.load(tmp_path / "digits.onnx", threads=1)
    step = 1.01 * float(trainer.parameters["logits:scale"])
    image = {"image": held_out().inputs}
    floats = mz.Session(straight_through(with_float_weights(trainer.graph())), threads=1).run(image)["logits"]
    ours = whole.run(image)["logits"]
    assert np.abs(ours - floats).max() <= step
    if VNNI:
        assert {"QLinearConv", "QGemm"} <= {s.node.op for s in whole.program.steps}
    referee()
    theirs = ort_run(tmp_path / "digits.onnx", image)["logits"]
    assert np.abs(theirs - floats).max() <= step


def test_four_bits_in_onnx_runtime(tmp_path: Path) -> None:
    graph = quantize(digits_model(), [FIRST], weights="int4", train=True)
    trainer = mz.Trainer(graph, optimizer=mz.optimizer.SGD(rate=0.01), learn_scales=True, threads=1)
    trainer.fit(digits())
    trainer.export(tmp_path / "digits.onnx")
    proto = onnx.load(tmp_path / "digits.onnx")
    assert proto.opset_import[0].version >= 21
    assert {i.data_type for i in proto.graph.initializer} >= {onnx.TensorProto.INT4, onnx.TensorProto.UINT8}
    referee()
    image = {"image": held_out().inputs}
    ours, theirs = mz.load(tmp_path / "digits.onnx").run(image)["logits"], ort_run(tmp_path / "digits.onnx", image)
    assert np.abs(ours - theirs["logits"]).max() <= 1.01 * float(trainer.parameters["logits:scale"])


def test_a_quantised_file_trains_as_it_is(tmp_path: Path) -> None:
    """Its integers become floats that answer alike, learn, and are integers again under the same names."""
    plain = quantize(digits_model(), [FIRST])
    mz.onnx.save(plain, tmp_path / "whole.onnx")
    trainer = mz.Trainer(tmp_path / "whole.onnx", optimizer=mz.optimizer.Adam(rate=0.002), threads=1)
    names = [n for n in plain.initializers if n.endswith(("weight:steps", "bias:steps"))]
    assert {n.removesuffix(":steps") for n in names} == set(trainer.trained)
    again = with_integer_weights(trainer.source)
    assert again.initializers.keys() == plain.initializers.keys()
    for name, array in plain.initializers.items():
        np.testing.assert_array_equal(again.initializers[name], array)
    assert set(trainer.frozen.values()) == {SCALE}
    trainer.fit(digits())
    trainer.export(tmp_path / "tuned.onnx")
    tuned = mz.onnx.load(tmp_path / "tuned.onnx")
    assert [str(n) for n in tuned.nodes] == [str(n) for n in mz.onnx.load(tmp_path / "whole.onnx").nodes]
    assert all(not np.array_equal(tuned.initializers[n], plain.initializers[n]) for n in names)
    assert right(tuned) == trainer.evaluate(OTHERS).accuracy


def test_a_file_of_pytorchs_fake_quantisation_trains_as_in_pytorch(tmp_path: Path) -> None:
    """In float32: where a number falls on the other side of a tie, the runs part by a step of it."""
    torch = peer("torch")
    from .torch_lessons import FewBits, Lesson, exported, images

    torch.manual_seed(0)
    net, lesson = FewBits().train(), Lesson(FewBits, ("x",), ("y",), images(5))
    (tmp_path / "few.onnx").write_bytes(exported(lesson, net, "torchscript"))
    trainer = mz.Trainer(tmp_path / "few.onnx", optimizer=mz.optimizer.SGD(rate=0.05))
    assert set(trainer.trained) == {n for n, _ in net.named_parameters()}
    optimizer, rng = torch.optim.SGD(net.parameters(), lr=0.05), np.random.default_rng(1)
    for _ in range(10):
        (x,), (target,) = lesson.draw(rng, 8)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(x, dtype=torch.float32)), torch.tensor(target))
        loss.backward()
        optimizer.step()
        ours = trainer.step({"x": x.astype(np.float32), "target": target})
        assert ours == pytest.approx(loss.item(), rel=1e-3)
    for name, p in net.named_parameters():
        theirs = p.detach().numpy()
        assert np.abs(trainer.parameters[name] - theirs).max() <= 1e-3 * np.abs(theirs).max(), name
    trainer.export(tmp_path / "tuned.onnx")
    found = [i for i in onnx.load(tmp_path / "tuned.onnx").graph.initializer if len(i.dims) > 1]
    assert [i.data_type for i in found] == [onnx.TensorProto.INT8] * 2
    referee()
    feeds = {"x": lesson.draw(rng, 8)[0][0].astype(np.float32)}
    ours, theirs = mz.load(tmp_path / "tuned.onnx").run(feeds)["y"], ort_run(tmp_path / "tuned.onnx", feeds)["y"]
    assert np.abs(ours - theirs).max() <= 0.01 * np.abs(theirs).max()


def test_a_file_that_onnx_runtime_quantised_trains(tmp_path: Path) -> None:
    tools = peer("onnxruntime.quantization")

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.left = [FIRST]

        def get_next(self) -> Any:
            return {"image": self.left.pop()} if self.left else None

    made = tmp_path / "whole.onnx"
    tools.quantize_static(digits_model(), made, Reader(), weight_type=tools.QuantType.QInt8, per_channel=True)
    before = right(mz.onnx.load(made))
    trainer = mz.Trainer(made, optimizer=mz.optimizer.Adam(rate=0.002), learn_scales=True, threads=1)
    assert trainer.evaluate(OTHERS).accuracy == before
    assert len([n for n in trainer.trained if n.endswith("scale")]) == 9
    found = trainer.fit(digits(), epochs=2)
    assert found[1].loss < found[0].loss
    trainer.export(tmp_path / "tuned.onnx")
    kinds = [sorted(n.op_type for n in onnx.load(f).graph.node) for f in (made, tmp_path / "tuned.onnx")]
    assert kinds[0] == kinds[1]
    image = {"image": OTHERS[0]["image"]}
    ours, theirs = mz.load(tmp_path / "tuned.onnx").run(image)["logits"], ort_run(tmp_path / "tuned.onnx", image)
    assert np.abs(ours - theirs["logits"]).max() <= 1.01 * float(trainer.parameters["logits_scale"])


def test_the_command_trains_a_quantised_file_and_compares_by_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of two classes want a new head, which is a float one."""
    monkeypatch.chdir(tmp_path)
    mz.onnx.save(quantize(digits_model(), [FIRST]), "whole.onnx")
    held = held_out()
    np.savez("digits.npz", image=held.inputs, target=held.labels)
    np.savez("kinds.npz", image=held.inputs, target=np.array(["even", "odd"])[held.labels % 2])
    for data in ("digits.npz", "kinds.npz"):
        how = ["--epochs", "2", "--rate", "0.002", "--json", "told.json", "--quiet"]
        cli.main(["train", "whole.onnx", data, "-o", "out.onnx", *how], standalone_mode=False)
        told = json.loads(Path("told.json").read_text())
        assert ("head" in told) is (data == "kinds.npz")
        assert told["epochs"][-1]["loss"] < told["epochs"][0]["loss"]
        assert "differs by" in told["loaded_again"]
        assert {a.dtype for a in mz.onnx.load("out.onnx").initializers.values()} >= {np.dtype(np.int8)}


def test_a_pair_with_a_clip_between_and_scales_of_its_own() -> None:
    """PyTorch writes a range of 7 bits as a Clip; some exporters write each scale twice."""
    g = GraphBuilder()
    x = g.input("x", f32("n", 3))
    scales = [g.const(np.float32(0.125)) for _ in range(2)]
    zeros = [g.const(np.uint8(3)) for _ in range(2)]
    steps = g.Clip(g.QuantizeLinear(x, scales[0], zeros[0]), None, g.const(np.uint8(127)))
    w = g.const(np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32))
    graph = g.graph([g.MatMul(g.DequantizeLinear(steps, scales[1], zeros[1]), w)])
    feeds = {"x": np.linspace(-20, 30, 12, dtype=np.float32).reshape(4, 3)}
    through = straight_through(graph)
    assert [(n.op, n.attrs.get("high")) for n in through.nodes] == [("FakeQuantize", 127), ("MatMul", None)]
    np.testing.assert_array_equal(*(next(iter(mz.Session(p).run(feeds).values())) for p in (graph, through)))
    trainer = mz.Trainer(graph, loss="mse", learn_scales=True)
    assert set(trainer.trained) == {w, scales[0]}
    trainer.step({**feeds, "target": np.ones((4, 2), np.float32)})
    (q, clip, dq, _) = trainer.graph().nodes
    assert (q.inputs[1], dq.inputs[1], clip.op) == (scales[0], scales[0], "Clip")


def test_heads_and_probabilities_behind_steps() -> None:
    """A new head reads what the last quantised layer reads; a Softmax whose result is rounded is left out of a loss."""
    whole = quantize(digits_model(), [FIRST])
    graph = mz.with_head(whole, 2)
    assert graph.types["logits"].dims[1] == 2
    assert sum(n.op == "Gemm" for n in graph.nodes) == 0
    g = GraphBuilder()
    x = g.input("x", f32("n", 3))
    rows = g.Softmax(g.MatMul(x, g.const(np.eye(3, dtype=np.float32))), axis=1)
    step, zero = g.const(np.float32(1 / 255)), g.const(np.uint8(0))
    plain = g.graph([g.DequantizeLinear(g.QuantizeLinear(rows, step, zero), step, zero)])
    feeds = {"x": np.array([[3, 0, 0], [0, 1, 0]], np.float32), "target": np.array([0, 2])}
    want = [float(np.log(np.exp(v).sum()) - v[t]) for v, t in zip(feeds["x"], feeds["target"], strict=True)]
    assert mz.Trainer(plain).step(feeds) == pytest.approx(sum(want) / 2, rel=1e-5)


def test_a_scale_for_each_block_is_no_pair() -> None:
    g = GraphBuilder()
    x, scale = g.input("x", f32(4, 6)), g.const(np.ones((4, 3), np.float32))
    made = g.DequantizeLinear(g.QuantizeLinear(x, scale, axis=1, block_size=2), scale, axis=1, block_size=2)
    graph = g.graph([made])
    assert straight_through(graph).nodes == graph.nodes


def test_bfloat16_trains_between_the_steps() -> None:
    """Products are narrow, what is rounded to steps is not."""
    graph = quantize(digits_model(), [FIRST], train=True)
    trainer = mz.Trainer(graph, optimizer=mz.optimizer.Adam(rate=0.002), amp="bf16", learn_scales=True, threads=1)
    typed = trainer.graph_of_step.types
    fake = [n for n in trainer.graph_of_step.nodes if n.op == "FakeQuantize"]
    assert len(fake) >= 12
    assert all(typed[i].dtype is DType.FLOAT for n in fake for i in n.inputs)
    assert any(typed[n.outputs[0]].dtype is DType.BFLOAT16 for n in trainer.graph_of_step.nodes if n.op == "Conv")
    found = trainer.fit(digits(), epochs=2)
    assert found[-1].loss < found[0].loss


def test_the_step_itself_leaves_as_standard_operators(tmp_path: Path) -> None:
    graph = quantize(digits_model(), [FIRST], train=True)
    trainer = mz.Trainer(graph, optimizer=mz.optimizer.SGD(rate=0.01), learn_scales=True, threads=1)
    trainer.export_step(tmp_path / "step.onnx")
    assert {n.domain for n in onnx.load(tmp_path / "step.onnx").graph.node} == {""}
    batch = {**digits()[0], "target": digits()[0]["target"].astype(np.int64)}
    loss = trainer.step(batch)
    referee()
    theirs = ort_run(tmp_path / "step.onnx", batch)
    assert theirs[trainer.loss] == pytest.approx(loss, rel=1e-4)


def test_scales_have_a_rate_of_their_own() -> None:
    graph = quantize(digits_model(), [FIRST], train=True)
    groups = (mz.optimizer.Group(("0.*",), scale=0.5),)
    trainer = mz.Trainer(graph, optimizer=mz.optimizer.AdamW(weight_decay=0.1, groups=groups), learn_scales=True)
    optimizer = trainer.plan.optimizer
    assert optimizer.group("0.weight:scale").scale == 0.5 / 255
    assert optimizer.group("3.weight:scale").scale == 1 / 255
    assert (optimizer.decay("3.weight:scale"), optimizer.decay("3.weight")) == (0.0, 0.1)
    assert optimizer.group("3.weight").scale == 1.0
    fixed = mz.Trainer(graph, optimizer=mz.optimizer.AdamW(groups=groups))
    assert fixed.plan.optimizer.groups == groups
    assert fixed.frozen["3.weight:scale"] == SCALE


# Thirty steps beside PyTorch


def two_layers(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    first, last = rng.standard_normal((6, 8)), rng.standard_normal((8, 3))
    return {
        "w1": first, "b1": 0.1 * rng.standard_normal(8), "w2": last,
        "w1:scale": np.abs(first).max(0) / 7, "w2:scale": np.array(np.abs(last).max() / 7),
        "x:scale": np.array(0.05), "h:scale": np.array(0.1),
    }  # fmt: skip


def as_graph(arrays: dict[str, Array]) -> Graph:
    """x in signed 8 bits, weights in 4 bits by column and for all, what lies between in unsigned 8 bits; float64."""
    g = TypedBuilder()
    for name, array in arrays.items():
        g.hold(name, array)

    def stepped(value: str, name: str, zero: Array, **attrs: int) -> str:
        point = g.const(zero)
        steps = g.QuantizeLinear(value, f"{name}:scale", point, **attrs)
        made: str = g.DequantizeLinear(steps, f"{name}:scale", point, **attrs)
        return made

    x = stepped(g.input("x", Tensor(DType.DOUBLE, ("n", 6))), "x", np.array(3, np.int8))
    w1 = stepped("w1", "w1", np.zeros(8, DType.INT4.numpy), axis=1)
    h = stepped(g.Relu(g.Add(g.MatMul(x, w1), "b1")), "h", np.array(0, np.uint8))
    return g.graph([g.MatMul(h, stepped("w2", "w2", np.zeros((), DType.INT4.numpy)))])


def pytorch(arrays: dict[str, Array], feeds: list[dict[str, Array]], make: Callable[..., Any]) -> dict[str, Array]:
    """The same network with LSQ written out, in float64: the gradient of each scale times 1 / sqrt(N Q)."""
    torch = peer("torch")
    params = {n: torch.tensor(a, requires_grad=True) for n, a in arrays.items()}

    class Stepped(torch.autograd.Function):  # type: ignore[misc,name-defined]  # untyped
        @staticmethod
        def forward(ctx: Any, x: Any, scale: Any, zero: int, low: int, high: int) -> Any:
            ctx.save_for_backward(x, scale)
            ctx.range = low - zero, high - zero
            return torch.clamp(torch.round(x / scale), *ctx.range) * scale

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            (x, scale), (low, high) = ctx.saved_tensors, ctx.range
            v = x / scale
            inside = (v.round() >= low) & (v.round() <= high)
            each = dy * torch.where(inside, v.round() - v, torch.clamp(v, low, high))
            total = each.sum() if not scale.ndim else each.sum(0)
            return dy * inside, total / ((x.numel() / scale.numel()) * (high - low)) ** 0.5, None, None, None

    optimizer = make(torch.optim, list(params.values()))
    for batch in feeds:
        optimizer.zero_grad()
        x = Stepped.apply(torch.tensor(batch["x"]), params["x:scale"], 3, -128, 127)
        w1 = Stepped.apply(params["w1"], params["w1:scale"], 0, -8, 7)
        h = Stepped.apply(torch.relu(x @ w1 + params["b1"]), params["h:scale"], 0, 0, 255)
        y = h @ Stepped.apply(params["w2"], params["w2:scale"], 0, -8, 7)
        ((y - torch.tensor(batch["target"])) ** 2).mean().backward()
        optimizer.step()
    return {n: p.detach().numpy() for n, p in params.items()}


def test_thirty_steps_of_learned_scales_end_where_those_of_pytorch_do() -> None:
    arrays, rng = two_layers(), np.random.default_rng(1)
    feeds = [{"x": 2 * rng.standard_normal((16, 6)), "target": rng.standard_normal((16, 3))} for _ in range(30)]
    theirs = pytorch(arrays, feeds, lambda optim, params: optim.SGD(params, lr=0.002, momentum=0.9))
    optimizer = mz.optimizer.SGD(rate=0.002, momentum=0.9)
    trainer = mz.Trainer(as_graph(arrays), loss="mse", optimizer=optimizer, learn_scales=True)
    assert set(trainer.trained) == set(arrays)
    for batch in feeds:
        trainer.step(batch)
    for name, want in theirs.items():
        assert not np.array_equal(want, arrays[name])
        assert np.abs(trainer.parameters[name] - want).max() <= 1e-9 * np.abs(want).max(), name


# Blocks


def test_a_block_with_normalisation_trains_on_in_few_bits(tmp_path: Path) -> None:
    nn, loss = mz.gluon.nn, mz.gluon.loss.SoftmaxCrossEntropyLoss()
    mz.random.seed(0)
    net = nn.HybridSequential(
        nn.Conv2D(6, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2), nn.Flatten(), nn.Dense(10)
    )
    net.initialize("xavier").hybridize()
    held = held_out()
    batches = [(mz.nd.asarray(f["image"]), mz.nd.asarray(f["target"])) for f in digits()]
    others = mz.nd.asarray(held.inputs[256:])

    def learn(net: Any, epochs: int, **settings: Any) -> float:
        mz.gluon.fit(net, loss, mz.gluon.Trainer(net.collect_params(), "adam", settings), batches, epochs=epochs)
        return float((net(others).asnumpy().argmax(1) == held.labels[256:]).mean())

    assert learn(net, 6, learning_rate=0.01) > 0.85
    few = mz.gluon.quantize(net, [x for x, _ in batches[:2]], weights="int4", learn_scales=True)
    scales = [p for n, p in few.collect_params().items() if n.endswith(":scale")]
    begun = [p.data().asnumpy().copy() for p in scales]
    assert len(scales) >= 4
    assert {p.lr_mult for p in scales} == {1 / 15, 1 / 255}
    assert learn(few, 3, learning_rate=0.003) > 0.85
    assert all(not np.array_equal(p.data().asnumpy(), b) for p, b in zip(scales, begun, strict=True))
    few.export(tmp_path / "few.onnx")
    found = onnx.load(tmp_path / "few.onnx").graph.initializer
    assert [i.data_type for i in found].count(onnx.TensorProto.INT4) == 4  # two weights and their zero points
    learned = few.graph()
    assert learned.outputs == ("output0",)
    last = [n for n in learned.nodes if n.op == "DequantizeLinear"][-1]
    step = 1.01 * float(learned.initializers[last.inputs[1]])
    assert np.abs(mz.load(tmp_path / "few.onnx")(held.inputs[256:]) - few(others).asnumpy()).max() <= step


def test_a_quantised_block_within_another(tmp_path: Path) -> None:
    """It learns there, hybridized, and leaves with it as integers."""
    nn = mz.gluon.nn
    mz.random.seed(0)
    x = mz.nd.asarray(np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32))
    body = nn.HybridSequential(nn.Dense(8, "relu"), nn.Dense(8, "relu")).initialize("xavier")
    few = mz.gluon.quantize(body, [x], learn_scales=True)
    whole = nn.HybridSequential(few, nn.Dense(1)).initialize("xavier").hybridize()
    params = whole.collect_params()
    trainer, loss = mz.gluon.Trainer(params, "adam", {"learning_rate": 0.01}), mz.gluon.loss.L2Loss()
    whole(x)
    before = {n: p.data().asnumpy().copy() for n, p in params.items()}
    losses = []
    for _ in range(20):
        with mz.autograd.record():
            found = loss(whole(x), x[:, :1])
        found.backward()
        trainer.step(16)
        losses.append(float(found.mean().asnumpy()))
    assert losses[-1] < 0.5 * losses[0]
    assert all(not np.array_equal(p.data().asnumpy(), before[n]) for n, p in params.items())
    whole.export(tmp_path / "whole.onnx", x)
    proto = onnx.load(tmp_path / "whole.onnx")
    assert {n.domain for n in proto.graph.node} == {""}
    kinds = [i.data_type for i in proto.graph.initializer if len(i.dims) == 2]
    assert sorted(kinds) == [onnx.TensorProto.FLOAT, *[onnx.TensorProto.INT8] * 2]
    want, ours = whole(x).asnumpy(), mz.load(tmp_path / "whole.onnx")(x.asnumpy())
    assert np.abs(ours - want).max() <= 0.02 * np.abs(want).max()
