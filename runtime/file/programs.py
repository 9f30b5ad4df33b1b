"""Programs as columns, and their reader: steps with their kernels, the memory plan, types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import ModelError
from ..compile.kernel import Alias, Choice, TargetSpec
from ..compile.program import Port, Program, ProgramStep
from ..ir.graph import Graph
from ..memory.liveness import Life, Sequential, Sharing, Space
from ..memory.plan import MemoryPlan, Slot, Strategy
from .graphs import NodeWriter, flat, grouped, read_nodes, read_types
from .pool import ConstantPool, Ends, PoolWriter, same_length, spans
from .table import Table, malformed

SPACES = tuple(Space)
ALLOCATES, CAPTURABLE, DETERMINISTIC, DYNAMIC = 1, 2, 4, 8


def check_storable(program: Program) -> None:
    """Raise ModelError for a program that cannot run from its file alone."""
    plans = [program.plan, *(b.plan for s in program.all_steps() for b in s.bodies.values())]
    outside = {s.life.name for p in plans for s in p.slots if s.life.space is Space.EXTERN}
    parallel = not all(isinstance(p.time, Sequential) for p in plans)
    if outside or parallel:
        what = f"needs the buffers {', '.join(sorted(outside))} from outside" if outside else "has a parallel plan"
        raise ModelError(f"a program that {what} is not for files", hint="plan it without extern= and parallel=")


class ProgramWriter:
    """Writer of a program and the programs of its bodies, bodies first."""

    def __init__(self, pool: PoolWriter) -> None:
        self.tables: list[dict[str, Any]] = []
        self._pool = pool

    def add(self, program: Program) -> int:
        """Append a program after its bodies; returns its number."""
        text, type_of = self._pool.text, self._pool.type
        steps = self._steps(program.steps)
        shared = program.plan.shared
        self.tables.append(
            {
                "device": text(program.target.device),
                "inputs": flat((text(p.name), type_of(p.type)) for p in program.inputs),
                "outputs": flat((text(p.name), type_of(p.type)) for p in program.outputs),
                "results": list(map(text, program.results)),
                "weights": list(map(text, program.weights)),
                "captures": list(map(text, program.captures)),
                "states": flat((text(a), text(b)) for a, b in program.states.items()),
                "types": flat((text(n), type_of(t)) for n, t in program.types.items()),
                "steps": steps,
                "arena": program.plan.size,
                "bound": program.plan.bound,
                "strategy": text(program.plan.strategy.value),
                "slots": self._slots(program.plan.slots),
                "shared_value": [text(s.value) for s in shared],
                "shared_other": [text(s.other) for s in shared],
                "shared_kind": [text(s.kind) for s in shared],
                "shared_delta": [s.delta for s in shared],
            }
        )
        return len(self.tables) - 1

    def _slots(self, slots: Sequence[Slot]) -> dict[str, Any]:
        text = self._pool.text
        return {
            "value": [text(s.life.value) for s in slots],
            "nbytes": [s.life.nbytes for s in slots],
            "first": [s.life.first for s in slots],
            "last": [s.life.last for s in slots],
            "space": [SPACES.index(s.life.space) for s in slots],
            "buffer": [text(s.life.name) for s in slots],
            "offset": [s.offset for s in slots],
            "content": [text(s.content) for s in slots],
            "delta": [s.delta for s in slots],
        }

    def _steps(self, steps: Sequence[ProgramStep]) -> dict[str, Any]:
        text, value = self._pool.text, self._pool.value
        nodes, params, layouts, saved, declined, frees = NodeWriter(self._pool), *(Ends() for _ in range(5))
        primitives, asked = Ends(), Ends()
        bodies, aliases = Ends(), Ends()
        param_values: list[int] = []
        programs: list[int] = []
        for step in steps:
            nodes.add(step.node)
            choice = step.choice
            params.add(map(text, choice.params))
            param_values += map(value, choice.params.values())
            layouts.add(map(text, choice.layouts))
            primitives.add(text(repr(p)) for p in choice.primitives)
            asked.add(map(text, step.asked))
            saved.add(map(text, choice.saved))
            declined.add(text(t) for pair in step.declined for t in pair)
            frees.add(map(text, step.frees))
            aliases.add(a.output for a in choice.aliases)
            programs += [self.add(body) for body in step.bodies.values()]
            bodies.add(map(text, step.bodies))
        every = [a for s in steps for a in s.choice.aliases]
        return {
            "nodes": nodes.content(),
            "kernel": [text(s.choice.kernel) for s in steps],
            "workspace": [s.choice.workspace for s in steps],
            "flags": [_flags(s) for s in steps],
            "implementation": [text(s.choice.implementation) for s in steps],
            "params_end": params.ends,
            "param_names": params.items,
            "param_values": param_values,
            "aliases_end": aliases.ends,
            "alias_output": aliases.items,
            "alias_input": [a.input for a in every],
            "alias_kind": [text(a.kind) for a in every],
            "alias_delta": [a.delta for a in every],
            "layouts_end": layouts.ends,
            "layouts": layouts.items,
            "saved_end": saved.ends,
            "saved": saved.items,
            "bodies_end": bodies.ends,
            "body_names": bodies.items,
            "body_programs": programs,
            "declined_end": declined.ends,
            "declined": declined.items,
            "frees_end": frees.ends,
            "frees": frees.items,
            "primitives_end": primitives.ends,
            "primitives": primitives.items,
            "asked_end": asked.ends,
            "asked": asked.items,
        }


def _flags(step: ProgramStep) -> int:
    choice = step.choice
    marks = (choice.allocates, choice.capturable, choice.deterministic, step.dynamic)
    return sum(1 << i for i, mark in enumerate(marks) if mark)


@dataclass(slots=True)
class _Bodies:
    """Programs read so far; each may become the body of one step."""

    programs: list[Program] = field(default_factory=list[Program])
    used: set[int] = field(default_factory=set[int])

    def take(self, number: int) -> Program:
        if number in self.used:
            raise malformed("two steps share one body")
        self.used.add(number)
        return self.programs[number]  # IndexError: it is not among the programs before this one


def read_program(tables: Sequence[Table], pool: ConstantPool, target: TargetSpec) -> Program:
    """The last program of a variant, with the others as bodies of its steps, made for `target` (the key says so).

    Nothing is checked beyond its form. Primitives are the strings that describe them: `confirm` puts those in their
    place that this build makes, and finds equal."""
    bodies = _Bodies()
    for table in tables:
        bodies.programs.append(_program(table, pool, bodies, target))
    if len(bodies.used) != len(bodies.programs) - 1 or len(bodies.programs) - 1 in bodies.used:
        raise malformed("a variant holds no program, or bodies that no step uses")
    return bodies.programs[-1]


def _program(table: Table, pool: ConstantPool, bodies: _Bodies, target: TargetSpec) -> Program:
    strings, types = pool.strings, pool.types

    def names(column: str) -> tuple[str, ...]:
        return tuple([strings[i] for i in table.column(column)])

    def ports(column: str) -> tuple[Port, ...]:
        return tuple([Port(strings[n], types[t]) for n, t in grouped(table.column(column), 2)])

    return Program(
        inputs=ports("inputs"),
        outputs=ports("outputs"),
        steps=_steps(table.table("steps"), pool, bodies),
        plan=_plan(table, strings),
        types=read_types(table, pool),
        weights=names("weights"),
        captures=names("captures"),
        states={strings[a]: strings[b] for a, b in grouped(table.column("states"), 2)},
        results=names("results"),
        target=_target(target, strings[table.number("device")]),
    )


def _target(target: TargetSpec, device: str) -> TargetSpec:
    """Return the target of a variant's program: bodies of a GPU's programs run on the host (Options.inside)."""
    return target if device == target.device else replace(target, device=device, math="strict", sm=0)


def _plan(table: Table, strings: Sequence[str]) -> MemoryPlan:
    slots = table.table("slots")
    value, buffer, content = ([strings[i] for i in slots.column(c)] for c in ("value", "buffer", "content"))
    nbytes, first, last, space = (slots.column(c) for c in ("nbytes", "first", "last", "space"))
    offset, delta = slots.column("offset"), slots.column("delta")
    same_length(value, buffer, content, nbytes, first, last, space, offset, delta)
    if len(set(value)) < len(value):
        raise malformed("a value has two slots")
    placed = [
        Slot(Life(v, n, a, b, SPACES[s], name), at, c, d)
        for v, n, a, b, s, name, at, c, d in zip(
            value, nbytes, first, last, space, buffer, offset, content, delta, strict=True
        )
    ]
    return MemoryPlan(
        table.number("arena"),
        tuple(placed),
        _shared(table, strings),
        table.number("bound"),
        Strategy(strings[table.number("strategy")]),
    )


def _shared(table: Table, strings: Sequence[str]) -> tuple[Sharing, ...]:
    value, other, kind = ([strings[i] for i in table.column(f"shared_{c}")] for c in ("value", "other", "kind"))
    return tuple([Sharing(*row) for row in zip(value, other, kind, table.column("shared_delta"), strict=True)])


def _steps(table: Table, pool: ConstantPool, bodies: _Bodies) -> tuple[ProgramStep, ...]:
    strings, values = pool.strings, pool.values

    def no_graph(number: int) -> Graph:
        raise malformed("a step holds a graph in place of a program")

    nodes = read_nodes(table.table("nodes"), pool, no_graph)
    kernels = [strings[i] for i in table.column("kernel")]
    workspace, flags = table.column("workspace"), table.column("flags")
    implementations = [strings[i] for i in table.column("implementation")]
    count = same_length(nodes, kernels, workspace, flags, implementations)

    def lists(name: str) -> list[tuple[str, ...]]:
        column = [strings[i] for i in table.column(name)]
        ends = table.column(f"{name}_end") or [0] * count  # a file may be older than a column
        return [tuple(column[a:b]) for a, b in spans(ends, count, column)]

    layouts, saved, declined, frees = map(lists, ("layouts", "saved", "declined", "frees"))
    primitives, asked = map(lists, ("primitives", "asked"))
    names = [strings[i] for i in table.column("param_names")]
    param_values = [values[i] for i in table.column("param_values")]
    params = [
        dict(zip(names[a:b], param_values[a:b], strict=True))
        for a, b in spans(table.column("params_end"), count, names, param_values)
    ]
    kinds = [strings[i] for i in table.column("alias_kind")]
    alias = [
        Alias(*row)
        for row in zip(
            table.column("alias_output"), table.column("alias_input"), kinds, table.column("alias_delta"), strict=True
        )
    ]
    aliases = [tuple(alias[a:b]) for a, b in spans(table.column("aliases_end"), count, alias)]
    body_names = [strings[i] for i in table.column("body_names")]
    programs = [bodies.take(i) for i in table.column("body_programs")]
    inner = [
        dict(zip(body_names[a:b], programs[a:b], strict=True))
        for a, b in spans(table.column("bodies_end"), count, body_names, programs)
    ]
    return tuple([
        ProgramStep(
            nodes[i],
            Choice(kernels[i], params[i], workspace[i], aliases[i], bool(flags[i] & ALLOCATES), layouts[i],
                   implementations[i], saved[i], bool(flags[i] & CAPTURABLE), bool(flags[i] & DETERMINISTIC),
                   primitives[i]),
            inner[i],
            tuple(zip(declined[i][::2], declined[i][1::2], strict=True)),
            bool(flags[i] & DYNAMIC),
            frees[i],
            asked[i],
        )
        for i in range(count)
    ])  # fmt: skip
