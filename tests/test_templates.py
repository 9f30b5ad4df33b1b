"""Templates over sizes: what was decided for some sizes is taken over to others only if it would be decided again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mezzo.ops import DType
from mezzo.ops.errors import InputError, MezzoError, ShapeError
from mezzo.ops.symbolic import NotSymbolic, SizeTrace, SymbolicSize, concrete, is_symbolic, sizes_array, tracing
from mezzo.ops.types import f32, i64, type_of
from mezzo.runtime.compile.template import MOST, Templates
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from .processor import native_bfloat16

# What code in C could make of a size: each would take over a number that nobody notes.
TAKES: dict[str, Callable[[Any], Any]] = {
    "range": lambda n: range(n),
    "index": lambda n: [1, 2, 3][n],
    "slice": lambda n: [1, 2, 3][:n],
    "repeat": lambda n: [1] * n,
    "int": lambda n: int(n),
    "float": lambda n: float(n),
    "percent": lambda n: "%d" % n,  # noqa: UP031
    "hex": lambda n: f"{n:x}",
    "ceil": lambda n: math.ceil(n),
    "sqrt": lambda n: math.sqrt(n),
    "quotient": lambda n: n / 2,
    "power": lambda n: n**2,
    "shift": lambda n: n << 1,
    "float comparison": lambda n: n == 6.0,
    "float order": lambda n: n < 6.5,
    "array": lambda n: np.array([n], np.int64),
    "zeros": lambda n: np.zeros(n),
    "arange": lambda n: np.arange(n),
    "reshape": lambda n: np.zeros(6).reshape(n),
    "broadcast": lambda n: np.broadcast_to(np.zeros(1), (n,)),
    "cast": lambda n: sizes_array([n]).astype(np.int32),
    "fill": lambda n: np.full(2, 0).fill(n),
    "take": lambda n: np.take(np.arange(9), n),
    "isclose": lambda n: math.isclose(n, 6),
    "chr": lambda n: chr(n),
    "bytes": lambda n: bytes(n),
}


@pytest.mark.parametrize("name", TAKES)
def test_no_number_is_taken_unnoticed(name: str) -> None:
    size = SizeTrace().symbol(6)
    with pytest.raises((NotSymbolic, ValueError) if name == "hex" else NotSymbolic):
        TAKES[name](size)


def test_a_size_is_an_int_to_python() -> None:
    size = SizeTrace().symbol(6)
    assert isinstance(size, int)
    assert size == 6
    assert not size == 7  # noqa: SIM201
    assert 5 < size <= 6 < size + 1
    assert size
    assert max(size, 3) is size
    assert is_symbolic(math.prod([size, 2]))
    assert type(size - size) is int
    with tracing():
        assert type_of(sizes_array([size, 2])) == i64(2)
    assert {size: 1}[size + 0] == 1


def expression(draw: random.Random, sizes: list[Any], depth: int) -> Callable[[list[Any]], Any]:
    """A random expression over sizes, as a function of them; it decides on the way."""
    if not depth or draw.random() < 0.15:
        which, number = draw.randrange(len(sizes)), draw.randrange(-2, 4)
        return (lambda s: s[which]) if draw.random() < 0.7 else (lambda s: number)
    a, b = (expression(draw, sizes, depth - 1) for _ in range(2))
    kind = draw.choice(["+", "-", "*", "//", "%", "max", "min", "==", "<", "abs", "or"])
    if kind in "+-*":
        return {"+": lambda s: a(s) + b(s), "-": lambda s: a(s) - b(s), "*": lambda s: a(s) * b(s)}[kind]
    if kind in ("//", "%"):
        by = draw.randrange(1, 5)
        if draw.random() < 0.5:
            return (lambda s: a(s) // by) if kind == "//" else (lambda s: a(s) % by)
        return lambda s: a(s) // (abs(b(s)) + 1) if kind == "//" else a(s) % (abs(b(s)) + 1)
    return {
        "max": lambda s: max(a(s), b(s)), "min": lambda s: min(a(s), b(s)), "abs": lambda s: abs(a(s)),
        "==": lambda s: a(s) if a(s) == b(s) else b(s) + 1, "<": lambda s: a(s) if a(s) < b(s) else b(s) - 1,
        "or": lambda s: a(s) or b(s),
    }[kind]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_what_holds_is_computed_alike(seed: int) -> None:
    """Where the guards hold, the polynomial is what the expression gives for the numbers themselves."""
    draw, held = random.Random(seed), 0
    for _ in range(25):
        trace = SizeTrace()
        symbols = [trace.symbol(draw.randrange(1, 9)) for _ in range(3)]
        compute = expression(draw, symbols, 4)
        answer = compute(symbols)
        for _ in range(20):
            sizes = [draw.randrange(1, 12) for _ in symbols]
            values = trace.values(sizes)
            if values is None:
                continue
            assert concrete(trace, values)(answer) == compute(sizes), (sizes, trace.guards, answer)
            held += 1
        assert trace.values(trace.hints[:3]) == trace.hints
    assert held > 50


def attention(heads: int = 2, width: int = 16) -> Graph:
    """A block as exporters write it: shapes are taken, cut and joined again, a mask is made of ranges."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    x, mask = g.input("x", f32("batch", "length", width)), g.input("mask", i64("batch", "length"))
    w = [g.const(rng.standard_normal((width, width)).astype(np.float32) / 4) for _ in range(3)]
    shape = g.Shape(x)
    batch, length = (g.Unsqueeze(g.Gather(shape, g.const(i)), g.const([0])) for i in (0, 1))
    split = g.Concat(batch, length, g.const([heads]), g.const([width // heads]), axis=0)
    q, k, v = (g.Transpose(g.Reshape(g.MatMul(x, m), split), perm=(0, 2, 1, 3)) for m in w)
    scores = g.MatMul(q, g.Transpose(k, perm=(0, 1, 3, 2)))
    at = g.Range(g.const(0), g.Squeeze(length, g.const([0])), g.const(1))
    causal = g.LessOrEqual(g.Unsqueeze(at, g.const([0])), g.Unsqueeze(at, g.const([1])))
    seen = g.And(causal, g.Unsqueeze(g.Cast(mask, to=DType.BOOL.onnx), g.const([1, 2])))
    weights = g.Softmax(g.Where(seen, scores, g.const(np.float32(-1e9))), axis=-1)
    joined = g.Reshape(
        g.Transpose(g.MatMul(weights, v), perm=(0, 2, 1, 3)), g.Concat(batch, length, g.const([-1]), axis=0)
    )
    return g.graph([g.Relu(g.Add(joined, x))])


def feeds(batch: int, length: int, width: int = 16) -> dict[str, Any]:
    rng = np.random.default_rng(batch * 100 + length)
    mask = np.ones((batch, length), np.int64)
    mask[:, length // 2 + 1 :] = 0
    return {"x": rng.standard_normal((batch, length, width)).astype(np.float32), "mask": mask}


def templates(session: Session) -> Templates:
    return session._compiled[session.signature.outputs].templates


@pytest.mark.parametrize(
    ("onednn", "precision"), [(True, "fp32"), pytest.param(True, "bf16", marks=native_bfloat16), (False, "fp32")]
)
def test_a_template_serves_many_sizes(onednn: bool, precision: str) -> None:
    graph = attention()
    session = Session(graph, onednn=onednn, precision=precision)
    for batch, length in [(2, 7), (2, 9), (3, 30), (5, 16), (2, 17), (4, 64)]:
        given = feeds(batch, length)
        fresh = Session(graph, onednn=onednn, precision=precision).run(given)
        for name, answer in session.run(given).items():
            np.testing.assert_array_equal(answer, fresh[name])
    known = templates(session)
    assert not known.reasons
    assert len(known.all) == 1
    assert known.latest is None, "a size was planned without the template"


def test_other_decisions_make_another_template() -> None:
    """A batch of one lets axes move that others do not."""
    session = Session(attention())
    for batch, length in [(1, 7), (1, 9), (2, 9), (2, 11), (1, 12), (3, 8)]:
        given = feeds(batch, length)
        for name, answer in Session(attention()).run(given).items():
            np.testing.assert_allclose(session.run(given)[name], answer, rtol=1e-5, atol=1e-5)
    assert 1 <= len(templates(session).all) <= 2


def test_axes_without_elements_have_templates_of_their_own() -> None:
    """The empty past of a decoder is a constant of its template, which serves no other."""

    def graph() -> Graph:
        g = GraphBuilder()
        old, new = g.input("old", f32("batch", "past", 4)), g.input("new", f32("batch", "length", 4))
        both = g.Concat(old, new, axis=1)
        return g.graph([g.Softmax(g.MatMul(new, g.Transpose(both, perm=(0, 2, 1)))), both])

    session, draw = Session(graph()), np.random.default_rng(0)
    for past, length in [(0, 5), (0, 9), (3, 2), (7, 2), (0, 6), (0, 1), (4, 3)]:
        given = {n: draw.standard_normal((2, k, 4)).astype(np.float32) for n, k in (("old", past), ("new", length))}
        for name, answer in Session(graph()).run(given).items():
            np.testing.assert_allclose(session.run(given)[name], answer, rtol=1e-5, atol=1e-6)
    assert not templates(session).reasons
    assert len({tuple(t.symbols.empty) for t in templates(session).all}) == 2


def cut(sizes: Callable[[GraphBuilder, str], str]) -> Graph:
    g = GraphBuilder()
    x = g.input("x", f32("n", 4))
    return g.graph([g.Relu(sizes(g, g.Add(x, g.const(np.float32(1)))))])


# Graphs of which sizes decide what is left of them
DECIDES: dict[str, Callable[[GraphBuilder, str], str]] = {
    "a slice that may be whole": lambda g, x: g.Slice(x, g.const([0]), g.const([8]), g.const([0])),
    "a slice from the end": lambda g, x: g.Slice(x, g.const([-6]), g.const([2**62]), g.const([0])),
    "a slice backwards": lambda g, x: g.Slice(x, g.const([7]), g.const([-(2**62)]), g.const([0]), g.const([-2])),
    "a half": lambda g, x: g.Reshape(
        x, g.Concat(g.Div(g.Mul(g.Shape(x, end=1), g.const([4])), g.const([2])), g.const([2]), axis=0)
    ),
    "a choice by size": lambda g, x: g.Mul(x, g.Cast(g.Greater(g.Gather(g.Shape(x), g.const(0)), g.const(8)), to=1)),
    "a square of the size": lambda g, x: g.Add(x, g.Cast(g.Mul(g.Size(x), g.Size(x)), to=1)),
    "a range": lambda g, x: g.Add(
        x, g.Cast(g.Unsqueeze(g.Range(g.const(0), g.Gather(g.Shape(x), g.const(0)), g.const(1)), g.const([1])), to=1)
    ),
    "a rest": lambda g, x: g.Mul(x, g.Cast(g.Mod(g.Gather(g.Shape(x), g.const(0)), g.const(3)), to=1)),
    "a sum over it": lambda g, x: g.Div(g.ReduceSum(x, g.const([0])), g.Cast(g.Gather(g.Shape(x), g.const(0)), to=1)),
    "a tile": lambda g, x: g.Tile(x, g.Concat(g.const([1]), g.Shape(x, end=1), axis=0)),
    "a table by size": lambda g, x: g.Add(
        x, g.Gather(g.const(np.arange(99, dtype=np.float32)), g.Gather(g.Shape(x), g.const(0)))
    ),
    "as many of the largest": lambda g, x: g.TopK(
        g.Transpose(x), g.Max(g.Div(g.Shape(x, end=1), g.const([2])), g.const([1])), outputs=2
    )[0],
    "one hot of the size": lambda g, x: g.OneHot(
        g.Cast(g.ArgMax(x, axis=0, keepdims=0), to=7),
        g.Gather(g.Shape(x), g.const(0)),
        g.const(np.array([0, 1], np.float32)),
    ),
    "padding by the size": lambda g, x: g.Pad(
        x, g.Concat(g.const([0, 0]), g.Shape(x, end=1), g.const([0]), axis=0), g.const(np.float32(2))
    ),
    "a triangle below the size": lambda g, x: g.Trilu(g.MatMul(x, g.Transpose(x)), g.const(2), upper=0),
    "an identity": lambda g, x: g.MatMul(g.EyeLike(g.MatMul(x, g.Transpose(x)), dtype=1), x),
    "parts of the size": lambda g, x: g.Concat(
        *g.Split(x, g.Concat(g.const([1]), g.Sub(g.Shape(x, end=1), g.const([1])), axis=0), axis=0, outputs=2)[::-1],
        axis=0,
    ),
    "pooled images": lambda g, x: g.MaxPool(
        g.Unsqueeze(x, g.const([0, 1])), kernel_shape=[3, 2], auto_pad="SAME_UPPER"
    ),
    "pooled with a ceiling": lambda g, x: g.AveragePool(
        g.Unsqueeze(x, g.const([0, 1])), kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1
    ),
    "convolved images": lambda g, x: g.Relu(
        g.Conv(g.Unsqueeze(x, g.const([0, 1])), g.const(np.ones((4, 1, 3, 3), np.float32)), pads=[1, 1, 1, 1])
    ),
    "upsampled images": lambda g, x: g.Resize(
        g.Unsqueeze(x, g.const([0, 1])), None, g.const(np.array([1, 1, 2, 1.5], np.float32)), mode="nearest"
    ),
    "a mean by the size": lambda g, x: g.Mul(
        g.ReduceSum(x, g.const([0]), keepdims=1), g.Reciprocal(g.Cast(g.Shape(x, end=1), to=1))
    ),
    "an equal size": lambda g, x: g.Where(
        g.Equal(g.Gather(g.Shape(x), g.const(0)), g.const(4)), x, g.Neg(x)
    ),
    "a scatter at the end": lambda g, x: g.ScatterND(
        x, g.Unsqueeze(g.Sub(g.Shape(x, end=1), g.const([1])), g.const([0])), g.const(np.ones((1, 4), np.float32))
    ),
    "a table by place": lambda g, x: g.Add(
        x,
        g.Slice(g.const(np.ones((100, 4), np.float32).cumsum(0)), g.const([0]), g.Shape(x, end=1), g.const([0])),
    ),
    "a running sum": lambda g, x: g.CumSum(x, g.const(0)),
    "broadcast with itself": lambda g, x: g.Add(g.Unsqueeze(x, g.const([0])), g.Unsqueeze(x, g.const([1]))),
    "a softmax over it": lambda g, x: g.Softmax(x, axis=0),
    "flattened": lambda g, x: g.Reshape(g.Add(g.Reshape(x, g.const([-1])), g.const(np.float32(1))), g.const([2, -1])),
    "a cast of the size": lambda g, x: g.Reshape(
        x, g.Cast(g.Concat(g.Cast(g.Shape(x, end=1), to=6), g.Cast(g.const([-1]), to=6), axis=0), to=7)
    ),
    "a size in halves": lambda g, x: g.Slice(
        x, g.const([0]),
        g.Cast(g.Ceil(g.Div(g.Cast(g.Shape(x, end=1), to=1), g.const(np.array([2], np.float32)))), to=7), g.const([0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDES)
def test_sizes_that_decide(name: str) -> None:
    graph = cut(DECIDES[name])
    session = Session(graph)
    for n in (3, 5, 8, 6, 9, 12, 7, 1, 16, 2, 64, 4, 11):
        given = {"x": np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)}
        for key, answer in Session(graph).run(given).items():
            np.testing.assert_array_equal(session.run(given)[key], answer, err_msg=f"at {n}")


def test_models_without_open_dims_have_none() -> None:
    g = GraphBuilder()
    session = Session(g.graph([g.Relu(g.input("x", f32(2, 3)))]))
    session.run({"x": np.zeros((2, 3), np.float32)})
    assert not templates(session).all


def test_attempts_end() -> None:
    """A graph that has no template is not asked again and again."""
    g = GraphBuilder()
    x = g.input("x", f32("n"))
    count = g.input("count", i64())
    session = Session(
        g.graph([g.If(g.Greater(count, g.const(0)), then_branch=_body(x, "a"), else_branch=_body(x, "b"))])
    )
    for n in range(1, MOST + 4):
        session.run({"x": np.ones(n, np.float32), "count": np.array(1)})
    assert len(templates(session).reasons) == MOST


def _body(x: str, name: str) -> Graph:
    g = GraphBuilder(prefix=name)
    return g.graph([g.Relu(x) if name == "a" else g.Neg(x)])


def test_symbolic_sizes_print() -> None:
    trace = SizeTrace()
    n, m = trace.symbol(6), trace.symbol(2)
    assert str(2 * n + n * m - 3) == "-3+2*s0+s0*s1"
    assert f"{n // 4}" == "s2"
    assert type(n // 4) is SymbolicSize


def test_buckets_cut_what_has_the_size_of_a_padded_dim() -> None:
    """Whatever the exporter called it: a reshaped value's dims have no names."""
    graph = attention()
    session, plain = Session(graph, buckets={"length": (16, 48)}), Session(graph)
    for batch, length in [(2, 47), (1, 48), (3, 5), (2, 16), (2, 60)]:
        given = feeds(batch, length)
        for name, answer in plain.run(given).items():
            np.testing.assert_allclose(session.run(given)[name], answer, rtol=1e-4, atol=1e-5)


def test_buckets_refuse_what_cannot_be_cut() -> None:
    g = GraphBuilder()
    x = g.input("x", f32("batch", "n"))
    flat = g.graph([g.Reshape(x, g.const([-1])), g.Relu(x), g.Concat(x, x, axis=1)])
    session = Session(flat, buckets={"n": (4, 8)})
    exact = session.run({"x": np.ones((2, 8), np.float32)})
    assert [a.shape for a in exact.values()] == [(16,), (2, 8), (2, 16)]
    names = list(exact)
    assert session.run({"x": np.ones((2, 7), np.float32)}, names=[names[1]])[names[1]].shape == (2, 7)
    with pytest.raises(InputError, match=r"output .* in axis 0 .* depends on the padded dim 'n'"):
        session.run({"x": np.ones((2, 7), np.float32)})
    with pytest.raises(InputError, match="exclude each other"):
        session.run({"x": np.ones((2, 8), np.float32)}, outputs={names[1]: np.empty((2, 8), np.float32)})


def test_training_steps_have_templates() -> None:
    """Batches of other sizes: the same losses and weights, bit for bit, as where each is planned by itself."""
    import mezzo as mz

    def trained(planned: bool) -> tuple[list[float], Any, int]:
        trainer = mz.Trainer(attention(), loss="mse", optimizer=mz.optimizer.Adam(rate=1e-2))
        session, losses = trainer._update, list[float]()
        for batch, length in [(2, 7), (2, 9), (3, 30), (5, 16)]:
            given = feeds(batch, length)
            for compiled in [] if planned else session._compiled.values():
                compiled.templates.drop("as asked")
            losses.append(float(trainer.step({**given, "target": np.ones_like(given["x"])})))
        return losses, session.states, session.stats().from_template

    alone, with_templates = trained(planned=False), trained(planned=True)
    assert alone[0] == with_templates[0]
    for name, state in alone[1].items():
        np.testing.assert_array_equal(state, with_templates[1][name])
    assert (alone[2], with_templates[2]) == (0, 3)


def test_buckets_refuse_what_is_decided_otherwise_without_padding() -> None:
    """The smaller of two sizes, a broadcast: what the padded sizes decide may not hold for those that were fed."""
    g = GraphBuilder()
    x = g.input("x", f32("n", 5))
    first = Session(g.graph([g.Slice(x, g.const([0]), g.const([6]), g.const([0]))]), buckets={"n": (8,)})
    with pytest.raises(InputError, match=r"is float32\[5,5\] without padding, and was \(6, 5\) with it"):
        first(np.ones((5, 5), np.float32))
    assert first(np.ones((7, 5), np.float32)).shape == (6, 5)
    g = GraphBuilder()
    total = g.Add(g.input("x", f32("n", 5)), g.input("z", f32("k", 5)))
    both = Session(g.graph([total]), buckets={"n": (8,)})
    with pytest.raises(InputError, match=r"is float32\[8,5\] without padding"):
        both(np.ones((1, 5), np.float32), np.ones((8, 5), np.float32))
    with pytest.raises(ShapeError, match="cannot broadcast"):
        both(np.ones((5, 5), np.float32), np.ones((8, 5), np.float32))


SHAPE = {
    "unique": lambda g, s: g.Unique(s),
    "a table of words": lambda g, s: g.TfIdfVectorizer(
        s, mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1, 2],
        pool_int64s=[2, 3, 7],
    ),
    "a table of labels": lambda g, s: g.LabelEncoder(
        s, domain="ai.onnx.ml", keys_int64s=[3, 4, 7], values_int64s=[1, 2, 5], default_int64=-1
    ),
    "one hot": lambda g, s: g.OneHotEncoder(s, domain="ai.onnx.ml", cats_int64s=[3, 4, 7], zeros=1),
    "a text": lambda g, s: g.Cast(s, to=DType.STRING.onnx),
    "a sum that overflows": lambda g, s: g.Greater(g.Add(s, g.const([2**63 - 6])), g.const([0])),
    "a product that overflows": lambda g, s: g.Div(g.Mul(s, g.const([2**61])), g.const([2**61])),
    "factors that overflow": lambda g, s: g.Mul(g.Mul(s, g.const([2**31])), g.const([2**31])),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPE)
def test_shapes_are_values_like_others(name: str) -> None:
    """Operators that look numbers up, take objects for texts, or overflow."""
    g = GraphBuilder()
    graph = g.graph([SHAPE[name](g, g.Shape(g.input("x", f32("n", "m"))))])
    session = Session(graph)
    for sizes in [(8, 3), (9, 5), (7, 7), (4, 2), (3, 3)]:
        answer, fresh = session(np.zeros(sizes, np.float32)), Session(graph)(np.zeros(sizes, np.float32))
        assert answer.dtype == fresh.dtype
        np.testing.assert_array_equal(answer, fresh, err_msg=str(sizes))


def test_products_of_sizes_wrap_where_int64_does() -> None:
    g = GraphBuilder()
    n = g.Size(g.input("x", f32("n")))
    graph = g.graph([g.Mul(g.Mul(n, n), g.Mul(n, n))])
    session = Session(graph)
    for size in (7, 9, 11, 70_000, 13):
        x = np.zeros(size, np.float32)
        np.testing.assert_array_equal(session(x), Session(graph)(x))
    assert session.stats().from_template == 3


def test_what_sizes_cannot_do_is_told_in_place() -> None:
    g = GraphBuilder()
    n = g.Squeeze(g.Shape(g.input("x", f32("n")), end=1), g.const([0]))
    session = Session(g.graph([g.Gather(g.Range(g.const(0), n, g.const(1)), g.const([4]))]))
    for size in (8, 9, 6):
        assert session(np.zeros(size, np.float32)).tolist() == [4]
    with pytest.raises(MezzoError, match=r"\(Gather\)"):
        session(np.zeros(4, np.float32))
