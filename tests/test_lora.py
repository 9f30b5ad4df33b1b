"""Adapters over float and packed weights: what learns, how it learns beside PyTorch, resumed, exported, merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mezzo as mz
from mezzo.exporters import save_onnx, to_onnx
from mezzo.importers import load_onnx
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import DType, Tensor
from mezzo.ops.contrib.weights import dense_weights
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from .decoders import DECODERS, decoder
from .models import ort_run
from .peers import peer
from .test_decoders import feeds_of

Array = np.ndarray[Any, Any]
DIGITS = held_out()
RNG = np.random.default_rng(3)
FORM: dict[str, Any] = {"bits": 4, "block_size": 32}
# name, inputs, outputs, and zero points of the packed layers
LAYERS = (("first", 48, 40, True), ("second", 40, 40, False), ("last", 40, 6, True))


def quantised(N: int, K: int, zeros: bool) -> list[Array]:
    rng, blocks = np.random.default_rng(N * K), -(-K // 32)
    data = rng.integers(0, 256, (N, blocks, 16), dtype=np.uint8)
    scales = (rng.random((N, blocks)) * 0.04 + 0.01).astype(np.float32)
    return [data, scales, *([rng.integers(100, 156, (N, -(-blocks // 2)), dtype=np.uint8)] if zeros else [])]


def network(kind: DType = DType.FLOAT) -> Graph:
    """Three layers of 4 bits with biases, of which the second is read twice."""
    g = GraphBuilder()
    x = g.input("x", Tensor(kind, ("n", 48)))
    for name, K, N, zeros in LAYERS:
        parts = quantised(N, K, zeros)
        names = [f"{name}.weight", f"{name}.scales", f"{name}.zeros"][: len(parts)]
        for n, a in zip(names, parts, strict=True):
            g._constants[n] = a
        for _ in range(2 if name == "second" else 1):
            x = g.op("MatMulNBits", x, *names, domain="com.microsoft", K=K, N=N, **FORM)
            x = x if name == "last" else g.Tanh(x)
    return g.graph([x])


def batches(kind: DType, count: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(5)
    return [
        {"x": rng.standard_normal((8, 48)).astype(kind.numpy), "target": rng.integers(0, 6, 8)} for _ in range(count)
    ]


def test_what_learns_is_the_adapter() -> None:
    graph = mz.lora(digits_model(), rank=3, targets="13.*", seed=1)
    image = DIGITS.inputs[:16]
    np.testing.assert_array_equal(mz.Session(graph)(image), mz.load(digits_model())(image))
    trainer = mz.Trainer(graph, optimizer=mz.optimizer.Adam(rate=0.02))
    assert trainer.trained == ["13.weight.lora_A", "13.weight.lora_B"]
    feeds = {"image": DIGITS.inputs[:64], "target": 9 - DIGITS.labels[:64]}
    losses = [trainer.step(feeds) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    tuned = trainer.graph()
    for name, array in load_onnx(digits_model()).initializers.items():
        np.testing.assert_array_equal(tuned.initializers[name], array)
    merged = mz.merge_lora(tuned)
    assert [n.op for n in merged.nodes] == [n.op for n in load_onnx(digits_model()).nodes]
    far = np.abs(mz.Session(merged)(image) - mz.Session(tuned)(image)).max()
    assert far <= 1e-5 * np.abs(mz.Session(tuned)(image)).max()
    more = mz.Trainer(graph, train=["13.bias", "*lora_B"])
    assert more.trained == ["13.bias", "13.weight.lora_B"]


@pytest.mark.parametrize("alpha", [None, 16.0])
def test_trajectories_are_those_of_pytorch_with_the_dequantised_weights(alpha: float | None) -> None:
    """In float64, 20 steps of Adam: losses and adapters within 1e-6."""
    torch = peer("torch")
    graph = mz.lora(network(DType.DOUBLE), rank=4, alpha=alpha, seed=7)
    trainer = mz.Trainer(graph, optimizer=mz.optimizer.Adam(rate=0.01))
    assert sorted(trainer.trained) == sorted(f"{n}.weight.lora_{end}" for n, *_ in LAYERS for end in "AB")
    held = {n: torch.tensor(a.copy(), requires_grad=True) for n, a in trainer.parameters.items()}
    dense = {}
    for name, K, N, zeros in LAYERS:
        data, scales, *rest = quantised(N, K, zeros)
        whole = dense_weights(data, scales, rest[0] if rest else None, None, K=K, N=N, **FORM)
        dense[name] = torch.tensor(whole.astype(np.float64))
    optimizer = torch.optim.Adam(held.values(), lr=0.01)
    factor = 1.0 if alpha is None else alpha / 4

    def layer(x: Any, name: str) -> Any:
        return x @ dense[name].T + x @ held[f"{name}.weight.lora_A"] @ held[f"{name}.weight.lora_B"] * factor

    for feeds in batches(DType.DOUBLE, 20):
        x = torch.tensor(feeds["x"])
        for name in ("first", "second", "second"):
            x = torch.tanh(layer(x, name))
        loss = torch.nn.functional.cross_entropy(layer(x, "last"), torch.tensor(feeds["target"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert abs(trainer.step(feeds) - loss.item()) <= 1e-6 * abs(loss.item())
    for name, theirs in held.items():
        want = theirs.detach().numpy()
        assert np.abs(trainer.parameters[name] - want).max() <= 1e-6 * np.abs(want).max(), name


def test_resumed_to_the_same_bits(tmp_path: Path) -> None:
    def trainer() -> Any:
        return mz.Trainer(mz.lora(network(), rank=2, seed=2), optimizer=mz.optimizer.AdamW(rate=0.01))

    whole, feeds = trainer(), batches(DType.FLOAT, 8)
    for batch in feeds[:4]:
        whole.step(batch)
    whole.save(tmp_path / "kept")
    after = [whole.step(batch) for batch in feeds[4:]]
    again = trainer()
    again.resume(tmp_path / "kept")
    assert [again.step(batch) for batch in feeds[4:]] == after
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array)


def test_a_file_beside_and_merged(tmp_path: Path) -> None:
    """Weights stay packed in the step and in the file; ONNX Runtime reads what is written."""
    source = tmp_path / "base.onnx"
    save_onnx(network(), source)
    trainer = mz.Trainer(mz.lora(source, rank=4, targets=["first.*", "last.*"]))
    for batch in batches(DType.FLOAT, 6):
        trainer.step(batch)
    kernels = [s.choice.kernel for s in trainer._update.executable.program.steps]
    packed = [k for k in kernels if k.endswith("matmul_n_bits")]
    assert len(packed) == 4 + 3  # forward, and back to the first adapter
    feeds = {"x": batches(DType.FLOAT, 1)[0]["x"]}
    (want,) = mz.Session(trainer.graph()).run(feeds).values()
    beside, standard, merged = (tmp_path / f"{n}.onnx" for n in ("beside", "standard", "merged"))
    trainer.export(beside)
    save_onnx(trainer.graph(), standard, standard=True)
    save_onnx(mz.merge_lora(trainer.graph(), unpack=True), merged)
    ops = {p: {n.op_type for n in onnx.load(p).graph.node} for p in (beside, standard, merged)}
    assert "MatMulNBits" in ops[beside]
    assert "DequantizeLinear" in ops[standard]
    assert [n.op_type for n in onnx.load(merged).graph.node].count("MatMulNBits") == 2
    for path in ops:
        onnx.checker.check_model(path, full_check=path != beside)
        np.testing.assert_allclose(mz.load(path).run(feeds)[trainer.output], want, atol=1e-5 * np.abs(want).max())
    assert mz.Trainer(mz.merge_lora(beside)).trained == trainer.trained  # packed weights keep theirs
    again = mz.Trainer(beside)
    assert again.trained == trainer.trained


@pytest.mark.parametrize("what", ["beside", "standard", "merged"])
def test_onnx_runtime_reads_what_is_written(what: str) -> None:
    trainer = mz.Trainer(mz.lora(network(), rank=4), optimizer=mz.optimizer.Adam(rate=0.02))
    for batch in batches(DType.FLOAT, 5):
        trainer.step(batch)
    graph = mz.merge_lora(trainer.graph(), unpack=True) if what == "merged" else trainer.graph()
    feeds = {"x": batches(DType.FLOAT, 1)[0]["x"]}
    proto = to_onnx(graph, standard=what == "standard")
    (ours,), (theirs,) = mz.Session(graph).run(feeds).values(), ort_run(proto, feeds).values()
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


def test_models_of_16_bits_have_adapters_of_32() -> None:
    g = GraphBuilder()
    x = g.input("x", Tensor(DType.FLOAT16, ("n", 5)))
    w = (RNG.standard_normal((5, 4)) * 0.3).astype(np.float16)
    graph = mz.lora(g.graph([g.Gemm(x, g.const(w.T.copy()), transB=1, alpha=2.0)]), rank=2)
    trainer = mz.Trainer(graph, loss="mse", optimizer=mz.optimizer.Adam(rate=0.05))
    feeds = {"x": RNG.standard_normal((6, 5)).astype(np.float16), "target": np.ones((6, 4), np.float32)}
    losses = [trainer.step(feeds) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert {a.dtype for a in trainer.parameters.values()} == {np.dtype(np.float32)}
    tuned, merged = trainer.graph(), mz.merge_lora(trainer.graph())
    assert [n.op for n in merged.nodes] == ["Gemm"]
    ours, theirs = (mz.Session(g)(feeds["x"]).astype(np.float32) for g in (merged, tuned))
    np.testing.assert_allclose(ours, theirs, atol=4e-3 * np.abs(theirs).max())


def test_a_decoder_of_the_genai_builder_learns() -> None:
    """Attention over an empty cache, and the next token of each place: what is served is what is trained."""
    proto = decoder(next(d for d in DECODERS if d.name == "llama-4-bit"))
    graph = mz.lora(load_onnx(proto), rank=4, targets=["*q_proj*", "*v_proj*", "*mlp.down_proj*"])

    def next_token(logits: Any, target: Any) -> Any:
        return -mz.nd.mean(mz.nd.sum(mz.nd.LogSoftmax(logits, axis=-1) * target, axis=-1))

    loss = {"logits": next_token}
    trainer = mz.Trainer(graph, loss=loss, optimizer=mz.optimizer.Adam(rate=0.01))
    assert len(trainer.trained) == 2 * 3 * 2
    ids = np.random.default_rng(0).integers(0, 60, (3, 9))
    feeds = {**feeds_of(proto, ids[:, :-1], {}), "logits_target": np.eye(60, dtype=np.float32)[ids[:, 1:]]}
    losses = [trainer.step(feeds) for _ in range(25)]
    assert losses[-1] < 0.5 * losses[0]
    served = mz.Session(trainer.graph())
    del feeds["logits_target"]
    ours, theirs = served.run(feeds)["logits"], ort_run(to_onnx(trainer.graph()), feeds)["logits"]
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


def tuned(graph: Graph, image: Array) -> Graph:
    """The graph, whose adapters have learned a little, and whose merged form says the same."""
    trainer = mz.Trainer(graph, loss="mse", optimizer=mz.optimizer.Adam(rate=0.05))
    want = mz.Session(graph)(image)
    for _ in range(3):
        trainer.step({"x": image, "target": np.ones(want.shape, np.float32)})
    found: Graph = trainer.graph()
    ours, theirs = (mz.Session(g)(image) for g in (mz.merge_lora(found), found))
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())
    return found


@pytest.mark.parametrize("shape", [(5, 5), (5, 3)])
@pytest.mark.parametrize("how", ["transB", "Transpose", "alpha"])
def test_a_matrix_read_both_ways_is_merged_as_it_is_read(how: str, shape: tuple[int, int]) -> None:
    """Tied weights have an adapter for each way; the square ones had one, merged as the first product reads it."""
    g = GraphBuilder()
    w, x = "layer[0].weight", g.input("x", Tensor(DType.FLOAT, ("n", 5)))
    g._constants[w] = (RNG.standard_normal(shape) * 0.4).astype(np.float32)
    y = g.Tanh(g.MatMul(x, w))
    if how == "alpha":
        y = g.Gemm(g.Gemm(y, w, transB=1), w, alpha=-3.0)
    else:
        y = g.Gemm(y, w, transB=1) if how == "transB" else g.MatMul(y, g.Transpose(w))
    graph = g.graph([y])
    assert mz.Trainer(graph, loss="mse", train=[w]).trained == [w]
    found = tuned(mz.lora(graph, rank=2, targets=[w]), RNG.standard_normal((6, 5)).astype(np.float32))
    assert not any("lora_" in name for name in mz.merge_lora(found).initializers)
    assert sum("lora_" in name for name in found.initializers) == 4


def test_one_matrix_has_adapters_of_two_calls() -> None:
    g = GraphBuilder()
    x = g.input("x", Tensor(DType.FLOAT, ("n", 5)))
    w = g.const((RNG.standard_normal((5, 5)) * 0.4).astype(np.float32))
    graph, image = g.graph([g.MatMul(g.Tanh(g.MatMul(x, w)), w)]), RNG.standard_normal((6, 5)).astype(np.float32)
    first, _, second = (n.name for n in graph.nodes)
    once = mz.lora(graph, rank=1, targets=first)
    tuned(mz.lora(tuned(once, image), rank=2, targets=second), image)
    with pytest.raises(mz.InputError, match="has an adapter"):  # it was given one that no merge knew
        mz.lora(once, rank=1)


def test_a_matrix_in_narrow_floats_is_merged_and_a_product_times_zero_is_not() -> None:
    for alpha, ops in ((2.0, ["Gemm"]), (0.0, ["Gemm", "MatMul", "MatMul", "Mul", "Add"])):
        g = GraphBuilder()
        x = g.input("x", Tensor(DType.FLOAT, ("n", 5)))
        w = g.Cast(g.const(RNG.standard_normal((5, 3)).astype(np.float16)), to=DType.FLOAT.onnx)
        graph = mz.lora(g.graph([g.Gemm(x, w, alpha=alpha)]), rank=2)
        merged = mz.merge_lora(tuned(graph, RNG.standard_normal((6, 5)).astype(np.float32)))
        assert [n.op for n in merged.nodes if n.op != "Cast"] == ops


def test_what_does_not_fit() -> None:
    for targets in ([], ["[0]"]):
        with pytest.raises(mz.InputError, match="no product fits"):
            mz.lora(network(), targets=targets)
    wrong: Any = ((1.5, None), (True, None), (2, float("nan")))
    for rank, alpha in wrong:
        with pytest.raises(mz.InputError, match="adapters"):
            mz.lora(network(), rank, alpha=alpha)
    with pytest.raises(mz.InputError, match="no product fits 'nothing'"):
        mz.lora(network(), targets=["nothing"])
    with pytest.raises(mz.InputError, match="rank 0"):
        mz.lora(network(), 0)
    with pytest.raises(mz.InputError, match="there is no adapter"):
        mz.merge_lora(network())
