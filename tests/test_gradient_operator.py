"""ONNX's Gradient operator: what it names is copied, given the node's inputs, and differentiated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import mezzo as mz
from mezzo.importers import OutOfOrder, load_onnx
from mezzo.ops import OPS, op
from mezzo.ops.budget import Budget
from mezzo.ops.errors import InputError, ModelError, ShapeError, UnsupportedModel
from mezzo.ops.types import f32, i64
from mezzo.runtime.ir.autodiff import grad
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.passes.gradient import write_gradients

HEAD = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.preview.training" : 1, "here" : 1]>\n'
X = np.array([0.5, -1.0, 2.0], np.float32)
W = np.array([1.5, 0.5, -2.0], np.float32)


def load(text: str, functions: str = "") -> mz.Session:
    return mz.load(onnx.parser.parse_model(f"{HEAD}{text}\n{functions}"))


def gradient(inputs: str, outputs: str, **names: str) -> str:
    attrs = ", ".join(f"{a} = {v}" for a, v in names.items())
    return f"{outputs} = ai.onnx.preview.training.Gradient <{attrs}> ({inputs})"


def run(text: str, functions: str = "", **feeds: Any) -> Any:
    found = load(text, functions).run(feeds)
    return next(iter(found.values())) if len(found) == 1 else found


def test_at_the_values_that_are_named() -> None:
    text = f"""g (float[3] x, float[3] w) => (float[3] y, float[3] dx, float[3] dw) {{
        p = Mul(x, w)
        y = Exp(p)
        {gradient("x, w", "dx, dw", xs='["x", "w"]', y='"y"')}
    }}"""
    found = run(text, x=X, w=W)
    np.testing.assert_allclose(found["dx"], W * np.exp(X * W), rtol=1e-5)
    np.testing.assert_allclose(found["dw"], X * np.exp(X * W), rtol=1e-5)
    np.testing.assert_allclose(found["y"], np.exp(X * W), rtol=1e-5)


def test_at_other_values_of_other_sizes() -> None:
    """What is named tells the function, the inputs tell where."""
    text = f"""g (float[3] x, float[2,3] at, float[3] by) => (float[2,3] d) {{
        p = Mul(x, x)
        s = Neg(x)
        y = Mul(p, s)
        {gradient("at, by", "d", xs='["x"]', zs='["s"]', y='"y"')}
    }}"""
    at, by = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2, 3], np.float32)
    np.testing.assert_allclose(run(text, x=X, at=at, by=by), 2 * at * by)


def test_to_a_value_between_and_to_one_output_only() -> None:
    text = f"""g (float[3] x, float[3] w) => (float[3] d) {{
        h = Sin(x)
        y = Mul(h, w)
        z = Mul(y, h)
        {gradient("w, h", ", d", xs='["w", "h"]', y='"z"')}
    }}"""
    np.testing.assert_allclose(run(text, x=X, w=W), 2 * np.sin(X) * W, rtol=1e-5)


def test_gradients_of_gradients() -> None:
    text = f"""g (float[3] x, float[3] w) => (float[3] dxx, float[3] dxw, float[3] dxxx) {{
        s = Mul(x, x)
        c = Mul(s, x)
        o = Mul(c, w)
        {gradient("x, w", "dx", xs='["x"]', zs='["w"]', y='"o"')}
        {gradient("x, w", "dxx, dxw", xs='["x", "w"]', y='"dx"')}
        {gradient("x", "dxxx", xs='["x"]', y='"dxx"')}
    }}"""
    found = run(text, x=X, w=W)
    np.testing.assert_allclose(found["dxx"], 6 * X * W, rtol=1e-5)
    np.testing.assert_allclose(found["dxw"], 3 * X**2, rtol=1e-5)
    np.testing.assert_allclose(found["dxxx"], 6 * W, rtol=1e-5)


def test_what_is_not_reached_gets_zeros() -> None:
    text = f"""g (float[3] x, float[3] w) => (float[3] dx, float[3] dw) {{
        y = Mul(x, x)
        {gradient("x, w", "dx, dw", xs='["x", "w"]', y='"y"')}
    }}"""
    found = run(text, x=X, w=W)
    np.testing.assert_array_equal(found["dw"], np.zeros(3))
    np.testing.assert_allclose(found["dx"], 2 * X)


def test_inside_of_a_branch_and_of_a_loop() -> None:
    text = f"""g (float[3] x, bool c, int64 n) => (float[3] d, float[3] moved) {{
        y = Mul(x, x)
        d = If (c) <
            then_branch = yes () => (float[3] a) {{ {gradient("x", "a", xs='["x"]', y='"y"')} }},
            else_branch = no () => (float[3] b) {{ z = Mul(y, x) {gradient("x", "b", xs='["x"]', y='"z"')} }}
        >
        moved = Loop (n, , x) <
            body = step (int64 i, bool go, float[3] v) => (bool going, float[3] next) {{
                going = Identity(go)
                q = Mul(v, v)
                l = Mul(q, v)
                {gradient("v", "dv", xs='["v"]', y='"l"')}
                next = Sub(v, dv)
            }}
        >
    }}"""
    session = load(text)
    for c, expected in ((True, 2 * X), (False, 3 * X**2)):
        found = session.run({"x": X, "c": np.array(c), "n": np.array(2)})
        np.testing.assert_allclose(found["d"], expected, rtol=1e-5)
        once = X - 3 * X**2
        np.testing.assert_allclose(found["moved"], once - 3 * once**2, rtol=1e-5)


def test_inside_of_a_function() -> None:
    function = f"""<domain: "here", opset_import: ["" : 21, "ai.onnx.preview.training" : 1]>
    Slope (x) => (d) {{
        h = Mul(x, x)
        y = Mul(h, x)
        {gradient("x", "d", xs='["x"]', y='"y"')}
    }}"""
    text = """g (float[3] x, float[3] y) => (float[3] e) {
        a = here.Slope(x)
        b = here.Slope(y)
        e = Add(a, b)
    }"""
    np.testing.assert_allclose(run(text, function, x=X, y=W), 3 * X**2 + 3 * W**2, rtol=1e-5)


def test_through_control_flow() -> None:
    text = f"""g (float[3] x, int64 n) => (float[3] d) {{
        y = Loop (n, , x) <
            body = step (int64 i, bool go, float[3] v) => (bool going, float[3] next) {{
                going = Identity(go)
                next = Mul(v, v)
            }}
        >
        {gradient("x", "d", xs='["x"]', y='"y"')}
    }}"""
    np.testing.assert_allclose(run(text, x=X, n=np.array(3)), 8 * X**7, rtol=1e-4)


def test_random_numbers_are_those_of_the_graph() -> None:
    text = f"""g (float[1000] x) => (float[1000] y, float[1000] d) <float r = {{0.5}}, bool t = {{1}}> {{
        y = Dropout(x, r, t)
        {gradient("x", "d", xs='["x"]', y='"y"')}
    }}"""
    found = run(text, x=np.ones(1000, np.float32))
    np.testing.assert_array_equal(found["d"], found["y"])
    assert set(found["d"].tolist()) == {0, 2}


@pytest.mark.parametrize(("at", "times"), [("x", 1), ("w", 2)])
def test_what_is_computed_already_is_not_computed_again(at: str, times: int) -> None:
    text = f"""g (float[1,1,4] x, float[1,1,4] w) => (float[1,1,2] y, float[1,1,4] d) {{
        e = Exp(x)
        y = MaxPool <kernel_shape = [2], strides = [2]> (e)
        {gradient(at, "d", xs='["x"]', y='"y"')}
    }}"""
    graph = write_gradients(load_onnx(onnx.parser.parse_model(HEAD + text)), Budget())
    ops = [n.op for n in graph.nodes]
    assert ops.count("Exp") == ops.count("MaxPool") + ops.count("MaxPoolTrain") == times


def test_a_network_as_differentiated_by_us(tmp_path: Path) -> None:
    g = GraphBuilder()
    x, w, b = g.input("x", f32(2, 3, 8, 8)), g.input("w", f32(4, 3, 3, 3)), g.input("b", f32(4))
    pooled = g.MaxPool(g.Relu(g.Conv(x, w, b)), kernel_shape=(2, 2), strides=(2, 2))
    loss = g.ReduceMean(pooled, keepdims=0)
    plain = g.graph([loss])
    g.op("Gradient", "w", "b", "x", domain="ai.onnx.preview.training", outputs=2,
         xs=("w", "b"), zs=("x",), y=loss)  # fmt: skip
    whole = g.graph([loss, "Gradient_4", "Gradient_4.1"])
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(plain.types[n].sizes).astype(np.float32) for n in plain.inputs}  # type: ignore[union-attr]
    expected = list(mz.Session(grad(plain, loss, ["w", "b"])).run(feeds).values())
    mz.onnx.save(whole, tmp_path / "again.onnx")
    sessions = {"graph": mz.Session(whole), "exported": mz.load(tmp_path / "again.onnx")}
    sessions["graph"].save(tmp_path / "again.mezzo")
    sessions["file"] = mz.load(tmp_path / "again.mezzo")
    for how, session in sessions.items():
        for a, b in zip(session.run(feeds).values(), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=how)


@pytest.fixture
def opaque() -> Iterator[None]:
    """An operator without a derivative."""

    @op("Opaque", domain="here")
    def _(k: Any, x: Any) -> Any:
        return x.copy()

    yield
    del OPS["here", "Opaque"]


@pytest.mark.usefixtures("opaque")
def test_every_place_without_a_derivative_is_listed() -> None:
    text = f"""g (float[3] x) => (float[3] a, float[3] b, float[3] c) {{
        o = here.Opaque(x)
        [second] p = here.Opaque(o)
        y = Add(o, p)
        [third] q = here.Opaque(x)
        {gradient("x", "a", xs='["x"]', y='"y"')}
        {gradient("x", "b", xs='["x"]', y='"q"')}
        {gradient("x", "c", xs='["x"]', y='"a"')}
    }}"""
    with pytest.raises(UnsupportedModel) as told:
        load(text)
    assert str(told.value).count("here::Opaque at ") == 3


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (gradient("x", "d", xs='["x"]', y='"lost"'), ModelError, "reads 'lost', which nothing defines"),
        (gradient("x", "d", xs='["lost"]', y='"y"'), ModelError, "reads 'lost', which nothing defines"),
        (gradient("x, x", "d", xs='["x"]', y='"y"'), ShapeError, "has 2 inputs"),
        (gradient("n", "d", xs='["n"]', y='"y"'), ShapeError, "only floats have gradients"),
        (gradient("x", "d", xs='["x"]', y='"m"'), InputError, "only floats have gradients"),
    ],
)
def test_what_it_cannot_name(line: str, error: type[Exception], message: str) -> None:
    text = f"""g (float[3] x, int64[3] n) => (float[3] e) {{
        y = Mul(x, x)
        m = Add(n, n)
        {line}
        late = Neg(y)
        e = Add(d, late)
    }}"""
    with pytest.raises(error, match=message):
        load(text)


def test_what_is_made_behind_it() -> None:
    text = f"""g (float[3] x) => (float[3] d) {{
        {gradient("x", "d", xs='["x"]', y='"late"')}
        y = Mul(x, x)
        late = Neg(y)
    }}"""
    with pytest.warns(OutOfOrder):
        session = load(text)
    x = np.array([1, 2, -3], np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["d"], -2 * x)


def test_a_graph_that_names_what_comes_later_or_nothing() -> None:
    g = GraphBuilder()
    g.input("x", f32(3))
    g.input("n", i64())
    g.op("Gradient", "x", domain="ai.onnx.preview.training", xs=("x",), y="Neg_1")
    g.Neg("x")
    with pytest.raises(InputError, match="nothing before it makes"):
        mz.Session(g.graph(["Gradient_0"]))
