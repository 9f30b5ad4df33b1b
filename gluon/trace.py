"""Traces: recordings of a block as graphs, which are planned and replayed, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter, is_
from time import perf_counter
from typing import Any

import numpy as np

from ..nd.array import Array
from ..nd.autograd.gradients import as_ends, without
from ..nd.autograd.tape import Fragment, Leaf, note, plain, tracked
from ..nd.compiled import CompiledFunction, initial_value
from ..nd.place import Place
from ..nd.random import generator
from ..nd.recorder import Cut, Part, Recorder
from ..nd.recording import RECORDING
from ..nd.running import adopt, one_place
from ..nd.sparse import RowSparse
from ..ops import Tensor
from ..ops.types import Type, differentiable
from ..runtime.ir.autodiff import gradients
from ..runtime.ir.graph import Graph, Node, State
from ..runtime.ir.prune import prune
from ..runtime.ir.typed import TypedBuilder
from ..train.amp import Policy, mixed
from .guards import Guards
from .nest import Slot, filled, flat
from .parameter import Parameter


@dataclass(slots=True, eq=False)
class Traced:
    """A graph that reads inputs (`x0`, ...), parameters (by name) and arrays from outside (`c0`, ...).

    `moved` tells which parameters a run changes, and to which outputs behind the first `count`; `shell` is what forward
    returns, with the numbers of outputs in the places of arrays; `draws` is how many draws a run makes. `functions`
    read the parameters' arrays, `lies`, where they are.
    """

    graph: Graph
    count: int
    inputs: list[str]
    params: dict[str, Parameter]
    captured: dict[str, Array]
    moved: dict[str, str]
    shell: Any
    draws: int = 0
    functions: dict[Any, Any] = field(default_factory=dict[Any, Any])
    lies: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.lies = [p._data for p in self.params.values()]

    def fits(self) -> bool:
        """True if the parameters still have the shapes and types of the trace; arrays that were replaced are taken
        over."""
        if all(map(is_, map(_array, self.params.values()), self.lies)):
            return True
        now = [p._data for p in self.params.values()]
        if any(x is None or x._spec is not y._spec for x, y in zip(now, self.lies, strict=True)):
            return False
        self.lies = now
        self.functions.clear()
        return True


_array = attrgetter("_data")


# -- one graph after the other ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """End of a run: its output values, their nested structure, and the new values of parameters."""

    outputs: tuple[str, ...]
    moved: Mapping[str, str]
    shell: Any


@dataclass(slots=True, eq=False)
class Stretch:
    """One graph of a trace: up to a number that the program asks for, with the graphs that follow by that number."""

    part: Part
    types: dict[str, Type]
    constants: dict[str, np.ndarray[Any, Any]]
    captured: dict[str, Array]
    end: End | None
    traced: Traced | None = None
    next: dict[Any, Stretch] = field(default_factory=dict["Any", "Stretch"])

    def same(self, other: Stretch) -> bool:
        """True if the other stretch is the same graph, whatever follows it."""
        a, b = self.part, other.part
        return (
            len(a.nodes) == len(b.nodes)
            and all(map(_same_node, a.nodes, b.nodes))
            and (a.cut and (a.cut.name, a.cut.sort)) == (b.cut and (b.cut.name, b.cut.sort))
            and self.constants.keys() == other.constants.keys()
            and all(_same_array(v, other.constants[n]) for n, v in self.constants.items())
            and all(x is other.captured.get(n) for n, x in self.captured.items())
        )


def _same_array(a: Any, b: Any) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def _same_node(a: Node, b: Node) -> bool:
    return (a.op, a.domain, a.inputs, a.outputs) == (b.op, b.domain, b.inputs, b.outputs) and all(
        isinstance(v, Graph) or _same_value(v, b.attrs.get(n)) for n, v in a.attrs.items()
    )


def _same_value(a: Any, b: Any) -> bool:
    return _same_array(a, b) if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else bool(a == b)


MISSING = object()  # the answer of a trace that has not seen the number that a run has met


class Trace:
    """Trace of a block for one signature of the inputs, as a tree of graphs: a single graph if no number is asked
    for."""

    def __init__(
        self, inputs: list[str], params: Mapping[str, Parameter], guards: Guards, policy: Policy | None = None
    ) -> None:
        self.inputs, self.params, self.guards, self.policy = inputs, dict(params), guards, policy
        self.root: Stretch | None = None
        self.alone: Traced | None = None  # the only graph, where no number is asked for
        self.dropped = 0  # ways that began otherwise when they were gone again
        self.passed: Callable[[Cut, float], None] | None = None  # is told of each number that a run asks for

    def stretches(self) -> Iterator[Stretch]:
        todo = [] if self.root is None else [self.root]
        while todo:
            one = todo.pop()
            yield one
            todo += one.next.values()

    @property
    def ways(self) -> int:
        """Number of paths through the program that the trace has, including dropped ones."""
        return self.dropped + sum(not s.next for s in self.stretches())

    def fits(self) -> bool:
        """True if the parameters still have the shapes and types of the trace (see Traced)."""
        if self.alone is not None:
            return self.alone.fits()
        return all(s.traced.fits() for s in self.stretches() if s.traced is not None)

    def add(self, way: Sequence[Stretch]) -> None:
        """Take up one more way through the program, which begins as those that are known."""
        if self.root is None or not self.root.same(way[0]):
            self.dropped, self.root = self.ways, way[0]
        at = self.root
        for here, after in pairwise(way):
            assert here.part.cut is not None
            was, known = here.part.cut.was, at.next.get(here.part.cut.was)
            at.next[was] = at = known if known is not None and known.same(after) else after
        self._plan(self.root)
        self.alone = self.root.traced if self.root.part.cut is None else None

    def _plan(self, at: Stretch) -> set[str]:
        """Make the graph of a stretch, whose outputs are what the graphs behind it read; returns what has to be made
        before."""
        below = {n for s in at.next.values() for n in self._plan(s)}
        written = {o for n in at.part.nodes for o in n.outputs}
        reads = {i for n in at.part.nodes for i in n.reads()} - written
        ends = at.end.outputs if at.end is not None else (at.part.cut.name,) if at.part.cut is not None else ()
        moved = {} if at.end is None else dict(at.end.moved)
        outputs = (*ends, *sorted((below & written) - {*ends}))
        if at.traced is None or at.traced.graph.outputs[: at.traced.count] != outputs:
            given = reads - at.constants.keys()
            params = {n: p for n, p in self.params.items() if n in given or n in moved}
            captured = {n: x for n, x in at.captured.items() if n in given}
            carried = sorted(given - {*self.inputs} - params.keys() - captured.keys())
            fed = [n for n in (*self.inputs, *carried, *params, *captured) if n in given or n in params]
            graph = Graph(
                tuple(fed), (*outputs, *moved.values()), tuple(at.part.nodes), at.constants, at.types, name="trace"
            )
            shell = tuple(map(Slot, range(len(outputs)))) if at.end is None else at.end.shell
            graph = prune(graph)
            if self.policy is not None:
                graph = mixed(graph, self.policy, {*params, *captured})
            at.traced = Traced(
                graph, len(outputs), [*self.inputs, *carried], params, captured, moved, shell, at.part.draws
            )
        return (below | reads) - written - at.constants.keys() - at.captured.keys()

    def __call__(self, inputs: Sequence[Array]) -> Any:
        """Replay it on arrays of the kinds that it was made for; MISSING where the program goes a way of which nothing
        is known."""
        if self.alone is not None:
            return call(self.alone, inputs)
        at = self.root
        assert at is not None
        known = dict(zip(self.inputs, inputs, strict=True))
        while (cut := at.part.cut) is not None:
            assert at.traced is not None
            outs = _outputs(at.traced, [known[n] for n in at.traced.inputs])
            known.update(zip(at.traced.graph.outputs, outs, strict=False))
            begin = perf_counter()
            after = at.next.get(cut.sort(known[cut.name].item()))
            if self.passed is not None:
                self.passed(cut, perf_counter() - begin)
            if after is None:
                return MISSING
            at = after
        assert at.traced is not None
        return call(at.traced, [known[n] for n in at.traced.inputs])


def trace(
    run: Any, inputs: Sequence[Array], params: Mapping[str, Parameter], cuts: bool
) -> tuple[list[str], list[Stretch], Recorder]:
    """Run a block once on stand-ins for its inputs and parameters: the names of inputs, and the graphs of what it did.

    `cuts` says whether the program may ask for numbers. Raises GraphBreak where it does what no graph does.
    """
    place = inputs[0]._place
    recorder = Recorder(params, place, cuts)
    names = [recorder.fresh(f"x{i}") for i in range(len(inputs))]
    given = [recorder.stand_in(x, n) for x, n in zip(inputs, names, strict=True)]
    with recorder.alone(), recorder.going():
        results, shell = flat(run(*given))
        outputs = tuple(map(recorder.output, results))
        moved = {n: recorder.output(x) for n, x in recorder.moved.items()}
    return names, _stretches(recorder, End(outputs, moved, shell)), recorder


def _stretches(recorder: Recorder, end: End) -> list[Stretch]:
    stretches: list[Stretch] = []
    for part in recorder.parts:
        named = {n for node in part.nodes for n in (*node.reads(), *node.outputs)}
        types = {n: recorder.types[n] for n in named if n in recorder.types}
        constants = {n: v for n, v in recorder.constants.items() if n in named}
        captured = {n: x for n, x in recorder.outside.items() if n in named}
        stretches.append(Stretch(part, types, constants, captured, end if part is recorder.parts[-1] else None))
    return stretches


def move(p: Parameter, value: Array) -> None:
    """Let a parameter without a gradient (running statistics) have other numbers after this run."""
    from ..nd import autograd

    if isinstance(RECORDING.trace, Recorder):
        RECORDING.trace.move(p, value)
        return
    with autograd.pause():
        p.set_data(value.detach())


# -- running ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ways:
    """The programs of a trace while gradients are recorded. Forward also returns what backward reads; backward takes
    that, the inputs and the gradients of the outputs (`feeds` names the source of each), and returns the gradients of
    `wrt`, those of `rows` as rows. `reached` are the outputs that lead back to any of these, by number."""

    forward: CompiledFunction
    back: CompiledFunction
    feeds: tuple[str, ...]
    wrt: tuple[str, ...]
    rows: frozenset[str]
    reached: frozenset[int]


def call(traced: Traced, inputs: Sequence[Array]) -> Any:
    """Replay a graph on arrays of the kinds that it was made for; inside of a trace, as a part of that."""
    outs = _outputs(traced, inputs)
    shell = traced.shell
    return outs[shell] if shell.__class__ is Slot else filled(shell, outs)


def _outputs(traced: Traced, inputs: Sequence[Array]) -> Sequence[Array]:
    if RECORDING.trace is not None:
        given = [*_given(traced, inputs).values()]
        return RECORDING.trace.graph(_fragment(traced), given, lambda: _plain(traced, inputs))
    given = [*_given(traced, inputs).values()] if RECORDING.on else []
    return _recorded(traced, given, inputs) if tracked(given) else _plain(traced, inputs)


def _given(traced: Traced, inputs: Sequence[Array]) -> dict[str, Array]:
    """Return all values that the graph reads."""
    known = {**traced.captured, **dict(zip(traced.inputs, inputs, strict=True))}
    known |= {n: p.data() for n, p in traced.params.items()}  # of a trace that goes on, what stands for them there
    return {n: known[n] for n in traced.graph.inputs}


def _fragment(traced: Traced) -> Fragment:
    """The graph as a piece of another one."""
    fragment: Fragment | None = traced.functions.get("fragment")
    if fragment is None:
        g = traced.graph
        fragment = traced.functions["fragment"] = Fragment(
            g.nodes, g.inputs, g.outputs[: traced.count], dict(g.types), dict(g.initializers)
        )
    return fragment


def _plain(traced: Traced, inputs: Sequence[Array]) -> list[Array]:
    key = inputs[0]._place
    known = traced.functions.get(key)
    if known is None:
        outputs = traced.graph.outputs[: traced.count]
        function = _compiled(traced, traced.graph.but(outputs=outputs), traced.count, _place(traced, inputs))
        outside = traced.captured
        # arrays, or which of the inputs
        sources: list[Any] = [outside[n] if n in outside else traced.inputs.index(n) for n in function.inputs]
        known = traced.functions[key] = function, sources
    function, sources = known
    given = [inputs[s] if s.__class__ is int else s for s in sources]
    return _run(traced, function, given, inputs)


def _recorded(traced: Traced, arrays: Sequence[Array], inputs: Sequence[Array]) -> Sequence[Array]:
    given = dict(zip(traced.graph.inputs, arrays, strict=True))
    wanted = tuple(n for n, x in given.items() if x._origin is not None and differentiable(x._spec.tensor))
    rows = frozenset(n for n in wanted if isinstance(leaf := given[n]._origin, Leaf) and leaf.rows)
    key = "recorded", wanted, rows, inputs[0]._place
    ways = traced.functions.get(key)
    if ways is None:
        ways = traced.functions[key] = _both_ways(traced, wanted, rows, _place(traced, inputs))
    if not ways.reached:  # nothing leads back
        return _plain(traced, inputs)
    results = _run(traced, ways.forward, [given[n] for n in ways.forward.inputs], inputs)
    outs, saved = results[: traced.count], results[traced.count :]
    names, ys = list(given), [plain(y) for y in outs]

    def back(dys: Sequence[Array | None]) -> list[Array | RowSparse | None]:
        feeds = {f"@s{i}": x for i, x in enumerate(saved)} | {f"@y{i}": y for i, y in enumerate(ys)}
        for i, (dy, out) in enumerate(zip(dys, ys, strict=True)):
            feeds[f"@dy{i}"] = adopt(np.zeros(out.shape, out.dtype), out._place) if dy is None else dy
        feeds |= held
        derivatives = iter(ways.back([feeds[source] for source in ways.feeds]))
        by_name: dict[str, Array | RowSparse] = {}
        for n in ways.wrt:
            dx = next(derivatives)
            by_name[n] = RowSparse(dx, next(derivatives), held[n].shape) if n in ways.rows else dx
        return [by_name.get(n) for n in names]

    held = {n: plain(x) for n, x in given.items()}
    note("a hybridized block", _fragment(traced), arrays, outs, back=back)
    for i, out in enumerate(outs):
        if i not in ways.reached:
            out._origin = None
    return outs


def _run(traced: Traced, function: CompiledFunction, given: Sequence[Array], inputs: Sequence[Array]) -> list[Array]:
    """A run, with as many draws of the device's generator as it makes."""
    return function(given, generator(inputs[0]._place).advance(traced.draws) if traced.draws else None)


def _place(traced: Traced, inputs: Sequence[Array]) -> Place:
    """Return the device of all arrays that a block reads. Raises InputError if there are several."""
    return one_place("a hybridized block", [*inputs, *traced.lies, *traced.captured.values()])


def _compiled(traced: Traced, graph: Graph, count: int, place: Place) -> CompiledFunction:
    """The function of the trace's graph with these outputs, `count` of them arrays; parameters lie where they are."""
    params = {n: x for n, x in zip(traced.params, traced.lies, strict=True) if n in graph.inputs}
    whole = graph.but(
        states=tuple(State(n, n, traced.moved.get(n, n)) for n in params),
        initializers={**graph.initializers, **{n: initial_value(x) for n, x in params.items()}},
    )
    used = {*whole.reads()} - params.keys()
    model = whole.but(inputs=tuple(i for i in whole.inputs if i in used))
    return CompiledFunction(model, "block", place, params, outputs=count)


def _both_ways(traced: Traced, wanted: Sequence[str], rows: frozenset[str], place: Place) -> Ways:
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
            seeds[y] = f"@dy{i}"
            g.types[f"@dy{i}"] = known.forget()
    slopes = gradients(g, graph.nodes, seeds, wanted)
    wrt = tuple(n for n in wanted if n in slopes)
    fed = {*graph.inputs, *seeds.values()}
    ends = {n: as_ends(g, slopes[n], n in rows) for n in wrt}
    before = {*fed, *_made_forwards(g.nodes(), seeds)}
    backwards = without(g, before, [end for several in ends.values() for end in several])
    saved = [n for n in backwards.inputs if n not in fed and n not in outputs]
    every = graph.but(nodes=g.nodes(), initializers=g.constants(), types=g.types)
    ahead = prune(every.but(outputs=(*outputs, *saved, *traced.moved.values())))
    whole = ahead.but(outputs=(*outputs, *saved))
    forward = _compiled(traced, whole, len(whole.outputs), place)
    names = {n: f"@s{i}" for i, n in enumerate(saved)} | {n: f"@y{i}" for i, n in enumerate(outputs)}
    feeds = tuple(names.get(n, n) for n in backwards.inputs)
    ports = zip(whole.outputs, forward.session.program.outputs, strict=False)
    planned = {n: p.type for n, p in ports if n in backwards.types}  # a plan knows sizes that rules do not
    back = CompiledFunction(backwards.but(types={**backwards.types, **planned}), "backward of a block", place)
    led = _led_to(graph, wanted)
    in_rows = frozenset(n for n in wrt if len(ends[n]) > 1)
    return Ways(forward, back, feeds, wrt, in_rows, frozenset(i for i, y in enumerate(outputs) if y in led))


def _led_to(graph: Graph, wanted: Sequence[str]) -> set[str]:
    """The values that a tape would follow back to these."""
    led = set(wanted)
    for node in graph.nodes:
        if (node.domain, node.op) != ("mezzo", "StopGradient") and not led.isdisjoint(node.reads()):
            led.update(o for o in node.outputs if o and differentiable(graph.types[o]))
    return led


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
