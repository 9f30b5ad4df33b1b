"""Check of the steps of a program: each is compared, on its actual operands, with the meaning of its node.

The references of the operators are asked, in float64, for what every step of a planned program should have made of the
very bytes that it read: so a wrong step is named itself, and not what comes of it further on. Values that change after
they were written, by a step that writes beyond its buffers or by a plan that gives bytes away too early, are named too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..ops import DType, Tensor
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import InputError, MezzoError, PlanError
from ..ops.layouts import padded, parse
from ..ops.types import Array
from ..runtime.compile.executable import Executable
from ..runtime.compile.program import Program, ProgramStep
from ..runtime.execution.instance import ExecutionContext, Instance
from ..runtime.execution.session import Session
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from .exact import MOST
from .nearly import Nearly


@dataclass(frozen=True, slots=True)
class Wrong:
    """A step with a wrong result. `number` is its number in its program, which is the body of a step of another program
    if `inside` has the numbers of those, outermost first; `value` is the result, or the operand that had changed;
    `origin` names the nodes of the model that the step stands for."""

    number: int
    step: ProgramStep
    value: str
    how: str
    origin: tuple[str, ...]
    inside: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """Place of the step, for error messages."""
        return self.step.node.place

    def __str__(self) -> str:
        choice = self.step.choice
        kernel = f"{choice.kernel}, {choice.implementation}" if choice.implementation else choice.kernel
        number = f"{self.number}{''.join(f' of the body of step {n}' for n in reversed(self.inside))}"
        return f"step {number} ({kernel}), which stands for {', '.join(self.origin)}: {self.how}"


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check: the wrong steps in the order of the run, the number of right ones, and those that could not be
    compared, each with the reason."""

    wrong: tuple[Wrong, ...]
    right: int
    left: tuple[tuple[ProgramStep, str], ...]

    @property
    def said(self) -> str:
        """Summary in a few words."""
        beside = f", {len(self.left)} cannot be compared ({self.left[0][1]})" if self.left else ""
        return f"{self.right} steps agree with their operators{beside}"


def check_steps(session: Session, feeds: Mapping[str, Any], model: Graph | None = None) -> Checked:
    """Run, with every step of the program compared; then the outputs with those of the graph, where all steps are
    right, since passes may have put something else in the place of what it says. `model` is the graph whose nodes are
    named, by default the session's.

    The first wrong step is the one to look at; others are wrong by themselves, too. Raises InputError for a device
    whose arrays are elsewhere, and as `Session.run` does.
    """
    if session.device.name != "cpu":
        raise InputError("steps are compared on the CPU", where=session.device.name, hint="leave out device=")
    model = model or session.graph
    watch = _Watch(session, _places(model))
    try:
        session.run(feeds, observe=watch)
    finally:
        watch.let_go()
    if not watch.wrong and not session.signature.states:
        watch.compare_whole(feeds)
    return Checked(tuple(watch.wrong), len(watch.right), tuple(watch.left.items()))


def _places(model: Graph) -> dict[str, str]:
    """Return the places of the model's nodes by node name, where a name is unique."""
    by_name: dict[str, list[str]] = {}
    for _, node in model.walk():
        by_name.setdefault(node.name, []).append(node.place)
    return {name: places[0] for name, places in by_name.items() if name and len(places) == 1}


@dataclass(slots=True)
class _Running:
    """A running step, the number of errors before it, and its expected results, if known."""

    number: int
    step: ProgramStep
    before: int
    asked: Nearly | None = None


@dataclass(slots=True)
class _Watch:
    """Observer of one run. Written values are known by their digests until they are read, and kept while there is
    room."""

    session: Session
    places: Mapping[str, str]
    wrong: list[Wrong] = field(default_factory=list[Wrong])
    left: dict[ProgramStep, str] = field(default_factory=dict[ProgramStep, str])
    right: set[ProgramStep] = field(default_factory=set[ProgramStep])
    _blamed: set[ProgramStep] = field(default_factory=set[ProgramStep])
    _kept: dict[str, Any] = field(default_factory=dict[str, Any])  # results of steps
    _room: int = MOST  # bytes
    _digests: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _known: dict[str, Array] = field(default_factory=dict[str, Array])
    _running: list[_Running] = field(default_factory=list["_Running"])  # a step, and those of the bodies that it runs
    _around: ExecutionContext | None = None

    def __call__(self, phase: str, index: int, step: ProgramStep, instance: Instance) -> None:
        if phase == "before":
            if index == 0:
                self._begin(instance)
            self._running.append(_Running(index, step, len(self._blamed)))
            self._before(self._running[-1], instance)
        else:
            self._after(self._running[-1], instance)
            self._running.pop()

    def let_go(self) -> None:
        """Look on no longer."""
        if self._around is not None:
            self._around.watch = None

    @property
    def _executable(self) -> Executable:
        return self.session.executable

    @property
    def _key(self) -> tuple[int, ...]:
        return (0,) if self._around is None else self._around.key

    def _begin(self, instance: Instance) -> None:
        program, self._around = instance.program, instance.around
        self._around.watch = self
        for name in (*program.given, *program.captures, *program.weights, *program.states):
            if name in instance.arrays:
                self._digests[name] = _digest(instance.arrays[name])

    def _before(self, now: _Running, instance: Instance) -> None:
        step, values, constants = now.step, dict[str, Any](), self._constants()
        for name in step.reads():
            if self._digests.get(name) not in (None, _digest(instance.arrays[name])):
                self._blame(now.number, step, name, self._changed(now.number, name, instance.program))
            try:
                values[name] = _copied(self._given(instance, name))
            except PlanError as error:
                self.left[step] = error.message
        if step not in self.left:
            node, kinds = self._whole(step), _kinds(instance.program, [*step.reads(), *step.writes()])
            values |= {n: constants[n] for n in node.reads() if n not in values and n in constants}
            now.asked = Nearly.of(node, values, self.session.budget, kinds, self._key)

    def _after(self, now: _Running, instance: Instance) -> None:
        step, results = now.step, dict[str, Any]()
        try:
            for name in step.writes():
                if name in instance.arrays:  # a dynamic one that nobody reads is gone
                    self._digests[name] = _digest(instance.arrays[name])
                    results[name] = _logical(instance, name)
            if now.asked is None or step in self._blamed or now.before < len(self._blamed):
                return  # it is told already, or what its bodies have made wrong is
            difference = next(now.asked.wrong(results), None)
        except MezzoError as error:  # of its reference, or a form that only its kernel knows
            self.left[step] = error.message
            self.right.discard(step)
            return
        self._keep(results)
        if difference is None:
            self.right.add(step)
        else:
            self.right.discard(step)
            self._blame(now.number, step, difference[0], f"its result {difference[0]!r} is wrong, {difference[1]}")

    def _keep(self, results: Mapping[str, Any]) -> None:
        for name, value in results.items():
            self._room -= value.nbytes if isinstance(value, np.ndarray) else 0
            if self._room >= 0:
                self._kept[name] = _copied(value)

    def compare_whole(self, feeds: Mapping[str, Any]) -> None:
        """Blame the first step that makes another value than the graph has under this name, though it does what it
        stands for. Nothing is said where values are too many to be kept, or where a narrower precision was asked for,
        since rounding decides too much then."""
        graph, program = self.session.graph, self._executable.program
        produced = {o for node in graph.nodes for o in node.outputs}
        names = [n for s in program.steps for n in s.writes() if n in produced]
        kinds = _kinds(program, program.types)
        own = {t.dtype for t in infer(graph).types.values() if isinstance(t, Tensor)}
        if self._room < 0 or not names or any(k.narrow for k in kinds - own):
            return
        asked = Nearly(graph.but(outputs=tuple(names)), dict(feeds), self.session.budget, kinds, self._key)
        try:
            difference = next(asked.wrong({n: self._kept[n] for n in names if n in self._kept}), None)
        except MezzoError as error:
            self.left[program.steps[-1]] = f"the graph as a whole: {error.message}"
            return
        if difference is not None:
            index = next(i for i, s in enumerate(program.steps) if difference[0] in s.writes())
            value, apart = difference
            how = f"it does that right, and {value!r} is another value in the model, {apart}: a pass is wrong"
            self._blame(index, program.steps[index], value, how)

    def _blame(self, index: int, step: ProgramStep, value: str, how: str) -> None:
        names = step.node.origin or (step.node.name or step.node.outputs[0],)
        order = {name: i for i, name in enumerate(self.places)}  # that of the model
        known = [self.places.get(n, n) for n in sorted(names, key=lambda n: order.get(n, len(order)))]
        inside = tuple(r.number for r in self._running[:-1])
        self.wrong.append(Wrong(index, step, value, how, tuple(known), inside))
        self._blamed.add(step)

    def _changed(self, index: int, name: str, program: Program) -> str:
        """Return an error message that names the step which changed a value between the step that wrote it and the one
        that reads it now."""
        writer = next((i for i in reversed(range(index)) if name in program.steps[i].writes()), -1)
        slot = program.plan.by_value.get(name)
        message = f"its operand {name!r} is not what " + (f"step {writer} has made" if writer >= 0 else "was given")
        for i in range(writer + 1, index):
            step = program.steps[i]
            for other in (*step.writes(), step.workspace):
                beside = program.plan.by_value.get(other)
                if slot and beside and beside.life.space is slot.life.space and _overlap(slot, beside):
                    return f"{message}: step {i} ({step.choice.kernel}) has {other!r} in the same bytes"
        return f"{message}: a step between them writes where it should not"

    def _whole(self, step: ProgramStep) -> Node:
        """The node with its subgraphs, which a step has as programs."""
        if not step.bodies:
            return step.node
        writers = {o: node for _, node in self._executable.graph.walk() if node.bodies for o in node.outputs if o}
        return replace(step.node, attrs=writers[step.writes()[0]].attrs)

    def _constants(self) -> Mapping[str, Array]:
        """Return all constants of the program and its bodies, before kernels pack them."""
        if not self._known:
            self._known = dict(self._executable.graph.initializers)
            for part, _ in self._executable.graph.walk():
                self._known |= part.initializers
        return self._known

    def _given(self, instance: Instance, name: str) -> Any:
        """A value that a step reads. Of constants that a kernel has packed it is what was packed, so that packing is
        compared too."""
        known = instance.program.types.get(name)
        if isinstance(known, Tensor) and known.layout and name in instance.program.weights:
            source = self._constants().get(name.removesuffix(f":{known.layout}"))
            if source is not None:
                return source
        return _logical(instance, name)


def _kinds(program: Program, names: Iterable[str]) -> set[DType]:
    """The element types of values, and the one that products of float32 are computed in."""
    kinds = {t.dtype for n in names if isinstance(t := program.types.get(n), Tensor)}
    return kinds if program.target.math == "strict" else kinds | {DType.BFLOAT16}


def _overlap(a: Any, b: Any) -> bool:
    return bool(a.offset < b.end and b.offset < a.end)


def _logical(instance: Instance, name: str) -> Any:
    """A value in row-major order. Raises PlanError for a form that only its kernel knows."""
    value, known = instance.arrays[name], instance.program.types.get(name)
    return in_order(value, known) if isinstance(known, Tensor) and known.layout else value


def in_order(memory: Array, type: Tensor) -> Array:
    """The elements of a tensor that lies in the layout of its type, in row-major order.

    >>> in_order(np.arange(6, dtype=np.float32), Tensor(DType.FLOAT, (2, 3), layout="ba")).tolist()
    [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    """
    sizes = type.sizes
    order, blocks, _ = parse(type.layout, len(sizes))
    whole = padded(type.layout, sizes)
    inner = [int(np.prod([n for d, n in blocks if d == dim])) for dim in range(len(sizes))]
    lying = [whole[d] // inner[d] for d in order] + [n for _, n in blocks]
    flat = np.ascontiguousarray(memory).reshape(-1).view(np.uint8)[: int(np.prod(whole)) * type.dtype.itemsize]
    axes: list[int] = []  # of each dim: the place of its whole blocks, then those inside of it
    for dim in range(len(sizes)):
        axes += [order.index(dim), *(len(order) + i for i, (d, _) in enumerate(blocks) if d == dim)]
    turned = flat.view(type.dtype.numpy).reshape(lying).transpose(axes)
    return turned.reshape(whole)[tuple(slice(n) for n in sizes)]


def _copied(value: Any) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value


def _digest(value: Any) -> bytes:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return hashlib.blake2b(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, digest_size=16).digest()
    return hashlib.blake2b(repr(value.tolist() if isinstance(value, np.ndarray) else value).encode()).digest()
