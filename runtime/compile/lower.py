"""Lowering of a typed graph to a program: selects kernels, assigns memory spaces, plans the memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...ops import Tensor, Type
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import ShapeError
from ...ops.training.exchange import AWAIT, DOMAIN, EMIT, SUM
from ...ops.types import Array
from ..ir.graph import Graph, Node
from ..memory.liveness import Life, Parallel, Space
from ..memory.plan import Attempt, MemoryPlan, Strategy, plan
from .kernel import KernelRequest, TargetSpec
from .order import LARGEST, ORDERS, Order, as_given, needs
from .parts import joined, located, parted
from .program import Port, Program, ProgramStep, sharings
from .queries import LayoutHistory
from .recipe import Lowered, Recipe
from .selection import StepBuilder, layout_preferences
from .target import Target


@dataclass(frozen=True, slots=True)
class Learned:
    """Results of planning that are reused for other sizes: the best order of steps and attempt at its plan, by the
    outputs of the graph or body, the layouts of the steps that are queried ahead, and how graphs were lowered, by their
    outputs."""

    orders: dict[tuple[str, ...], tuple[Order, Attempt]] = field(
        default_factory=dict[tuple[str, ...], tuple[Order, Attempt]]
    )
    history: LayoutHistory = field(default_factory=LayoutHistory)
    recipes: dict[tuple[str, ...], Recipe] = field(default_factory=dict[tuple[str, ...], Recipe])


# float32 as it is; products of operands rounded to bfloat16 or TF32; narrow tensors where kernels take them
PRECISIONS = ("fp32", "bf16-math", "tf32", "bf16", "fp16")
MATH = {"bf16-math": "bf16", "tf32": "tf32"}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of compilation.

    `extern` maps values to the names of buffers given at instantiation; with `exchange` those that Emit and Await pass
    on lie in buffers named for their keys; `place` tells the device of nodes, values and states by name, where there
    are several (see parts.py); `reorder` lets the planner choose among orders
    of execution; `parallel` plans so that independent steps may run at the same time; `fuse` applies the rules of
    passes/fusions.py. `precision` is one of PRECISIONS; `threads`, `onednn`, `numpy_random`, `nan` and `one_layout` are
    those of `TargetSpec`.
    """

    target: Target
    strategy: Strategy = Strategy.BOTH
    extern: Mapping[str, str] | None = None
    exchange: bool = False
    reorder: bool = True
    parallel: bool = False
    fuse: bool = False
    threads: int = 1
    onednn: bool = True
    precision: str = "fp32"
    numpy_random: bool = False
    nan: str = "watched"
    one_layout: bool = False
    place: Mapping[str, str] | None = None

    @property
    def spec(self) -> TargetSpec:
        """Target of these options, for kernels."""
        math, on = MATH.get(self.precision, "strict"), self.target
        return TargetSpec(on.name, self.threads, self.onednn, math, on.sm, self.numpy_random, self.nan, self.one_layout)

    @property
    def inside(self) -> Options:
        """Options for bodies: those of a GPU's programs run on the host."""
        if self.target.host is None:
            return replace(self, place=None) if self.place else self
        return replace(self, target=self.target.host, precision="fp32", place=None)


def lower(
    graph: Graph, options: Options, *, names: Sequence[str] | None = None, learned: Learned | None = None
) -> tuple[Program, Mapping[str, Array]]:
    """Make the program of a graph whose types are known (see `infer`), and the constants that kernels have packed.

    `names` are the public names of the outputs. Values whose type is not static become dynamic: their steps are
    prepared while the program runs. `learned` tells which order of execution was the best for other sizes: it is
    taken if no arena of its buffers is smaller. What is found here is added.
    """
    names, learned = names or graph.outputs, learned or Learned()
    known = learned.recipes.get(graph.outputs)
    again = known.again(graph, options.target, learned.history) if known is not None else None
    if known is not None and again is not None:
        return _lowered_again(known, again, options, names, learned).check(), again.packed
    packed: dict[str, Array] = {}
    return _lower(graph, options, names, {}, packed, learned).check(), packed


def _lowered_again(recipe: Recipe, again: Lowered, options: Options, names: Sequence[str], learned: Learned) -> Program:
    """The program of a graph that the recipe of another one serves."""
    former, types = recipe.program, again.types
    order, _ = learned.orders[former.results]
    arena = {n: size for n, size in again.nbytes.items() if recipe.spaces[n] is Space.ARENA}
    arranged = recipe.arranged(again, order(again.steps, arena))
    if arranged is None:
        steps, _, plan = _planned(former.results, again.steps, recipe.spaces, again.nbytes, options, False, learned)
    else:
        steps, plan = arranged
    program = replace(
        former,
        inputs=tuple(Port(n, types[n]) for n in former.given),
        outputs=tuple(Port(name, types[value]) for name, value in zip(names, former.results, strict=True)),
        steps=tuple(steps),
        plan=plan,
        types=types,
    )
    if arranged is None:
        recipe.arrange(program)
    return program


def _lower(
    graph: Graph,
    options: Options,
    names: Sequence[str],
    weights: Mapping[str, Array],
    packed: dict[str, Array],
    learned: Learned,
) -> Program:
    given, own = graph, _own_outputs(graph)
    graph = own
    if options.exchange and not options.target.sm:  # values of a GPU are copied to the store's buffers
        options = replace(options, extern={**(options.extern or {}), **exchanged(graph)})
    overridable = {*graph.inputs, *(s.input for s in graph.states)}
    constants = {**weights, **{n: a for n, a in graph.initializers.items() if n not in overridable}}
    outside = [n for n in graph.captures() if n not in constants]
    dynamic = {n for n, t in graph.types.items() if not (isinstance(t, Tensor) and t.static)}
    builder = _selected(graph, options, constants, packed, dynamic, learned)
    constants |= packed
    at = located(builder.steps, options.place) if options.place else {}
    graph, steps, states = _with_states(graph.but(types=builder.types), builder.steps, options, at)
    if at:
        return _over_devices(graph, steps, states, options, names, constants, dynamic, at)
    spaces, program = _program(graph, steps, states, options, names, constants, dynamic, outside, learned)
    if not (outside or weights) and _has_recipe(graph, options, dynamic):
        learned.recipes[given.outputs] = Recipe.of(given, own, builder, spaces, program)
    return program


def _program(
    graph: Graph,
    steps: list[ProgramStep],
    states: Mapping[str, str],
    options: Options,
    names: Sequence[str],
    constants: Mapping[str, Array],
    dynamic: set[str],
    outside: Sequence[str],
    learned: Learned,
    sent: Sequence[str] = (),
) -> tuple[Mapping[str, Space], Program]:
    """The program of selected steps, and the spaces of its values; what is `sent` lives until the end."""
    stored = {*states, *states.values()}
    spaces = _spaces(graph, steps, options, constants, outside, dynamic, stored)
    nbytes = {n: _nbytes(graph, n) for n in spaces}
    fixed, last = bool(states or options.place), (*graph.outputs, *sent)
    steps, lives, memory = _planned(last, steps, spaces, nbytes, options, fixed, learned)
    steps = _with_frees(steps, lives, set(graph.outputs))
    used = {n for s in steps for n in (*s.reads(), *s.writes())} | {*graph.inputs, *graph.outputs, *outside}
    return spaces, Program(
        inputs=tuple(Port(n, graph.types[n]) for n in graph.inputs),
        outputs=tuple(Port(name, graph.types[value]) for name, value in zip(names, graph.outputs, strict=True)),
        steps=tuple(steps),
        plan=memory,
        types={n: _plain(graph.types[n]) for n in sorted(used)},
        weights=tuple(sorted(n for n in used if n in constants)),
        captures=tuple(outside),
        states=states,
        results=graph.outputs,
        target=options.spec,
    )


def _over_devices(
    graph: Graph,
    steps: list[ProgramStep],
    states: Mapping[str, str],
    options: Options,
    names: Sequence[str],
    constants: Mapping[str, Array],
    dynamic: set[str],
    at: dict[str, str],
) -> Program:
    """The program of steps on several devices: a part for each, planned by itself."""
    graph, parts = parted(graph, steps, states, at, dynamic)
    public = dict(zip(graph.outputs, names, strict=True))
    programs: dict[str, Program] = {}
    for part in parts:
        own, mine = part.graph, {read: written for read, written in states.items() if at[read] == part.device}
        called = [public[o] for o in own.outputs]
        _, made = _program(own, part.steps, mine, options, called, constants, dynamic, (), Learned(), part.sent)
        target = replace(made.target, device=part.device) if options.target.sm else made.target
        programs[part.device] = replace(made, target=target)
    return joined(graph, names, programs, options.spec)


def _has_recipe(graph: Graph, options: Options, dynamic: set[str]) -> bool:
    """Return True for a graph of which a recipe can be made."""
    plain = not (graph.states or any(node.bodies for node in graph.nodes))
    used = {o for node in graph.nodes for o in node.outputs} | {*graph.inputs}
    apart = options.extern or options.exchange or options.target.sm or options.place
    return plain and used.isdisjoint(dynamic) and not apart


def _planned(
    outputs: tuple[str, ...],
    steps: list[ProgramStep],
    spaces: Mapping[str, Space],
    nbytes: Mapping[str, int],
    options: Options,
    fixed: bool,
    learned: Learned,
) -> tuple[list[ProgramStep], list[Life], MemoryPlan]:
    """The order of steps with the smallest arena, their lives and their plan; `fixed` leaves the order as it is."""
    sizes = {n: size for n, size in nbytes.items() if spaces[n] is Space.ARENA}

    def planned(order: Sequence[int], first: Attempt | None = None) -> tuple[list[ProgramStep], list[Life], MemoryPlan]:
        moved = [steps[i] for i in order]
        lives = _lives(moved, spaces, nbytes, outputs, options)
        time = parallel(moved) if options.parallel else None
        return moved, lives, plan(lives, sharings(moved), options.strategy, time, first)

    known = learned.orders.get(outputs)
    if known is not None:
        order, attempt = known
        again = planned(order(steps, sizes), attempt)
        if again[2].size <= again[2].floor * attempt.enough:
            return again
    # states are written after their last reader, which only the order of the graph promises
    free = options.reorder and not fixed and 3 <= len(steps) <= LARGEST
    candidates = [(order, planned(order(steps, sizes))) for order in (ORDERS if free else (as_given,))]
    order, best = min(candidates, key=lambda f: f[1][2].size)
    learned.orders[outputs] = order, best[2].attempt
    return best


def replanned(program: Program, options: Options) -> Program:
    """The program with a plan for the workspaces that its steps have now, in the same order."""
    steps, slots = list(program.steps), program.plan.by_value
    spaces = {n: slots[n].life.space for n in program.types if n in slots}
    nbytes = {n: slots[n].life.nbytes for n in spaces}
    _, _, memory = _planned(program.results, steps, spaces, nbytes, options, True, Learned())
    return replace(program, plan=memory).check()


def _nbytes(graph: Graph, name: str) -> int:
    known = graph.types.get(name)
    return known.nbytes if isinstance(known, Tensor) and known.static else 0


def parallel(steps: Sequence[ProgramStep]) -> Parallel:
    """The time of a program whose steps run as soon as their operands are there."""
    touches: dict[str, list[int]] = {}
    for i, step in enumerate(steps):
        for name in (*step.reads(), *step.writes(), step.workspace):
            touches.setdefault(name, []).append(i)
    return Parallel(needs(steps), touches)


def _plain(type: Type) -> Type:
    return type.forget() if isinstance(type, Tensor) and type.value is not None else type


def _own_outputs(graph: Graph) -> Graph:
    """Give every output a value of its own: copies of inputs, constants, outer values and repeated outputs."""
    computed = {o for n in graph.nodes for o in n.outputs}
    types = dict(graph.types)
    nodes, outputs = list(graph.nodes), []
    for i, value in enumerate(graph.outputs):
        if value in computed and value not in outputs and not any(s.output == value for s in graph.states):
            outputs.append(value)
            continue
        copy = f"{value}@out{i}"
        nodes.append(Node("Identity", (value,), (copy,), name=copy, origin=(value,)))
        types[copy] = _plain(types[value])
        outputs.append(copy)
    return graph.but(nodes=tuple(nodes), outputs=tuple(outputs), types=types)


def exchanged(graph: Graph) -> dict[str, str]:
    """The key under which the store has the bytes of a value: what an Emit reads, if nobody else does, what it makes,
    and what the Await makes."""
    uses, keys = graph.uses(), dict[str, str]()
    for node in graph.nodes:
        if node.domain == DOMAIN and node.op in (EMIT, AWAIT):
            key = str(node.attrs["key"])
            if node.op == EMIT or node.attrs.get("verb", SUM) == SUM:  # else the answer has another size
                keys[node.outputs[0]] = key
            if node.op == EMIT and uses.get(node.inputs[0]) == 1:
                keys[node.inputs[0]] = key
    return keys


def _selected(
    graph: Graph,
    options: Options,
    constants: Mapping[str, Array],
    packed: dict[str, Array],
    dynamic: set[str],
    learned: Learned,
) -> StepBuilder:
    """The steps of the nodes, with the types of what reordering adds."""
    captured = {n for node in graph.nodes for body in node.bodies.values() for n in body.captures()}
    plain = {*graph.outputs, *captured, *(options.extern or ()), *dynamic, *(s.output for s in graph.states)}
    types, preferences = dict(graph.types), layout_preferences(graph, plain)
    builder = StepBuilder(options.target, options.spec, types, constants, packed, plain, preferences, learned.history)
    builder.look_ahead(graph.nodes)
    for node in graph.nodes:
        bodies = {
            attr: _lower(b.but(types=graph.types), options.inside, b.outputs, constants, packed, learned)
            for attr, b in node.bodies.items()
        }
        captures = [c for b in bodies.values() for c in b.captures]
        builder.add(node, bodies, not dynamic.isdisjoint((*node.inputs, *node.outputs, *captures)))
    return builder


def _with_states(
    graph: Graph, steps: list[ProgramStep], options: Options, at: dict[str, str]
) -> tuple[Graph, list[ProgramStep], dict[str, str]]:
    """Let each state's last value go into the state's own bytes.

    Directly, where its producer comes after all readers of the old value and does not disturb them; by a copy at the
    end otherwise, and where its producer is on another device (`at`). Returns the graph (with the types
    of the copies), the steps, and the written value of each state.
    """
    types, steps = dict(graph.types), list(steps)
    written: dict[str, str] = {}
    makers = {o: i for i, s in enumerate(steps) for o in s.writes()}
    readers: dict[str, list[int]] = {}
    for i, step in enumerate(steps):
        for name in step.reads():
            readers.setdefault(name, []).append(i)

    def copied(value: str, copy: str, state: str) -> str:
        if at:
            at[copy] = at[state]
        node = Node("Identity", (value,), (copy,), name=copy, origin=(value,))
        types[copy] = _plain(types[value])
        request = KernelRequest(node, [types[value]], [types[copy]], target=options.spec)
        choice, declined = options.target.choose(request)
        readers.setdefault(value, []).append(len(steps))
        makers[copy] = len(steps)
        steps.append(ProgramStep(node, choice, {}, declined))
        return copy

    old = {s.input for s in graph.states}
    final: dict[str, str] = {}
    for state in graph.states:
        before, after = types[state.input], types[state.output]
        if before != after:
            raise ShapeError(f"state {state.name!r} is {before}, and its next value is {after}", where=graph.name)
        # a state that becomes another state's old value reads it before either is overwritten
        swapped = state.output in old and state.output != state.input
        final[state.input] = copied(state.output, f"{state.input}@read", state.input) if swapped else state.output
    for read, value in final.items():
        if value == read:  # it stays as it is
            written[read] = read
            continue
        maker = makers.get(value)
        free = value not in graph.outputs and value not in written.values() and at.get(value) == at.get(read)
        if maker is not None and free and _may_overwrite(steps[maker], maker, readers.get(read, ()), read, value):
            written[read] = value
        else:
            written[read] = copied(value, f"{read}@next", read)
    return graph.but(types=types), steps, written


def _may_overwrite(step: ProgramStep, maker: int, readers: Sequence[int], state: str, value: str) -> bool:
    """Return True if step number `maker` can write `value` over the bytes of `state`, which the steps `readers`
    read."""
    if step.dynamic or any(i > maker for i in readers):
        return False
    if maker not in readers:
        return True
    node = step.node
    return any(
        a.kind == "inplace" and node.outputs[a.output] == value and node.inputs[a.input] == state
        for a in step.choice.aliases
    )


def _spaces(
    graph: Graph,
    steps: Sequence[ProgramStep],
    options: Options,
    constants: Mapping[str, Array],
    outside: Iterable[str],
    dynamic: set[str],
    stored: set[str],
) -> dict[str, Space]:
    values = {n for s in steps for n in (*s.reads(), *s.writes())} | {*graph.inputs, *graph.outputs, *outside}
    given = {*graph.inputs, *outside}

    def space(name: str) -> Space:
        if name in stored:
            return Space.STATE
        if name in given:
            return Space.INPUT
        if name in constants:
            return Space.WEIGHT
        if name in dynamic:
            return Space.DYNAMIC
        if name in graph.outputs:
            return Space.OUTPUT
        return Space.EXTERN if options.extern and name in options.extern else Space.ARENA

    return {name: space(name) for name in sorted(values)}


def _lives(
    steps: Sequence[ProgramStep],
    spaces: Mapping[str, Space],
    sizes: Mapping[str, int],
    outputs: Iterable[str],
    options: Options,
) -> list[Life]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, step in enumerate(steps):
        for name in (*step.reads(), *step.writes()):
            first.setdefault(name, i)
            last[name] = i
    end = max(len(steps) - 1, 0)
    last |= dict.fromkeys(outputs, end)
    lives = []
    for name, space in spaces.items():
        buffer = (options.extern or {}).get(name, "") if space is Space.EXTERN else ""
        lives.append(Life(name, sizes[name], first.get(name, 0), last.get(name, end), space, buffer))
    workspaces = [Life(s.workspace, s.choice.workspace, i, i) for i, s in enumerate(steps) if s.choice.workspace]
    return lives + workspaces


def _with_frees(steps: Sequence[ProgramStep], lives: Iterable[Life], outputs: set[str]) -> list[ProgramStep]:
    dying: dict[int, list[str]] = {}
    for life in lives:
        if life.space is Space.DYNAMIC and life.value not in outputs:
            dying.setdefault(life.last, []).append(life.value)
    return [replace(s, frees=tuple(dying[i])) if i in dying else s for i, s in enumerate(steps)]
