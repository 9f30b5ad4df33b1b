"""Operators that take or give lists, dicts and optionals, over their samples; and such values in whole graphs."""

from __future__ import annotations

import re
from random import Random
from time import monotonic
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
from mezzo.ops.budget import Budget
from mezzo.ops.errors import BudgetError, DeadlineError, InputError, ShapeError
from mezzo.ops.tensor import automaton
from mezzo.ops.tensor.regex import compiled
from mezzo.ops.tensor.strings import texts
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
    assert compiled(pattern).matches(yes, nothing)
    assert not compiled(pattern).matches(no, nothing)


def nothing() -> None:
    """No deadline."""


def test_patterns_agree_with_a_matcher_that_tries() -> None:
    """Random patterns on random texts; Python's own engine takes as long as it likes for these short ones."""
    rng = Random(7)
    agreed = {True: 0, False: 0}
    for _ in range(1500):
        pattern = random_pattern(rng, 3)
        trying = re.compile(pattern.replace("$", r"\Z"))
        for _ in range(4):
            text = "".join(rng.choice("aab-\n") for _ in range(rng.randrange(1, 7)))
            found = compiled(pattern).matches(text, nothing)
            assert found == (trying.fullmatch(text) is not None), (pattern, text)
            agreed[found] += 1
    assert min(agreed.values()) > 300, agreed


def random_pattern(rng: Random, depth: int) -> str:
    """A pattern that Python and RE2 read alike."""
    kind = rng.randrange(8) if depth else rng.randrange(3)
    if kind < 2:
        return rng.choice(["a", "b", "-", "[ab]", "[^a]", ".", "(?s:.)", "", r"\x61"])
    if kind == 2:
        return rng.choice([r"\b", r"\B", "$", r"\A", "(?i:A)", "ab", "(?m:^)"])
    inner = [random_pattern(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    if kind < 5:
        return "".join(inner)
    if kind == 5:
        return f"({'|'.join(inner)})"
    return f"(?:{''.join(inner)}){rng.choice(['*', '+', '?', '{2}', '{0,2}', '{1,}', '*?'])}"


def test_a_table_of_sets_that_is_full_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automaton, "MOST_KEPT", 64)
    found = compiled("(a|b)*a(a|b){6}(?:)")  # 128 sets
    rng = Random(3)
    texts = ["".join(rng.choice("ab") for _ in range(60)) for _ in range(20)]
    assert [found.matches(t, nothing) for t in texts] == [t[-7] == "a" for t in texts]
    assert found._kept <= 64


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("((a{100}){100}){100}", "inside of one another"), ("(a{1000}b{1000}){60}|" * 2, "inside of one another"),
     ("(" * 150 + ")" * 150, "groups inside"), ("[ab]{1000}" * 80, "places"), ("*a", "of nothing"),
     ("a)", "without its")],
)  # fmt: skip
def test_patterns_too_large_are_refused(pattern: str, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        compiled(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*", "(.*)*b", "(a?){40}a{40}b"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    """Python's engine needs years for each."""
    text = "a" * 100 + "c"
    assert not compiled(pattern).matches(text, nothing)


def test_a_long_match_ends_at_the_deadline() -> None:
    g = GraphBuilder()
    text = np.array(["ab" * 5_000_000], object)
    session = Session(g.graph([g.RegexFullMatch(g.input("x", Tensor(DType.STRING, (1,))), pattern="(.*a){20}(a|b)*")]))
    began = monotonic()
    with pytest.raises(DeadlineError):
        session.run({"x": text}, deadline=0.05)
    assert monotonic() - began < 0.5
    short = {"x": np.array(["ab" * 30], object)}
    assert session.run(short, deadline=60)["RegexFullMatch_0"].all()
    assert session.run(short)["RegexFullMatch_0"].all()  # without the former deadline


def many(count: int) -> np.ndarray[Any, Any]:
    return texts([f"w{i % 1000} b c" for i in range(count)], [count])


def boxes(count: int) -> list[np.ndarray[Any, Any]]:
    corners = np.random.default_rng(0).random((1, count, 4)).astype(np.float32)
    return [corners, corners[:, :, :1].transpose(0, 2, 1), np.array(count), np.array(0.9, np.float32)]


F64 = np.ones((40_000, 1, 4)), np.ones((1, 4, 4)), np.ones((1, 4, 4))
LONG: dict[str, tuple[int, Any, dict[str, Any]]] = {
    "StringNormalizer": (900_000, [many], {"case_change_action": "UPPER", "stopwords": ["w1"]}),
    "StringSplit": (300_000, [many], {}),
    "Unique": (600_000, [many], {}),
    "Cast": (300_000, [lambda n: np.random.default_rng(0).random(n)], {"to": DType.STRING.onnx}),
    "NonMaxSuppression": (20_000, boxes, {}),
    "TfIdfVectorizer": (
        400_000,
        [lambda n: np.arange(n) % 5],
        {"max_gram_length": 1, "min_gram_length": 1, "max_skip_count": 0, "mode": "TF"}
        | {"ngram_counts": [0], "ngram_indexes": [0], "pool_int64s": [1]},
    ),
    "RNN": (0, [lambda n: F64[0], lambda n: F64[1], lambda n: F64[2]], {"hidden_size": 4}),
    "LRN": (0, [lambda n: np.ones((1, 1200, 20, 20), np.float32)], {"size": 1199}),
    "MaxRoiPool": (
        3_000,
        [
            lambda n: np.ones((1, 4, 64, 64), np.float32),
            lambda n: np.tile(np.array([0, 0, 0, 60, 60], np.float32), (n, 1)),
        ],
        {"pooled_shape": (7, 7)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_loops_look_at_the_clock(name: str) -> None:
    """Each takes some tenths of a second at least; they end at the deadline."""
    count, given, attrs = LONG[name]
    found = given(count) if callable(given) else [one(count) for one in given]
    g = GraphBuilder()
    made = g.op(name, *(g.input(f"x{i}", type_of(x)) for i, x in enumerate(found)), **attrs)
    session = Session(g.graph([made]))
    feeds = {f"x{i}": x for i, x in enumerate(found)}
    looked: list[float] = []
    for deadline in (0.02, 0.04, 0.08, 0.16, 0.32, 0.64):  # the first may be over before the step of a busy machine
        with pytest.raises(DeadlineError, match=name):
            session.run(feeds, deadline=deadline, observe=lambda phase, *_: looked.append(monotonic()))
        if looked:
            break
    assert len(looked) == 1  # it ended inside of the step, not after it
    assert monotonic() - looked[0] < 10 * deadline + 1  # the collector of a large process may take its time between


def test_what_a_loop_collects_has_a_limit() -> None:
    def body(b: Any, i: Any, go: Any, x: Any) -> tuple[Any, ...]:
        return go, b.Neg(x), b.Neg(x)

    g = GraphBuilder()
    inside = Body([i64(), Tensor(DType.BOOL, ()), f32(1000)], body)
    made = g.Loop(g.input("m", i64()), None, g.input("x", f32(1000)), body=inside, outputs=2)
    session = Session(g.graph(list(made)), budget=Budget(dynamic_bytes=100_000))
    feeds = {"x": np.zeros(1000, np.float32)}
    assert session.run({**feeds, "m": np.array(20)})[made[1]].shape == (20, 1000)
    with pytest.raises(BudgetError, match="the rows of 26 iterations have 104000 bytes"):
        session.run({**feeds, "m": np.array(2**62)})
