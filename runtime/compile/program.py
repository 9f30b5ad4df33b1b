"""Programs: steps and their memory plan, as data without pointers or arrays.

Threads share a program and a file can store it; `runtime/execution/instance.py` makes it run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from ...ops import Tensor, Type
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import PlanError
from ...ops.training.exchange import AWAIT, DOMAIN, EMIT
from ..ir.graph import Graph, Node
from ..memory.liveness import Sharing, aligned
from ..memory.plan import MemoryPlan, Space
from .defects import MARK
from .kernel import Choice, TargetSpec

STAGED = 16 << 10  # bytes: binding a call to another buffer costs more than a copy of so many


@dataclass(frozen=True, slots=True)
class Port:
    """A named input or output of a program."""

    name: str
    type: Type

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True, slots=True, eq=False)
class ProgramStep:
    """One call: a node without its subgraphs, its kernel, and the kernels that declined.

    `bodies` holds the programs of its subgraphs, which also read `captures` of the values around them. `dynamic` marks
    a step of a dynamic segment (prepared when its operands are there); `frees` names dynamic values that die here.
    `asked` has the layouts of all inputs, then of all outputs, that the kernel was asked with; empty where they are
    those of the choice.
    """

    node: Node
    choice: Choice
    bodies: Mapping[str, Program] = field(default_factory=dict[str, "Program"])
    declined: tuple[tuple[str, str], ...] = ()
    dynamic: bool = False
    frees: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    _reads: tuple[str, ...] | None = field(init=False, default=None, repr=False)  # planning asks again and again

    def reads(self) -> tuple[str, ...]:
        """Return every value that the step reads, those of its bodies included."""
        names = self._reads
        if names is None:
            inside = [c for body in self.bodies.values() for c in body.captures]
            names = tuple(dict.fromkeys([*filter(None, self.node.inputs), *inside]))
            object.__setattr__(self, "_reads", names)
        return names

    def writes(self) -> tuple[str, ...]:
        outputs = self.node.outputs
        return outputs if all(outputs) else tuple(filter(None, outputs))

    @property
    def workspace(self) -> str:
        """Name of the step's workspace among the plan's values."""
        return f"workspace of {next(iter(self.writes()))}"


@dataclass(frozen=True, eq=False)
class Program:
    """A sequence of steps over the slots of a memory plan, replayed at each run.

    `inputs` and `outputs` are in the graph's order; `captures` are values of the scopes around a body, given like
    inputs. `weights` names the constant arrays that an instance needs; `states` maps the value a state is read as to
    the value it is written as; `results` names the values that the outputs are. Over several devices `parts` has the
    program of each, whose steps and arenas lie here behind each other.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    steps: tuple[ProgramStep, ...]
    plan: MemoryPlan
    types: Mapping[str, Type]
    weights: tuple[str, ...] = ()
    captures: tuple[str, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict[str, str])
    results: tuple[str, ...] = ()
    target: TargetSpec = field(default_factory=TargetSpec)
    parts: Mapping[str, Program] = field(default_factory=dict[str, "Program"])

    @cached_property
    def given(self) -> tuple[str, ...]:
        """The inputs' names."""
        return tuple(p.name for p in self.inputs)

    @cached_property
    def staged(self) -> tuple[str, ...]:
        """Inputs, captured values and results that are copied to and from a fixed place: static and small, and on a
        GPU of any size, since a captured graph holds addresses."""
        ports = dict.fromkeys((*self.given, *self.captures, *self.results))
        most = None if self.target.sm else STAGED
        return tuple(n for n in ports if n not in self.states and _is_small(self.types.get(n), most))

    @cached_property
    def arena_bytes(self) -> int:
        """Bytes of an instance's arena: those of the plan, and the places of small ports behind them."""
        if self.parts:
            return sum(aligned(part.arena_bytes) for part in self.parts.values())
        types = [self.types[n] for n in self.staged]
        return aligned(self.plan.size) + sum(aligned(t.nbytes) for t in types if isinstance(t, Tensor))

    def space(self, value: str) -> Space:
        """Return the owner of the bytes that hold a value."""
        return self.plan.by_value[value].life.space

    def all_weights(self) -> set[str]:
        """The weights of this program and of its bodies."""
        inner = (b.all_weights() for s in self.steps for b in s.bodies.values())
        return set(self.weights).union(*inner)

    def all_steps(self) -> list[ProgramStep]:
        """The steps, those of bodies included, each before its bodies' own."""
        steps: list[ProgramStep] = []
        for step in self.steps:
            steps.append(step)
            for body in step.bodies.values():
                steps += body.all_steps()
        return steps

    @property
    def allocating(self) -> int:
        """Number of steps that run a reference, which allocates its result."""
        return sum(s.choice.allocates for s in self.all_steps())

    @property
    def defects(self) -> int:
        """Number of kernels that failed while they were asked for a step; another one took it."""
        return sum(reason.startswith(MARK) for s in self.all_steps() for _, reason in s.declined)

    @property
    def dynamic(self) -> int:
        """Number of steps whose shapes depend on data."""
        return sum(s.dynamic for s in self.all_steps())

    def check(self) -> Program:
        """Return the program, or raise PlanError: slots overlap, or `check_order` finds a fault."""
        self.plan.check()
        self.check_order()
        for part in self.parts.values():
            part.check()
        for step in self.steps:
            for body in step.bodies.values():
                body.check()
        return self

    def check_order(self) -> None:
        """Raise PlanError where a step writes an input or a weight, a value is read before it is written, or a state
        is read after its write, or a value is touched that the store has; bodies apart."""
        ready = {p.name for p in self.inputs} | set(self.weights) | set(self.captures) | set(self.states)
        lives = [s.life for s in self.plan.slots]
        foreign, state, extern = (Space.INPUT, Space.WEIGHT), Space.STATE, Space.EXTERN
        fixed = {life.value for life in lives if life.space in foreign}
        kept = {life.value for life in lives if life.space is state}
        shared = any(life.space is extern for life in lives)
        written: set[str] = set()
        lent: set[str] = set()  # keys between their Emit and their Await
        for step in self.steps:
            if shared:
                self._hand_over(step, lent)
            reads, writes = step.reads(), step.writes()
            if not ready.issuperset(reads):
                name = next(n for n in reads if n not in ready)
                raise PlanError(f"{name!r} is read before it is written", where=step.node.place)
            if written and (late := [n for n in reads if self.states.get(n) in written]):
                raise PlanError(f"state {late[0]!r} is read after its write", where=step.node.place)
            if not fixed.isdisjoint(writes):
                name = next(n for n in writes if n in fixed)
                raise PlanError(f"{name!r} is {self.space(name).value} and is written", where=step.node.place)
            if not kept.isdisjoint(writes):
                written |= kept.intersection(writes)
            ready.update(writes)

    def _hand_over(self, step: ProgramStep, lent: set[str]) -> None:
        """Follow which values the store has. What only says that another step comes later is not touched."""
        node = step.node
        exchanges = node.domain == DOMAIN and node.op in (EMIT, AWAIT)
        key = str(node.attrs["key"]) if exchanges else ""
        if exchanges and (key in lent) is (node.op == EMIT):
            what = "emitted twice" if key in lent else "awaited and was not emitted"
            raise PlanError(f"{key!r} is {what}", where=node.place)
        lent.discard(key)
        for name in (*(node.inputs[:1] if exchanges else step.reads()), *step.writes()):
            slot = self.plan.by_value.get(name)
            if slot is not None and slot.life.space is Space.EXTERN and slot.life.name in lent:
                raise PlanError(f"{name!r} is touched while the store has it", where=node.place)
        if exchanges and node.op == EMIT:
            lent.add(key)

    def _splits(self, step: ProgramStep) -> str:
        return "  [runs on the host, splits the capture]" if self.target.sm and not step.choice.capturable else ""

    def __str__(self) -> str:
        head = f"program({', '.join(map(str, self.inputs))}) -> {', '.join(map(str, self.outputs))}"
        if self.parts:
            return "\n".join([head, *(f"on {device}: {part}" for device, part in self.parts.items())])
        rows = [f"  {i:>4} {s.choice.kernel:<16} {s.node}{self._splits(s)}" for i, s in enumerate(self.steps)]
        return "\n".join([head, *rows, str(self.plan)])


def _is_small(type: Type | None, most: int | None) -> bool:
    return isinstance(type, Tensor) and type.static and (most is None or type.nbytes <= most)


def without_bodies(node: Node) -> Node:
    """The node as a step keeps it: subgraphs have become programs."""
    return replace(node, attrs={a: v for a, v in node.attrs.items() if not isinstance(v, Graph)})


def body_bytes(body: Program) -> int:
    """Workspace of a body: its arena, and its static outputs twice."""
    outputs = [p.type for p in body.outputs]
    return body.arena_bytes + 2 * sum(aligned(t.nbytes) for t in outputs if isinstance(t, Tensor) and t.static)


def sharings(steps: Iterable[ProgramStep]) -> list[Sharing]:
    """The bytes that the chosen kernels offer to share: views first, since they save a copy too."""
    views: list[Sharing] = []
    inplace: list[Sharing] = []
    for step in steps:
        if step.dynamic:
            continue
        for alias in step.choice.aliases:
            output, source = step.node.outputs[alias.output], step.node.inputs[alias.input]
            others = [*step.node.inputs[: alias.input], *step.node.inputs[alias.input + 1 :]]
            if not output or not source or source in others:
                continue
            if alias.kind == "inplace":
                inplace.append(Sharing(output, source))
            elif alias.kind == "view":
                views.append(Sharing(output, source, "view", alias.delta))
            else:
                views.append(Sharing(source, output, "view", alias.delta))
    return views + inplace
