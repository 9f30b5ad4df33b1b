"""Symbols: what they say of themselves, shapes both ways, executors against PyTorch, control flow, text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mezzo as mz
from mezzo import sym
from mezzo.nd import waitall
from mezzo.nd.prepared import PIECE
from mezzo.ops.errors import InputError, MezzoError, ModelError, ShapeError
from mezzo.sym import Arrays, Executor, Symbol

from .models import referee
from .peers import peer

RNG = np.random.default_rng(0)


def lenet() -> Symbol:
    """Two convolutions, two dense layers, a softmax."""
    x = sym.Variable("data")
    for i, filters in enumerate((4, 6)):
        x = x.Convolution(kernel=(3, 3), num_filter=filters, name=f"conv{i}").Activation(act_type="tanh")
        x = x.Pooling(kernel=(2, 2), stride=2)
    x = x.FullyConnected(num_hidden=8, name="fc0").Activation(act_type="relu")
    return x.FullyConnected(num_hidden=5, name="fc1").SoftmaxOutput(name="softmax")


def filled(net: Executor, seed: int = 1) -> Executor:
    """The executor with small random weights."""
    rng = np.random.default_rng(seed)
    for array in net.w.values():
        array[:] = rng.standard_normal(array.shape).astype(np.float32) * 0.3
    return net


def batch(count: int = 4) -> dict[str, Any]:
    data = RNG.standard_normal((count, 1, 16, 16)).astype(np.float32)
    return {"data": data, "softmax_label": (np.arange(count) % 5).astype(np.float32)}


def test_what_a_symbol_says_of_itself() -> None:
    net = lenet()
    weights = [f"{layer}_{part}" for layer in ("conv0", "conv1", "fc0", "fc1") for part in ("weight", "bias")]
    assert net.list_arguments() == ["data", *weights, "softmax_label"]
    assert (net.list_outputs(), net.list_auxiliary_states(), len(net)) == (["softmax_output"], [], 1)
    inner = net.get_internals()
    assert {"data", "conv0_output", "fc1_output", "softmax_output"} <= {*inner.list_outputs()}
    features = inner["fc0_output"]
    assert features.list_arguments() == ["data", *weights[:6]]
    both = sym.Group([features, net])
    assert both.list_outputs() == ["fc0_output", "softmax_output"]
    assert [s.list_outputs() for s in both] == [["fc0_output"], ["softmax_output"]]
    assert both[1].list_outputs() == both["softmax_output"].list_outputs()
    children = sym.Variable("a").Add(sym.Variable("b")).get_children()
    assert children is not None
    assert children.list_outputs() == ["a", "b"]


def test_several_outputs() -> None:
    parts = sym.Split(sym.Variable("x"), axis=1, num_outputs=2, outputs=2, name="cut")
    assert parts.list_outputs() == ["cut_output0", "cut_output1"]
    a, b = sym.Group([parts[1], parts[0] * 2]).eval(x=np.arange(8, dtype=np.float32).reshape(2, 4))
    assert a.asnumpy().tolist() == [[2, 3], [6, 7]]
    assert b.asnumpy().tolist() == [[0, 2], [8, 10]]
    with pytest.raises(InputError, match="one output is needed"):
        sym.Relu(parts)


def test_composition_puts_symbols_in_the_place_of_variables() -> None:
    first = sym.Variable("x").FullyConnected(num_hidden=3, name="a")
    second = sym.Variable("y").FullyConnected(num_hidden=2, name="b")(y=first)
    assert second.list_arguments() == ["x", "a_weight", "a_bias", "b_weight", "b_bias"]
    with pytest.raises(InputError, match=r"no 'z'"):
        second(z=first)


def test_shapes_go_both_ways() -> None:
    arguments, outputs, states = lenet().infer_shape(data=(7, 1, 16, 16))
    assert arguments[1:3] == [(4, 1, 3, 3), (4,)]
    assert (arguments[5], arguments[-1], outputs, states) == ((8, 24), (7,), [(7, 5)], [])
    net = sym.Variable("x").BatchNorm(name="bn")
    assert net.infer_shape(x=(2, 6, 4, 4)) == ([(2, 6, 4, 4), (6,), (6,)], [(2, 6, 4, 4)], [(6,), (6,)])
    assert sym.Variable("x").LSTM(*map(sym.Variable, "wr"), hidden_size=3).infer_shape(x=(5, 2, 4))[0] == [
        (5, 2, 4), (1, 12, 4), (1, 12, 3)]  # fmt: skip
    assert (sym.Variable("a") + sym.Variable("b")).infer_shape(a=(2, 3))[0] == [(2, 3), (2, 3)]
    partial = lenet().infer_shape_partial()
    assert partial[1] == [None]
    assert partial[0][2] == (4,)


def test_what_stays_open_is_named() -> None:
    with pytest.raises(InputError, match=r"data .*conv0_weight"):
        lenet().infer_shape()
    with pytest.raises(InputError, match=r"no 'dat' \(did you mean 'data'\?\)"):
        lenet().infer_shape(dat=(1, 1, 16, 16))


def test_a_conflict_comes_with_the_chain_that_leads_there() -> None:
    x = sym.Variable("x").FullyConnected(num_hidden=3, name="one")
    y = sym.Variable("y").FullyConnected(num_hidden=4, name="two")
    net = sym.Concat(x, sym.Relu(y, name="bent"), axis=0, name="joined")
    with pytest.raises(ShapeError) as caught:
        net.infer_shape(x=(2, 5), y=(2, 5))
    text = str(caught.value)
    assert re.search(r"test_symbols.py:\d+: joined \(Concat\)", text)
    assert text.index("one_flat = Flatten(x float32[2,5])") < text.index("joined = Concat(one float32[2,3]")
    net = sym.Variable("x").FullyConnected(sym.Variable("w", shape=(3, 9)), num_hidden=3, name="fc")
    with pytest.raises(ShapeError, match=r"fc \(Gemm\): .*float32\[3,9\]"):
        net.infer_shape(x=(2, 5))
    with pytest.raises(ShapeError, match=r"'w' is \(3, 9\), and \(2, \?\) since it is given"):
        net.infer_shape(x=(2, 5), w=(2, 0))


def test_two_parts_of_one_name() -> None:
    x = sym.Variable("x")
    with pytest.raises(InputError, match=r"two parts .* 'r': made at .*test_symbols.py:\d+ and at"):
        (sym.Relu(x, name="r") + sym.Tanh(x, name="r")).list_arguments()


def test_everything_that_is_wrong_with_the_arrays_is_said_at_once() -> None:
    net = sym.Variable("x").FullyConnected(num_hidden=3, name="fc")
    with pytest.raises(InputError) as caught:
        net.bind(args={"fc_wight": np.zeros((3, 2), np.float32), "x": np.zeros((1, 2), np.float32), "extra": 1.0})
    for part in ("no 'fc_wight' (did you mean 'fc_weight'?)", "no 'extra'", "'fc_weight' is missing", "'fc_bias' is"):
        assert part in str(caught.value)
    with pytest.raises(InputError, match="'x' is float32, the array is float64"):
        net.bind(args=[np.zeros((1, 2)), np.zeros((3, 2), np.float32), np.zeros(3, np.float32)])
    with pytest.raises(InputError, match="none of write, add, null"):
        net.simple_bind(x=(1, 2), grad_req="wrong")
    with pytest.raises(InputError, match="is given"):
        net.simple_bind(x=(1, 2)).forward(x=np.zeros((2, 2), np.float32))


def torch_gradients(net: Executor, fed: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Probabilities and gradients of `lenet` by PyTorch."""
    torch = peer("torch")
    weights = {n: torch.tensor(a.asnumpy(), requires_grad=True) for n, a in net.w.items()}
    x = torch.tensor(fed["data"])
    for i in range(2):
        x = torch.tanh(torch.conv2d(x, weights[f"conv{i}_weight"], weights[f"conv{i}_bias"]))
        x = torch.max_pool2d(x, 2, 2)
    x = torch.relu(x.flatten(1) @ weights["fc0_weight"].T + weights["fc0_bias"])
    x = x @ weights["fc1_weight"].T + weights["fc1_bias"]
    loss = torch.nn.functional.cross_entropy(x, torch.tensor(fed["softmax_label"]).long(), reduction="sum")
    loss.backward()
    return torch.softmax(x, 1).detach().numpy(), {n: w.grad.numpy() for n, w in weights.items()}


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-30)


def test_gradients_are_those_of_pytorch() -> None:
    referee()
    fed = batch()
    net = filled(lenet().simple_bind(data=(4, 1, 16, 16)))
    probabilities, gradients = torch_gradients(net, fed)
    net.forward_backward(**fed)
    close(net.outputs[0].asnumpy(), probabilities)
    for name, expected in gradients.items():
        close(net.grad_dict[name].asnumpy(), expected)
        net.grad_dict[name][:] = 0
    (out,) = net.forward(is_train=True, **fed)  # in two parts, the same
    close(out.asnumpy(), probabilities)
    assert not any(g.asnumpy().any() for g in net.g.values())
    net.backward()
    for name, expected in gradients.items():
        close(net.grad_dict[name].asnumpy(), expected)


def test_requests_for_gradients() -> None:
    fed = batch()
    net = filled(lenet().simple_bind(data=(4, 1, 16, 16), grad_req={"fc1_bias": "add", "fc1_weight": "write"}))
    assert {*net.grad_dict} == {"fc1_bias", "fc1_weight"}
    net.forward_backward(**fed)
    once = {n: g.asnumpy() for n, g in net.g.items()}
    net.forward_backward(**fed)
    close(net.grad_dict["fc1_bias"].asnumpy(), 2 * once["fc1_bias"])
    net.forward(is_train=True, **fed)
    net.backward()
    close(net.grad_dict["fc1_bias"].asnumpy(), 3 * once["fc1_bias"])
    close(net.grad_dict["fc1_weight"].asnumpy(), once["fc1_weight"])


def test_gradients_of_outputs_without_a_loss() -> None:
    x = sym.Variable("x")
    net = sym.Group([x * x, sym.Exp(x)]).bind(args={"x": np.array([1, 2], np.float32)})
    net.forward(is_train=True)
    with pytest.raises(InputError, match=r"gradients of .* are needed"):
        net.backward()
    heads = [np.array([1, 10], np.float32), np.array([1, 0], np.float32)]
    net.backward(heads)
    close(net.grad_dict["x"].asnumpy(), [2 + np.e, 40], 1e-6)
    with pytest.raises(InputError, match="forward"):
        x.Exp().bind(args={"x": np.ones(2, np.float32)}).backward()


def test_batch_normalisation_moves_its_statistics_once_a_run() -> None:
    net = sym.Variable("x").BatchNorm(name="bn", momentum=0.5, fix_gamma=False).simple_bind(x=(8, 3))
    net.arg_dict["bn_gamma"][:] = 1
    x = RNG.standard_normal((8, 3)).astype(np.float32)
    (y,) = net.forward(is_train=True, x=x)
    close(net.aux_dict["bn_moving_mean"].asnumpy(), x.mean(0) / 2)
    close(y.asnumpy(), (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3), 1e-4)
    net.backward([np.ones((8, 3), np.float32)])
    close(net.aux_dict["bn_moving_mean"].asnumpy(), x.mean(0) / 2)
    (z,) = net.forward()
    close(net.aux_dict["bn_moving_mean"].asnumpy(), x.mean(0) / 2)
    assert np.abs(z.asnumpy() - y.asnumpy()).max() > 0.01
    fixed = sym.Variable("x").BatchNorm(name="bn").simple_bind(x=(8, 3))
    assert "bn_gamma" not in fixed.grad_dict
    assert fixed.arg_dict["bn_gamma"].asnumpy().tolist() == [1, 1, 1]


def test_dropout_draws_the_same_for_the_way_back() -> None:
    net = (sym.Variable("x") * 1).Dropout(p=0.5).bind(args={"x": np.ones(1000, np.float32)})
    (y,) = net.forward(is_train=True)
    net.backward([np.ones(1000, np.float32)])
    assert np.array_equal(net.grad_dict["x"].asnumpy(), y.asnumpy())
    (again,) = net.forward(is_train=True)
    assert not np.array_equal(again.asnumpy(), y.asnumpy())
    assert net.forward()[0].asnumpy().tolist() == [1] * 1000


def test_the_loop_of_the_paper() -> None:
    fed, eta = batch(), 0.05
    net = filled(lenet().simple_bind(data=(4, 1, 16, 16)))
    losses = []
    for _ in range(30):
        net.forward_backward(**fed)
        net.w -= eta * net.g
        losses.append(-np.log(net.outputs[0].asnumpy()[np.arange(4), np.arange(4) % 5]).sum())
    assert losses[-1] < losses[0] / 10
    with pytest.raises(InputError, match="in place"):
        net.w = 2 * net.g
    waitall()


def test_heads_of_regression() -> None:
    x, t = np.array([[1.0, -2], [0.5, 3]], np.float32), np.array([[0.0, 1], [1, 0]], np.float32)
    for make, expected in (
        (sym.LinearRegressionOutput, (x - t) / 2),
        (sym.LogisticRegressionOutput, (1 / (1 + np.exp(-x)) - t) / 2),
    ):
        net = make(sym.Variable("x"), sym.Variable("t")).bind(args={"x": x, "t": t}, grad_req={"x": "write"})
        net.forward_backward()
        close(net.grad_dict["x"].asnumpy(), expected, 1e-6)
    net = (sym.Variable("x") * 3).MakeLoss(grad_scale=2.0).bind(args={"x": x})
    net.forward_backward()
    assert net.grad_dict["x"].asnumpy().tolist() == [[6, 6], [6, 6]]


@pytest.mark.parametrize("normalization", ["null", "batch", "valid"])
def test_softmax_that_ignores(normalization: str) -> None:
    x, label = RNG.standard_normal((4, 3)).astype(np.float32), np.array([0, 2, 2, 1], np.float32)
    head = sym.Variable("x").SoftmaxOutput(normalization=normalization, use_ignore=True, ignore_label=2, name="s")
    net = head.bind(args={"x": x, "s_label": label}, grad_req={"x": "write"})
    net.forward_backward()
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    p[np.arange(4), label.astype(int)] -= 1
    p[label == 2] = 0
    close(net.grad_dict["x"].asnumpy(), p / {"null": 1, "batch": 4, "valid": 2}[normalization])


SIZES = {"small": (7,), "large": (PIECE + 1234,), "matrix": (3, 5)}


def several(seed: int) -> tuple[Arrays, dict[str, Any]]:
    """Arrays, and the same in NumPy."""
    rng = np.random.default_rng(seed)
    known = {n: rng.standard_normal(s).astype(np.float32) for n, s in SIZES.items()}
    return Arrays({n: mz.nd.array(x) for n, x in known.items()}), known


def same_bits(found: Arrays, known: dict[str, Any]) -> None:
    assert list(found) == list(known)
    for name, x in known.items():
        assert found[name].asnumpy().tobytes() == x.tobytes(), name


def test_arithmetic_by_name_has_the_bits_of_numpy_whether_it_is_put_off_or_not() -> None:
    (w, x), (g, y), (m, z) = several(1), several(2), several(3)
    rate = np.float32(0.1)
    w -= 0.1 * g
    x = {n: x[n] - rate * y[n] for n in x}
    same_bits(w, x)
    held = 1 - (g * 0.5 + m)
    w += held * g  # what is held is read below too
    x = {n: x[n] + (1 - (y[n] * np.float32(0.5) + z[n])) * y[n] for n in x}
    step = -g
    w *= step
    x = {n: x[n] * -y[n] for n in x}
    g["small"][:] = 0.0  # after all of these
    same_bits(w, x)
    same_bits(held, {n: 1 - (y[n] * np.float32(0.5) + z[n]) for n in x})
    same_bits(step, {n: -y[n] for n in x})
    own = 0.5 * w
    w -= own  # it reads what is changed
    same_bits(own, {n: x[n] * np.float32(0.5) for n in x})
    same_bits(w, {n: x[n] - x[n] * np.float32(0.5) for n in x})
    with pytest.raises(InputError, match="names have to agree"):
        w -= Arrays({"small": g["small"]})


def test_what_is_put_off_is_computed_before_a_run_writes_what_it_reads() -> None:
    net = filled(lenet().simple_bind(data=(4, 1, 16, 16)))
    net.forward_backward(**batch())
    before = net.g["fc0_weight"].asnumpy()
    net.w["fc0_bias"][:] = 1.0
    waitall()
    step = 2.0 * net.g
    net.forward_backward()
    assert not np.array_equal(net.g["fc0_weight"].asnumpy(), before)
    assert np.array_equal(step["fc0_weight"].asnumpy(), 2 * before)


def test_memory_is_what_an_executor_takes() -> None:
    told = lenet().memory(train=True, data=(4, 1, 16, 16))
    net = lenet().simple_bind(data=(4, 1, 16, 16))
    net.forward_backward(**batch())
    (function,) = [f for mode, f in net._functions.items() if mode.gradients]
    assert told.arena == function.session.program.arena_bytes
    assert told.arguments == sum(a.nbytes for a in net.arg_arrays)
    assert told.gradients == sum(a.nbytes for a in net.grad_dict.values())
    assert told.outputs == net.outputs[0].nbytes
    assert told.total > lenet().memory(data=(4, 1, 16, 16)).total


def test_executors_of_other_shapes_share_weights() -> None:
    net = filled(lenet().simple_bind(data=(4, 1, 16, 16)))
    other = net.reshape(data=(2, 1, 16, 16))
    assert other.arg_dict["fc0_weight"] is net.arg_dict["fc0_weight"]
    fed = batch()
    (a,), (b,) = net.forward(**fed), other.forward(data=fed["data"][:2])
    close(b.asnumpy(), a.asnumpy()[:2])
    fresh = lenet().simple_bind(data=(4, 1, 16, 16))
    fresh.copy_params_from({n: a.asnumpy() for n, a in net.w.items()})
    close(fresh.forward(**fed)[0].asnumpy(), a.asnumpy())


# -- control flow ---------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=6), st.floats(-3, 3, width=32))
def test_foreach_is_a_loop(values: list[float], start: float) -> None:
    x, w = sym.Variable("x"), sym.Variable("w")
    outs, last = sym.foreach(lambda row, state: (row * state, state + row * w), x, sym.Variable("s"))
    y, s = sym.Group([outs, last]).eval(x=np.array(values, np.float32), s=np.float32(start), w=np.float32(0.5))
    state, expected = start, []
    for v in values:
        expected.append(v * state)
        state += v * 0.5
    np.testing.assert_allclose(y.asnumpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(s.asnumpy(), state, rtol=1e-4, atol=1e-4)


@given(st.floats(0.5, 50, width=32), st.integers(0, 8))
def test_while_loop_is_a_loop(start: float, most: int) -> None:
    outs, last = sym.while_loop(lambda x: x < 20, lambda x: (x + 1, x * 2), sym.Variable("x"), most)
    y, x = sym.Group([outs, last]).eval(x=np.float32(start))
    value, expected = np.float32(start), list[Any]()
    while value < 20 and len(expected) < most:
        expected.append(value + 1)
        value *= 2
    assert y.asnumpy().tolist() == expected
    assert x.asnumpy() == value


@pytest.mark.parametrize("value", [3.0, -3.0])
def test_cond_takes_one_branch(value: float) -> None:
    x, outer = sym.Variable("x"), sym.Variable("o")
    twice = outer * 2
    y = sym.cond(x > 0, lambda: [x * twice, x], lambda: [x - twice, -x])
    a, b = sym.Group(y).eval(x=value, o=5.0)
    assert [a.item(), b.item()] == ([value * 10, value] if value > 0 else [value - 10, -value])
    with pytest.raises(InputError, match="one branch returns 1"):
        sym.cond(x > 0, lambda: x, lambda: [x, x])


def test_gradients_through_a_scan() -> None:
    outs, _ = sym.foreach(lambda row, s: (row * s, s * row), sym.Variable("x"), sym.Variable("s"))
    net = sym.MakeLoss(outs).bind(args={"x": np.array([2, 3, 4], np.float32), "s": np.float32(1)})
    net.forward_backward()  # x0 + x0 x1 + x0 x1 x2
    assert net.grad_dict["x"].asnumpy().tolist() == [1 + 3 + 12, 2 + 8, 6]


# -- text ----------------------------------------------------------------------------------------------------------


def test_text_and_back(tmp_path: Path) -> None:
    fed = batch()
    net = lenet()
    net.save(tmp_path / "net.json")
    again = sym.load(tmp_path / "net.json")
    assert again.tojson() == net.tojson()
    a, b = (filled(n.simple_bind(data=(4, 1, 16, 16))) for n in (net, again))
    for executor in (a, b):
        executor.forward_backward(**fed)
    for name, gradient in a.grad_dict.items():
        assert np.array_equal(gradient.asnumpy(), b.grad_dict[name].asnumpy())
    outs, last = sym.foreach(lambda row, s: (row * s * 2, s + row), sym.Variable("x"), sym.Variable("s"))
    loop = sym.load_json(sym.Group([outs, last]).tojson())
    assert [y.asnumpy().tolist() for y in loop.eval(x=[1.0, 2.0], s=1.0)] == [[2, 8], 4]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "mezzo.symbol", "version": 2}', "null"])
def test_text_that_is_no_symbol(text: str) -> None:
    with pytest.raises(ModelError):
        sym.load_json(text)


@given(st.data())
def test_damaged_text_is_an_error_of_ours(data: Any) -> None:
    whole = json.loads(lenet().tojson())
    at: Any = whole
    while True:
        key = data.draw(st.sampled_from(sorted(at)) if isinstance(at, dict) else st.integers(0, len(at) - 1))
        if not (isinstance(at[key], dict | list) and at[key]) or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(st.sampled_from([None, -1, 7, 2**70, "x", [], [1], {}, 0.5, True]))
    try:
        found = sym.load_json(json.dumps(whole))
        found.infer_shape_partial(data=(2, 1, 16, 16))
    except MezzoError:
        pass


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no\.json"):
        sym.load(tmp_path / "no.json")


def test_operators_that_there_are_not() -> None:
    with pytest.raises(AttributeError, match="did you mean 'Relu'"):
        mz.sym.Relus(sym.Variable("x"))
    assert {"Conv", "FullyConnected", "Variable"} <= {*dir(mz.sym)}
