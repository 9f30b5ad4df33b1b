"""Tracing: a block runs once while its operations are remembered; what was remembered becomes a graph, which is planned
and replayed, forwards and backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.types import differentiable
from ..runtime import autograd
from ..runtime.arrays.array import Array
from ..runtime.arrays.random import generator
from ..runtime.arrays.recording import RECORDING
from ..runtime.arrays.running import adopt, line_of, memory, promised, site
from ..runtime.autodiff import gradients
from ..runtime.autograd.back import Walk, forward, ordered, without
from ..runtime.autograd.tape import Fragment, Leaf, mode, note, plain, tracked
from ..runtime.engine import engine
from ..runtime.graph import Graph, State
from ..runtime.passes.prune import prune
from ..runtime.session import Session
from ..runtime.typed import TypedBuilder
from .guards import Guards
from .nest import filled, flat
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
    returns, with the numbers of outputs in the places of arrays.
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
    """The programs of a trace while gradients are recorded: forwards, which also gives what the way back reads
    (`saved`), and backwards, from that, the inputs and the outputs' gradients, to the gradients of `wrt`."""

    forward: Session
    saved: int
    back: Session
    feeds: Mapping[str, str]  # the inputs of `back`: where each comes from
    wrt: tuple[str, ...]


def call(traced: Traced, inputs: Sequence[Array], training: bool) -> Any:
    """Replay a trace on arrays of the kinds that it was made for."""
    given = {**dict(zip(traced.inputs, inputs, strict=True)), **{n: p.data() for n, p in traced.params.items()}}
    given |= traced.captured
    given = {n: given[n] for n in traced.graph.inputs}
    if RECORDING.on and tracked(list(given.values())):
        outs = _recorded(traced, given, training)
    else:
        outs = _plain(traced, given, training)
    return filled(traced.shell, outs)


def _plain(traced: Traced, given: Mapping[str, Array], training: bool) -> list[Array]:
    key = ("plain", training, _seed(traced, given))
    found = traced.sessions.get(key)
    if found is None:
        found = traced.sessions[key] = _session(traced, traced.graph.outputs[: traced.count], training, given)
    return _push(found, given, traced.count, _writes(traced, training), traced.random)


def _recorded(traced: Traced, given: dict[str, Array], training: bool) -> list[Array]:
    wanted = tuple(n for n, x in given.items() if x._origin is not None and differentiable(x._kind.tensor))
    key = ("recorded", training, wanted, _seed(traced, given))
    ways = traced.sessions.get(key)
    if ways is None:
        ways = traced.sessions[key] = _both_ways(traced, wanted, training, given)
    made = _push(ways.forward, given, traced.count + ways.saved, _writes(traced, training), traced.random)
    outs, saved = made[: traced.count], made[traced.count :]
    names = list(given)

    def back(dys: Sequence[Array | None]) -> list[Array | None]:
        feeds = {f"s{i}": x for i, x in enumerate(saved)} | {f"y{i}": plain(y) for i, y in enumerate(outs)}
        for i, (dy, out) in enumerate(zip(dys, outs, strict=True)):
            feeds[f"dy{i}"] = adopt(np.zeros(out.shape, out.dtype), out._place) if dy is None else dy
        feeds |= held
        found = _push(ways.back, {port: feeds[source] for port, source in ways.feeds.items()}, len(ways.wrt), [])
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


def _seed(traced: Traced, given: Mapping[str, Array]) -> int:
    """What the random numbers of the graph begin with, if it draws any."""
    return generator(next(iter(given.values()))._place).seed if traced.random else 0


def _writes(traced: Traced, training: bool) -> list[Parameter]:
    return [traced.params[n] for n in traced.moved] if training else []


def _session(traced: Traced, outputs: Sequence[str], training: bool, given: Mapping[str, Array]) -> Session:
    """A session of the trace's graph with these outputs; parameters lie where they are."""
    return Session(**_with_states(traced, traced.graph.but(outputs=tuple(outputs)), training, given))


def _with_states(traced: Traced, graph: Graph, training: bool, given: Mapping[str, Array]) -> dict[str, Any]:
    lies = {n: memory(p.data()) for n, p in traced.params.items() if n in graph.inputs}
    moved = traced.moved if training else {}
    states = tuple(State(n, n, moved.get(n, n)) for n in lies)
    whole = graph.but(
        inputs=tuple(i for i in graph.inputs if i not in lies),
        states=states,
        initializers={**graph.initializers, **lies},
    )
    used = {*whole.reads()}
    model = whole.but(inputs=tuple(i for i in whole.inputs if i in used))
    return {"model": model, "states": dict(lies), "seed": _seed(traced, given)}


def _both_ways(traced: Traced, wanted: Sequence[str], training: bool, given: Mapping[str, Array]) -> Ways:
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
    model = _with_states(traced, ahead.but(outputs=(*outputs, *saved)), training, given)
    names = {n: f"s{i}" for i, n in enumerate(saved)} | {n: f"y{i}" for i, n in enumerate(outputs)}
    feeds = {n: names.get(n, n) for n in backwards.inputs}
    return Ways(Session(**model), len(saved), Session(backwards), feeds, wrt)


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


def _push(
    session: Session, given: Mapping[str, Array], count: int, writes: Sequence[Parameter], random: bool = False
) -> list[Array]:
    """Ask the engine for a run, which is one more draw of the device's generator if it draws."""
    place = next(iter(given.values()))._place
    outs = promised(session.program.outputs[:count], "block", place)
    fed = [given[p.name] for p in session.inputs]
    number = generator(place).advance()[1] if random else 0
    reads = [x._var for x in given.values()]
    engine().push(
        _compute, reads, [*(o._var for o in outs), *(p.data()._var for p in writes)], name="block",
        args=(session, number, fed, outs),
    )  # fmt: skip
    return outs


def _compute(session: Session, number: int, fed: Sequence[Array], outs: Sequence[Array]) -> None:
    session.next_run = number
    feeds = {p.name: x._look(x._var.value) for p, x in zip(session.inputs, fed, strict=True)}
    for out, value in zip(outs, session.run(feeds).values(), strict=False):
        out._var.value = value
