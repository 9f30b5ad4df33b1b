"""Recording of one run of a block: every operation on every array becomes a node of a graph.

A value is known by the memory that it lies in: views and detached arrays share it, and a write in place gives it
another value. Arrays that are made from nothing but Python's numbers are constants. Where the program asks for a number
that the inputs decide, a graph ends and another one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np

from ..ops.types import Type, differentiable
from ..runtime.engine import Variable, engine
from ..runtime.ir.graph import DRAW, Node
from . import running
from .array import Array
from .autograd.gradients import placed
from .autograd.tape import Fragment, plain
from .indexing import as_operators
from .place import Place
from .prepared import Call, Prepared
from .random import Generator, generator
from .recording import RECORDING
from .running import adopt, apply, memory
from .sites import line_of, site
from .specs import Constant, TensorSpec, known, spec_of_value

READ = "use where() for the choice, or keep this part imperative: block.keep_imperative()"
LONGEST = 16  # graphs, one after the other, in one run


class Owner(Protocol):
    """Interface of a parameter (gluon/parameter.py): it has a name, and an array."""

    name: str

    def data(self) -> Array: ...


class GraphBreak(Exception):
    """The program does something that no graph can express."""

    def __init__(self, reason: str, remedy: str, where: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy
        self.where = where or line_of(*site())


class ForSymbols(GraphBreak):
    """A function of symbols is given an array of a trace."""


@dataclass(frozen=True, slots=True)
class Cut:
    """End of a graph where the program asks for a number: the value, the type that is wanted, and the number it was."""

    name: str
    sort: type
    was: Any
    reason: str
    where: str


@dataclass(slots=True)
class Part:
    """A graph of a run: its nodes, the random draws among them, and the reason why it ends if it is not the last."""

    nodes: list[Node] = field(default_factory=list[Node])
    draws: int = 0
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """The current content of a variable's memory."""

    var: Variable
    name: str
    kind: TensorSpec


class Recorder:
    """The trace of one run (`recording.Tracer`).

    `cuts` says whether numbers may be asked for. `outside` are arrays that were there before, by name; `read_outside`
    are those among them whose numbers were asked for, with the version that they had.
    """

    def __init__(self, params: Mapping[str, Owner], place: Place, cuts: bool) -> None:
        self.parts = [Part()]
        self.types: dict[str, Type] = {}
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self.outside: dict[str, Array] = {}
        self.lines: dict[str, str] = {}  # where these were met first
        self.read_outside: list[tuple[Variable, int]] = []
        self.moved: dict[str, Array] = {}
        self.asked_whether_recorded = False
        self._params, self._place, self._cuts, self._recorded = params, place, cuts, RECORDING.on
        self._stands: dict[int, Array] = {}
        self._names = {id(p): n for n, p in params.items()}
        self._taken = set(params)
        self._given: set[int] = set()  # variables of inputs and parameters
        self._values: dict[int, Value] = {}  # by the id of a variable, as all that follow
        self._fixed: dict[int, Variable] = {}
        self._stopped: dict[int, Array] = {}  # by the id of an array
        self._stops: dict[str, str] = {}
        self._still: set[str] = set()  # values that no gradient goes back from
        self._known: dict[Any, tuple[str, Any]] = {}  # names of constants, parts and outside arrays; what holds the key
        self._count = 0

    @contextmanager
    def going(self) -> Iterator[None]:
        """Record what this thread does inside."""
        before = RECORDING.on, RECORDING.inside, RECORDING.noted, RECORDING.trace
        RECORDING.on, RECORDING.inside, RECORDING.noted, RECORDING.trace = False, None, True, self
        try:
            yield
        finally:
            RECORDING.on, RECORDING.inside, RECORDING.noted, RECORDING.trace = before

    @contextmanager
    def _open(self, trace: Recorder | None) -> Iterator[None]:
        """Record what is done inside as if there was no pause; or (None) do not."""
        before = RECORDING.on, RECORDING.inside, RECORDING.noted, RECORDING.trace
        RECORDING.on, RECORDING.inside, RECORDING.noted, RECORDING.trace = False, None, trace is not None, trace
        try:
            yield
        finally:
            RECORDING.on, RECORDING.inside, RECORDING.noted, RECORDING.trace = before

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Do inside for the graphs alone: random numbers that are drawn are drawn again by whoever runs these, and
        errors are raised again there."""
        drawing = generator(self._place)
        before = drawing.state[1]
        try:
            yield
        except GraphBreak:
            self.forget()
            raise
        finally:
            drawing.back(before, drawing.state[1])
        self.forget()

    def forget(self) -> None:
        """Wait for what the run has computed, and pass over its errors: whoever runs the graphs gets theirs."""
        for var in (*(v.var for v in self._values.values()), *self._fixed.values()):
            with suppress(Exception):
                engine().wait(var)

    # -- what goes in -------------------------------------------------------------------------------------------------

    def stand_in(self, x: Array, name: str) -> Array:
        """Return the array that stands for an input or a parameter in the trace: the same numbers, under a name."""
        standing = adopt(memory(x), x._place)
        standing._code, standing._at = x._code, x._at
        self._fixed.pop(id(standing._var), None)
        self._values[id(standing._var)] = Value(standing._var, name, standing._spec)
        self._given.add(id(standing._var))
        self.types[name] = standing._spec.tensor
        return standing

    def data(self, p: Owner) -> Array | None:
        """Return the array that stands for a parameter; None if its block is not traced."""
        standing = self._stands.get(id(p))
        if standing is None and id(p) in self._names:
            with self._open(None):
                standing = self._stands[id(p)] = self.stand_in(p.data(), self._names[id(p)])
        return standing

    def move(self, p: Owner, value: Array) -> None:
        """Let a parameter have other numbers after the run."""
        if id(p) not in self._names:
            self.broke(
                f"{p.name!r}, a parameter of no block below, is changed", "assign it to an attribute of the block"
            )
        self.data(p)
        self.moved[self._names[id(p)]] = self._stands[id(p)] = value

    def made(self, x: Array) -> None:
        self._fixed[id(x._var)] = x._var

    def stopped(self, x: Array) -> None:
        self._stopped[id(x)] = x

    def seen_from(self, x: Array, view: Array) -> None:
        if id(x) in self._stopped:
            self.stopped(view)

    def recorded(self) -> bool:
        self.asked_whether_recorded = True
        return self._recorded

    # -- names of values ----------------------------------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        """A name like this that no parameter has."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def _new(self, stem: str = "v") -> str:
        self._count += 1
        return self.fresh(f"{stem}{self._count}")

    def _fixed_one(self, x: Any) -> bool:
        return x.__class__ is np.ndarray or id(x._var) in self._fixed

    def name(self, x: Any) -> str:
        """The value of an array at this point; no gradient goes back from it inside of a pause."""
        if x.__class__ is np.ndarray:
            return self._constant(x)
        value = self._values.get(id(x._var))
        if value is None:
            name = self._baked(x) if id(x._var) in self._fixed else self._from_outside(x)
        else:
            name = self._part_of(x, value) if x._view else value.name
        return self._stop(name) if RECORDING.inside is False or id(x) in self._stopped else name

    def _constant(self, value: np.ndarray[Any, Any]) -> str:
        name = self._new("k")
        self.constants[name] = value
        self.types[name] = spec_of_value(value).tensor
        self._still.add(name)
        return name

    def _baked(self, x: Array) -> str:
        key = id(x._var), x._var.edition, str(x._view)
        if key not in self._known:
            with self._open(None):
                self._known[key] = self._constant(running.read(x)), x._var
        return self._known[key][0]

    def _from_outside(self, x: Array) -> str:
        key = id(x._var), str(x._view)
        if key not in self._known:
            name = self.fresh(f"c{len(self.outside)}")
            self._known[key] = name, x._var
            self.outside[name], self.lines[name] = x, line_of(*site())
            self.types[name] = x._spec.tensor
        return self._known[key][0]

    def _part_of(self, x: Array, value: Value) -> str:
        """Return the name of the part of a value that a view shows."""
        key = value.name, str(x._view)
        if key not in self._known:
            with self._open(self):
                part = Array(value.var, value.kind, x._place)
                for basic in x._view:
                    part = as_operators(part, basic)
                self._known[key] = self.name(part), None
        return self._known[key][0]

    def _stop(self, name: str) -> str:
        """The value, through which no gradient goes back."""
        if name in self._still or not differentiable(self.types[name]):
            return name
        if name not in self._stops:
            stopped = self._stops[name] = self._new()
            self._add(Node("StopGradient", (name,), (stopped,), domain="mezzo", name=stopped), [self.types[name]])
            self._still.add(stopped)
        return self._stops[name]

    # -- what is done -------------------------------------------------------------------------------------------------

    def _add(self, node: Node, types: Sequence[Type]) -> None:
        self.parts[-1].nodes.append(node)
        self.types.update(zip(node.outputs, types, strict=True))

    def _draw(self) -> str:
        """The name of what one more random operator of this part draws."""
        part, number = self.parts[-1], len(self.parts) - 1
        name = f"{number}/{DRAW}{part.draws}" if number else f"{DRAW}{part.draws}"
        part.draws += 1
        return name

    def run(
        self, operator: Prepared, given: tuple[Any, ...], place: Place | None = None, call: Call | None = None
    ) -> Any:
        draws = _draws(operator)
        fixed = not draws and all(map(self._fixed_one, given))
        if None in operator.outs and not fixed:
            self.broke(f"the size of what {operator.name} gives is the data's choice", "keep this part imperative")
        names = [] if fixed else [self.name(x) for x in given]
        outcome = running.run_unseen(operator, given, place, call)
        outs: Sequence[Array] = (outcome,) if isinstance(outcome, Array) else outcome
        if fixed:
            self._fixed.update((id(o._var), o._var) for o in outs)
            return outcome
        results = [self._new() for _ in outs]
        if draws:
            results[0] = self._draw()
        read = iter(names)
        inputs = [self._operand(t, read) for t in operator.template]
        domain = operator.record.domain
        node = Node(operator.name, tuple(inputs), tuple(results), operator.attrs, domain, name=results[0])
        self._add(node, [o._spec.tensor for o in outs])
        self._made(names, results, outs)
        return outcome

    def _operand(self, t: Any, read: Iterator[str]) -> str:
        if t is None:
            return ""
        # Each use has its own: that two are equal may be chance, and another size of an input tells them apart.
        return self._constant(t.value) if isinstance(t, Constant) else next(read)

    def _made(self, read: Sequence[str], results: Sequence[str], outs: Sequence[Array]) -> None:
        for name, out in zip(results, outs, strict=True):
            self._values[id(out._var)] = Value(out._var, name, out._spec)
        if self._still.issuperset(read):
            self._still.update(results)

    def graph(
        self, fragment: Fragment, given: Sequence[Any], compute: Callable[[], Sequence[Array]]
    ) -> Sequence[Array]:
        names = [self.name(x) for x in given]
        with self._open(None):
            outs = compute()
        inside = dict(zip(fragment.inputs, names, strict=True))
        inside |= {o: self._new() for o in fragment.outputs}
        inside |= {n.outputs[0]: self._draw() for n in fragment.nodes if not n.record.deterministic}
        part = placed(fragment, f"{self._new('e')}/", inside)
        self.parts[-1].nodes += part.nodes
        self.constants |= part.initializers
        self._still |= {*part.initializers}
        self.types = {**part.types, **self.types}
        self.types |= {inside[o]: out._spec.tensor for o, out in zip(fragment.outputs, outs, strict=True)}
        self._made(names, [inside[o] for o in fragment.outputs], outs)
        return outs

    def write(self, target: Array, value: Array) -> None:
        var = target._var
        if id(var) in self._fixed and self._fixed_one(value):
            return
        now = self._values.get(id(var))
        if id(var) in self._given or (now is None and id(var) not in self._fixed):
            self.broke(
                f"an array from outside of the block is changed in place ({target._spec})",
                "return what it computes, or keep this part imperative",
            )
        if RECORDING.inside is False:
            value = plain(value)
            self.stopped(value)
        with self._open(self):
            root = Array(var, spec_of_value(var.value) if now is None else now.kind, target._place)
            whole = _replaced(root, target, value) if target._view else value
            name = self.name(whole)
        self._values[id(var)] = Value(var, name, root._spec)
        self._fixed.pop(id(var), None)

    def drawn(self, generator_: Generator) -> None:
        if generator_ is not generator(self._place):
            self.broke(
                "a generator of its own draws random numbers", "draw from mz.random, or pass them as an argument"
            )

    def broke(self, reason: str, remedy: str) -> NoReturn:
        raise GraphBreak(reason, remedy)

    def read(self, x: Array, sort: type | None = None) -> None:
        if self._fixed_one(x):
            return
        if id(x._var) not in self._values:
            x.wait_to_read()
            self._from_outside(x)
            self.read_outside.append((x._var, x._var.version))
            return
        reason = f"the numbers of an array are read ({x._spec})"
        if sort is None and x._spec.size == 1:
            sort = {"b": bool, "i": int, "u": int}.get(x._spec.dtype.kind)
        if not self._cuts or sort not in (bool, int) or x._spec.size != 1:
            self.broke(reason, READ)
        if len(self.parts) == LONGEST:
            self.broke(f"{reason}, {LONGEST} times in one run", READ)
        with self._open(self):
            name = self.name(x)
            asked = self._new("asked")
            self._add(Node("Identity", (name,), (asked,), name=asked), [x._spec.tensor])
        with self._open(None):
            was = sort(running.read(x).item())
        self.parts[-1].cut = Cut(asked, sort, was, reason, line_of(*site()))
        self.parts.append(Part())

    def output(self, x: Array) -> str:
        """Give an array out, as a value of the last part."""
        with self._open(self):
            name, output = self.name(x), self._new("y")
        self._add(Node("Identity", (name,), (output,), name=output), [x._spec.tensor])
        return output


def _draws(operator: Prepared) -> bool:
    """True if an operator draws random numbers; dropout outside of training does not."""
    given = operator.template
    return not operator.record.deterministic and not (
        operator.name == "Dropout" and (len(given) < 3 or given[2] is None)
    )


def _replaced(root: Array, target: Array, value: Array) -> Array:
    """The whole of a memory, in which a part has become other numbers."""
    places = np.arange(root.size).reshape(root.shape)
    for key in target._view:
        places = places[key]
    if places.size == root.size and np.array_equal(places.reshape(-1), np.arange(root.size)):
        return apply("Reshape", value, known(root.shape), allowzero=1)
    flat = apply("Reshape", root, known((root.size,)))
    rows = adopt(np.ascontiguousarray(places.reshape(-1, 1)), root._place)
    mixed = apply("ScatterND", flat, rows, apply("Reshape", value, known((places.size,)), allowzero=1))
    return apply("Reshape", mixed, known(root.shape), allowzero=1)
