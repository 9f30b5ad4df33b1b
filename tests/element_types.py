"""In which of the types that its schema allows an operator runs: its samples with their numbers turned into them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from mezzo.ops import OPSETS, Body, DType, Held, Map, MezzoError, Op, Optional, Sample, Sequence, Tensor
from mezzo.ops.quantize import int_range
from mezzo.ops.types import Type, i64, type_of
from mezzo.runtime.infer import infer
from mezzo.runtime.session import Session

from .graphs import arrays, sample_graph
from .test_host_ops import misfit
from .test_ops import WIDTH_MATTERS, cast_to, run

LEAF = re.compile(r"tensor\((\w+)\)")
BY_NAME = {d.name.lower(): d for d in DType}
NAMES_TYPE = (
    "to",
    "dtype",
    "stash_type",
    "output_dtype",
    "output_datatype",
)  # attributes that say the type of the result
TOLERANCE = {DType.DOUBLE: 1e-5, DType.FLOAT: 1e-5, DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2}
Results = list[tuple[Any, Type]]


def schema_of(o: Op) -> Any:
    return onnx.defs.get_schema(o.name, OPSETS[o.domain], o.domain)


def allowed(o: Op) -> dict[str, list[str]]:
    """The types that the schema of an operator allows, by type parameter; a type that no parameter names is its own."""
    schema = schema_of(o)
    found = {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints}
    formals = [*schema.inputs, *schema.outputs]
    return found | {f.type_str: [f.type_str] for f in formals if f.type_str not in found}


def spelled(t: Type) -> str:
    """A type as schemas write it."""
    if isinstance(t, Tensor):
        return f"tensor({t.dtype.name.lower()})"
    if isinstance(t, Map):
        return "map({}, {})".format(t.key.name.lower(), LEAF.sub(r"\1", spelled(t.element)))
    return f"{'seq' if isinstance(t, Sequence) else 'optional'}({spelled(t.element)})"


def type_in(x: Any) -> Any:
    return x if x is None else x.type if isinstance(x, Held) else type_of(x)


def ran(o: Op) -> tuple[dict[str, set[str]], list[str]]:
    """The types in which some sample ran, by type parameter: its own, and those that its numbers, or the attribute that
    names the type of its result, could be turned into; and those of a body made for them. And what a planned program
    answered otherwise than the reference."""
    schema, types = schema_of(o), allowed(o)
    found: dict[str, set[str]] = {p: set() for p in types}
    wrong = list[str]()

    def note(sample: Sample, xs: list[Any], ys: Results | None) -> None:
        """The types of all operands and results of a run."""
        for formals, held in ((schema.inputs, map(type_in, xs)), (schema.outputs, (t for _, t in ys or ()))):
            listed = list(held)
            for formal, t in zip(formals_of(formals, listed), listed, strict=True):
                if t is not None and ys is not None:
                    found[formal.type_str].add(spelled(t))

    for sample in o.samples if o.name not in BODIES else ():
        xs = arrays(sample)
        base = attempt(o, sample, xs)
        note(sample, xs, base)
        ins = [f.type_str for f in formals_of(schema.inputs, xs)]
        for parameter in types:
            which = [i for i, p in enumerate(ins) if p == parameter and xs[i] is not None]
            for target in set(types[parameter]) - found[parameter]:
                made, turned = turn(xs, which, target) if which else None, which
                if made is not None:
                    ys = attempt(o, sample, made)
                    if ys is None:  # where operands of two parameters have to be of one element type
                        made, turned = alike(xs, made, which, [types[p] for p in ins])
                        ys = attempt(o, sample, made)
                    if ys is not None and of_the_same_numbers(o, sample, xs, made, turned, ys):
                        note(sample, made, ys)
                        wrong += as_planned(o, sample, made, ys)
                elif not which and LEAF.search(target):
                    for other in with_result_type(sample, BY_NAME[LEAF.findall(target)[0]], target):
                        note(other, xs, attempt(o, other, xs))
    for target in {t for listed in types.values() for t in listed} if o.name in BODIES else ():
        value = value_of(target)
        sample = BODIES[o.name](value)
        note(sample, arrays(sample), through_a_session(o, sample, value))
    return found, wrong


def formals_of(formals: Any, xs: Any) -> list[Any]:
    """One formal parameter for each value; the last may be variadic."""
    return [*formals, *list(formals)[-1:] * (len(xs) - len(formals))][: len(xs)]


def attempt(o: Op, sample: Sample, xs: list[Any]) -> Results | None:
    """The results with their types, if the reference runs and does what inference says."""
    types = [None if x is None else x.type if isinstance(x, Held) else type_of(x, known=True) for x in xs]
    try:
        with np.errstate(all="ignore"):
            ys = run(o, sample, [x.value if isinstance(x, Held) else x for x in xs])
        said = o.infer_types(types, sample.attrs, (True,) * sample.outputs)
    except (MezzoError, TypeError, ValueError):  # a bare reference leaves the wording of refusals to who runs it
        return None
    pairs = list(zip(ys, said, strict=False))
    return pairs if not any(misfit(t, y) for y, t in pairs) else None


def through_a_session(o: Op, sample: Sample, value: Any) -> Results | None:
    """The results of an operator whose bodies hand a value on, if they are that value."""
    graph, feeds = sample_graph(o, sample)
    graph = infer(graph)
    ys = list(Session(graph).run({n: x.value if isinstance(x, Held) else x for n, x in feeds.items()}).values())
    said = [graph.types[name] for name in graph.outputs]
    pairs = list(zip(ys, said, strict=True))
    handed_on = all(leaf_of(y).reshape(-1)[0] == leaf_of(value).reshape(-1)[0] for y in ys)
    return pairs if handed_on and not any(misfit(t, y) for y, t in pairs) else None


def turn(xs: list[Any], which: list[int], target: str) -> list[Any] | None:
    """The inputs with some in another element type, in lists or optionals where those are asked for; None where there
    is no way (a map)."""

    def one(x: Any) -> Any:
        dtype = BY_NAME[LEAF.findall(target)[0]]
        own = spelled(type_in(x))
        if LEAF.sub("", own) == LEAF.sub("", target):
            return Held(recast(x.value, dtype), retyped(x.type, dtype)) if isinstance(x, Held) else recast(x, dtype)
        leaf = leaf_of(x)
        return held(recast(leaf, dtype), target) if isinstance(leaf, np.ndarray) else None

    made = [one(x) if i in which and LEAF.search(target) else x for i, x in enumerate(xs)]
    return made if LEAF.search(target) and all(made[i] is not None for i in which) else None


def leaf_of(x: Any) -> Any:
    """The first array of a value."""
    if isinstance(x, Held):
        return leaf_of(x.value)
    return leaf_of(x[0]) if isinstance(x, list) and x else x


def alike(xs: list[Any], made: list[Any], which: list[int], may: list[list[str]]) -> tuple[list[Any], list[int]]:
    """The inputs with the other operands of the same element type turned too, where they may; and which are turned."""
    before, after = (LEAF.findall(spelled(type_in(of[which[0]])))[0] for of in (xs, made))
    made, which = list(made), list(which)
    for i, x in enumerate(xs):
        own = "" if x is None else spelled(type_in(x))
        target = LEAF.sub(f"tensor({after})", own)
        if i not in which and LEAF.findall(own) == [before] and target in may[i]:
            made[i] = (turn(xs, [i], target) or xs)[i]
            which.append(i)
    return made, which


def held(leaf: Any, target: str) -> Any:
    """An array in as many lists and optionals as a type has."""
    kind, _, inner = target.partition("(")
    if kind == "tensor":
        return leaf
    x = held(leaf, inner.removesuffix(")"))
    value, t = (x.value, x.type) if isinstance(x, Held) else (x, type_of(x))
    return Held([value], Sequence(t)) if kind == "seq" else Held(value, Optional(t))


def value_of(target: str) -> Any:
    """Some value of a type."""
    return held(recast(np.array([1, 1]), BY_NAME[LEAF.findall(target)[0]]), target)


def retyped(t: Any, dtype: DType) -> Any:
    return t.to(dtype) if isinstance(t, Tensor) else replace(t, element=retyped(t.element, dtype))


def recast(x: Any, dtype: DType) -> Any:
    """The numbers in another element type: those that it holds, so that they stay what they are."""
    if isinstance(x, list):
        return [recast(item, dtype) for item in x]
    if x is None or DType.of(x.dtype) is dtype:
        return x
    if x.dtype == object:
        x = np.array([len(str(v)) for v in x.reshape(-1)]).reshape(x.shape)
    x = x if x.dtype.isbuiltin == 1 else x.astype(np.float32)
    if dtype.integer and x.dtype.kind in "iu":
        low, high = int_range(dtype)
        x = np.clip(x, max(low, np.iinfo(x.dtype).min), min(high, np.iinfo(x.dtype).max))
    return cast_to(x if dtype.signed or x.dtype == bool else np.abs(x), dtype)


def with_result_type(sample: Sample, dtype: DType, target: str) -> Iterator[Sample]:
    """The sample with an attribute that names another type of the result, or holds an array of it."""
    for name in NAMES_TYPE:
        yield replace(sample, attrs={**sample.attrs, name: dtype.onnx})
    for name, value in sample.attrs.items():
        if isinstance(value, np.ndarray):
            yield replace(sample, attrs={**sample.attrs, name: recast(value, dtype)})
        elif isinstance(value, Tensor | Sequence | Optional):
            whole = type_in(value_of(target.removeprefix("optional(")))
            yield replace(sample, attrs={**sample.attrs, name: whole})


def _passed(x: Any) -> Body:
    return Body([], lambda g: (g.Identity(built(g, x)),))


def built(g: Any, x: Any) -> Any:
    """A value made inside a graph."""
    if not isinstance(x, Held):
        return g.const(x)
    t: Any = x.type
    inner = x.value[0] if isinstance(t, Sequence) else x.value
    made = built(g, inner if isinstance(t.element, Tensor) else Held(inner, t.element))
    return g.SequenceConstruct(made) if isinstance(t, Sequence) else g.Optional(made)


_GO = Tensor(DType.BOOL, ())
# Samples of operators with bodies, around a value of any type.
BODIES: dict[str, Callable[[Any], Sample]] = {
    "If": lambda x: Sample([np.array(True)], {"then_branch": _passed(x), "else_branch": _passed(x)}),
    "Loop": lambda x: Sample([np.array(2), np.array(True), x], {"body": Body(
        [i64(), _GO, type_in(x)], lambda g, i, go, x: (go, g.Identity(x)))}),
    "Scan": lambda x: Sample([x, x], {"num_scan_inputs": 1, "body": Body(
        [type_in(x), Tensor(type_in(x).dtype, ())], lambda g, a, b: (g.Identity(a), g.Identity(b)))}, 2),
    "SequenceMap": lambda x: Sample([x if isinstance(x, Held) else held(x, f"seq({spelled(type_in(x))})"), x], {
        "body": Body([row := Tensor(BY_NAME[LEAF.findall(spelled(type_in(x)))[0]], (2,)), row],
                     lambda g, a, b: (g.Identity(a),))}),
}  # fmt: skip


def as_planned(o: Op, sample: Sample, made: list[Any], ys: Results) -> list[str]:
    """How the planned program, with whatever kernels it chose, differs from the reference."""
    if not o.deterministic:
        return []
    graph, feeds = sample_graph(o, replace(sample, inputs=made))
    try:
        got = Session(graph).run({n: x.value if isinstance(x, Held) else x for n, x in feeds.items()})
    except MezzoError as error:
        return [f"{o.name}: {error}"]
    pairs = zip(got.values(), ys, strict=True)
    return [f"{o.name}: {y} instead of {like}" for y, (like, _) in pairs if not equal(y, like)]


def of_the_same_numbers(o: Op, sample: Sample, xs: list[Any], made: list[Any], which: list[int], ys: Results) -> bool:
    """Whether results in another element type are those of the same numbers in the sample's own: whole ones in another
    width, floats rounded to a shorter one."""
    both = [x for at in which for x in (xs[at], made[at])]
    if not o.deterministic or o.name in WIDTH_MATTERS or any(isinstance(x, Held) or x.dtype.kind in "Oc" for x in both):
        return True
    back = [recast(x, DType.of(xs[i].dtype)) if i in which else x for i, x in enumerate(made)]
    return all(equal(y, like) for (y, _), (like, _) in zip(ys, attempt(o, sample, back) or (), strict=False))


def equal(y: Any, like: Any) -> bool:
    """Whether results are the same, as far as their element types can tell."""
    y, like = leaf_of(y), leaf_of(like)
    if not isinstance(y, np.ndarray) or not isinstance(like, np.ndarray):
        return True
    kind, of = DType.of(y.dtype), DType.of(like.dtype)
    if kind is of and not kind.floating:
        return np.array_equal(y, like)
    if kind not in TOLERANCE or of not in TOLERANCE:
        return True
    a, b = (v.astype(np.float64) for v in (y, like))
    odd, most = ~(np.isfinite(a) & np.isfinite(b)), np.abs(b[np.isfinite(b)]).max(initial=1)
    return bool(np.abs(np.where(odd, 0, a - b)).max(initial=0) <= max(TOLERANCE[kind], TOLERANCE[of]) * most)
