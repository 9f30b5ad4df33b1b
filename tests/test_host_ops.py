"""Operators that take or give lists, dicts and optionals, over their samples; and such values in whole graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops import (
    OPS,
    OPSETS,
    Body,
    Context,
    DType,
    Held,
    Map,
    MezzoError,
    Op,
    Optional,
    Sample,
    Sequence,
    Tensor,
    Type,
)
from mezzo.ops.errors import InputError
from mezzo.ops.tensor.regex import compiled
from mezzo.ops.types import f32, i64, type_of
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

from .graphs import arrays, hosted
from .peers import peer
from .test_ops import ORT_OPSETS, plain
from .test_program import assert_equal

CASES = [
    pytest.param(o, s, id=f"{o.name}-{i}")
    for o in OPS.values()
    for i, s in enumerate(o.samples)
    if hosted(o, s) and plain(s)
]


def values(sample: Sample) -> list[Any]:
    return [x.value if isinstance(x, Held) else x for x in arrays(sample)]


def run(o: Op, sample: Sample, xs: list[Any]) -> tuple[Any, ...]:
    return o.run(Context(np, wanted=(True,) * sample.outputs), xs, sample.attrs)


def misfit(t: Type, y: Any) -> str:
    """Empty if the type may describe the value."""
    match t:
        case Optional():
            return "" if y is None else misfit(t.element, y)
        case Sequence():
            return next(filter(None, (misfit(t.element, v) for v in y)), "") if isinstance(y, list) else f"{t}: {y}"
        case Map():
            return next(filter(None, (misfit(t.element, v) for v in y.values())), "")
    assert isinstance(t, Tensor)
    if isinstance(y, float):
        return "" if t == Tensor(DType.FLOAT, ()) else f"{t} against a float"
    fits = t.dtype is DType.of(y.dtype) and (
        t.dims is None
        or (len(t.dims) == y.ndim and all(d is None or d == n for d, n in zip(t.dims, y.shape, strict=True)))
    )
    known = t.value is None or np.array_equal(t.value, y)
    return "" if fits and known else f"{t} against {y}"


def weaker(t: Any, dims: bool) -> Any:
    """A type with less in it: no sizes, or no ranks either."""
    match t:
        case Tensor():
            return t.of(None if dims or t.dims is None else (None,) * len(t.dims))
        case Optional():
            return Optional(weaker(t.element, dims))
        case Sequence():
            return Sequence(weaker(t.element, dims))
    return t


@pytest.mark.parametrize("lost", ["nothing", "elements", "dims", "ranks"])
@pytest.mark.parametrize(("o", "sample"), CASES)
def test_inference_says_what_the_reference_does(o: Op, sample: Sample, lost: str) -> None:
    def told(x: Any) -> Any:
        t = x.type if isinstance(x, Held) else x if x is None or isinstance(x, Tensor) else type_of(x, known=True)
        if lost == "nothing" or t is None:
            return t
        t = t.forget() if isinstance(t, Tensor) else t
        return t if lost == "elements" else weaker(t, lost == "ranks")

    found = o.infer_types([told(x) for x in sample.inputs], sample.attrs, (True,) * sample.outputs)
    for t, y in zip(found, run(o, sample, values(sample)), strict=True):
        assert not misfit(t, y), misfit(t, y)


@pytest.mark.parametrize(("o", "sample"), CASES)
def test_results_share_nothing_with_arrays(o: Op, sample: Sample) -> None:
    """Lists may share their elements with lists, since nobody writes to them; never with arrays."""
    xs = values(sample)
    before = [x.copy() if hasattr(x, "copy") else x for x in xs]
    for y in run(o, sample, xs):
        for made in y if isinstance(y, list) else [y]:
            for x in (x for x in xs if isinstance(x, np.ndarray) and isinstance(made, np.ndarray)):
                assert not np.shares_memory(made, x)
        assert not any(y is x for x in xs if x is not None)
    for x, old in zip(xs, before, strict=True):
        assert_equal(x, old, "an input")


NOT_IN_RUNTIME = "Optional OptionalGetElement OptionalHasElement"


@pytest.mark.parametrize(("o", "sample"), [c for c in CASES if c.values[0].name not in NOT_IN_RUNTIME])  # type: ignore[union-attr]
def test_onnx_runtime_agrees(o: Op, sample: Sample) -> None:
    onnx = pytest.importorskip("onnx")
    ort = peer("onnxruntime")
    xs = values(sample)
    if any(isinstance(x, dict) and {type(v) for v in x.values()} != {np.float32} for x in xs):
        pytest.xfail("ONNX Runtime's Python interface takes no such dict")
    if o.name == "SplitToSequence" and len(xs) > 1 and sample.attrs.get("keepdims") == 0:
        pytest.xfail("ONNX Runtime minds keepdims beside split")
    types = [x.type if isinstance(x, Held) else None if x is None else type_of(x) for x in arrays(sample)]
    names = [f"x{i}" if t is not None else "" for i, t in enumerate(types)]
    ys = run(o, sample, xs)
    found = o.infer_types([*types], sample.attrs, (True,) * len(ys))
    outs = [f"y{i}" for i in range(len(ys))]
    node = onnx.helper.make_node(o.name, names, outs, domain=o.domain, **sample.attrs)
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_value_info(n, proto(onnx, t)) for n, t in zip(names, types, strict=True) if t is not None],
        [onnx.helper.make_value_info(n, proto(onnx, t)) for n, t in zip(outs, found, strict=True)],
    )
    opsets = {"": ORT_OPSETS[""], o.domain: min(ORT_OPSETS[o.domain], OPSETS[o.domain])}
    ids = [onnx.helper.make_opsetid(d, v) for d, v in opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=ids, ir_version=13)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {n: plain_numbers(x) for n, x in zip(names, xs, strict=True) if n}
    for theirs, y in zip(session.run(None, feeds), ys, strict=True):
        assert_equal(theirs, y, o.name)


def plain_numbers(x: Any) -> Any:
    """Maps of Python's numbers, as its interface wants them."""
    return {k: getattr(v, "item", lambda v=v: v)() for k, v in x.items()} if isinstance(x, dict) else x


def proto(onnx: Any, t: Type) -> Any:
    """A type as ONNX writes it."""
    if isinstance(t, Tensor):
        return onnx.helper.make_tensor_type_proto(t.dtype.onnx, t.dims)
    if isinstance(t, Sequence):
        return onnx.helper.make_sequence_type_proto(proto(onnx, t.element))
    assert isinstance(t, Map)
    return onnx.helper.make_map_type_proto(t.key.onnx, proto(onnx, t.element))


# Whole graphs


def test_a_loop_grows_a_list_and_joins_it() -> None:
    g = GraphBuilder()
    x, n = g.input("x", f32(2)), g.input("n", i64())
    start = g.SequenceEmpty(dtype=DType.FLOAT.onnx)

    def grow(b: Any, i: Any, go: Any, held: Any) -> tuple[Any, ...]:
        return go, b.SequenceInsert(held, b.Mul(x, b.Cast(i, to=DType.FLOAT.onnx)))

    body = Body([i64(), Tensor(DType.BOOL, ()), Sequence(f32(2))], grow)
    grown = g.Loop(n, None, start, body=body)
    session = Session(g.graph([grown, g.ConcatFromSequence(grown, axis=0, new_axis=1), g.SequenceLength(grown)]))
    for count in (3, 1, 5):
        grew, joined, length = session.run({"x": np.array([1, 2], np.float32), "n": np.array(count)}).values()
        want = np.outer(np.arange(count), [1, 2]).astype(np.float32)
        np.testing.assert_array_equal(joined, want)
        np.testing.assert_array_equal(np.stack(grew), want)
        assert length == count


@pytest.mark.parametrize("given", [[np.ones(3, np.float32)], None])
def test_branches_hand_on_optionals(given: Any) -> None:
    g = GraphBuilder()
    held = g.input("x", Optional(Sequence(f32(None))))

    def some(b: Any) -> tuple[Any, ...]:
        return (b.OptionalGetElement(held),)

    def none(b: Any) -> tuple[Any, ...]:
        return (b.SequenceConstruct(b.const([7.0], DType.FLOAT)),)

    made = g.If(g.OptionalHasElement(held), then_branch=Body([], some), else_branch=Body([], none))
    same, kept = Session(g.graph([made, g.Identity(held)])).run({"x": given}).values()
    assert_equal(same, given if given is not None else [np.array([7], np.float32)], "made")
    assert_equal(kept, given, "kept")


def test_lists_that_come_back_are_the_callers() -> None:
    g = GraphBuilder()
    xs = g.input("xs", Sequence(f32(2)))
    session = Session(g.graph([xs, g.SequenceErase(xs), g.SequenceAt(xs, g.const(0))]))
    fed = [np.zeros(2, np.float32), np.ones(2, np.float32)]
    results = list(session.run({"xs": fed}).values())
    every = [*fed, *results[0], *results[1], results[2]]
    for i, a in enumerate(every):
        assert not any(np.shares_memory(a, b) for b in every[:i])


def test_feeds_that_do_not_fit_are_told() -> None:
    g = GraphBuilder()
    xs, m = g.input("xs", Sequence(f32(2))), g.input("m", Map(DType.STRING, f32()))
    vector = g.op("DictVectorizer", m, domain="ai.onnx.ml", string_vocabulary=["a"])
    session = Session(g.graph([g.SequenceLength(xs), vector]))
    good = {"xs": [[1, 2]], "m": {"a": 1.5}}  # Python's lists and numbers take the declared types
    length, row = session.run(good).values()
    assert length == 1
    assert_equal(row, np.array([[1.5]], np.float32), "row")
    for bad, message in (
        ({"xs": np.zeros(2)}, "is a list"),
        ({"xs": [np.zeros(3, np.float32)]}, r"xs\[0\]"),
        ({"xs": [np.zeros(2)]}, "float64"),
        ({"m": [1]}, "is a dict"),
    ):
        with pytest.raises(InputError, match=message):
            session.run({**good, **bad})


def test_positions_outside_of_a_list_are_errors() -> None:
    g = GraphBuilder()
    xs, at = g.input("xs", Sequence(f32(None))), g.input("at", i64())
    session = Session(g.graph([g.SequenceAt(xs, at)]))
    with pytest.raises(MezzoError, match="position 2 is outside a sequence of 1"):
        session.run({"xs": [np.zeros(1, np.float32)], "at": np.array(2)})
    empty = Session((g := GraphBuilder()).graph([g.OptionalGetElement(g.input("x", Optional(f32(2))))]))
    with pytest.raises(MezzoError, match="an empty optional has no element"):
        empty.run({"x": None})


REFUSED = [r"(a)\1", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?P=x)", "(?>a)", "a++", "a**", "a{1001}", r"\Z", "(", "[a"]


@pytest.mark.parametrize("pattern", REFUSED)
def test_patterns_that_re2_refuses_are_refused(pattern: str) -> None:
    with pytest.raises(MezzoError, match="is not carried"):
        compiled(pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a$", "a", "a\n"),
        ("(?m)a$\nb", "a\nb", "ab"),
        (r"\d\w\s", "1a ", "\u0661a "),
        (r"[\W\D]", "é", "1"),
        ("(?i:AB)c", "abc", "abC"),
        ("a(?i)b", "aB", "AB"),
        ("(?<x>a)(?P<y>b)", "ab", "a"),
        ("[[:punct:][:digit:]]+", "1!", "1a"),
        (r"\Qa.b\E+", "a.bb", "axb"),
        (r"\x{e9}\x41\101", "éAA", "eAA"),
        ("a{,2}", "a{,2}", "aa"),
        (r"a\b.", "a-", "ab"),
        ("[]^]", "]", "a"),
        ("(?s:.)", "\n", ""),
    ],
)
def test_patterns_mean_what_re2_says(pattern: str, yes: str, no: str) -> None:
    assert compiled(pattern).fullmatch(yes)
    assert not compiled(pattern).fullmatch(no)
