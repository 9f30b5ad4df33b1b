"""Selection of kernels and memory layouts together: nodes become steps.

Kernels are asked in order of execution. A kernel says in which layouts it wants its inputs and gives its outputs; where
an input is at hand in another one, a Reorder step stands before, or a constant is packed once and for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...ops import Tensor, Type
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import PlanError
from ...ops.layouts import alike, plain, row_major
from ...ops.types import Array
from ..ir.graph import Graph, Node
from ..memory.shared_constants import derived
from .kernel import Choice, KernelRequest, Packs, TargetSpec
from .program import Program, ProgramStep, body_bytes, without_bodies
from .queries import AsyncQueries, LayoutHistory
from .target import Target

LowerBody = Callable[[Graph, Mapping[str, Type]], Program]
LayoutPreferences = tuple[tuple[str, Sequence[int] | None], ...]  # see `layout_preferences`


@dataclass(slots=True)
class StepBuilder:
    """Builder of the steps of one graph. `types` grows by the values that reordering adds; `packed` by packed
    constants.

    `plain` names values that somebody reads who knows no layouts: outputs, states, what bodies capture.
    """

    target: Target
    spec: TargetSpec
    types: dict[str, Type]
    constants: Mapping[str, Array]
    packed: dict[str, Array]
    plain: set[str]
    preferences: LayoutPreferences = ()
    history: LayoutHistory = field(default_factory=LayoutHistory)
    steps: list[ProgramStep] = field(default_factory=list[ProgramStep])
    # the question of each step, and whether a layout was part of it or of the answer; None for reordering steps
    asked: list[tuple[KernelRequest, bool | None]] = field(default_factory=list[tuple[KernelRequest, "bool | None"]])
    moved: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    preferred_layouts: Mapping[str, str] = field(init=False)
    _ahead: AsyncQueries = field(init=False)

    def __post_init__(self) -> None:
        self.preferred_layouts = preferred_layouts(self.preferences, self.types)
        self._ahead = AsyncQueries(self.target, self.history)

    def look_ahead(self, nodes: Iterable[Node]) -> None:
        """Begin to ask about those of the nodes that take long, if they were met before."""
        known = [n for n in nodes if self._ahead.knows(n)] if self.history else []
        self._ahead.begin(self._request(n, *self._ahead.types(n, self.types)) for n in known)

    def _request(self, node: Node, inputs: Sequence[Type | None], outputs: Sequence[Type]) -> KernelRequest:
        return KernelRequest(node, inputs, outputs, [i in self.constants for i in node.inputs], self.spec)

    def add(self, node: Node, bodies: Mapping[str, Program], dynamic: bool) -> None:
        """Append the step of a node, and the reordering steps that it needs around it."""
        outputs = [self._preferred(o) for o in node.outputs if o]
        ins = [self.types[i] if i else None for i in node.inputs]
        request = self._request(node, ins, outputs)
        self._ahead.meet(request)
        choice, declined = self.target.choose(request)
        if bodies and not self.target.sm:  # those of a GPU's steps have their place on the host
            # one body runs at a time; its outputs alternate between two buffers, see instance.BodyRunner
            choice = replace(choice, workspace=max(map(body_bytes, bodies.values())))
        asked = requested_layouts(request)
        choice, laid = settled(choice, request)
        if not laid:
            without = without_bodies(node) if bodies else node
            asked = asked if any(asked) else ()
            self._append(ProgramStep(without, choice, bodies, declined, dynamic, asked=asked), request, laid)
            return  # nothing lies in another way than row-major
        before, after = split(choice, node)
        inputs = [self._at_hand(name, layout, request, i, choice) for i, (name, layout) in enumerate(before)]
        renamed, later = [], []
        for name, layout in after:
            if not (layout and name):
                renamed.append(name)
                continue
            known = self.types[name]
            assert isinstance(known, Tensor)
            if name in self.plain:
                inner = self._named(name, layout)
                self.types[inner] = known.laid(layout)
                self.moved[name, layout] = inner  # for whoever reads it in this layout
                later.append((inner, name))
                renamed.append(inner)
            else:
                self.types[name] = known.laid(layout)
                renamed.append(name)
        if (*inputs, *renamed) != (*node.inputs, *node.outputs):
            node = replace(node, inputs=tuple(inputs), outputs=tuple(renamed))
        asked = () if asked == choice.layouts else asked
        without = without_bodies(node) if bodies else node
        self._append(ProgramStep(without, choice, bodies, declined, dynamic, asked=asked), request, laid)
        for inner, name in later:
            self._reorder(inner, name, "", node)

    def _named(self, name: str, layout: str) -> str:
        """The name of a value in a layout, which no value of the model has."""
        copy = f"{name}:{layout}"
        while copy in self.types:
            copy += "'"
        return copy

    def _preferred(self, output: str) -> Type:
        """The type of an output with the layout that its reader would like."""
        known, layout = self.types[output], self.preferred_layouts.get(output, "")
        return known.laid(layout) if layout and isinstance(known, Tensor) and output not in self.plain else known

    def _at_hand(self, name: str, layout: str, request: KernelRequest, index: int, choice: Choice) -> str:
        """The name under which an input lies in this layout."""
        known = self.types[name] if name else None
        if not isinstance(known, Tensor) or known.layout == layout:
            return name
        moved = self.moved.get((name, layout))
        if moved is not None:
            return moved
        copy = self._named(name, layout or row_major(known.rank))
        self.moved[name, layout] = copy
        if name in self.constants:
            source = self.constants[name]

            def pack() -> Array:
                kernel = self.target.kernel(choice.kernel)
                assert isinstance(kernel, Packs)
                return kernel.pack(request, choice, index, source)

            self.types[copy] = known.laid(layout)
            self.packed[copy] = derived(source, layout, pack)
        else:
            self._reorder(name, copy, layout, request.node)
        return copy

    def _reorder(self, source: str, copy: str, layout: str, around: Node) -> None:
        known = self.types[source]
        assert isinstance(known, Tensor)
        self.types[copy] = known.laid(layout)
        node = Node("Reorder", (source,), (copy,), {"layout": layout}, "mezzo", copy, around.where, around.origin)
        request = KernelRequest(node, [known], [self.types[copy]], target=self.spec)
        choice, declined = self.target.choose(request)
        if split(choice, node) != ([(source, known.layout)], [(copy, layout)]):
            raise PlanError(f"nothing reorders {known} to {layout or 'row-major'}", where=around.place)
        self._append(ProgramStep(node, choice, {}, declined), request, None)

    def _append(self, step: ProgramStep, request: KernelRequest, laid: bool | None) -> None:
        self.steps.append(step)
        self.asked.append((request, laid))


def settled(choice: Choice, request: KernelRequest) -> tuple[Choice, bool]:
    """The choice with its layouts settled (see `with_layouts_at_hand`), and whether it or an input has any."""
    laid = bool(choice.layouts) or any(isinstance(t, Tensor) and t.layout for t in request.inputs)
    return (with_layouts_at_hand(choice, request) if laid else choice), laid


def requested_layouts(request: KernelRequest) -> tuple[str, ...]:
    """The layouts of all inputs, then of all outputs, of a question; an absent one has none."""
    return tuple(t.layout if isinstance(t, Tensor) else "" for t in _operands(request))


def _operands(request: KernelRequest) -> list[Type | None]:
    """The types of all inputs, then of all outputs, of a question; None for an absent one."""
    return [*request.inputs, *request.results]


def with_layouts_at_hand(choice: Choice, request: KernelRequest) -> Choice:
    """The choice with the layouts that its inputs have, where the bytes of those that it wants are the same, and with
    none for outputs whose bytes are row-major all the same."""
    types = _operands(request)
    layouts = list(choice.layouts or ("",) * len(types))
    for i, known in enumerate(types):
        if not isinstance(known, Tensor) or not known.static:
            continue
        if i >= len(request.inputs):
            layouts[i] = plain(layouts[i], known.sizes)
        elif known.layout != layouts[i] and alike(known.layout, layouts[i], known.sizes):
            layouts[i] = known.layout
    settled = tuple(layouts) if any(layouts) else ()
    return choice if settled == choice.layouts else replace(choice, layouts=settled)


def split(choice: Choice, node: Node) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The layouts of inputs and of outputs, each beside its value's name."""
    layouts = choice.layouts or ("",) * (len(node.inputs) + len(node.outputs))
    count = len(node.inputs)
    return (
        list(zip(node.inputs, layouts[:count], strict=True)),
        list(zip(node.outputs, layouts[count:], strict=True)),
    )


def layout_preferences(graph: Graph, named: Iterable[str]) -> LayoutPreferences:
    """Values whose only reader is a Transpose, and its order: in another layout the transposed value is row-major. None
    of `named` values, which others read."""
    uses = graph.uses()
    nodes = [n for n in graph.nodes if (n.domain, n.op) == ("", "Transpose")]
    return tuple(
        (n.inputs[0], n.attrs.get("perm")) for n in nodes if uses[n.inputs[0]] == 1 and n.inputs[0] not in named
    )


def preferred_layouts(preferences: LayoutPreferences, types: Mapping[str, Type]) -> dict[str, str]:
    """The layouts of values of these types that their readers would like best."""
    preferred: dict[str, str] = {}
    for name, perm in preferences:
        known = types.get(name)
        if isinstance(known, Tensor) and known.static and known.rank:
            order = perm or tuple(reversed(range(known.rank)))
            layout = plain("".join(row_major(known.rank)[d] for d in order), known.sizes)
            if layout:
                preferred[name] = layout
    return preferred
