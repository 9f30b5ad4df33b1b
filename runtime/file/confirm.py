"""Checks of a stored program before it may run: everything that can be derived again is derived, not trusted.

A program that contradicts itself is a bad file (ModelError or PlanError). One that is sound, and not what this build
would make, differs: the caller binds the graph again and says why. Steps whose kernels differ in their workspace alone,
as they do where another number of threads computes, keep their order and get another plan of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...ops import MezzoError, Tensor, Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import PlanError
from ...ops.types import Array, type_of
from ..compile.kernel import Choice, KernelRequest, Recalls, TargetSpec
from ..compile.lower import Options, replanned
from ..compile.program import Program, ProgramStep, body_bytes, sharings
from ..compile.selection import split, with_layouts_at_hand
from ..compile.target import Target
from ..ir.graph import Node, check_arity
from ..ir.infer import check_size
from ..memory.liveness import ALIGN, Space, aligned
from ..memory.plan import MemoryPlan, Slot
from .table import malformed

Kind = tuple[Any, Sequence[Type | None], Sequence[Type | None]]  # what equal steps share; operands, results


Confirmed = tuple[Choice, Choice]  # as this build makes it, and as a file has it: with strings for primitives


class Differs(Exception):
    """This machine or this build would make another program; the message tells the difference."""


def confirm(program: Program, options: Options, weights: Mapping[str, Array], budget: Budget) -> Program:
    """The program, if it may run with these weights on this device, with the primitives that its strings describe.

    Raises ModelError or PlanError for a program that contradicts itself, BudgetError for a value that is too large,
    Differs where this build would choose otherwise.
    """
    # rules and kernels look at the elements of shapes, axes, scales and the like; weights are left alone
    known = {n: type_of(a, known=True) for n, a in weights.items() if a.size <= 16 or a.dtype.kind in "iub"}
    within = options.inside
    inside = _Checked(within, within.target, within.spec, known) if options.target.host is not None else None
    checked = _Checked(options, options.target, options.spec, known, inside)
    return _confirm(program, checked, weights, budget, outer={})


def _confirm(
    program: Program, checked: _Checked, weights: Mapping[str, Array], budget: Budget, outer: Mapping[str, Type]
) -> Program:
    if program.target != checked.spec:
        raise malformed(f"a program for {program.target} lies in a variant for {checked.spec}")
    types = program.types
    _check_names(program, weights, outer)
    program.check_order()
    distinct = {id(t): t for t in types.values()}  # a file names each type by its index: there are few of them
    for type in distinct.values():
        check_size(type, budget)
    fixed = {i: t.nbytes for i, t in distinct.items() if isinstance(t, Tensor) and t.static}
    constants = frozenset(program.weights)
    # all, before the first kernel is asked: modules of operators are read while a thread loads the library of kernels
    kinds = [checked.check(step, types, constants) for step in program.steps]
    steps = []
    for step, kind in zip(program.steps, kinds, strict=True):
        if step.bodies:
            # a body's own weights are constants like any other; what it captures has a type out here
            within = checked.inside or checked
            bodies = {attr: _confirm(body, within, weights, budget, types) for attr, body in step.bodies.items()}
            asked = replace(step, bodies=bodies)
        else:
            asked = step
        choice = _check_step(asked, kind, program, checked, fixed, constants)
        same = asked is step and not choice.primitives and choice.workspace == step.choice.workspace
        steps.append(step if same else replace(asked, choice=choice))
    _check_slots(program, fixed)
    _check_lives(program)
    _check_shared(program.plan, program)
    program.plan.check()
    confirmed = replace(program, steps=tuple(steps))
    if any(a.choice.workspace != b.choice.workspace for a, b in zip(steps, program.steps, strict=True)):
        return replanned(confirmed, checked.options)
    return confirmed


def _check_names(program: Program, weights: Mapping[str, Array], outer: Mapping[str, Type]) -> None:
    """Check that every value has a slot and a type, and that the types of ports, weights and captures are the values'
    own."""
    by_value, types = program.plan.by_value, program.types
    touched = {n for s in program.steps for n in (*s.reads(), *s.writes())}
    touched.update(p.name for p in program.inputs)
    touched.update(program.results, program.weights, program.captures, program.states, program.states.values())
    for name in touched:
        if name not in by_value or name not in types:
            raise malformed(f"{name!r} has no place or no type in its program")
    for name in program.weights:
        array = weights.get(name)
        if array is None or not _is_a(array, types[name]) or program.space(name) is not Space.WEIGHT:
            raise malformed(f"the constant {name!r} is absent, or is no {types[name]}")
    for name in program.captures:
        if outer.get(name) != types[name] or program.space(name) is not Space.INPUT:
            raise malformed(f"a body takes {name!r} from outside, where it is something else")
    if len(program.outputs) != len(program.results):
        raise malformed("a program has not one result for each output")
    produced = {o for s in program.steps for o in s.writes()}
    for name in program.results:
        if name not in produced or program.space(name) not in (Space.OUTPUT, Space.DYNAMIC):
            raise malformed(f"the result {name!r} is never made")
    for port, name in (*((p, p.name) for p in program.inputs), *zip(program.outputs, program.results, strict=True)):
        if port.type != types[name]:
            raise malformed(f"{port} is a {types[name]} inside its program")
    read, written = set(program.states), set(program.states.values())
    if len(written) < len(read) or any(types[a] != types[b] for a, b in program.states.items()):
        raise malformed("a state changes its type, or two states are one")


@dataclass(slots=True)
class _Checked:
    """Results derived from steps. Equal steps (same operator, attributes and types) share one result: a file names
    types and values by index, so that equal ones are one object."""

    options: Options
    target: Target
    spec: TargetSpec
    weights: Mapping[str, Type]
    inside: _Checked | None = None  # for bodies, where they run elsewhere
    checked: set[Any] = field(default_factory=set[Any])
    choices: dict[Any, Confirmed] = field(default_factory=dict[Any, "Confirmed"])

    def check(self, step: ProgramStep, types: Mapping[str, Type], constants: frozenset[str]) -> Kind:
        """Return the kind of a step if the operands and the stored types of the results fit the operator."""
        kind = key, ins, outs = self._kind(step, types, constants)
        if key in self.checked:
            return kind
        if all(t is None for t in outs):
            raise malformed(f"the step {step.node} makes nothing")
        if step.bodies:
            _ = step.node.record  # UnsupportedModel names an operator that is not carried
            return kind
        check_arity(step.node)
        _check_types(step.node, ins, outs)
        self.checked.add(key)
        return kind

    def choice(self, step: ProgramStep, kind: Kind, constants: frozenset[str]) -> Confirmed:
        """The choice that this build makes for a step of a kind that was checked, and how a file has it."""
        key, ins, outs = kind
        confirmed = None if step.bodies else self.choices.get(key)
        if confirmed is None:
            known = [i in constants for i in step.node.inputs]
            results = [t for t in _asked(step, outs, len(ins)) if t is not None]
            request = KernelRequest(step.node, _asked(step, ins), results, known, self.spec)
            chosen = self._choose(step, request)
            confirmed = (
                chosen,
                replace(chosen, primitives=tuple(map(repr, chosen.primitives))) if chosen.primitives else chosen,
            )
            self.choices[key] = confirmed
        return confirmed

    def _kind(self, step: ProgramStep, types: Mapping[str, Type], constants: frozenset[str]) -> Kind:
        """Return a key that equal steps share, and the types of the operands and results."""
        node = step.node
        ins = [self._type(i, types[i]) if i else None for i in node.inputs]
        outs = [types[o] if o else None for o in node.outputs]
        repeats = tuple(map(node.inputs.index, node.inputs))  # a kernel may ask whether two operands are one
        attrs = tuple((a, id(v)) for a, v in node.attrs.items())
        known = tuple(i in constants for i in node.inputs)
        return (
            (node.op, node.domain, node.device, attrs, repeats, known, step.asked, *map(id, ins), None, *map(id, outs)),
            ins,
            outs,
        )

    def _type(self, name: str, stored: Type) -> Type:
        """The stored type, with the elements of constants that are looked at."""
        laid = isinstance(stored, Tensor) and stored.layout
        return stored if laid else self.weights.get(name, stored)

    def _choose(self, step: ProgramStep, request: KernelRequest) -> Choice:
        kernel = self.target.kernel(step.choice.kernel)
        if _recalls(type(kernel)):
            assert isinstance(kernel, Recalls)
            try:
                kernel.recall(request, step.choice)
            except MezzoError as error:
                raise Differs(f"{step.choice.kernel} cannot run {step.node.op} as it was stored: {error}") from error
        choice, _ = self.target.choose(request)
        if step.bodies and not self.target.sm:
            choice = replace(choice, workspace=max(map(body_bytes, step.bodies.values())))
        return with_layouts_at_hand(choice, request)


def _asked(step: ProgramStep, types: Sequence[Type | None], begin: int = 0) -> list[Type | None]:
    """The types in the layouts with which the kernel was asked; `begin` is the place of the first of them."""
    if not step.asked:
        return list(types)
    if len(step.asked) != len(step.node.inputs) + len(step.node.outputs):
        raise malformed(f"{step.node.op} was asked with {len(step.asked)} layouts")
    layouts = step.asked[begin : begin + len(types)]
    return [
        t.laid(layout) if isinstance(t, Tensor) and t.layout != layout else t
        for t, layout in zip(types, layouts, strict=True)
    ]


@cache
def _recalls(kernel: type) -> bool:
    return issubclass(kernel, Recalls)  # which Python looks up name by name


def _is_a(array: Array, type: Type) -> bool:
    if isinstance(type, Tensor) and type.layout:
        return bool(array.shape == (type.nbytes,) and array.dtype == np.uint8)
    return isinstance(type, Tensor) and array.shape == type.dims and array.dtype == type.dtype.numpy


def _check_step(
    step: ProgramStep,
    kind: Kind,
    program: Program,
    checked: _Checked,
    fixed: Mapping[int, int],
    constants: frozenset[str],
) -> Choice:
    """The choice of a step, as this build makes it: with primitives in place of the strings that describe them."""
    node, types, stored = step.node, program.types, step.choice
    if not any(k.name == stored.kernel for k in checked.target.kernels):
        raise Differs(f"there is no kernel {stored.kernel!r}")
    choice, described = checked.choice(step, kind, constants)
    if described != stored and replace(described, workspace=stored.workspace) != stored:
        raise Differs(f"{stored.kernel} would now run {node.op} in another way, or {choice.kernel} would")
    before, after = split(choice, node)
    for name, layout in (*before, *after):
        known = types[name] if name else None
        if isinstance(known, Tensor) and known.layout != layout:
            raise malformed(f"{node.op} takes or gives {name!r} in another layout than {known}")
    if not step.dynamic and any(id(types[n]) not in fixed for n in (*step.reads(), *step.writes())):
        raise malformed(f"sizes of {node.op} are unknown in a step that is not dynamic")
    return choice


def _check_types(node: Node, ins: Sequence[Type | None], outs: Sequence[Type | None]) -> None:
    """Check that the stored types of the results agree with the operator's own inference rule."""
    if (node.domain, node.op) == ("mezzo", "Raise"):  # it stands for a body whose types do not fit
        return
    try:
        inferred = node.record.infer_types(ins, node.attrs, node.wanted)
    except MezzoError as error:
        raise error.at(node.place) from error.__cause__
    except Exception as error:  # as in runtime/ir/infer.py: a rule met operands that it does not foresee
        raise malformed(f"{node.op} cannot take its operands: {error}") from error
    for name, own, stored in zip(node.outputs, inferred, outs, strict=True):
        if stored is not None and not _agree(own, stored):
            raise malformed(f"{name!r} is a {own}, and the program has it as {stored}")


def _agree(inferred: Type, stored: Type) -> bool:
    if not isinstance(inferred, Tensor) or not isinstance(stored, Tensor):
        return type(inferred) is type(stored)
    if inferred.dtype is not stored.dtype:
        return False
    if inferred.dims is None or stored.dims is None:
        return True
    sizes = zip(inferred.dims, stored.dims, strict=False)
    return len(inferred.dims) == len(stored.dims) and not any(
        a != b for a, b in sizes if isinstance(a, int) and isinstance(b, int)
    )


def _check_slots(program: Program, fixed: Mapping[int, int]) -> None:
    """Places have the size of their values and lie at aligned bytes; spaces are those of the ports.

    `fixed` has the bytes of each type of known size, by its id.
    """
    inputs = {p.name for p in program.inputs} | set(program.captures)
    stored = {*program.states, *program.states.values()}
    constant, results = set(program.weights), set(program.results)
    workspaces = {s.workspace: s.choice.workspace for s in program.steps if s.choice.workspace}
    allowed = 0
    taken = inputs | stored | constant
    owners: dict[Space, set[str]] = {
        Space.WEIGHT: constant,
        Space.INPUT: inputs,
        Space.STATE: stored,
        Space.OUTPUT: results,
        Space.EXTERN: set(),
    }
    for slot in program.plan.slots:
        life, known = slot.life, program.types.get(slot.life.value)
        space = life.space
        if known is None:
            if workspaces.get(life.value) != life.nbytes or space is not Space.ARENA:
                raise malformed(f"{life.value!r} has a place and is no value")
        elif id(known) in fixed:
            if life.nbytes != fixed[id(known)] or space is Space.DYNAMIC:
                raise malformed(f"{life.value!r} is a {known} and has {life.nbytes} bytes")
        elif life.nbytes or space in (Space.ARENA, Space.STATE, Space.OUTPUT, Space.EXTERN):
            raise malformed(f"{life.value!r} is a {known} and has a fixed place")
        if life.value not in owners[space] if space in owners else life.value in taken:
            raise malformed(f"{life.value!r} cannot be in the space {space.value}")
        if space is Space.ARENA:
            if slot.offset % ALIGN:
                raise malformed(f"{life.value!r} begins at byte {slot.offset}")
            allowed += aligned(life.nbytes)
    if program.plan.size > allowed:
        raise malformed(f"an arena of {program.plan.size} bytes for values of {allowed}")
    lacking = [name for name in workspaces if name not in program.plan.by_value]
    if lacking:
        raise malformed(f"there is no {lacking[0]}")


def _check_lives(program: Program) -> None:
    """Lives and frees are those that the steps imply: the plan is judged by them."""
    end = max(len(program.steps) - 1, 0)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, step in enumerate(program.steps):
        workspaces = (step.workspace,) if step.choice.workspace else ()
        for name in (*step.reads(), *step.writes(), *workspaces):
            first.setdefault(name, i)
            last[name] = i
    last.update(dict.fromkeys(program.results, end))
    for slot in program.plan.slots:
        life = slot.life
        if life.first > first.get(life.value, 0) or life.last < last.get(life.value, 0):
            raise malformed(f"{life.value!r} is used before or after its life")
        if life.last > end:
            raise malformed(f"{life.value!r} outlives its program")
    for i, step in enumerate(program.steps):
        for name in step.frees:
            if program.space(name) is not Space.DYNAMIC or last.get(name) != i or name in program.results:
                raise malformed(f"step {i} frees {name!r}, which is needed")


def _check_shared(plan: MemoryPlan, program: Program) -> None:
    """Bytes are shared only as the kernels offer, and views lie where they say."""
    offers = set(sharings(program.steps))
    linked: dict[str, str] = {}

    def content(name: str) -> str:
        while name in linked:
            name = linked[name]
        return name

    for shared in plan.shared:
        if shared not in offers:
            raise malformed(f"no kernel offers that {shared.value!r} shares the bytes of {shared.other!r}")
        value, other = plan.by_value[shared.value], plan.by_value[shared.other]
        if value.life.space is not Space.ARENA or other.life.space is not Space.ARENA:
            raise malformed(f"{shared.value!r} and {shared.other!r} share bytes outside of the arena")
        if shared.kind == "view":
            if value.offset - other.offset != shared.delta or shared.delta + value.life.nbytes > other.life.nbytes:
                raise malformed(f"{shared.value!r} is no part of {shared.other!r}")
            a, b = content(shared.value), content(shared.other)
            if a != b:
                linked[a] = b
    for slot in plan.slots:
        if slot.life.space is Space.ARENA and slot.content not in ("", slot.life.value):
            _check_content(slot, plan, content)


def _check_content(slot: Slot, plan: MemoryPlan, content: object) -> None:
    base = plan.by_value.get(slot.content)
    assert callable(content)
    if base is None or content(slot.content) != content(slot.life.value) or base.content not in ("", slot.content):
        raise malformed(f"{slot.life.value!r} is no view of {slot.content!r}")
    if slot.offset - slot.delta != base.offset - base.delta:
        raise malformed(f"{slot.life.value!r} is not where {slot.content!r} has it")


__all__ = ["Differs", "PlanError", "confirm"]
