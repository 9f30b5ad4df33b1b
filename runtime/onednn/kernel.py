"""What all oneDNN kernels share: drafts tried in order, layouts read back, calls prepared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...ops import DType, Tensor, Type
from ...ops.layouts import is_permutation, plain, row_major
from ...ops.types import Array
from ..graph import Node
from ..kernels.kernel import Alias, Ask, Call, Choice, Declined, Work
from ..lives import aligned
from . import api
from .library import find, library
from .memory import ANY, Memory, layout_of, nbytes, strides_of
from .postops import Link, anchor, chain
from .primitive import Bound, Descriptor, Draft, Execution, Operand, Place, bind, describe, reordering, repacked

REFERENCE = ("ref", "simple:any")  # implementations that are slower than numpy
FLOATS = (DType.FLOAT, DType.BFLOAT16)


class OneDnn(ABC):
    """A family of operators that one kind of primitive serves, alone or followed by post-ops.

    A family writes `drafts`: the primitives that would do, best first. The first that oneDNN has with a fast
    implementation is taken; drafts depend on nothing but what is asked, so that the same one is found again when the
    step is prepared.
    """

    name: ClassVar[str]
    ops: ClassVar[frozenset[str]]
    slow: ClassVar[tuple[str, ...]] = REFERENCE  # implementations that are not taken
    inplace: ClassVar[bool] = False  # whether the first input's bytes may become the result's
    remembers: ClassVar[bool] = False  # whether drafts look at no more of constants than a few numbers
    domain: ClassVar[str] = ""

    @abstractmethod
    def drafts(self, ask: Ask, links: tuple[Link, ...]) -> Iterator[Draft]:
        """The primitives that would do, best first; raises Refused with the reason where there are none."""

    def serves(self, node: Node) -> bool:
        """Whether the node, or the first operator of its chain, belongs to this family."""
        domain, op = anchor(node)
        return domain == self.domain and op in self.ops

    def select(self, ask: Ask) -> Choice | Declined:
        """The first fast primitive, with the layouts that it wants and gives."""
        found = self._describe(ask)
        if isinstance(found, Declined):
            return found
        layouts = _layouts(ask, found)
        return Choice(
            self.name,
            workspace=aligned(found.scratch) + sum(aligned(size) for _, size in found.relaid()),
            aliases=tuple(self._aliases(ask, found, layouts)),
            layouts=layouts if any(layouts) else (),
            implementation=found.implementation,
        )

    def prepare(self, work: Work) -> Call:
        """The primitive over the buffers of the step."""
        found = self._describe(work.ask)
        if isinstance(found, Declined):
            raise api.Refused(found.reason)
        arrays: dict[Place, Array] = {("in", i): a for i, a in enumerate(work.inputs) if a is not None}
        arrays |= {("out", i): a for i, a in enumerate(work.outputs) if a is not None}
        scratch = work.scratch(DType.UINT8, (found.scratch,)) if found.scratch else None
        copies = {o.place: (o, work.scratch(DType.UINT8, (size,))) for o, size in found.relaid()}
        call = bind(found, arrays | {place: held for place, (_, held) in copies.items()}, scratch)
        return Relaid(found, call, arrays, copies) if copies else call

    def pack(self, ask: Ask, index: int, array: Array) -> Array:
        """A constant in the layout that the primitive reads."""
        found = self._describe(ask)
        assert isinstance(found, Descriptor)
        operand = found.draft.at(("in", index))[0]
        known = ask.inputs[index]
        assert isinstance(known, Tensor)
        source = operand.source or operand.memory.row_major()
        target = found.memory(operand.argument) if operand.memory.layout == ANY else operand.memory.handle.value
        return repacked(np.ascontiguousarray(array), source, target)

    def _describe(self, ask: Ask) -> Descriptor | Declined:
        """The first draft that does; asked once for steps of a kind, of which a network has many."""
        key = _kind(self.name, ask) if self.remembers else None
        if key is None:
            return self._found(ask)
        found = _ANSWERS.get(key)
        if found is None:
            if len(_ANSWERS) >= MOST_ANSWERS:
                _ANSWERS.clear()
            found = _ANSWERS[key] = self._found(ask)
        return found

    def _found(self, ask: Ask) -> Descriptor | Declined:
        if (why := unavailable(ask)) is not None:
            return Declined(why)
        reasons: list[str] = []
        try:
            for draft in self.drafts(ask, chain(ask.node)):
                try:
                    found = describe(draft, ask.target.threads)
                    _layouts(ask, found)
                except api.Refused as error:
                    reasons.append(str(error))
                    continue
                if not found.implementation.startswith(self.slow):
                    return found
                reasons.append(f"only {found.implementation} would do")
        except api.Refused as error:
            reasons.append(str(error))
        return Declined("; ".join(dict.fromkeys(reasons)))

    def _aliases(self, ask: Ask, found: Descriptor, layouts: Sequence[str]) -> Iterator[Alias]:
        """Inputs of the result's type and layout that nothing else of the call reads, or that it adds to."""
        if found.draft.summed is not None:
            yield Alias(0, found.draft.summed[1])
            return
        if not self.inplace:
            return
        result = ask.outputs[0]
        for i, t in enumerate(ask.inputs):
            same = (
                isinstance(t, Tensor)
                and isinstance(result, Tensor)
                and (t.dtype, t.dims) == (result.dtype, result.dims)
            )
            if same and layouts[i] == layouts[len(ask.inputs)] and ask.node.inputs.count(ask.node.inputs[i]) == 1:
                yield Alias(0, i)


class Relaid:
    """A primitive between copies of operands into layouts of its own, and of results out of them."""

    def __init__(
        self,
        found: Descriptor,
        call: Bound,
        arrays: Mapping[Place, Array],
        copies: Mapping[Place, tuple[Operand, Array]],
    ) -> None:
        self._moves: dict[Place, Execution] = {}
        before: list[Callable[[], int]] = []
        after: list[Callable[[], int]] = []
        for place, (operand, held) in copies.items():
            assert operand.source is not None
            outside = (operand.source.handle.value, arrays[place])
            inside = (found.memory(operand.argument), held)
            move = reordering(*((outside, inside) if place[0] == "in" else (inside, outside)))
            (before if place[0] == "in" else after).append(move)
            self._moves[place] = move
        self._call, self._calls = call, (*before, call, *after)

    def __call__(self) -> int:
        for call in self._calls:
            if status := call():
                return status
        return 0

    def rebind(self, place: Place, array: Array) -> None:
        """Let an operand or a result be another array of the same type."""
        move = self._moves.get(place)
        if move is None:
            self._call.rebind(place, array)
        else:
            move.rebind((place[0], 0), array)


MOST_ANSWERS = 512  # a network has some tens of kinds; changing sizes must not pile them up
_ANSWERS: dict[Any, Descriptor | Declined] = {}


def _kind(name: str, ask: Ask) -> Any:
    """What an answer depends on: everything but the names of values. None if some attribute cannot be compared."""
    node = ask.node
    few = tuple(_few(t) if ask.constant(i) else None for i, t in enumerate(ask.inputs))
    same = tuple(map(node.inputs.index, node.inputs))
    attrs = tuple(sorted(node.attrs.items()))
    types = tuple(t.forget() if isinstance(t, Tensor) else t for t in (*ask.inputs, *ask.outputs))  # without weights
    key = (name, node.domain, node.op, attrs, same, types, few, tuple(ask.constants))
    try:
        hash(key)
    except TypeError:
        return None
    return (*key, ask.target)


def _few(type: Type | None) -> bytes | None:
    """The elements of a small constant: kernels look at them."""
    value = type.value if isinstance(type, Tensor) else None
    return np.asarray(value).tobytes() if value is not None and np.size(value) <= 16 else None


def unavailable(ask: Ask) -> str | None:
    """Why oneDNN cannot be asked at all, if it cannot."""
    if not ask.target.onednn:
        return "oneDNN is switched off"
    if library() is None:
        return str(find())
    types: list[Type | None] = [*ask.inputs, *ask.outputs]
    # an empty list stands for an operand that is absent (the scales of a Resize); no memory can be made of it
    if not all(t is None or (isinstance(t, Tensor) and t.static and (t.elements or t.sizes == (0,))) for t in types):
        return "an operand has no known sizes, or no elements"
    return None


def _layouts(ask: Ask, found: Descriptor) -> tuple[str, ...]:
    """The layouts of all inputs, then of all outputs."""
    inputs = [layout_at(found, ("in", i), t) for i, t in enumerate(ask.inputs)]
    return (*inputs, *(layout_at(found, ("out", i), None) for i in range(len(ask.node.outputs))))


def layout_at(found: Descriptor, place: Place, type: Type | None) -> str:
    """The layout in which the step has an operand; Refused if that cannot be said."""
    wanted = {_one_layout(found, o) for o in found.draft.at(place)}
    if len(wanted) > 1:
        raise api.Refused("an operand is wanted in two layouts")
    return wanted.pop() if wanted else type.layout if isinstance(type, Tensor) else ""


def _one_layout(found: Descriptor, operand: Operand) -> str:
    if operand.relaid:
        return ""
    if operand.memory.layout != ANY:
        if operand.source is None:
            same = len(operand.layout) == len(operand.memory.dims)  # else the primitive sees other axes than the step
            return plain(operand.layout, operand.memory.dims) if same else operand.layout
        return f"{operand.memory.dtype}={nbytes(operand.memory.handle.value)}"  # a constant in another type
    descriptor = found.memory(operand.argument)
    tag = layout_of(descriptor)
    if tag is None:
        raise api.Refused(f"{found.implementation} wants a layout without a name")
    source, sizes = operand.source, operand.memory.dims
    if source is None:
        tag = plain(tag, sizes)
        if tag and tag not in api.TAGS and not is_permutation(tag):
            raise api.Refused(f"{found.implementation} wants {tag}")
        return tag
    if api.getter("memory_desc_equal")(descriptor, source.handle.value):
        return ""
    strides = source.strides or strides_of(row_major(len(sizes)), sizes)
    shown = ";".join(",".join(map(str, numbers)) for numbers in (sizes, strides))
    return f"{tag}{operand.layout}({shown})={nbytes(descriptor)}"


def floats(ask: Ask, at: Sequence[int]) -> list[Tensor]:
    """Operands of a float type that oneDNN computes with; Refused for others."""
    found = [ask.inputs[i] if i >= 0 else None for i in at]
    made = [t for t in found if isinstance(t, Tensor) and t.dtype in FLOATS]
    if len(made) < len(found):
        raise api.Refused(f"operands are {', '.join(map(str, found))}")
    return made


def result(ask: Ask) -> Tensor:
    """The type of the one output."""
    found = ask.outputs[0]
    if len(ask.outputs) > 1 or not isinstance(found, Tensor) or found.dtype not in FLOATS:
        raise api.Refused(f"the results are {', '.join(map(str, ask.outputs))}")
    return found


def channels_last(rank: int) -> str:
    """The layout of images whose channels lie together.

    >>> channels_last(4)
    'acdb'
    """
    letters = row_major(rank)
    return letters[0] + letters[2:] + letters[1]


def constant(ask: Ask, argument: int, at: int, memory: Memory, *, relaid: bool = False) -> Operand:
    """An operand that oneDNN lays out as it likes if it is a constant, and that is read as it is otherwise; `relaid`
    ones are laid out at each run then."""
    known = ask.inputs[at]
    if ask.constant(at):
        return Operand(argument, ("in", at), memory.any(), source=memory)
    if relaid:
        return Operand(argument, ("in", at), memory.any(), source=memory, relaid=True)
    if isinstance(known, Tensor) and known.layout and is_permutation(known.layout) and memory.dims == known.sizes:
        return Operand(argument, ("in", at), Memory.of(known), known.layout)
    return Operand(argument, ("in", at), memory)
