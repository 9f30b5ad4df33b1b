"""Metrics from what has been counted, by one worker or by all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..ops.types import Array
from ..runtime.ir.graph import Graph, State
from .judged import METRICS, Measures, Term, means
from .metrics import Metric, Metrics


class Summing(Protocol):
    """An exchange that adds numbers up over all workers."""

    def total(self, numbers: Sequence[float]) -> list[float]: ...


def metrics_of(
    states: Mapping[str, Any], measures: Measures, terms: Sequence[Term], everywhere: Summing | None
) -> Metrics:
    """The metrics that states and measures have counted: of this worker or, if every worker asks, `everywhere`."""
    numbers = {n: float(states[n]) for n in states if n.startswith(METRICS)}
    own = [m for _, metrics in measures for m in metrics]
    totals: list[Array | None] = [m.total for m in own]
    if everywhere is not None:
        numbers, totals = _of_all(everywhere, numbers, own)
    averages = means(numbers, terms)
    values = {}
    for term, metrics in measures:
        for metric in metrics:
            own_total, metric.total = metric.total, totals.pop(0)
            values[f"{term.name}/{metric.name}" if term.name else metric.name] = metric.value
            metric.total = own_total  # it goes on counting
    accuracy = next(iter(averages.rights.values())) if len(averages.rights) == 1 else None
    losses, rights = ({n: v for n, v in by_name.items() if n} for by_name in (averages.losses, averages.rights))
    return Metrics(averages.samples, averages.loss, accuracy, losses, rights, values)


def _of_all(
    exchange: Summing, numbers: Mapping[str, float], metrics: Sequence[Metric]
) -> tuple[dict[str, float], list[Array | None]]:
    """The sums of all workers. Whoever has seen no batch gives zeros, as many as the metric has."""
    sizes = exchange.total([float(0 if m.total is None else m.total.size) for m in metrics]) if metrics else []
    had = exchange.total([float(m.total is not None) for m in metrics]) if metrics else []
    many = [int(size / n) if n else 0 for size, n in zip(sizes, had, strict=True)]
    own = [np.zeros(n) if m.total is None else m.total for m, n in zip(metrics, many, strict=True)]
    sums = exchange.total([*numbers.values(), *(float(x) for part in own for x in part)])
    flat = np.array(sums[len(numbers) :])
    totals: list[Array | None] = []
    for n in many:
        totals.append(flat[:n] if n else None)
        flat = flat[n:]
    return dict(zip(numbers, sums, strict=False)), totals


def evaluation_of(plain: Graph, reads: Sequence[str], states: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """A judged graph that evaluates in inference mode, with outputs for what metrics read, and the states of a training
    on which it does so."""
    own = [n for n in states if n in plain.initializers and not n.startswith(METRICS)]
    kept = tuple(State(n, n, n) for n in own)
    graph = plain.but(outputs=(*plain.outputs, *reads), states=(*plain.states, *kept))
    return graph, {n: states[n] for n in own}
