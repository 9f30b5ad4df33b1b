"""Every gradient rule over its operator's samples: against finite differences in float64, in graphs with and without
known sizes and on an eager tape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mezzo.ops import OPS, Body, DType, Op, Sample, Tensor
from mezzo.ops.errors import UnsupportedModel
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder, Node
from mezzo.runtime.ir.infer import infer

from . import gradients as check
from .peers import peer

# Operators whose gradients must have gradients: what penalties on gradients and second-order methods are made of.
SECOND = set(
    """Abs Add Cast Clip Concat Conv Cos CumSum Det Div Einsum Elu Erf Exp Expand Gather Gelu Gemm LeakyRelu Log
    LogSoftmax MatMul Max Mean Min Mish Mul Neg Pow Reciprocal ReduceL2 ReduceLogSumExp ReduceMean ReduceSum
    ReduceSumSquare Relu Reshape Sigmoid Sin Slice Softmax SoftmaxCrossEntropyLoss Softplus Sqrt Sub Sum Swish Tanh
    Transpose Where
    """.split()
)

# Operators whose standard forms, which are what has a derivative, are made for sizes that are known.
SIZES_NEEDED = {("com.microsoft", n) for n in ("Attention", "MultiHeadAttention", "GroupQueryAttention")}


def cases() -> list[Any]:
    return [
        pytest.param(o, s, id=f"{o.name}-{i}")
        for o in OPS.values()
        for i, s in enumerate(o.samples)
        # of these two the gradient is to differ from the function's
        if check.has_derivative(o) and o.name not in ("StopGradient", "FakeQuantize")
    ]


@pytest.mark.parametrize(("o", "sample"), cases())
def test_rules_agree_with_finite_differences(o: Op, sample: Sample) -> None:
    c = check.case(o, sample)
    if c is None:
        return  # integers have no gradients
    c = replace(c, wrt=check.wanted(o, c))
    found = {"in a graph": check.by_graph(c, infer(c.graph))}
    if (o.domain, o.name) in SIZES_NEEDED:
        with pytest.raises(UnsupportedModel, match="no derivative"):
            check.by_graph(c, check.ranks_only(c.graph))
    else:
        found["without sizes"] = check.by_graph(c, check.ranks_only(c.graph))
    if o.grad_rule is not None:
        found["on the tape"] = check.by_tape(c)
    for name in c.wrt:
        differences = check.numeric(c.graph, c.feeds, c.dys, name)
        for how, grads in found.items():
            problem = check.disagreement(c, grads, name, differences)
            assert not problem, f"{how}: {problem}"


def test_second_derivatives_are_looked_at() -> None:
    assert len(SECOND) >= 30
    assert not [name for name in SECOND if not any(check.twice(OPS["", name], s) for s in OPS["", name].samples)]


@pytest.mark.parametrize(("o", "sample"), cases())
def test_second_derivatives(o: Op, sample: Sample) -> None:
    """The differentiated graph is differentiated again."""
    second = check.twice(o, sample)
    if second is None:
        return
    try:
        found = check.by_graph(second, second.graph)
    except UnsupportedModel:
        assert o.name not in SECOND
        return
    for name in second.wrt:
        differences = check.numeric(second.graph, second.feeds, second.dys, name, most=12)
        problem = check.disagreement(second, found, name, differences)
        assert not problem, problem


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=str)
@pytest.mark.parametrize(("o", "sample"), cases())
def test_gradients_have_the_element_type_of_their_inputs(o: Op, sample: Sample, dtype: DType) -> None:
    if any(isinstance(v, Body) for v in sample.attrs.values()):
        return  # bodies have element types of their own
    graph = check.in_type(o, sample, dtype)
    made = check.differentiated(graph, *check.ends(graph))
    for name in made.outputs:
        dx, x = made.types[name], made.types[name.removeprefix("grad/dx ")]
        if isinstance(dx, Tensor) and isinstance(x, Tensor):
            assert dx.dtype is x.dtype, name


@pytest.mark.parametrize(("o", "sample"), cases())
def test_planned_in_float32(o: Op, sample: Sample) -> None:
    """A session runs the differentiated graph within 1e-4 of what the interpreter says in float64, or as near as the
    narrowest float of a sample allows."""
    c = check.case(o, sample)
    if c is None or not o.deterministic:
        return
    exact = check.by_graph(c, c.graph)
    made, feeds = check.in_float32(o, sample, c)
    bits = min(DType.of(x.dtype).bits for v in feeds.values() for x in check.leaves(v) if x.dtype.kind in "fcV")
    near = {16: 1e-2, 8: 0.2, 4: 0.5}.get(bits, 1e-4)
    for onednn in (True, False):
        found = Session(made, onednn=onednn).run(feeds)
        for name, dx in exact.items():
            for a, b in zip(check.leaves(found[f"grad/dx {name}"]), check.leaves(dx), strict=True):
                known = np.isfinite(b)
                most = float(np.abs(b[known]).max(initial=0))
                assert a.shape == b.shape
                np.testing.assert_allclose(
                    a[known], b[known], rtol=0, atol=near * max(most, 1e-30), err_msg=f"{name}, oneDNN: {onednn}"
                )


def test_places_that_nobody_asked_for_are_kept_for_the_gradient() -> None:
    g = GraphBuilder()
    x, k = g.input("x", f32(2, 4)), g.const([2])
    g.add(Node("TopK", (x, k), ("largest", "")))
    c = check.case_of(infer(g.graph(["largest"])), {"x": np.array([[3, 1, 4, 2], [0, 9, 8, 7]], np.float32)})
    assert c is not None
    (differences,) = check.numeric(c.graph, c.feeds, c.dys, "x")
    assert not check.disagreement(c, check.by_graph(c, c.graph), "x", [differences])


def at_kinks() -> list[Any]:
    """Operators where they bend, their attributes, and what PyTorch calls them."""
    torch = peer("torch")
    f, limits = torch.nn.functional, [-1.0, 1.0]
    ties, other = [[1.0, 3, 3, -2], [0, 0, 0, 0]], [[1.0, 2, 3, -1], [0, 1, 0, -1]]
    return [
        ("Abs", [[0.0, 1]], {}, torch.abs),
        ("Relu", [[0.0, -1, 1]], {}, f.relu),
        ("LeakyRelu", [[0.0, -1]], {}, f.leaky_relu),
        ("PRelu", [[0.0, -1], [0.5]], {}, f.prelu),
        ("ThresholdedRelu", [[1.0, 2]], {}, lambda x: f.threshold(x, 1.0, 0.0)),
        ("Elu", [[0.0]], {"alpha": 2.0}, lambda x: f.elu(x, 2.0)),
        ("Selu", [[0.0]], {}, f.selu),
        ("Celu", [[0.0]], {"alpha": 2.0}, lambda x: f.celu(x, 2.0)),
        ("HardSigmoid", [[-3.0, 3]], {"alpha": 1 / 6}, f.hardsigmoid),
        ("HardSwish", [[-3.0, 3]], {}, f.hardswish),
        ("Shrink", [[-0.5, 0.5]], {"bias": 0.5}, f.softshrink),
        ("Clip", [[*limits, 0, 2], limits[0], limits[1]], {}, lambda x, a, b: torch.clamp(x, a, b)),
        ("Clip", [[-2.0, 0, 2], 1.0, -1.0], {}, lambda x, a, b: torch.clamp(x, a, b)),
        ("Max", [ties, other], {}, torch.maximum),
        ("Min", [ties, other], {}, torch.minimum),
        ("ReduceMax", [ties, [1]], {}, lambda x, _: torch.amax(x, 1, keepdim=True)),
        ("ReduceMin", [ties, [1]], {}, lambda x, _: torch.amin(x, 1, keepdim=True)),
        ("ReduceL1", [ties, [1]], {}, lambda x, _: torch.linalg.vector_norm(x, 1, 1, keepdim=True)),
        ("ReduceL2", [ties, [1]], {}, lambda x, _: torch.linalg.vector_norm(x, 2, 1, keepdim=True)),
        ("ReduceProd", [ties, [1]], {}, lambda x, _: torch.prod(x, 1, keepdim=True)),
        ("CumProd", [other, 1], {}, lambda x, _: torch.cumprod(x, 1)),
        ("Pow", [[0.0, 0, 0, 2], [0.0, 2, 1, 0]], {}, torch.pow),
        ("Atan2", [[0.0, 0, 1, -1], [0.0, -1, 0, 0]], {}, torch.atan2),
    ]


@pytest.mark.parametrize("number", range(23))
def test_at_kinks_gradients_are_those_of_pytorch(number: int) -> None:
    torch = peer("torch")
    name, values, attrs, function = at_kinks()[number]
    xs = [np.array(v, np.int64 if np.asarray(v).dtype.kind == "i" else np.float64) for v in values]
    c = check.case(OPS["mezzo" if name == "Atan2" else "", name], Sample(xs, attrs))
    assert c is not None
    found = check.by_graph(c, c.graph)
    theirs = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in xs]
    function(*theirs).backward(torch.tensor(next(iter(c.dys.values()))))
    for i, t in enumerate(theirs):
        if t.requires_grad:
            np.testing.assert_allclose(found[f"x{i}"], t.grad.numpy(), rtol=1e-6, atol=1e-12, err_msg=f"{name} {i}")
