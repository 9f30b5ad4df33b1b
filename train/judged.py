"""A model with its loss: which outputs are compared with which targets, and which metrics are summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import numpy as np

from ..ops import DType, Tensor
from ..ops.errors import InputError
from ..ops.op import Value
from ..ops.types import Array, type_of
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import Graph, State
from ..runtime.ir.infer import infer
from ..runtime.ir.typed import TypedBuilder
from .head import logits_of, output_of
from .loss import Loss, custom, loss_named, mean_of
from .metrics import Asked as Measured
from .metrics import Metric, metrics_named

TARGET, WEIGHT = "target", "sample_weight"  # names of inputs
METRICS = "metrics/"
SEEN, TOTAL, RIGHT = "metrics/seen", "metrics/loss", "metrics/right"  # names of states
COUNTED = "metrics/counted"  # by the name of a sum: what it is a mean over, where that is not the samples
Named = str | Loss | Callable[..., Any]
Asked = Named | Mapping[Any, Any]


@dataclass(frozen=True, slots=True)
class Term:
    """One loss: its outputs, the input that is its target ("": none), and its weight. `name` is its name in metrics,
    empty if it is the only one."""

    outputs: tuple[str, ...]
    loss: Loss
    target: str
    weight: float = 1.0
    name: str = ""


def terms_of(graph: Graph, loss: Asked, output: str | None) -> tuple[Term, ...]:
    """Return the terms of a loss: one loss of one output, fed as `target`; or losses by output (or tuple of outputs),
    each with an optional weight before it, fed as `OUTPUT_target`. Raises InputError for a loss that does not fit."""
    if not isinstance(loss, Mapping):
        judge = _loss(loss, 1)
        return (Term((output_of(graph, output),), judge, TARGET if judge.target else ""),)
    if output is not None:
        raise InputError("an output beside losses by output", where="output=", hint="leave one of them out")
    if not loss:
        raise InputError("no loss", where="loss", hint="give one for an output, at least")
    terms: list[Term] = []
    for key, given in loss.items():
        outputs = tuple(map(str, key)) if isinstance(key, tuple) else (str(key),)
        for name in outputs:
            output_of(graph, name)
        weight, named = given if isinstance(given, tuple) else (1.0, given)
        if not isinstance(weight, int | float) or not np.isfinite(weight):
            raise InputError(f"the weight {weight!r}", where=f"loss of {key!r}", hint="give (weight, loss)")
        judge, label = _loss(named, len(outputs)), "_".join(outputs)
        terms.append(Term(outputs, judge, f"{label}_target" if judge.target else "", float(weight), label))
    return tuple(terms)


def _loss(named: Named, outputs: int) -> Loss:
    """A loss; a function that takes no more than the outputs has no target."""
    if isinstance(named, str | Loss) or not callable(named):
        judge = loss_named(named)
        return judge.anew() if judge.anew else judge
    try:
        places = signature(named).parameters.values()
    except (TypeError, ValueError):
        return custom(named)
    if any(p.kind is Parameter.VAR_POSITIONAL for p in places):
        return custom(named)
    needed = [p for p in places if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    least = sum(p.default is Parameter.empty for p in needed)
    if not least <= outputs + 1 or len(needed) < outputs:
        raise InputError(
            f"{getattr(named, '__name__', 'the function')} takes {least} operands, here are {outputs} outputs and a "
            "target",
            where="loss",
            hint="give the loss by outputs: {('a', 'b'): function}",
        )
    return custom(named, "same" if len(needed) > outputs else None)


def judged(graph: Graph, terms: Sequence[Term], sample_weights: bool = False) -> tuple[Graph, str]:
    """The graph with the loss as its output, and with metrics as states; the name of the loss."""
    graph = infer(graph)
    taken = set(graph.types)
    g = TypedBuilder(graph.types, prefix=unused_name("loss/", taken))
    inputs: list[str] = []
    states: dict[str, tuple[Array, str]] = {}
    total: str | None = None
    weights = ""
    for term in terms:
        values = [_floats(graph, g, term, name) for name in term.outputs]
        if sample_weights and not weights:
            weights = _input(graph, g, WEIGHT, _of_samples(g, values[0]), inputs)
        operands = list(values)
        if term.loss.target is not None:
            known = g.type_of(values[0])
            assert isinstance(known, Tensor)
            operands.append(_input(graph, g, term.target, term.loss.target(known), inputs))
        value = _value(g, term, operands, weights)
        count = g.Squeeze(g.Gather(g.Shape(operands[-1] if term.loss.target else values[0]), g.const([0]), axis=0))
        _count(g, states, term, operands, value, count)
        part = value if term.weight == 1.0 else g.Mul(value, g.scalar(term.weight, value))
        total = part if total is None else g.Add(total, _like(g, part, total))
    assert total is not None
    seen = _state(g, states, SEEN, np.int64(0))
    states[SEEN] = states[SEEN][0], g.Add(seen, count)
    first = {n: a for n, (a, _) in states.items()}
    types = {n: t for n, t in g.types.items() if n not in first}
    whole = graph.but(
        inputs=(*graph.inputs, *inputs),
        outputs=(total,),
        nodes=(*graph.nodes, *g.nodes()),
        initializers={**graph.initializers, **g.constants(), **first},
        types={**types, **{n: type_of(a) for n, a in first.items()}},
        states=(*graph.states, *(State(n, n, after) for n, (_, after) in states.items())),
    )
    return whole, total


def _floats(graph: Graph, g: TypedBuilder, term: Term, output: str) -> str:
    """An output as a loss reads it: before a Softmax over classes, and in 32 bits at least."""
    value = logits_of(graph, output) if term.loss.classes else output
    known = graph.types[value]
    if not isinstance(known, Tensor) or not known.dtype.floating:
        raise InputError(f"the output {output!r} is {known}", where=graph.name, hint="a loss needs floats")
    wide: str = g.Cast(value, to=DType.FLOAT.onnx) if known.dtype.narrow else value
    return wide


def _input(graph: Graph, g: TypedBuilder, name: str, kind: Tensor, inputs: list[str]) -> str:
    if name in graph.types or name in inputs:
        raise InputError(f"the model has a value {name!r} already", where=graph.name, hint="rename it")
    inputs.append(name)
    return g.input(name, kind)


def _of_samples(g: TypedBuilder, value: str) -> Tensor:
    known = g.type_of(value)
    assert isinstance(known, Tensor)
    return Tensor(known.dtype, None if known.dims is None else known.dims[:1])


def _value(g: TypedBuilder, term: Term, operands: Sequence[str], weights: str) -> str:
    if not weights:
        value: str = term.loss.build(g, *operands)
    elif term.loss.each is None:
        raise InputError("this loss has no weights of samples", where="Trainer", hint="give Loss(..., each=)")
    else:
        losses, counts = term.loss.each(g, *operands)
        if not g.rank_of(losses):
            raise InputError(
                "the loss is one number: samples cannot weigh in it", where="sample_weights=True",
                hint="return the loss of each sample",
            )  # fmt: skip
        value = mean_of(g, losses, counts, _like(g, weights, losses))
    if g.rank_of(value):
        raise InputError(f"the loss is {g.type_of(value)}", where="loss", hint="a loss is one number")
    return value


def _like(g: TypedBuilder, x: str, model: str) -> str:
    one, other = g.type_of(x), g.type_of(model)
    assert isinstance(one, Tensor)
    assert isinstance(other, Tensor)
    return x if one.dtype is other.dtype else g.Cast(x, to=other.dtype.onnx)


States = dict[str, tuple[Array, str]]


def _state(g: TypedBuilder, states: States, name: str, first: Any) -> str:
    states[name] = np.asarray(first), name
    g.types[name] = type_of(states[name][0])
    return name


def _add(g: TypedBuilder, states: States, name: str, value: Value, count: Value, counted: Value | None) -> None:
    """A state that adds up means of batches: times the samples of each or, with a state of its own, times what was
    counted in it. A batch in which nothing counts has no mean, and adds nothing."""
    held = _state(g, states, name, np.float64(0))
    wide = [g.Cast(v, to=DType.DOUBLE.onnx) for v in (value, count if counted is None else counted)]
    part = g.Mul(*wide)
    if counted is not None:
        part = g.Where(g.Equal(wide[1], g.const(0.0, DType.DOUBLE)), g.const(0.0, DType.DOUBLE), part)
        beside = _state(g, states, _counted(name), np.float64(0))
        states[beside] = states[beside][0], g.Add(beside, wide[1])
    states[name] = states[name][0], g.Add(held, part)


def _counted(name: str) -> str:
    return COUNTED + name.removeprefix(METRICS.rstrip("/"))


def _count(g: TypedBuilder, states: States, term: Term, operands: Sequence[str], value: Value, count: Value) -> None:
    """States that gather what metrics tell of one term."""
    loss = term.loss
    _add(g, states, _of(TOTAL, term), value, count, loss.counts(g, *operands) if loss.counts else None)
    if not loss.classes:
        return
    right: Value = g.Cast(g.Equal(g.ArgMax(operands[0], axis=1, keepdims=0), operands[-1]), to=DType.DOUBLE.onnx)
    many: Value | None = None
    if loss.ignored is None:
        share = g.ReduceMean(right, keepdims=0)  # of pixels, where each has a class
    else:
        ours = g.Cast(g.Not(g.Equal(operands[-1], g.const(loss.ignored))), to=DType.DOUBLE.onnx)
        many = g.ReduceSum(ours, keepdims=0)
        share = g.Div(g.ReduceSum(g.Mul(right, ours), keepdims=0), g.Max(many, g.const(1.0, DType.DOUBLE)))
    _add(g, states, _of(RIGHT, term), share, count, many)


def _of(sum_: str, term: Term) -> str:
    return f"{sum_}/{term.name}" if term.name else sum_


@dataclass(frozen=True, slots=True)
class Means:
    """Means from the states of metrics: the number of samples, the weighted loss of all terms, and by the name of a
    term its own loss and its share of right answers."""

    samples: int
    loss: float
    losses: Mapping[str, float]
    rights: Mapping[str, float]


def means(states: Mapping[str, float], terms: Sequence[Term]) -> Means:
    """The means over all batches that the states have gathered: of labels that count, weighted as their loss weighs
    them, however they lie in batches. NaN where samples were seen and none counts."""
    seen = states[SEEN]

    def mean(name: str) -> float:
        many = states.get(_counted(name), seen)
        return states[name] / many if many else float("nan") if seen else 0.0

    losses = {t.name: mean(_of(TOTAL, t)) for t in terms}
    rights = {t.name: mean(_of(RIGHT, t)) for t in terms if t.loss.classes}
    return Means(int(seen), sum(t.weight * losses[t.name] for t in terms), losses, rights)


Measures = Sequence[tuple[Term, list[Metric]]]


def measures_of(terms: Sequence[Term], asked: Sequence[Measured] | Mapping[str, Sequence[Measured]]) -> Measures:
    """Return the metrics of each loss's output against its target. Raises InputError for metrics that do not fit."""
    if not asked:
        return ()
    if not isinstance(asked, Mapping):
        if len(terms) > 1:
            raise InputError("of which output?", where="metrics=", hint='give {"output": ["accuracy"]}')
        asked = {terms[0].name: asked}
    by_name = {t.name: t for t in terms}
    measures: list[tuple[Term, list[Metric]]] = []
    for name, metrics in asked.items():
        term = by_name.get(name) or next((t for t in terms if name in t.outputs), None)
        if term is None or not term.target:
            raise InputError(f"no loss compares {name!r} with a target", where="metrics=")
        measures.append((term, metrics_named(metrics)))
    return measures


def measure(measures: Measures, results: Mapping[str, Any], feeds: Mapping[str, Any]) -> None:
    """Count a run, which gave these results."""
    for term, metrics in measures:
        for metric in metrics:
            metric.update(preds=results[term.outputs[0]], labels=feeds[term.target])


def zeroed(states: Mapping[str, Array], measures: Measures) -> None:
    """Count from nothing."""
    for name, array in states.items():
        if name.startswith(METRICS):
            array[...] = 0
    for _, metrics in measures:
        for metric in metrics:
            metric.reset()
