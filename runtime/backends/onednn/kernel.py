"""Base of all oneDNN kernels: tries plans in order, reads layouts back, prepares calls."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from ....ops import DType, Tensor, Type
from ....ops.layouts import channels_last as channels_last
from ....ops.layouts import is_permutation, plain, row_major, usual
from ....ops.types import Array
from ...caches import MOST, Cache, bounded
from ...compile.cache_keys import cache_key
from ...compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, TargetSpec, anchor
from ...compile.program import Program
from ...ir.graph import Node
from ...memory.liveness import aligned
from ..machine.routines import Row
from . import ahead, api
from .library import find, library
from .memory import ANY, Handle, Memory, layout_of, nbytes, strides_of
from .postops import Link, chain
from .primitive import (
    DESCRIPTORS,
    Descriptor,
    Draft,
    Execution,
    Memories,
    Operand,
    Place,
    bind,
    describe,
    reordering,
    repacked,
)

REFERENCE = ("ref", "simple:any")  # implementations that are slower than numpy
FLOATS = (DType.FLOAT, DType.BFLOAT16)
Answer = tuple[tuple[Descriptor, ...], tuple[str, ...]]  # primitives, and the layouts of all inputs, then all outputs


class OneDnn(ABC):
    """A family of operators that one primitive serves, alone or followed by post-ops, or a few one after the other.

    A family writes `drafts`: the primitives that would do, best first; or `plans`: lists of them, whose operands may
    lie at ("work", n) in between. The first that oneDNN has with fast implementations is taken; its drafts are part of
    the choice, and what is prepared is made from these.
    """

    name: ClassVar[str]
    ops: ClassVar[frozenset[str]]
    domain: ClassVar[str] = ""
    slow: ClassVar[tuple[str, ...]] = REFERENCE  # implementations that are not taken
    inplace: ClassVar[bool] = False  # whether the first input's bytes may become the result's
    remembers: ClassVar[bool] = False  # whether drafts look at no more of constants than a few numbers
    lengthy: ClassVar[bool] = False  # whether oneDNN takes milliseconds to describe one

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """The primitives that would do, best first; raises Refused with the reason where there are none."""
        raise NotImplementedError

    def plans(self, request: KernelRequest) -> Iterator[tuple[Draft, ...]]:
        """Lists of primitives that would do, best first; raises Refused with the reason where there are none."""
        return ((draft,) for draft in self.drafts(request, chain(request.node)))

    def serves(self, node: Node) -> bool:
        """True if the node, or the first operator of its chain, belongs to this family."""
        domain, op = anchor(node)
        return domain == self.domain and op in self.ops

    def select(self, request: KernelRequest) -> Choice | Declined:
        """The first fast primitives, with the layouts that they want and give."""
        answer = self._answer(request)
        if isinstance(answer, Declined):
            return answer
        descriptors, layouts = answer
        ahead.wanted(descriptors)
        held, scratch = workspace(descriptors)
        return Choice(
            self.name,
            workspace=sum(map(aligned, held.values())) + aligned(scratch),
            aliases=tuple(self._aliases(request, descriptors, layouts)),
            layouts=layouts if any(layouts) else (),
            implementation=", ".join(dict.fromkeys(d.implementation for d in descriptors)),
            primitives=tuple(d.draft for d in descriptors),
        )

    def prepare(self, args: KernelArgs) -> Call:
        """The chosen primitives over the buffers of the step."""
        calls = self._bound(args)
        return calls[0] if len(calls) == 1 else Calls(calls)

    def _bound(self, args: KernelArgs, more: Mapping[Place, Array] | None = None) -> list[Any]:
        """The calls over the buffers of the step, and those of `more`."""
        descriptors = chosen(args.choice, args.request.target)
        arrays: dict[Place, Array] = {("in", i): a for i, a in enumerate(args.inputs) if a is not None}
        arrays |= {("out", i): a for i, a in enumerate(args.outputs) if a is not None}
        arrays |= more or {}
        memories = None if args.shared is None else args.shared.setdefault(Memories, Memories())
        held, scratch = workspace(descriptors) if args.choice.workspace else ({}, 0)
        copies = {place: args.scratch(DType.UINT8, (size,)) for place, size in held.items()}
        shared = args.scratch(DType.UINT8, (scratch,)) if scratch else None
        return [bound for d in descriptors for bound in _bind(d, arrays, copies, shared, memories)]

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """A constant in the layout that the primitive reads."""
        reader = next(d for d in chosen(choice, request.target) if d.draft.at(("in", index)))
        operand = reader.draft.at(("in", index))[0]
        known = request.inputs[index]
        assert isinstance(known, Tensor)
        source, laid = operand.source or operand.memory.row_major(), operand.memory
        # A layout is one of the tensor's axes, and the primitive's may be others; ANY is one of the primitive's.
        if operand.source is None and operand.layout not in ("", ANY):
            source, laid = Memory(known.sizes, laid.dtype), Memory(known.sizes, laid.dtype, operand.layout)
        target = reader.memory(operand.argument) if laid.layout == ANY else laid.handle.value
        return repacked(np.ascontiguousarray(array), source, target)

    def _answer(self, request: KernelRequest) -> Answer | Declined:
        """The first plan that does, with its layouts; asked once for steps of a kind, of which a network has many."""
        asked = cache_key(request) if self.remembers else None
        if asked is None:
            return self._first_plan(request)
        known = _ANSWERS.get((self.name, asked), lambda: _remembered(self._first_plan(request)))
        if isinstance(known, Declined):
            return known
        drafts, layouts = known
        return tuple(describe(draft, request.target.threads) for draft in drafts), layouts

    def _first_plan(self, request: KernelRequest) -> Answer | Declined:
        if (why := unavailable(request)) is not None:
            return Declined(why)
        reasons: list[str] = []
        try:
            for drafts in self.plans(request):
                try:
                    descriptors = tuple(describe(d, request.target.threads) for d in drafts)
                    layouts = self._layouts(request, descriptors)
                except api.Refused as error:
                    reasons.append(str(error))
                    continue
                slow = [d.implementation for d in descriptors if d.implementation.startswith(self.slow)]
                if not slow:
                    return descriptors, layouts
                reasons.append(f"only {slow[0]} would do")
        except api.Refused as error:
            reasons.append(str(error))
        return Declined("; ".join(dict.fromkeys(reasons)))

    def _layouts(self, request: KernelRequest, descriptors: Sequence[Descriptor]) -> tuple[str, ...]:
        """The layouts of all inputs, then of all outputs."""
        sides = [("in", i, t) for i, t in enumerate(request.inputs)]
        outputs = iter(request.outputs)
        sides += [("out", i, next(outputs) if name else None) for i, name in enumerate(request.node.outputs)]
        return tuple(self._layout(request, descriptors, (side, i), t) for side, i, t in sides)

    def _layout(
        self, request: KernelRequest, descriptors: Sequence[Descriptor], place: Place, type: Type | None
    ) -> str:
        """The layout in which the step has an operand."""
        if len(descriptors) == 1:
            return layout_at(descriptors[0], place, type)
        layouts = {layout_at(d, place, type) for d in descriptors if d.draft.at(place)}
        if len(layouts) > 1:
            raise api.Refused("an operand is needed in two layouts")
        return layouts.pop() if layouts else layout_at(descriptors[0], place, type)

    def _aliases(
        self, request: KernelRequest, descriptors: Sequence[Descriptor], layouts: Sequence[str]
    ) -> Iterator[Alias]:
        """Inputs of the result's type and layout that nothing else of the call reads, or that it adds to."""
        summed = descriptors[-1].draft.summed
        if summed is not None:
            yield Alias(0, summed[1])
            return
        if not self.inplace:
            return
        result = request.outputs[0]
        for i, t in enumerate(request.inputs):
            same = (
                isinstance(t, Tensor)
                and isinstance(result, Tensor)
                and (t.dtype, t.dims) == (result.dtype, result.dims)
            )
            if (
                same
                and layouts[i] == layouts[len(request.inputs)]
                and request.node.inputs.count(request.node.inputs[i]) == 1
            ):
                yield Alias(0, i)


def chosen(choice: Choice, target: TargetSpec) -> tuple[Descriptor, ...]:
    """The primitives that a choice describes."""
    return tuple(map(describe, choice.primitives, repeat(target.threads)))


def held(program: Program) -> dict[Any, int]:
    """Bytes of the primitives of a program that there are now, by what they are shared by."""
    bytes_held: dict[Any, int] = {}
    for step in program.all_steps():
        for draft in step.choice.primitives:
            key = draft, program.target.threads
            descriptor = DESCRIPTORS.alive(key)
            if descriptor is not None:
                bytes_held[key] = descriptor.nbytes
    return bytes_held


WORK = "work"  # ("work", 0): the first temporary result
COPY = "copy of "  # ("copy of in", 0): an input in a layout of the primitive's own


def workspace(descriptors: Sequence[Descriptor]) -> tuple[Mapping[Place, int], int]:
    """Bytes of each temporary result and each copy of an operand, and of the scratchpad that all primitives share."""
    sizes: dict[Place, int] = {}
    for d in descriptors:
        for operand in d.draft.operands:
            if operand.place[0] == WORK:
                size = nbytes(operand.memory.handle.value)
                sizes[operand.place] = max(size, sizes.get(operand.place, 0))
        sizes |= {(COPY + o.place[0], o.place[1]): size for o, size in d.relaid()}
    return sizes, max(d.scratch for d in descriptors)


def _bind(
    d: Descriptor,
    arrays: Mapping[Place, Array],
    held: Mapping[Place, Array],
    scratch: Array | None,
    memories: Memories | None,
) -> list[Any]:
    """The call of a primitive between copies of operands into layouts of its own, and of results out of them."""
    before: list[Moved] = []
    after: list[Moved] = []
    inside: dict[Place, Array] = {}
    for o, _ in d.relaid():
        copy = inside[o.place] = held[COPY + o.place[0], o.place[1]]
        assert o.source is not None
        sides = [(o.source.handle.value, arrays[o.place]), (d.memory(o.argument), copy)]
        if o.place[0] == "in":
            before.append(Moved(reordering(*sides), o.place))
        else:
            after.append(Moved(reordering(*reversed(sides)), o.place))
    call = bind(d, {**arrays, **held, **inside}, scratch, memories)
    for place in inside:
        call.forget(place)
    return [*before, call, *after]


class Moved:
    """A copy of one operand of a step, into another layout or out of it."""

    def __init__(self, call: Execution, place: Place) -> None:
        self._call, self._place = call, place
        self.rows, self.short = call.rows, call.short

    def __call__(self) -> int:
        return self._call()

    def rebind(self, place: Place, array: Array) -> None:
        """Let the operand be another array of the same type."""
        if place == self._place:
            self._call.rebind((place[0], 0), array)


class Calls:
    """A sequence of primitives; calling it returns the first status that is not success."""

    def __init__(self, calls: Sequence[Any]) -> None:
        self._calls = tuple(calls)
        self.threads = max(getattr(call, "threads", 1) for call in calls)
        self.asks = any(getattr(call, "asks", False) for call in calls)
        self.short = all(getattr(call, "short", False) for call in calls)
        parts = [getattr(call, "rows", ()) for call in calls]
        self.rows: tuple[Row, ...] = tuple(row for part in parts for row in part) if all(parts) else ()

    def __call__(self) -> int:
        for call in self._calls:
            if status := call():
                return int(status)
        return 0

    def rebind(self, place: Place, array: Array) -> None:
        """Let every primitive read or write another array of the same type at this place."""
        for call in self._calls:
            call.rebind(place, array)


# with drafts in place of primitives, which would hold much memory
_ANSWERS: Cache[tuple[tuple[Draft, ...], tuple[str, ...]] | Declined] = Cache("oneDNN: primitives of requests")


def _remembered(answer: Answer | Declined) -> tuple[tuple[Draft, ...], tuple[str, ...]] | Declined:
    """Return an answer as it is remembered."""
    return answer if isinstance(answer, Declined) else (tuple(d.draft for d in answer[0]), answer[1])


def unavailable(request: KernelRequest) -> str | None:
    """Why oneDNN cannot be asked at all, if it cannot."""
    if not request.target.onednn:
        return "oneDNN is switched off"
    if library() is None:
        return str(find())
    for t in (*request.inputs, *request.outputs):
        if t is None:
            continue
        # an empty list stands for an operand that is absent (the scales of a Resize); no memory can be made of it
        if not isinstance(t, Tensor) or not t.static or (0 in t.sizes and t.sizes != (0,)):
            return "an operand has no known sizes, or no elements"
    return None


def layout_at(primitive: Descriptor, place: Place, type: Type | None) -> str:
    """The layout in which the step has an operand; Refused if that cannot be said."""
    operands = primitive.draft.at(place)
    if not operands:
        return type.layout if isinstance(type, Tensor) and place[0] == "in" else ""
    first, *others = (_one_layout(primitive, o) for o in operands)
    if any(layout != first for layout in others):
        raise api.Refused("an operand is needed in two layouts")
    return usual(first, type.sizes) if isinstance(type, Tensor) and type.static else first


def _one_layout(primitive: Descriptor, operand: Operand) -> str:
    if operand.relaid:
        return ""
    if operand.memory.layout != ANY:
        if operand.source is None:
            return operand.layout
        return f"{operand.memory.dtype}={nbytes(operand.memory.handle.value)}"  # a constant in another type
    descriptor = primitive.memory(operand.argument)
    tag = _seen(descriptor, operand.memory) if operand.source else _named(descriptor, operand.memory)
    if tag is None:
        raise api.Refused(f"{primitive.implementation} wants a layout without a name")
    source, sizes = operand.source, operand.memory.dims
    if source is None:
        tag = plain(tag, sizes)
        if tag and tag not in api.TAGS and not is_permutation(tag):
            raise api.Refused(f"{primitive.implementation} wants {tag}")
        return tag
    if api.getter("memory_desc_equal")(descriptor, source.handle.value):
        return ""
    strides = source.strides or strides_of(row_major(len(sizes)), sizes)
    shown = ";".join(",".join(map(str, numbers)) for numbers in (sizes, strides))
    # which sums lie behind the elements, each implementation decides, and a descriptor does not tell
    beside = f" {primitive.implementation} " if "+" in tag else ""
    return f"{tag}{beside}{operand.layout}({shown})={nbytes(descriptor)}"


_SEEN: dict[tuple[tuple[int, ...], DType], tuple[tuple[Handle, str | None], ...]] = bounded(
    "oneDNN: layouts of descriptors", MOST + 1, {}
)


def _seen(descriptor: int, memory: Memory) -> str | None:
    """Return the layout as `_named` does, for constants, whose sizes recur for images of other sizes: comparing two
    descriptors takes one call, reading one a dozen."""
    kind = (memory.dims, memory.dtype)
    seen = _SEEN.get(kind, ())
    for other, layout in seen:
        if api.getter("memory_desc_equal")(descriptor, other.value):
            return layout
    if len(_SEEN) > MOST:
        _SEEN.clear()
    kept = Handle(api.create("memory_desc_clone", descriptor), "memory_desc_destroy")
    layout = _named(descriptor, memory)
    _SEEN[kind] = (*seen[-3:], (kept, layout))
    return layout


def _named(descriptor: int, memory: Memory) -> str | None:
    """The layout of a descriptor in our notation; None where it has none."""
    return _usual(descriptor, memory) or layout_of(descriptor)


def _usual(descriptor: int, memory: Memory) -> str | None:
    """The layout, if it is channels-last: what most images have is told by one comparison."""
    if len(memory.dims) < 3:
        return None
    layout = channels_last(len(memory.dims))
    usual = Memory(memory.dims, memory.dtype, layout).handle.value
    return layout if api.getter("memory_desc_equal")(descriptor, usual) else None


def floats(request: KernelRequest, at: Sequence[int]) -> list[Tensor]:
    """Operands of a float type that oneDNN computes with; Refused for others."""
    operands = [request.inputs[i] if i >= 0 else None for i in at]
    tensors = [t for t in operands if isinstance(t, Tensor) and t.dtype in FLOATS]
    if len(tensors) < len(operands):
        raise api.Refused(f"operands are {', '.join(map(str, operands))}")
    return tensors


def result(request: KernelRequest) -> Tensor:
    """The type of the one output."""
    output = request.outputs[0]
    if not request.node.outputs[0]:
        raise api.Refused("the first result is not requested")
    if len(request.outputs) > 1 or not isinstance(output, Tensor) or output.dtype not in FLOATS:
        raise api.Refused(f"the results are {', '.join(map(str, request.outputs))}")
    return output


def _as_it_is(memory: Memory, known: Tensor) -> bool:
    """True if a primitive sees the operand's own axes, in their order."""
    return memory.dims == known.sizes and memory.strides is None


def constant(request: KernelRequest, argument: int, at: int, memory: Memory, *, relaid: bool = False) -> Operand:
    """An operand that oneDNN lays out as it likes if it is a constant, and that is read as it is otherwise; `relaid`
    ones are laid out at each run then."""
    known = request.inputs[at]
    if request.constant(at):
        return Operand(argument, ("in", at), memory.any(), source=memory)
    if relaid:
        return Operand(argument, ("in", at), memory.any(), source=memory, relaid=True)
    if isinstance(known, Tensor) and known.layout and is_permutation(known.layout) and _as_it_is(memory, known):
        return Operand(argument, ("in", at), Memory.of(known), known.layout)
    return Operand(argument, ("in", at), memory)
