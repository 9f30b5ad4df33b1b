"""Recipes: how a graph was lowered, for the next sizes that its inputs have.

At other sizes most networks become the same steps: the same kernels read and write the same layouts, and only bytes of
workspace differ. A recipe keeps the steps and asks their kernels again, once for all steps that differ in names alone.
By induction over the steps it holds as long as each answer has the layouts that it had: then the operands of the next
step lie as they did, and it is asked what it would be asked anyway. Else the graph is lowered as if it were new.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from ...ops import Tensor, Type
from ...ops.dataclasses import dataclass, field
from ...ops.types import Array
from ..ir.graph import Graph, Node
from ..memory.arrangement import Arrangement
from ..memory.liveness import Space
from ..memory.plan import MemoryPlan
from ..memory.shared_constants import known as in_use
from .cache_keys import few_elements, kind_of
from .kernel import Choice, KernelRequest
from .program import Program, ProgramStep, sharings
from .queries import AsyncQueries, LayoutHistory
from .selection import LayoutPreferences, StepBuilder, preferred_layouts, settled
from .target import Target

ARRANGEMENTS: Final = 4  # of one recipe: small inputs may be arranged best in another way than large ones
Operand = tuple[str, str | None]  # a value of the graph, and the layout that it lies in; None: its type as it is


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A step and what its kernel was asked. `inputs` and `outputs` are numbers of operands, -1 where one is absent;
    `of` takes them all from a list. Questions of one `kind` differ in types and names alone. `laid` as from `settled`;
    None for a reordering step, whose choice is taken as it is."""

    step: ProgramStep
    request: KernelRequest
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    of: Callable[[Sequence[int]], Any]
    kind: int
    laid: bool | None
    lengthy: bool

    def again(self, types: Sequence[Type]) -> KernelRequest:
        """The same question of operands of these types."""
        former = self.request
        ins = [types[i] if i >= 0 else None for i in self.inputs]
        return KernelRequest(former.node, ins, [types[o] for o in self.outputs], former.constants, former.target)


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """The result of a recipe for some sizes: the steps in the order in which they were selected, the types and the
    bytes of all values of the program, and the packed constants."""

    steps: list[ProgramStep]
    types: dict[str, Type]
    nbytes: dict[str, int]
    packed: dict[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """The steps of a graph without states, subgraphs and values whose sizes data decides, the spaces of their values,
    and the program for the sizes that it was made for. `copies` are outputs that have become copies of values,
    `values` the operand that each value of the program is, `packed` constants with what they were made of and their
    layouts."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    constants: frozenset[str]
    copies: Mapping[str, str]
    preferences: LayoutPreferences
    preferred: Mapping[str, str]
    operands: tuple[Operand, ...]
    values: Mapping[str, int]
    questions: tuple[Question, ...]
    packed: tuple[tuple[str, str, str], ...]
    spaces: Mapping[str, Space]
    program: Program
    _arranged: list[tuple[Program, list[int], Arrangement]] = field(init=False, default_factory=list[Any])

    @classmethod
    def of(
        cls, graph: Graph, own: Graph, builder: StepBuilder, spaces: Mapping[str, Space], program: Program
    ) -> Recipe:
        """The recipe of a graph that was lowered so; `own` is the same with outputs that are values of their own."""
        laid = {copy: (name, layout) for (name, layout), copy in builder.moved.items()}
        numbers: dict[Operand, int] = {}
        kinds: dict[Hashable, int] = {}

        def number(name: str, type: Type | None) -> int:
            as_it_is = type is own.types.get(name)
            place = laid.get(name) or (name, None if as_it_is or not isinstance(type, Tensor) else type.layout)
            return numbers.setdefault(place, len(numbers))

        def question(step: ProgramStep, request: KernelRequest, how: bool | None) -> Question:
            node, target = request.node, builder.target
            inputs = [number(n, builder.types[n]) if n else -1 for n in node.inputs]
            outputs = [number(n, t) for n, t in zip(filter(None, node.outputs), request.outputs, strict=True)]
            kind: Hashable = kind_of(request) if target.remembers(node) else None
            place = kinds.setdefault(step if kind is None else kind, len(kinds))
            of = itemgetter(-1, *(*inputs, *outputs))
            return Question(step, request, tuple(inputs), tuple(outputs), of, place, how, target.lengthy(node))

        asked = zip(builder.steps, builder.asked, strict=True)
        questions = tuple(question(step, request, how) for step, (request, how) in asked)
        return cls(
            graph.nodes,
            graph.inputs,
            frozenset(graph.initializers),
            {o: node.inputs[0] for node in own.nodes[len(graph.nodes) :] for o in node.outputs},
            builder.preferences,
            builder.preferred_layouts,
            values={n: number(n, builder.types[n]) for n in program.types},
            questions=questions,
            packed=tuple((copy, *laid[copy]) for copy in builder.packed),
            spaces=spaces,
            program=program,
            operands=tuple(numbers),
        )

    def arranged(self, lowered: Lowered, order: list[int]) -> tuple[list[ProgramStep], MemoryPlan] | None:
        """The steps in this order, with a plan of the structure that an earlier program of the same order has; None
        where a smaller arena may do. Of several such programs, the one that served last is tried first."""
        steps = [lowered.steps[k] for k in order]
        for i, (program, former, arrangement) in enumerate(self._arranged):
            if former != order:
                continue
            alike = all(a.choice.aliases == b.choice.aliases for a, b in zip(steps, program.steps, strict=True))
            workspaces = {s.workspace: s.choice.workspace for s in steps if s.choice.workspace}
            plan = arrangement.placed({**lowered.nbytes, **workspaces}, None if alike else sharings(steps))
            if plan is not None:
                self._arranged.insert(0, self._arranged.pop(i))
                return steps, plan
        return None

    def arrange(self, program: Program) -> None:
        """Arrange later programs as this one, whose steps come of this recipe."""
        arrangement = Arrangement.of(program.plan)
        if arrangement is not None:
            places = {q.step.writes(): i for i, q in enumerate(self.questions)}
            order = [places[step.writes()] for step in program.steps]
            self._arranged.insert(0, (program, order, arrangement))
            del self._arranged[ARRANGEMENTS:]

    def again(self, graph: Graph, target: Target, history: LayoutHistory) -> Lowered | None:
        """The steps of a graph of other types; None where they could differ in more than their choices."""
        if target.registered or not self._fits(graph):  # kernels of users are asked of each node
            return None
        types = dict(graph.types)
        for copy, value in self.copies.items():
            known = types[value]
            types[copy] = known.forget() if isinstance(known, Tensor) else known
        if preferred_layouts(self.preferences, types) != self.preferred:
            return None
        packed: dict[str, Array] = {}
        for copy, name, layout in self.packed:
            array = in_use(graph.initializers[name], layout)
            if array is None:
                return None
            packed[copy] = array
        operands: list[Tensor] = []
        numbers: list[int] = []
        sizes: list[int] = []
        kinds: dict[Hashable, int] = {}
        for value, lies in self.operands:
            known = types[value]
            if not isinstance(known, Tensor):
                return None
            known = known if lies is None else known.laid(lies)
            number = kinds.setdefault(known if known.value is None else (known, few_elements(known)), len(kinds))
            if number == len(sizes):
                if not known.static:
                    return None
                sizes.append(known.nbytes)
            operands.append(known)
            numbers.append(number)
        steps = self._steps(operands, numbers, target, history)
        if steps is None:
            return None
        return Lowered(
            steps,
            {n: t.forget() if (t := operands[i]).value is not None else t for n, i in self.values.items()},
            {n: sizes[numbers[i]] for n, i in self.values.items()},
            packed,
        )

    def _fits(self, graph: Graph) -> bool:
        """Return True if a graph differs from the former one in types and elements of constants alone."""
        return (
            graph.inputs == self.inputs
            and not graph.states
            and graph.initializers.keys() == self.constants
            and len(graph.nodes) == len(self.nodes)
            and all(map(_alike, graph.nodes, self.nodes))
        )

    def _steps(
        self, operands: Sequence[Tensor], numbers: Sequence[int], target: Target, history: LayoutHistory
    ) -> list[ProgramStep] | None:
        """The steps with the choices for operands of these types, of which equal ones have one number; None where a
        layout is another one."""
        numbers = [*numbers, -1]  # of absent operands
        keys: list[Hashable] = [(q.kind, q.of(numbers)) for q in self.questions]
        first: dict[Hashable, Question] = {}
        for key, question in zip(keys, self.questions, strict=True):
            first.setdefault(key, question)
        requests = {key: question.again(operands) for key, question in first.items()}
        ahead = AsyncQueries(target, history)
        ahead.begin(request for key, request in requests.items() if first[key].lengthy)
        answers: dict[Hashable, tuple[Choice, bool | None, tuple[tuple[str, str], ...]]] = {}
        for key, request in requests.items():
            ahead.meet(request)
            choice, declined = target.choose(request)
            answers[key] = (
                (choice, None, declined) if first[key].laid is None else (*settled(choice, request), declined)
            )
        steps = []
        for key, question in zip(keys, self.questions, strict=True):
            former, (choice, laid, declined) = question.step, answers[key]
            if laid != question.laid or choice.layouts != former.choice.layouts:
                return None
            if choice is former.choice and declined == former.declined:
                steps.append(former)
            else:
                steps.append(ProgramStep(former.node, choice, {}, declined, asked=former.asked))
        return steps


def _alike(a: Node, b: Node) -> bool:
    """Return True if two nodes compute the same, under the same names."""
    if a is b:
        return True
    if (a.op, a.domain, a.inputs, a.outputs, a.name) != (b.op, b.domain, b.inputs, b.outputs, b.name):
        return False
    if (a.where, a.origin, a.device) != (b.where, b.origin, b.device):
        return False
    try:
        return bool(a.attrs == b.attrs)
    except ValueError:  # arrays
        return False
