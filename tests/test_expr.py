"""The executable forms of lowered expressions agree: fresh results, results in given memory, and block by block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.ops import OPS, DType, Op, Sample
from mezzo.ops.core.evaluate import Blocks, Steps, evaluate
from mezzo.ops.core.expr import E, Expr, inputs
from mezzo.ops.core.lowered import Lowered, lower
from mezzo.ops.errors import ShapeError
from mezzo.ops.math.special import erf

from .test_ops import cases, fill

POINTWISE = cases([o for o in OPS.values() if o.tree])


def fresh(tree: Expr, xs: list[Any]) -> Any:
    (result,) = evaluate(lower([tree], len(xs)), np, xs)
    return result


def execute(code: Lowered, xs: list[Any], out: Any) -> None:
    """Run the instructions one by one; `out` may be one of the inputs that `inplace` lists."""
    with np.errstate(all="ignore"):
        Steps(code).run(xs, [out], [np.empty(out.shape, t.numpy) for t in code.temps])


def check(tree: Expr, xs: list[Any]) -> None:
    """Both forms give the same, into fresh memory and into the memory of every input that may be overwritten."""
    expected = fresh(tree, xs)
    assert not any(x is not None and np.shares_memory(expected, x) for x in xs)
    shape = np.broadcast_shapes(*(x.shape for x in xs if x is not None))
    expected = np.broadcast_to(expected, shape)
    code = lower([tree], len(xs))
    out = np.full(shape, 99).astype(tree.dtype.numpy)
    execute(code, xs, out)
    np.testing.assert_allclose(out, expected, rtol=1e-6, err_msg=str(tree))
    for i in code.inplace:
        if xs[i].shape == shape and xs[i].dtype == out.dtype:
            mine: list[Any] = [None if x is None else x.copy() for x in xs]
            execute(code, mine, mine[i])
            np.testing.assert_allclose(mine[i], expected, rtol=1e-6, err_msg=f"{tree} in place of {i}")
            for j, (x, old) in enumerate(zip(mine, xs, strict=True)):
                if j != i and x is not None:
                    np.testing.assert_array_equal(x, old, "an input was overwritten")


@pytest.mark.parametrize(("o", "sample"), POINTWISE)
def test_lowered_operators(o: Op, sample: Sample) -> None:
    xs = fill(sample)
    assert o.tree
    check(o.tree([None if x is None else DType.of(x.dtype) for x in xs], **sample.attrs), xs)


KINDS = [DType.FLOAT, DType.DOUBLE, DType.INT64, DType.BOOL]
ANY = ["max", "min"]
NUMBERS = ["add", "sub", "mul", *ANY]
FLOATS = ["neg", "abs", "exp", "tanh", "sqrt", "floor"]
TESTS = ["equal", "less", "greater_equal"]
LOGIC = ["and", "or", "xor"]


@st.composite
def trees(draw: st.DrawFn, leaves: tuple[DType, ...], want: DType, depth: int = 4) -> Expr:
    """A random tree of the element type `want` over inputs of the types `leaves`."""

    def tree(dtype: DType) -> Expr:
        return draw(trees(leaves, dtype, depth - 1))

    own = [e for e in inputs(list(leaves)) if e is not None and e.dtype is want]
    choices = ["input"] * bool(own) + ["const"]
    if depth:
        choices += ["cast", "where", "binary"] + ["unary"] * (want is not DType.INT64)
    choice = draw(st.sampled_from(choices))
    if choice == "input":
        return draw(st.sampled_from(own))
    if choice == "const":
        values: Any = st.booleans() if want is DType.BOOL else st.integers(-3, 3)
        return Expr("const", (), want, draw(values))
    if choice == "cast":
        return E.cast(tree(draw(st.sampled_from([k for k in KINDS if k is not want]))), want)
    if choice == "where":
        return E.where(tree(DType.BOOL), tree(want), tree(want))
    if choice == "unary":
        return E.make("not" if want is DType.BOOL else draw(st.sampled_from(FLOATS)), tree(want))
    if want is DType.BOOL:
        kind = draw(st.sampled_from(KINDS))
        return E.make(draw(st.sampled_from(LOGIC if kind is DType.BOOL else TESTS)), tree(kind), tree(kind))
    return E.make(draw(st.sampled_from(NUMBERS)), tree(want), tree(want))


@st.composite
def programs(draw: st.DrawFn) -> tuple[Expr, list[Any]]:
    leaves = tuple(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)))
    tree = draw(trees(leaves, draw(st.sampled_from(KINDS))))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shapes = [draw(st.sampled_from([(2, 3), (3,), (2, 1), ()])) for _ in leaves]
    return tree, [rng.integers(-3, 4, s).astype(d.numpy) for d, s in zip(leaves, shapes, strict=True)]


@given(st.data())
def test_several_expressions_renew_their_inputs(data: st.DataObject) -> None:
    """Outputs in the memory of the inputs that they replace, in blocks, with scalars among the inputs: the same bits as
    fresh results, whatever reads what."""
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    number = data.draw(st.sampled_from(KINDS))
    roots = [data.draw(trees((*kinds, number), k, 3)) for k in kinds]
    rng, size = np.random.default_rng(data.draw(st.integers(0, 99))), data.draw(st.integers(1, 9))
    xs: list[Any] = [rng.integers(-3, 4, size).astype(k.numpy) for k in kinds]
    xs.append(np.asarray(rng.integers(-3, 4), number.numpy))
    count = len(kinds)
    code = lower(roots, count + 1, [count], range(count))
    expected = [np.broadcast_to(y, size).copy() for y in evaluate(code, np, xs)]
    most = data.draw(st.integers(1, 9))
    temps = [np.empty(min(most, size), t.numpy) for t in code.temps]
    with np.errstate(all="ignore"):
        Blocks(Steps(code), xs, xs[:count], temps, most).run()
    for x, y in zip(xs, expected, strict=False):
        np.testing.assert_array_equal(x, y)


@given(programs())
def test_lowered_trees(program: tuple[Expr, list[Any]]) -> None:
    check(*program)


def test_shared_subtrees_are_computed_once() -> None:
    x = inputs([DType.FLOAT])[0]
    assert x
    y = E.exp(x)
    assert [c.kind for c in lower([y * y + y], 1).code].count("exp") == 1
    assert lower([y * y], 1).temps == ()


def test_mixed_element_types_are_refused() -> None:
    a, b = inputs([DType.FLOAT, DType.INT64])
    assert a
    assert b
    with pytest.raises(ShapeError, match="float32 and int64"):
        E.make("add", a, b)
    with pytest.raises(ShapeError, match="float32 and int64"):
        E.where(E.less(a, 0), a, b)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 5e-7), (np.float64, 1e-15)])
def test_error_function(dtype: Any, rtol: float) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), np.logspace(-30, 0, 999), [np.inf, -np.inf, 0]]).astype(dtype)
    (leaf,) = inputs([DType.of(dtype)])
    assert leaf
    y = fresh(erf(E, leaf), [x])
    np.testing.assert_allclose(y, [math.erf(v) for v in x], rtol=rtol)
    assert abs(y).max() <= 1


def test_narrow_floats_are_rounded_once() -> None:
    x = np.linspace(-3, 3, 99).astype(np.float16)
    for name in ("Gelu", "Elu", "HardSwish"):
        tree = OPS["", name].tree
        assert tree
        wide = fresh(tree([DType.FLOAT]), [x.astype(np.float32)])
        np.testing.assert_array_equal(fresh(tree([DType.FLOAT16]), [x]), wide.astype(np.float16))
    relu = OPS["", "Relu"].tree
    assert relu
    assert relu([DType.FLOAT16]).kind == "max"  # exact in any float
