"""Execution of operators one by one: the builder over arrays, and the interpreter of graphs.

Slow and simple: what a planned program must equal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

import numpy as np

from ...ops import Body, Context, MezzoError, Type
from ...ops.budget import Budget
from ...ops.core.composed import ArrayBuilder
from ...ops.dataclasses import dataclass
from ...ops.errors import (
    BudgetError,
    Cancelled,
    DeadlineError,
    ExecutionError,
    OutOfRange,
)
from ...ops.types import Array, type_of
from .graph import COPY, DRAW, RESULT, Graph, Node
from .infer import body_of


class Eager(ArrayBuilder):
    """The builder over arrays, for operators with bodies too.

    `around` holds the values that bodies among the attributes capture, by name; such a name may be given wherever a
    value is. `wants` and `captured` are for gradient rules (see `Builder` in ops/op.py). `key` is that of random
    numbers.

    >>> Eager().Add(np.ones(2, np.float32), np.float32(1))
    array([2., 2.], dtype=float32)
    """

    def __init__(
        self,
        wants: tuple[bool, ...] = (True,),
        around: Mapping[str, Array] | None = None,
        captured: tuple[str, ...] = (),
        key: tuple[int, ...] = (0,),
    ) -> None:
        budget = Budget()
        self._limits = budget, Meter(budget.steps)
        super().__init__(Context(run=_interpreter(*self._limits, key, False), key=key))
        self.wants, self.captured, self.around = wants, captured, around or {}

    def value(self, x: Any) -> Any:
        if not isinstance(x, str):
            return x
        return self.around[x] if x else None  # an absent operand

    def op(self, name: str, *inputs: Any, domain: str = "", outputs: int = 1, **attrs: Any) -> Any:
        """Run an operator; returns its result, or a tuple for several `outputs`."""
        bodies = {a: self._body(v) for a, v in attrs.items() if isinstance(v, Body | Graph)}
        held = {a: InterpretedBody(v, self.around, *self._limits) for a, v in bodies.items()}
        return super().op(name, *inputs, domain=domain, outputs=outputs, **{**attrs, **held})

    def _body(self, value: Body | Graph) -> Graph:
        """The graph of a body that may read arrays at hand."""
        if isinstance(value, Graph):
            return value
        from .autodiff import gradients
        from .typed import TypedBuilder

        b = TypedBuilder({n: type_of(v) for n, v in self.around.items()}, prefix="body/", captured=self.captured)
        b.differentiate = gradients
        names = [b.input(f"body/in_{i}", t) for i, t in enumerate(value.inputs)]
        return b.graph(outputs=list(value.build(b, *names)))


@dataclass(slots=True)
class Meter:
    """Limits of a run: on body iterations (`Budget.steps`), by the clock (`until`), and by the caller (`cancel`)."""

    limit: int
    used: int = 0
    until: float | None = None
    cancel: threading.Event | None = None

    @property
    def watches(self) -> bool:
        """True if `check` can raise at all."""
        return self.until is not None or self.cancel is not None

    def check(self, needed: float = 0.0) -> None:
        """Raise DeadlineError or Cancelled if the run is to end, or has no `needed` seconds left for what comes."""
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("the run was cancelled", hint="its event was set by the caller")
        if self.until is not None and (now := monotonic()) + needed > self.until:
            text = "the run passed its deadline"
            if now <= self.until:
                text = f"this step takes at least {needed:.3g} s, and {self.until - now:.3g} s are left of the deadline"
            raise DeadlineError(text, hint="give it a longer deadline, or smaller inputs")

    def tick(self) -> None:
        """Count one iteration of a body."""
        self.used += 1
        if self.used > self.limit:
            raise BudgetError(
                f"more than {self.limit} iterations in one run",
                hint="is the loop endless? raise Budget(steps=...) if it is meant to run longer",
            )
        if self.watches:
            self.check()


class InvalidOperation(Exception):
    """A step met a NaN and may have lost it: exact kernels repeat the run."""


@contextmanager
def blaming(place: str) -> Iterator[None]:
    """Turn whatever a step raises into a MezzoError that names the place."""
    try:
        yield
    except InvalidOperation:  # no error: the run is made again
        raise
    except MezzoError as error:
        raise error.at(place) from error.__cause__
    except IndexError as error:
        raise OutOfRange(f"{error}", where=place, hint="indices count from 0, or from the end with -1") from error
    except Exception as error:
        raise ExecutionError(
            f"{type(error).__name__}: {error}", where=place, hint="the operands do not fit this operator"
        ) from error


@dataclass(frozen=True, slots=True)
class InterpretedBody:
    """A subgraph in the scope of a running interpreter."""

    graph: Graph
    outer: Mapping[str, Array]
    budget: Budget
    meter: Meter

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.graph.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.graph.outputs

    def infer(self, *types: Type) -> tuple[Type, ...]:
        outer = {n: type_of(self.outer[n]) for n in self.graph.captures()}
        return body_of(self.graph, outer, self.budget).infer(*types)

    def refuse(self, error: MezzoError) -> None:
        raise error


def evaluate(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    budget: Budget | None = None,
    key: tuple[int, ...] = (0,),
    numpy_random: bool = False,
) -> dict[str, Array]:
    """Run a graph operator by operator with the references; returns its outputs by name.

    States start from their initialisers and are not kept; `numpy_random` is `Session(random="numpy")`. Raises
    MezzoError naming the node that failed.
    """
    limits = Budget.of(budget)
    values = _run(graph, feeds, {}, limits, Meter(limits.steps), key, numpy_random)
    return {o: values[o] for o in graph.outputs}


def _run(
    graph: Graph,
    feeds: Mapping[str, Array],
    outer: Mapping[str, Array],
    budget: Budget,
    meter: Meter,
    key: tuple[int, ...],
    numpy_random: bool,
) -> dict[str, Array]:
    values: dict[str, Array] = {**outer, **graph.initializers, **feeds}
    run = _interpreter(budget, meter, key, numpy_random)
    for node in graph.nodes:
        with blaming(node.place), np.errstate(all="ignore"):
            results = node.record.run(
                Context(wanted=node.wanted, run=run, key=node_key(node, key), numpy_random=numpy_random),
                [values[i] if i else None for i in node.inputs],
                {
                    a: InterpretedBody(v, values, budget, meter) if isinstance(v, Graph) else v
                    for a, v in node.attrs.items()
                },
            )
            values.update((n, r) for n, r in zip(node.outputs, results, strict=False) if n)
    return values


def _interpreter(
    budget: Budget, meter: Meter, key: tuple[int, ...], numpy_random: bool
) -> Callable[..., tuple[Array, ...]]:
    """`k.run` of a reference: a body runs node by node."""

    def run(body: InterpretedBody, *args: Array) -> tuple[Array, ...]:
        meter.tick()
        inputs = dict(zip(body.inputs, args, strict=False))
        inner = _run(body.graph, inputs, body.outer, budget, meter, key, numpy_random)
        return tuple(inner[o] for o in body.outputs)

    return run


def node_key(node: Node, key: tuple[int, ...]) -> tuple[int, ...]:
    """The random key of a node: the run's key and a 64-bit id that survives rewriting (from its output's name).

    A copy draws the numbers of its original: a gradient may run a body again (`TypedBuilder.grad_of`). A draw of a
    trace is the draw of array code that it stands for, so many after the first of the run.
    """
    if node.record.deterministic:
        return key
    from hashlib import blake2b

    name = next(o for o in node.outputs if o).rpartition(COPY)[2]
    _, _, number = name.partition(DRAW)
    if number.isdecimal():
        key, name = (*key[:-1], key[-1] + int(number)), RESULT
    return (*key, int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))
