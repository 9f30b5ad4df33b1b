"""Operators of a user's own domain: registered with `mz.op` and `mz.pointwise`, used by imported models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

import mezzo as mz
from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx, operators_of
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import InputError, ShapeError, UnsupportedModel
from mezzo.runtime.ir.interpreter import Eager

from .models import BOOL, model, node, ort_run, subgraph, value

DOMAIN = "org.example"
X = np.array([[-2, -1, 0], [1, 2, 3]], np.float32)


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(mz.ops.OPS)
    yield
    mz.ops.OPS.clear()
    mz.ops.OPS.update(before)


def top_sum() -> mz.ops.Op:
    """The sum of the `count` largest entries of each row: an operator with every slot filled."""

    @mz.op("TopSum", domain=DOMAIN, since=3)
    def top_sum(k: Any, x: Any, bias: Any = None, *, count: int = 1) -> Any:
        total = np.sort(x, -1)[..., -count:].sum(-1)
        return total if bias is None else total + bias

    @top_sum.infer
    def _(x: Tensor, bias: Tensor | None = None, *, count: int = 1) -> Tensor:
        if not x.shape:
            raise ShapeError(f"{x} has no rows")
        return x.of(x.shape[:-1])

    @top_sum.grad
    def _(g: Any, dys: Any, ys: Any, xs: Any, *, count: int = 1) -> tuple[Any, Any]:
        places = g.TopK(xs[0], g.const([count]), outputs=2)[1]
        spread = g.Expand(g.Unsqueeze(dys[0], g.const([-1])), g.shape_of(places))
        zeros = g.Mul(xs[0], g.const(0, DType.FLOAT))
        return g.ScatterElements(zeros, places, spread, axis=-1), dys[0]

    @top_sum.body
    def _(g: Any, xs: Any, types: Any, *, count: int = 1) -> Any:
        largest, _ = g.TopK(xs[0], g.const([count]), outputs=2)
        total = g.ReduceSum(largest, g.const([-1]), keepdims=0)
        return total if xs[1] is None else g.Add(total, xs[1])

    return top_sum


def proto(*, version: int = 3, bias: bool = True) -> onnx.ModelProto:
    """TopSum between standard operators."""
    nodes = [
        node("Neg", "x", "n"),
        node("TopSum", f"n {'b' if bias else ''}", "t", domain=DOMAIN, name="top", count=2),
        node("Relu", "t", "y"),
    ]
    listed = [value("x", "rows", 3), *([value("b", 1)] if bias else [])]
    return model(nodes, listed, [value("y", None)], domains={DOMAIN: version})


def words(proto: onnx.ModelProto) -> list[Any]:
    """What the nodes of a model say."""
    return [
        (n.domain, n.op_type, n.name, [*n.input], [*n.output],
         {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute})
        for n in proto.graph.node
    ]  # fmt: skip


def expected(bias: float) -> Any:
    return np.maximum(np.sort(-X, -1)[:, -2:].sum(-1) + bias, 0)


@pytest.mark.parametrize("version", [1, 3, 99])
def test_imported_models_use_it_at_whatever_version_they_say(version: int) -> None:
    top_sum()
    session = mz.load(proto(version=version).SerializeToString())
    feeds = {"x": X, "b": np.array([0.5], np.float32)}
    np.testing.assert_array_equal(session.run(feeds)["y"], expected(0.5))
    assert str(session.outputs[0].type) == "float32[rows]"
    again = to_onnx(session.graph)
    assert {o.domain: o.version for o in again.opset_import}[DOMAIN] == version
    assert words(again) == words(proto(version=version))


def test_without_a_record_it_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"org\.example::TopSum of opset 3 is not carried") as caught:
        load_onnx(proto())
    assert "register them (mezzo.op)" in caught.value.hint
    top_sum()
    assert [use.problem for use in operators_of(proto())] == ["", "", ""]


def test_its_own_words_for_what_does_not_fit() -> None:
    top_sum()
    wrong = model([node("TopSum", "x", "y", domain=DOMAIN)], [value("x")], [value("y", None)], domains={DOMAIN: 3})
    with pytest.raises(ShapeError, match=r"float32\[\] has no rows"):
        mz.load(wrong.SerializeToString())


def test_inside_a_subgraph() -> None:
    top_sum()
    then = subgraph([node("TopSum", "x", "t", domain=DOMAIN)], [], [value("t", 2)])
    other = subgraph([node("ReduceMin", "x", "m", axes=[1], keepdims=0)], [], [value("m", 2)])
    choice = node("If", "c", "y", then_branch=then, else_branch=other)
    branch = model([choice], [value("x", 2, 3), value("c", kind=BOOL)], [value("y", 2)], domains={DOMAIN: 3})
    session = mz.load(branch.SerializeToString())
    for taken, want in ((True, X.max(1)), (False, X.min(1))):
        np.testing.assert_array_equal(session.run({"x": X, "c": np.array(taken)})["y"], want)
    standard = to_onnx(session.graph, standard=True)
    assert {o.domain for o in standard.opset_import} == {""}
    np.testing.assert_array_equal(ort_run(standard, {"x": X, "c": np.array(True)})["y"], X.max(1))


@pytest.mark.parametrize("bias", [True, False])
def test_its_standard_form_leaves_for_other_runtimes(bias: bool) -> None:
    top_sum()
    graph = load_onnx(proto(bias=bias))
    standard = to_onnx(graph, standard=True)
    onnx.checker.check_model(standard, full_check=True)
    feeds = {"x": X, **({"b": np.array([0.5], np.float32)} if bias else {})}
    np.testing.assert_array_equal(ort_run(standard, feeds)["y"], expected(0.5 * bias))
    assert [n.op_type for n in standard.graph.node] == ["Neg", "TopK", "ReduceSum", *(["Add"] if bias else []), "Relu"]
    assert standard.graph.output[0].name == "y"


def test_its_gradient_equals_differences() -> None:
    record = top_sum()
    assert record.grad_rule
    dy = np.array([1, 10], np.float32)
    dx, db = record.grad_rule(Eager((True, True)), (dy,), (), (X, np.zeros(2, np.float32)), count=2)
    np.testing.assert_array_equal(dx, [[0, 1, 1], [0, 10, 10]])
    np.testing.assert_array_equal(db, dy)


def test_one_without_a_body_stays_as_it_is() -> None:
    @mz.op("Shift", domain=DOMAIN)
    def shift(k: Any, x: Any, *, by: Any = 1) -> Any:
        return np.roll(x, by, -1)

    shifted = model([node("Shift", "x", "y", domain=DOMAIN, by=2)], [value("x", 2, 3)], [value("y", 2, 3)],
                    domains={DOMAIN: 1})  # fmt: skip
    graph = load_onnx(shifted)
    assert words(to_onnx(graph, standard=True)) == words(shifted)
    np.testing.assert_array_equal(mz.Session(graph)(X), np.roll(X, 2, -1))


def test_one_expression_is_enough_for_a_pointwise_one() -> None:
    @mz.pointwise("Smooth", domain=DOMAIN)
    def smooth(e: Any, x: Any, y: Any, *, beta: float = 1.0) -> Any:
        return x + e.tanh(y * beta)

    made = model([node("Smooth", "x y", "z", domain=DOMAIN, beta=0.5), node("Exp", "z", "w")],
                 [value("x", "n", 3), value("y", 3)], [value("w", "n", 3)], domains={DOMAIN: 1})  # fmt: skip
    session = mz.load(made.SerializeToString())
    y = np.array([1, -1, 0.5], np.float32)
    np.testing.assert_allclose(session.run({"x": X, "y": y})["w"], np.exp(X + np.tanh(y * 0.5)), rtol=1e-6)
    kernels = [step.choice.kernel for step in session.program.steps]
    assert "reference" not in kernels


@pytest.mark.parametrize("attrs", [
    {"n": 3, "ratio": 0.5, "text": "a", "ns": [1, 2], "ratios": [0.5, 1.0], "texts": ["a", "b"]},
    {"array": np.array([1, 2], np.int64)},
], ids=["numbers and words", "array"])  # fmt: skip
def test_attributes_of_every_kind_go_in_and_out(attrs: dict[str, Any]) -> None:
    seen: dict[str, Any] = {}

    @mz.op("Keeps", domain=DOMAIN)
    def keeps(k: Any, x: Any, *, n: Any = None, ratio: Any = None, text: Any = None, ns: Any = None,
              ratios: Any = None, texts: Any = None, array: Any = None) -> Any:  # fmt: skip
        seen.update(n=n, ratio=ratio, text=text, ns=ns, ratios=ratios, texts=texts, array=array)
        return x.copy()

    stored = {a: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for a, v in attrs.items()}
    made = model([node("Keeps", "x", "y", domain=DOMAIN, **stored)], [value("x", 2, 3)], [value("y", 2, 3)],
                 domains={DOMAIN: 1})  # fmt: skip
    graph = load_onnx(made)
    mz.Session(graph)(X)
    for name, given in attrs.items():
        np.testing.assert_array_equal(seen[name], given)
    again = load_onnx(to_onnx(graph))
    for name, given in attrs.items():
        np.testing.assert_array_equal(again.nodes[0].attrs[name], given)


def test_ours_cannot_be_defined_a_second_time_and_yours_can() -> None:
    with pytest.raises(InputError, match=r"ai\.onnx::Relu is defined already"):
        mz.op("Relu")(lambda k, x: x)
    with pytest.raises(InputError, match=r"com\.microsoft::Gelu is defined already"):
        mz.pointwise("Gelu", domain="com.microsoft")(lambda e, x: x)
    top_sum()
    assert top_sum() is mz.ops.OPS[DOMAIN, "TopSum"]


@pytest.mark.parametrize("portable", [True, False])
def test_a_mezzo_file_holds_it(tmp_path: Path, portable: bool) -> None:
    record, path = top_sum(), tmp_path / "m.mezzo"
    mz.load(proto(bias=False).SerializeToString()).save(path, portable=portable)
    np.testing.assert_array_equal(mz.load(path)(X), expected(0))
    record.since = 2
    with pytest.raises(UnsupportedModel, match=r"TopSum changed at opset 3, and is carried as of opset 2"):
        mz.load(path)
    del mz.ops.OPS[DOMAIN, "TopSum"]
    with pytest.raises(UnsupportedModel, match=r"TopSum is not carried"):
        mz.load(path)
