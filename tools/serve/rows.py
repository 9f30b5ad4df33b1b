"""Trials of whether a model answers each row of a batch by that row alone, so that requests may run together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np

from ...ops.errors import MezzoError
from ...ops.types import Array, type_of
from ...runtime.execution.session import Session
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.interpreter import evaluate

ROWS: Final = 4  # of a trial
ONE: Final = 1  # the row that is followed: one that no reversal or rotation by half leaves where it is
TRIALS: Final = 5
MOVED: Final = 2
OWN: Final = {"convolution": 1, "pooling": 2}  # kinds, and how many axes in front of the first input they keep apart
NUMBERS: Final = "iu"
Run = Callable[[Mapping[str, Any]], dict[str, Any]]


def leaking(graph: Graph, feeds: Mapping[str, Array]) -> str | None:
    """The output in which another row depends on row ONE of the inputs, of ROWS rows each; None if there is none.

    Node after node, the elements that depend on that row are given other values, of all kinds, and what the node's
    reference makes then of them tells which of its results depend on it. So nothing that hides a dependence further on
    (a softmax that picks one row, a bound that cuts) hides it here; still it is a trial.
    """
    values: dict[str, Any] = {**graph.initializers, **feeds}
    touched: dict[str, Array] = {}
    for name, array in feeds.items():
        touched[name] = np.zeros(array.shape, bool)
        touched[name][ONE] = True
    left, rng = graph.uses(), np.random.default_rng(5)
    for node in graph.nodes:
        read = {n: values[n] for n in node.reads() if n}
        here = {n: touched[n] for n in read if n in touched}
        run = _runner(node, read, here)
        results = run(read)
        touched |= _reached(node, run, read, here, results, rng)
        values |= results
        for name in node.reads():
            left[name] = left.get(name, 0) - 1
            if not left[name]:
                values.pop(name, None)
                touched.pop(name, None)
    others = [i for i in range(ROWS) if i != ONE]
    return next((n for n in graph.outputs if n in touched and touched[n][others].any()), None)


def _runner(node: Node, read: Mapping[str, Any], changing: Collection[str]) -> Run:
    """Function that runs a node: its reference, but a plan where that would take minutes."""
    outputs = tuple(filter(None, node.outputs))
    if not changing or node.record.kind not in OWN:
        return lambda values: evaluate(Graph(tuple(values), outputs, (node,)), values)
    still = {n: a for n, a in read.items() if n not in changing}
    session = Session(Graph(tuple(changing), outputs, (node,), still, {n: type_of(a) for n, a in read.items()}))
    return lambda values: session.run({n: values[n] for n in changing})


def _reached(
    node: Node, run: Run, read: Mapping[str, Any], touched: Mapping[str, Array], results: Mapping[str, Any], rng: Any
) -> dict[str, Array]:
    """Return the elements of the results that depend on those that are touched; all of them where no trial runs."""
    if not touched:
        return {}
    if node.record.kind in OWN and [*touched] == [node.inputs[0]]:
        axes, where = OWN[node.record.kind], touched[node.inputs[0]]
        rows = where.any(tuple(range(axes, where.ndim)), keepdims=True)
        return {n: np.broadcast_to(rows if np.ndim(r) == where.ndim else True, r.shape) for n, r in results.items()}
    reached = {n: np.zeros(np.shape(r), bool) for n, r in results.items()}
    ran = False
    if all(isinstance(read[n], np.ndarray) for n in touched):
        for other in _others(run, read, touched, rng):
            ran = True
            for name, result in results.items():
                reached[name] |= _differ(result, other[name])
    if not ran:
        return {n: np.ones(np.shape(r), bool) for n, r in results.items()}
    return {n: f for n, f in reached.items() if f.any()}


def _others(run: Run, read: Mapping[str, Any], touched: Mapping[str, Array], rng: Any) -> Iterator[dict[str, Any]]:
    """Results for other values of what is touched. Numbers that count or point may be refused: then they stay."""
    for number in range(TRIALS):
        shaken = {n: _shaken(read[n], where, number, rng) for n, where in touched.items()}
        still = {n: read[n] for n in shaken if read[n].dtype.kind in NUMBERS}
        for feeds in ({**read, **shaken}, {**read, **shaken, **still}):
            try:
                yield run(feeds)
                break
            except MezzoError:
                continue


def _shaken(array: Array, where: Array, trial: int, rng: Any) -> Array:
    """The array with other elements `where` it says so: its own in another order, and values that nothing hides."""
    new, count = array.copy(), int(where.sum())
    mixed = np.roll(array, MOVED * (array.size // ROWS) + 1)[where] if trial == 0 else array[where]
    match array.dtype.kind:
        case "b":
            new[where] = ~array[where] if trial % 2 == 0 else trial == 1
        case "i" | "u":
            limits, low, high = np.iinfo(array.dtype), int(array.min()), int(array.max())
            values = (None, high + 1, low - 1, 2 * high + 100, -2 * high - 100)
            new[where] = mixed if trial == 0 else min(max(values[trial], limits.min), limits.max)  # type: ignore[type-var]
        case "O" | "U" | "S":
            new[where] = mixed if trial == 0 else ("", "~", "1", "0")[trial - 1]
        case _:
            near = mixed.astype(np.float32) + rng.standard_normal(count, np.float32) if trial == 0 else None
            with np.errstate(all="ignore"):
                new[where] = np.asarray((near, np.inf, -np.inf, np.nan, 0)[trial]).astype(array.dtype)
    return new


def _differ(one: Any, other: Any) -> Array:
    """Mask of where two results differ; NaN is NaN. Everywhere, if they have other shapes or are no arrays."""
    if not isinstance(one, np.ndarray) or np.shape(other) != one.shape:
        return np.ones(np.shape(one), bool)
    return np.asarray((one != other) & ((one == one) | (other == other)), bool)
