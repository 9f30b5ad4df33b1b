"""Tracing: a block runs once while its operations are remembered; what was remembered becomes a graph, which is planned
and replayed, forwards and backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, is_
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.types import differentiable
from ..runtime import autograd
from ..runtime.arrays.array import Array
from ..runtime.arrays.place import Place
from ..runtime.arrays.random import generator
from ..runtime.arrays.recording import RECORDING
from ..runtime.arrays.running import adopt, line_of, memory, one_place, site
from ..runtime.arrays.runs import Runs, first
from ..runtime.arrays.runs import states as of_arrays
from ..runtime.autodiff import gradients
from ..runtime.autograd.back import Walk, forward, ordered, without
from ..runtime.autograd.tape import Fragment, Leaf, mode, note, plain, tracked
from ..runtime.graph import Graph, State
from ..runtime.passes.prune import prune
from ..runtime.session import Session
from ..runtime.typed import TypedBuilder
from .guards import Guards
from .nest import Slot, filled, flat
from .parameter import Parameter


class GraphBreak(Exception):
    """The program looks at what a trace does not have."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy
        self.where = line_of(*site())


@dataclass(slots=True, eq=False)
class Traced:
    """What a block computes for inputs of certain kinds.

    `graph` reads inputs (`x0`, ...), parameters (by name) and arrays from outside (`c0`, ...). `moved` tells which
    parameters a run in training changes, and to which outputs behind those of the block; `shell` is what forward
    returns, with the numbers of outputs in the places of arrays. `sessions` read the parameters' arrays, `lies`, where
    they are.
    """

    graph: Graph
    count: int
    inputs: list[str]
    params: dict[str, Parameter]
    captured: dict[str, Array]
    moved: dict[str, str]
    shell: Any
    guards: Guards
    random: bool = False
    sessions: dict[Any, Any] = field(default_factory=dict[Any, Any])
    lies: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.lies = [p._data for p in self.params.values()]

    def fits(self) -> bool:
        """Whether the parameters are of the kinds that they were; arrays that were made anew are taken up."""
        if all(map(is_, map(_array, self.params.values()), self.lies)):
            return True
        now = [p.data() for p in self.params.values()]
        if any(x._kind is not y._kind for x, y in zip(now, self.lies, strict=True)):
            return False
        self.lies = now
        self.sessions.clear()
        return True


_array = attrgetter("_data")


class Tracing:
    """The state of a thread that traces: what stands for parameters, and what these become."""

    def __init__(self, params: Mapping[str, Parameter]) -> None:
        self.params = dict(params)
        self.moved: dict[str, Array] = {}
        self.names = {id(p): n for n, p in params.items()}


CURRENT: list[Tracing] = []  # of this thread's blocks; tracing is done by one thread at a time (HybridBlock's lock)


def move(p: Parameter, value: Array) -> None:
    """Let a parameter without a gradient (running statistics) have other numbers after this run."""
    if p.in_trace is not None and CURRENT:
        CURRENT[-1].moved[CURRENT[-1].names[id(p)]] = value
        p.in_trace = value
        return
    with autograd.pause():
        p.set_data(value.detach())


def broke(reason: str, remedy: str) -> None:
    raise GraphBreak(reason, remedy)


def trace(run: Any, inputs: Sequence[Array], params: Mapping[str, Parameter], guards: Guards) -> Traced:
    """Run a block once on stand-ins for its inputs and parameters, and make a graph of what it did.

    Raises GraphBreak where the program looks at numbers.
    """
    state = Tracing(params)
    leaves: dict[Leaf, str] = {}

    def stand_in(x: Array, name: str) -> Array:
        made = plain(x)
        made._origin = Leaf(x, "null")
        leaves[made._origin] = name
        return made

    names = [f"x{i}" for i in range(len(inputs))]
    given = [stand_in(x, n) for x, n in zip(inputs, names, strict=True)]
    before = RECORDING.broke
    CURRENT.append(state)
    try:
        for name, p in params.items():
            p.in_trace = stand_in(p.data(), name)
        with mode(on=True, training=None):
            RECORDING.broke = broke
            found = run(*given)
    finally:
        RECORDING.broke = before
        CURRENT.pop()
        for p in params.values():
            p.in_trace = None
    results, shell = flat(found)
    for i, y in enumerate(results):
        if y._origin is None or isinstance(y._origin, Leaf):  # it hands on an input, or something constant
            with mode(on=True, training=None):
                results[i] = y + 0 if y._origin is not None else y
    moved = state.moved
    return _traced(results, moved, leaves, list(names), params, shell, guards)


def _traced(
    results: Sequence[Array],
    moved: Mapping[str, Array],
    leaves: Mapping[Leaf, str],
    inputs: list[str],
    params: Mapping[str, Parameter],
    shell: Any,
    guards: Guards,
) -> Traced:
    outs = [*results, *moved.values()]
    roots = [y._origin[0] for y in outs if isinstance(y._origin, tuple)]
    order = ordered(roots)
    if any(e.fragment is None for e in order):
        raise GraphBreak(
            "an autograd.Function is a part of it", "keep that part imperative, or write it with operators"
        )
    walk = Walk(order)
    g, nodes = forward(walk)
    names: dict[str, str] = {}
    captured: dict[str, Array] = {}
    for origin, number in walk.outside.items():
        known = leaves.get(origin) if isinstance(origin, Leaf) else None
        name = known or f"c{len(captured)}"
        names[f"v{number}"] = name
        if known is None:
            captured[name] = walk.arrays[number]
    made = set(walk.made.values())
    for number, value in enumerate(walk.values):
        if number not in made and f"v{number}" not in names:
            if isinstance(value, Array):
                names[f"v{number}"] = name = f"c{len(captured)}"
                captured[name] = value
            else:
                g.hold(f"v{number}", np.asarray(value))
    graph = Graph(
        tuple(names), (), tuple(nodes), g.constants(), g.types, name="trace"
    )  # fmt: skip
    outputs: list[str] = []
    for y in outs:
        if isinstance(y._origin, tuple):
            outputs.append(f"v{walk.made[y._origin]}")
        else:
            raise GraphBreak("an output does not depend on the inputs", "compute it outside of the block")

    def new(several: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(n, n) for n in several)

    turned = graph.rename(names)
    turned = turned.but(
        inputs=new(graph.inputs),
        nodes=tuple(replace(n, inputs=new(n.inputs)) for n in turned.nodes),
        types={names.get(n, n): t for n, t in graph.types.items()},
        outputs=new(outputs),
    )
    states = dict(zip(moved, turned.outputs[len(results) :], strict=True))
    drawn = any(not n.record.deterministic for _, n in turned.walk())
    return Traced(turned, len(results), inputs, dict(params), captured, states, shell, guards, drawn)


# -- running ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ways:
    """The programs of a trace while gradients are recorded: forwards, which also gives what the way back reads, and
    backwards, from that, the inputs and the outputs' gradients (`feeds` names where each comes from), to the gradients
    of `wrt`."""

    forward: Runs
    back: Runs
    feeds: tuple[str, ...]
    wrt: tuple[str, ...]


def call(traced: Traced, inputs: Sequence[Array], training: bool) -> Any:
    """Replay a trace on arrays of the kinds that it was made for."""
    given = _given(traced, inputs) if RECORDING.on else {}
    if tracked([*given.values()]):
        outs = _recorded(traced, given, inputs, training)
    else:
        outs = _plain(traced, inputs, training)
    shell = traced.shell
    return outs[shell] if shell.__class__ is Slot else filled(shell, outs)


def _given(traced: Traced, inputs: Sequence[Array]) -> dict[str, Array]:
    """All that the graph reads."""
    known = {**traced.captured, **dict(zip(traced.inputs, inputs, strict=True))}
    known |= {n: p.data() for n, p in traced.params.items()}  # of a trace that goes on, what stands for them there
    return {n: known[n] for n in traced.graph.inputs}


def _plain(traced: Traced, inputs: Sequence[Array], training: bool) -> list[Array]:
    key = training, inputs[0]._place
    found = traced.sessions.get(key)
    if found is None:
        outputs = traced.graph.outputs[: traced.count]
        runs = _runs(traced, traced.graph.but(outputs=outputs), traced.count, training, _place(traced, inputs))
        fed = [p.name for p in runs.session.inputs]
        outside = traced.captured
        # arrays, or which of the inputs
        sources: list[Any] = [outside[n] if n in outside else traced.inputs.index(n) for n in fed]
        found = traced.sessions[key] = runs, sources
    runs, sources = found
    given = [inputs[s] if s.__class__ is int else s for s in sources]
    return _run(traced, runs, given, inputs)


def _recorded(traced: Traced, given: dict[str, Array], inputs: Sequence[Array], training: bool) -> list[Array]:
    wanted = tuple(n for n, x in given.items() if x._origin is not None and differentiable(x._kind.tensor))
    key = ("recorded", training, wanted, inputs[0]._place)
    ways = traced.sessions.get(key)
    if ways is None:
        ways = traced.sessions[key] = _both_ways(traced, wanted, training, _place(traced, inputs))
    made = _run(traced, ways.forward, [given[p.name] for p in ways.forward.session.inputs], inputs)
    outs, saved = made[: traced.count], made[traced.count :]
    names, ys = list(given), [plain(y) for y in outs]

    def back(dys: Sequence[Array | None]) -> list[Array | None]:
        feeds = {f"s{i}": x for i, x in enumerate(saved)} | {f"y{i}": y for i, y in enumerate(ys)}
        for i, (dy, out) in enumerate(zip(dys, ys, strict=True)):
            feeds[f"dy{i}"] = adopt(np.zeros(out.shape, out.dtype), out._place) if dy is None else dy
        feeds |= held
        found = ways.back([feeds[source] for source in ways.feeds], ys[0]._place)
        by_name = dict(zip(ways.wrt, found, strict=True))
        return [by_name.get(n) for n in names]

    held = {n: plain(x) for n, x in given.items()}
    fragment = traced.sessions.get("fragment")
    if fragment is None:
        g = traced.graph
        fragment = traced.sessions["fragment"] = Fragment(
            g.nodes, g.inputs, g.outputs[: traced.count], dict(g.types), dict(g.initializers)
        )
    note("a hybridized block", fragment, list(given.values()), outs, back=back)
    return outs


def _run(traced: Traced, runs: Runs, given: Sequence[Array], inputs: Sequence[Array]) -> list[Array]:
    """A run, which is one more draw of the device's generator if it draws."""
    place = inputs[0]._place
    return runs(given, place, generator(place).advance() if traced.random else None)


def _place(traced: Traced, inputs: Sequence[Array]) -> Place:
    """Where all lies that a block reads. Raises InputError where that is several devices."""
    return one_place("a hybridized block", [*inputs, *traced.lies, *traced.captured.values()])


def _runs(traced: Traced, graph: Graph, count: int, training: bool, place: Place) -> Runs:
    """Runs of the trace's graph with these outputs, `count` of them arrays; parameters lie where they are."""
    lies = {n: x for n, x in zip(traced.params, traced.lies, strict=True) if n in graph.inputs}
    memories = {n: memory(x) for n, x in lies.items()}
    moved = traced.moved if training else {}
    states = tuple(State(n, n, moved.get(n, n)) for n in lies)
    whole = graph.but(
        inputs=tuple(i for i in graph.inputs if i not in lies),
        states=states,
        initializers={**graph.initializers, **{n: first(m) for n, m in memories.items()}},
    )
    used = {*whole.reads()}
    model = whole.but(inputs=tuple(i for i in whole.inputs if i in used))
    session = Session(model, states=of_arrays(memories), device=place.device)
    return Runs(session, "block", [*lies.values()], [lies[n] for n in moved if n in lies], count)


def _both_ways(traced: Traced, wanted: Sequence[str], training: bool, place: Place) -> Ways:
    """Split the graph with its gradients in two: what runs forwards, and what waits for the outputs' gradients."""
    graph = traced.graph
    g = TypedBuilder(graph.types, prefix="d/")
    for name, array in graph.initializers.items():
        g.hold(name, array)
    outputs = graph.outputs[: traced.count]
    seeds: dict[str, str] = {}
    for i, y in enumerate(outputs):
        known = graph.types[y]
        assert isinstance(known, Tensor)
        if differentiable(known):
            seeds[y] = f"dy{i}"
            g.types[f"dy{i}"] = known.forget()
    found = gradients(g, graph.nodes, seeds, wanted)
    wrt = tuple(n for n in wanted if n in found)
    fed = {*graph.inputs, *seeds.values()}
    backwards = without(g, {*fed, *_made_forwards(g.nodes(), seeds)}, [found[n] for n in wrt])
    saved = [n for n in backwards.inputs if n not in fed and n not in outputs]
    every = graph.but(nodes=g.nodes(), initializers=g.constants(), types=g.types)
    ahead = prune(every.but(outputs=(*outputs, *saved, *(traced.moved.values() if training else ()))))
    whole = ahead.but(outputs=(*outputs, *saved))
    forward = _runs(traced, whole, len(whole.outputs), training, place)
    names = {n: f"s{i}" for i, n in enumerate(saved)} | {n: f"y{i}" for i, n in enumerate(outputs)}
    feeds = tuple(names.get(n, n) for n in backwards.inputs)
    back = Runs(Session(backwards, device=place.device), "backward of a block")
    return Ways(forward, back, feeds, wrt)


def _made_forwards(nodes: Sequence[Any], seeds: Mapping[str, str]) -> set[str]:
    """The values that are known before any gradient of an output is."""
    late = set(seeds.values())
    known: set[str] = set()
    for node in nodes:
        if late.isdisjoint(node.reads()):
            known.update(o for o in node.outputs if o)
        else:
            late.update(node.outputs)
    return known
