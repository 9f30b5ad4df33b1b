"""In which of the types that its schema allows an operator runs: its samples with their numbers turned into them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mezzo.ops import DType, Held, MezzoError, Op, Sample
from mezzo.ops.types import Type, type_of
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.infer import infer
from mezzo.tools.retype import (
    BODIES,
    BY_NAME,
    LEAF,
    alike,
    allowed,
    formals_of,
    leaf_of,
    recast,
    schema_of,
    spelled,
    turn,
    type_in,
    value_of,
    with_result_type,
)

from .graphs import arrays, sample_graph
from .test_host_ops import misfit
from .test_ops import WIDTH_MATTERS, run

TOLERANCE = {DType.DOUBLE: 1e-5, DType.FLOAT: 1e-5, DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2}
Results = list[tuple[Any, Type]]


def ran(o: Op) -> tuple[dict[str, set[str]], list[str]]:
    """The types in which some sample ran, by type parameter: its own, and those that its numbers, or the attribute that
    names the type of its result, could be turned into; and those of a body made for them. And what a planned program
    answered otherwise than the reference."""
    schema, types = schema_of(o), allowed(schema_of(o))
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
