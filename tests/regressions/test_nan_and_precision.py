"""NaN that became a number, what bfloat16 could not hold, and a reading of the standard: once wrong, or in doubt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.types import f32
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.optimizer import SGD

from ..processor import native_bfloat16
from .cases import numbers

NAN = np.float32(np.nan)


def single(op: str, dims: tuple[int, ...], *constants: Any, **attrs: Any) -> Graph:
    g = GraphBuilder()
    return g.graph([g.op(op, g.input("x", f32(*dims)), *(c if c is None else g.const(c) for c in constants), **attrs)])


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize(
    ("op", "constants", "attrs"),
    [
        ("Relu", (), {}),
        ("Clip", (np.float32(0), np.float32(6)), {}),
        ("Exp", (), {}),
        ("HardSigmoid", (), {}),
        ("Max", (np.float32(1),), {}),
        ("MaxPool", (), {"kernel_shape": [2, 2]}),
        ("GlobalMaxPool", (), {}),
    ],
)
def test_nan_became_a_number(op: str, constants: Any, attrs: Any, onednn: bool) -> None:
    x = np.ones((2, 16, 20, 20), np.float32)
    x[1, 3, 17, 5] = NAN
    y = Session(single(op, x.shape, *constants, **attrs), onednn=onednn)(x)
    assert np.isnan(y[1, 3]).any()
    assert np.isfinite(y[0]).all()
    assert np.isfinite(y[1, :3]).all()


@pytest.mark.parametrize("before", ["", "MatMul"])
def test_a_leaky_relu_without_slope_made_numbers_of_nan(before: str) -> None:
    """oneDNN takes the larger of the number and 0 then; 0 times -inf is no number either."""
    g = GraphBuilder()
    x = g.input("x", f32(3, 16))
    graph = g.graph([g.LeakyRelu(g.MatMul(x, g.const(np.eye(16, dtype=np.float32))) if before else x, alpha=0.0)])
    fed = np.ones((3, 16), np.float32)
    fed[0, 0], fed[1] = NAN, -2
    if not before:
        fed[2, 1] = -np.inf
    for fuse in (False, True):
        found, want = Session(graph, fuse=fuse)(fed), Session(graph, onednn=False)(fed)
        np.testing.assert_array_equal(found, want)
        assert np.isnan(found).any()


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(
    ("after", "number"), [("Mul", -np.inf), ("Mul", 3e38), ("Div", 1e-38), ("BatchNormalization", 0)]
)
def test_sums_of_weights_times_a_large_number_became_nan(op: str, after: str, number: float) -> None:
    """What follows a convolution is multiplied into its weights, which float32 may not hold then."""
    g = GraphBuilder()
    y = g.op(op, g.input("x", f32(1, 4, 6, 6)), g.const(numbers(4, 4, 3, 3) * np.float32(10)))
    zeros, ones = g.const(np.zeros(4, np.float32)), g.const(np.ones(4, np.float32))
    if after == "BatchNormalization":
        y = g.op(after, y, ones, zeros, ones, zeros, epsilon=number)
    else:
        y = g.op(after, y, g.const(np.float32(number)))
    x, graph = numbers(1, 4, 6, 6), g.graph([y])
    found, want = Session(graph)(x), Session(graph, onednn=False)(x)
    np.testing.assert_allclose(found, want, rtol=1e-4)
    assert np.isinf(found).any()


def rectified(steps: int, directions: int, **attrs: Any) -> Graph:
    """A recurrence of 16 units whose function is a rectifier."""
    g = GraphBuilder()
    names = ["LeakyRelu" if "activation_alpha" in attrs else "Relu"] * directions
    way = "bidirectional" if directions == 2 else "forward"
    weights = (g.const(numbers(directions, 16, n) * np.float32(0.2)) for n in (8, 16))
    y = g.op("RNN", g.input("x", f32(steps, 3, 8)), *weights, hidden_size=16, direction=way, activations=names, **attrs)
    return g.graph([g.Reshape(y, g.const([steps, 3, 16 * directions]))])


@pytest.mark.parametrize("value", [NAN, np.inf, -np.inf])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("directions", "attrs"), [(1, {}), (2, {}), (1, {"activation_alpha": [0.0]})])
def test_a_recurrence_with_a_rectifier_made_numbers_of_nan(
    directions: int, attrs: dict[str, Any], threads: int, value: float
) -> None:
    """A feed without NaN needs no second run."""
    graph = rectified(4, directions, **attrs)
    session, x = Session(graph, threads=threads), np.abs(numbers(4, 3, 8))
    assert np.isfinite(session(x)).all()
    assert session.stats().alarms == 0
    x[1, 1, 2] = value
    np.testing.assert_allclose(session(x), Session(graph, onednn=False)(x), rtol=1e-4, atol=1e-5)
    assert not np.isfinite(session(x)).all()


@pytest.mark.parametrize("amp", [None, "bf16"])
def test_a_recurrence_learned_from_nan_as_if_it_were_0(amp: str | None) -> None:
    trainer = mz.Trainer(rectified(4, 1), loss="mse", optimizer=SGD(rate=0.01), amp=amp)
    x, target = np.abs(numbers(4, 3, 8)), np.zeros((4, 3, 16), np.float32)
    assert np.isfinite(trainer.step({"x": x, "target": target}))
    x[1, 1, 2] = NAN
    assert np.isnan(trainer.step({"x": x, "target": target}))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", ["Relu", "Exp"])
def test_a_nan_that_a_worker_met_was_not_seen(op: str, threads: int) -> None:
    """Elementwise primitives are split among OpenMP's threads, also in sessions of one."""
    for place in (0, -1):
        x = np.ones((2, 16, 20, 20), np.float32)
        x.reshape(-1)[place] = NAN
        assert np.isnan(Session(single(op, x.shape), threads=threads)(x)).sum() == 1


def test_a_window_of_minus_infinity_became_the_smallest_number() -> None:
    x = np.full((1, 16, 8, 8), -np.inf, np.float32)
    assert (Session(single("MaxPool", x.shape, kernel_shape=[2, 2]))(x) == -np.inf).all()


@pytest.mark.parametrize("extreme", [3e38, -3e38, np.finfo(np.float32).min, -np.inf, np.inf])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.parametrize("op", ["MaxPool", "GlobalMaxPool"])
def test_a_maximum_beyond_half_of_the_largest_number_became_infinity(op: str, channels: int, extreme: float) -> None:
    """The maximum was doubled and halved, so that the smallest number became -inf. Behind a convolution an image lies
    in blocks, and 20 channels leave the last one half empty."""
    g = GraphBuilder()
    image = g.Conv(g.input("x", f32(2, 1, 8, 8)), g.const(np.ones((channels, 1, 1, 1), np.float32)))
    attrs: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]} if op == "MaxPool" else {}
    alone, before_relu, before_neg = (g.op(op, image, **attrs) for _ in range(3))
    results = {alone: extreme, g.Relu(before_relu): max(extreme, 0), g.Neg(before_neg): -extreme}
    fed = np.zeros((2, 1, 8, 8), np.float32)
    fed[1] = extreme
    for names in ([*results], *([name] for name in results)):
        session = Session(g.graph(names), threads=2)
        for _ in range(2):
            found = session.run({"x": fed})
            for name in names:
                assert (found[name][0] == 0).all()
                assert (found[name][1] == np.float32(results[name])).all()


def test_infinity_became_the_largest_number() -> None:
    """By a Clip with one bound."""
    x = np.array([[1, np.inf, -np.inf, -3] * 16], np.float32)
    assert np.array_equal(Session(single("Clip", x.shape, np.float32(0)))(x)[0, :4], [1, np.inf, 0, 0])


@pytest.mark.parametrize("onednn", [True, False])
def test_align_corners_counts_the_length_before_it_is_rounded_down(onednn: bool) -> None:
    """docs/standard.md: in doubt, not wrong; another answer than ONNX Runtime's, which lets the corners meet."""
    graph = single("Resize", (1, 1, 2, 4), None, np.array([1, 1, 0.6, 0.6], np.float32), mode="linear",
                   coordinate_transformation_mode="align_corners")  # fmt: skip
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    np.testing.assert_allclose(Session(graph, onednn=onednn)(x), [[[[1, 1 + 3 / 1.4]]]], rtol=1e-6)
    sized = single("Resize", (1, 1, 2, 4), None, None, np.array([1, 1, 1, 2]), mode="linear",
                   coordinate_transformation_mode="align_corners")  # fmt: skip
    np.testing.assert_allclose(Session(sized, onednn=onednn)(x), [[[[1, 4]]]], rtol=1e-6)


def narrow(build: Any, *dims: int) -> float:
    """How far an answer in bfloat16 lies from that in float32, as a part of it."""
    found = library()
    if found is None or not found.bf16:
        pytest.xfail("this machine computes no bfloat16")
    g, rng = GraphBuilder(), np.random.default_rng(0)

    def weights(*sizes: int) -> Any:
        return g.const((rng.standard_normal(sizes) / np.sqrt(np.prod(sizes[1:]))).astype(np.float32))

    graph = g.graph([build(g, g.input("x", f32(*dims)), weights)])
    x = rng.standard_normal(dims).astype(np.float32)
    want, got = Session(graph)(x), Session(graph, precision="bf16")(x)
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


@pytest.mark.parametrize("op", ["Round", "Floor", "Hardmax", "Shrink"])
def test_bfloat16_in_front_of_a_jump(op: str) -> None:
    """5 to 20 % off: the sums of a convolution were rounded to 8 bits, and then to whole numbers."""

    def build(g: GraphBuilder, x: str, weights: Any) -> Any:
        y = g.Relu(g.Add(g.Conv(x, weights(32, 16, 3, 3)), weights(32, 1, 1)))
        return g.op(op, g.Mul(y, g.const(np.float32(3))))

    assert narrow(build, 2, 16, 12, 12) <= 1e-5


def test_bfloat16_elsewhere_is_as_narrow_as_before() -> None:
    def build(g: GraphBuilder, x: str, weights: Any) -> Any:
        y = g.Conv(g.Relu(g.Conv(x, weights(32, 16, 3, 3))), weights(32, 32, 1, 1))
        return g.Add(y, g.Round(g.Conv(g.Relu(y), weights(32, 32, 1, 1))))

    assert 1e-4 < narrow(build, 2, 16, 12, 12) < 0.05


def test_the_derivative_of_a_determinant_of_infinities_had_no_end() -> None:
    g = GraphBuilder()
    x = np.eye(4, dtype=np.float32)
    x[0, 0], x[1, 2] = np.inf, np.inf
    y = Session(g.graph([g.op("Cofactors", g.input("x", f32(2, 4, 4)), domain="mezzo")]))(
        np.stack([x, np.eye(4, dtype=np.float32)])
    )
    assert np.isnan(y[0]).all()
    np.testing.assert_allclose(y[1], np.eye(4), atol=1e-6)


@pytest.mark.parametrize("stateful", [False, True])
def test_a_nan_in_a_row_of_softmax_left_numbers(stateful: bool) -> None:
    x = np.ones((3, 33), np.float32)
    x[1, 7] = NAN
    for op in ("Softmax", "LogSoftmax"):
        g = GraphBuilder()
        y = g.Mul(g.op(op, g.input("x", f32(3, 33)), axis=-1), g.const(np.float32(2)))
        if stateful:  # what a second run would need is overwritten
            g.update(g.state("count", np.float32(0)), g.Add("count", g.const(np.float32(1))))
        found = Session(g.graph([y]))(x)
        assert np.isnan(found[1]).all()
        assert np.isfinite(found[[0, 2]]).all()


def test_the_gradient_of_log_softmax_made_a_number_of_nan() -> None:
    g = GraphBuilder()
    inputs = g.input("dy", f32(2, 32)), g.input("y", f32(2, 32))
    graph = g.graph([g.op("LogSoftmaxGrad", *inputs, axis=1, domain="mezzo")])
    y = np.full((2, 32), np.log(np.float32(1 / 32)))
    y[1, 3] = NAN
    found = Session(graph)(np.ones((2, 32), np.float32), y)
    assert np.isnan(found[1, 3])
    assert np.isfinite(found[0]).all()


def test_attention_hid_a_score_of_infinity() -> None:
    """A mask of numbers has -inf where a place hides the key, and is added: a score of +inf there is NaN."""
    g, big = GraphBuilder(), np.full((1, 1, 2, 4), 3e38, np.float32)
    q, k, v = (g.input(n, f32(1, 1, 2, 4)) for n in "qkv")
    y = g.op("Attention", q, k, v, g.const(np.zeros((2, 2), np.float32)), is_causal=1)
    found = Session(g.graph([y]))(big, big, np.ones_like(big))
    assert np.isnan(found[0, 0, 0]).all()


@pytest.mark.parametrize("dims", [(2, 16, 4, 4), (2, 16, 2, 1), (2, 16, 1, 1), (1, 8, 3, 3)])
@pytest.mark.parametrize("odd", [1e4, np.inf, NAN])
def test_local_normalisation_behind_a_large_number(dims: tuple[int, ...], odd: float) -> None:
    """Channels out of its window keep their digits; the window's sum was one that moved along."""
    graph = single("LRN", dims, size=5, alpha=1.0)
    x = np.random.default_rng(0).random(dims, np.float32)
    x[0, 1] = odd
    found, plain = Session(graph)(x), Session(graph, onednn=False)(x)
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-7)
    assert np.isfinite(found[0, 4:]).all()


@native_bfloat16
def test_bfloat16_beside_values_of_unknown_sizes() -> None:
    """An operand became narrow and the other, joined of a sequence, did not: the model was refused."""
    g = GraphBuilder()
    joined = g.ConcatFromSequence(g.SplitToSequence(g.input("x", f32(2, 1, 2)), axis=2), axis=2)
    product = g.MatMul(g.input("y", f32(2, 1, 1)), g.const(np.ones((1, 2), np.float32)))
    found = Session(g.graph([g.Add(joined, product)]), precision="bf16")(
        np.ones((2, 1, 2), np.float32), np.ones((2, 1, 1), np.float32)
    )
    np.testing.assert_array_equal(found, np.full((2, 1, 2), 2, np.float32))


@pytest.mark.parametrize(("op", "attrs"), [("Conv", {"group": 2, "kernel_shape": (5,)}), ("ConvTranspose", {})])
def test_the_sigmoid_of_nan_was_zero(op: str, attrs: dict[str, Any]) -> None:
    """Behind convolutions whose post-ops oneDNN computes without vectors."""
    g = GraphBuilder()
    x = g.input("x", f32(2, 4, 5))
    weights = numbers(2, 2, 5) if op == "Conv" else numbers(4, 3, 2)
    session = Session(g.graph([g.Sigmoid(g.op(op, x, weights, **attrs))]))
    given = numbers(2, 4, 5)
    given[0, 3] = np.inf, -np.inf, np.inf, np.inf, -np.inf
    plain = Session(g.graph([g.Sigmoid(g.op(op, x, weights, **attrs))]), onednn=False)(given)
    assert np.isnan(plain).any()
    np.testing.assert_array_equal(np.isnan(session(given)), np.isnan(plain))


@pytest.mark.parametrize("observe", [None, lambda *_: None])
@pytest.mark.parametrize("op", ["Relu", "Exp", "HardSigmoid", "Clip", "Max"])
@pytest.mark.parametrize("dims", [(4, 40), (40, 400)])
def test_a_number_was_made_of_nan_behind_a_softmax(dims: tuple[int, ...], op: str, observe: Any) -> None:
    """NumPy looked at the probabilities, which took the processor's flag down, before the flag was looked at."""
    g = GraphBuilder()
    bounds = {"Clip": (np.float32(0.1), np.float32(1)), "Max": (np.float32(0.1),)}.get(op, ())
    graph = g.graph([g.op(op, g.Softmax(g.input("x", f32(*dims)), axis=-1), *map(g.const, bounds))])
    x = numbers(*dims)
    x[0, 3] = NAN
    (found,) = Session(graph).run({"x": x}, observe=observe).values()
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).all()


def _pooled(g: GraphBuilder, before: str) -> str:
    made: str = g.MaxPool(g.input("y", f32(1, 16, 8, 8)), kernel_shape=[2, 2])
    return made


def _differentiated(g: GraphBuilder, before: str) -> str:
    rows = g.Reshape(before, g.const(np.array([64, 200])))
    made: str = g.op("LogSoftmaxGrad", rows, g.input("y", f32(64, 200)), domain="mezzo", axis=-1)
    return made


def _quantised(g: GraphBuilder, before: str) -> str:
    g.input("y", f32(1))
    scale: str = g.op("DynamicQuantizeLinear", before, outputs=3)[1]
    return scale


@pytest.mark.parametrize(
    ("further", "dims"), [(_pooled, (1, 16, 8, 8)), (_differentiated, (64, 200)), (_quantised, (1,))]
)
@pytest.mark.parametrize("op", ["Relu", "Exp"])
def test_numpy_between_primitives_hid_a_nan(
    op: str, further: Callable[[GraphBuilder, str], str], dims: tuple[int, ...]
) -> None:
    """Where a primitive looks at its operands, or leaves them to the reference, NumPy took the flag down that an
    earlier one had raised."""
    g = GraphBuilder()
    first = g.op(op, g.input("x", f32(2, 16, 20, 20)))
    session = Session(g.graph([first, further(g, first)]), threads=1)
    x = numbers(2, 16, 20, 20)
    x[0, 0, 0, 0] = NAN
    assert np.isnan(session(x, np.full(dims, -np.inf, np.float32))[0]).sum() == 1


@pytest.mark.parametrize("trains", [False, True])
def test_a_hybridized_block_keeps_nan(trains: bool) -> None:
    """By the flag, and a second run; where a run moves statistics there is none, and its steps keep NaN themselves."""
    from mezzo import nd
    from mezzo.gluon import nn
    from mezzo.nd import autograd

    net = nn.HybridSequential(nn.Conv2D(16, 3, activation="relu"), nn.BatchNorm(), nn.MaxPool2D(), nn.Dense(4))
    net.initialize()
    net.hybridize()
    x = numbers(2, 3, 40, 40)
    for odd in (1, NAN, 1):
        x[0, 0, 3, 3] = odd
        with autograd.record(train_mode=trains):
            y = net(nd.asarray(x)).asnumpy()
        assert np.isnan(y[0]).all() == np.isnan(odd) or trains
        assert np.isnan(y[1]).all() == (trains and bool(np.isnan(odd)))
        if trains and np.isnan(odd):
            return


@pytest.mark.parametrize("onednn", [True, False])
def test_what_a_product_takes_zero_times_is_not_read(onednn: bool) -> None:
    """Gemm with beta=0: the reference and oneDNN leave C alone, NumPy's kernel multiplied it."""
    g = GraphBuilder()
    y = g.Gemm(g.input("a", f32(4, 5)), g.const(numbers(5, 3)), g.input("c", f32(1)), beta=0.0)
    assert np.isfinite(Session(g.graph([y]), onednn=onednn)(numbers(4, 5), np.array([NAN]))).all()


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize(("op", "by"), [("Neg", None), ("Mul", -2.0), ("Div", -2.0), ("Mul", 2.0)])
def test_zeros_keep_their_signs(op: str, by: float | None, onednn: bool) -> None:
    """oneDNN's linear function added 0, so that -0 was 0, and what is divided by it infinity of the other sign."""
    x = np.array([0.0, -0.0, 1.0, -1.0], np.float32)
    (y,) = Session(single(op, (4,), *([] if by is None else [np.float32(by)])), onednn=onednn)(x)[None]
    assert (np.signbit(y) == np.signbit(x * np.float32(by or -1))).all()


@native_bfloat16
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_attention_over_few_tokens_multiplied_other_numbers(length: int) -> None:
    """Tiles got wrong copies of heads that lie into each other (docs/onednn-defects.md)."""
    g = GraphBuilder()
    x = g.input("x", f32(2, length, 48))
    parts = []
    for i, order in enumerate(((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))):
        part = g.Reshape(g.MatMul(x, g.const(numbers(48, 48) / np.float32(7 + i))), g.const([2, length, 3, 16]))
        parts.append(g.Transpose(part, perm=order))
    scores = g.Softmax(g.MatMul(parts[0], parts[1]), axis=-1)
    graph = g.graph([g.Reshape(g.Transpose(g.MatMul(scores, parts[2]), perm=(0, 2, 1, 3)), g.const([2, length, 48]))])
    fed = numbers(2, length, 48) / np.float32(4)
    want = Session(graph, onednn=False)(fed)
    for precision in ("bf16", "bf16-math"):
        assert np.abs(Session(graph, precision=precision)(fed) - want).max() < 0.03 * np.abs(want).max()


@native_bfloat16
@pytest.mark.parametrize(("depth", "dilation", "pad"), [(1, 2, 1), (2, 4, 2), (1, 4, 2), (3, 3, 1)])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_window_around_a_whole_depth_ended_the_process(op: str, depth: int, dilation: int, pad: int) -> None:
    """In bfloat16 with AMX: two taps, of which one lies before the volume and one behind."""
    pad = pad if op == "Conv" else dilation - pad
    w = np.random.default_rng(0).standard_normal((16, 16, 2, 1, 1)).astype(np.float32)
    around = {"kernel_shape": (2, 1, 1), "dilations": (dilation, 1, 1), "pads": (pad, 0, 0, pad, 0, 0)}
    graph = single(op, (1, 16, depth, 1, 5), w, **around)
    feeds = {"x": np.ones((1, 16, depth, 1, 5), np.float32)}
    (got,), (want,) = (
        Session(graph, **how).run(feeds).values() for how in ({"precision": "bf16", "threads": 1}, {"onednn": False})
    )
    np.testing.assert_allclose(got, want, rtol=0, atol=0.2)
