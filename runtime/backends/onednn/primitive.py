"""Primitives: requests to oneDNN as data, its answers, and prepared calls."""

from __future__ import annotations

import ctypes
import math
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import numpy as np

from ....ops.dataclasses import dataclass, field, replace
from ....ops.errors import PlanError
from ....ops.types import Array
from ...caches import HeavyCache
from ...compile.kernel import failed
from ...memory.pool import aligned_empty
from ..machine.routines import Row
from . import api
from .defects import defect
from .heap import weighed
from .library import threads
from .memory import ANY, Handle, Memory, extent, layout_of, nbytes

Place = tuple[str, int]  # ("in", 2): the third input of the step; ("out", 0): its first output


@dataclass(frozen=True, slots=True)
class PostOp:
    """An operation on each element of the result before it is written: an eltwise function, a binary one whose other
    operand is `other`, or the sum with the former content of the result (`kind` "sum"). `layout` is that of the operand
    in the step; `value` as for `Operand`."""

    kind: str
    alpha: float = 0.0
    beta: float = 0.0
    other: Memory | None = None
    place: Place = ("in", -1)
    layout: str = ""
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of a primitive: post-ops, arithmetic of float32 (`strict`, or `bf16` products), and masks of scales
    and zero points by argument, whose values are given at each run."""

    post: tuple[PostOp, ...] = ()
    math: str = "strict"
    scales: tuple[tuple[int, int], ...] = ()
    zero_points: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument of the call: the place of its bytes and the form in which the primitive sees them.

    `layout` is how the step has them (the primitive may see a matrix where the step has more axes). For constants that
    oneDNN may lay out as it likes (`memory` in ANY), `source` says how the primitive would see them row-major, and
    `layout` what else their form depends on; `relaid` ones are no constants: the step has them row-major, and a copy in
    that layout is made of them, or they of it, at each run. `value` holds the bytes of what is no operand of the step
    (scales, zero points); its place is ("given", n).
    """

    argument: int
    place: Place
    memory: Memory
    layout: str = ""
    source: Memory | None = None
    value: bytes = b""
    relaid: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """The request for a primitive. `settings` are the numbers that the kind takes, in its own order (see `_create`)."""

    kind: str
    operands: tuple[Operand, ...]
    settings: tuple[Any, ...] = ()
    attributes: Attributes = field(default_factory=Attributes)
    _hash: int = field(init=False, compare=False, repr=False)  # each step of each instance asks for its descriptor

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.kind, self.operands, self.settings, self.attributes)))

    def __hash__(self) -> int:
        return self._hash

    def memory(self, argument: int) -> int | None:
        """The descriptor of an argument, None where it is absent."""
        for o in self.operands:
            if o.argument == argument:
                return o.memory.handle.value
        return None

    def at(self, place: Place) -> list[Operand]:
        """The arguments that a place serves, operands of post-ops included."""
        operands = [o for o in self.operands if o.place == place]
        for i, p in enumerate(self.attributes.post):
            if p.other is not None and p.place == place:
                argument = 0 if p.kind == "sum" else api.ATTR_POST_OP * (i + 1) | api.SRC_1
                operands.append(Operand(argument, place, p.other, p.layout, value=p.value))
        return operands

    @property
    def summed(self) -> Place | None:
        """The input whose bytes the result is added to, if there is one."""
        return next((p.place for p in self.attributes.post if p.kind == "sum"), None)

    @property
    def places(self) -> list[Place]:
        """Places that the call reads and writes."""
        return list(
            dict.fromkeys([*(o.place for o in self.operands), *(p.place for p in self.attributes.post if p.other)])
        )


class Parameter(NamedTuple):
    """An argument of each call of a primitive: its number, the place of its bytes, how many of them there must be, the
    memory descriptor with the object that it belongs to, and `value` as for `Operand`. `parent` describes those bytes;
    it is another descriptor where the argument is a part of a larger operand."""

    number: int
    place: Place
    needed: int
    described: int
    owner: Handle
    parent: Handle | None = None
    value: bytes = b""

    def memory(self, begin: int) -> Handle:
        """A memory that begins at an address."""
        memory = api.create("memory_create", self.described, api.engine(), begin)
        return Handle(memory, "memory_destroy", reads=self.owner)


SCRATCH: Final[Place] = ("scratch", 0)


@dataclass(frozen=True, eq=False)
class Descriptor:
    """oneDNN's answer: the implementation's name, scratch bytes, threads, whether it takes microseconds, and the layout
    of each argument (None: unknown). All calls share its primitive, which is made when the first asks for it. `held`
    are the bytes of both in the library's memory, one after the other."""

    draft: Draft
    handle: Handle
    implementation: str
    scratch: int
    threads: int
    short: bool
    held: list[int]
    _primitive: list[Handle] = field(default_factory=list[Handle])
    _parameters: list[tuple[Parameter, ...]] = field(default_factory=list[tuple[Parameter, ...]])
    _making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def primitive(self) -> Handle:
        """The primitive. oneDNN's goes on reading the descriptor that it was made of (docs/onednn-defects.md)."""
        if not self._primitive:
            with self._making, threads(self.threads):
                if not self._primitive:
                    kind = ("primitive", *_weight(self.draft))
                    primitive, held = weighed(kind, lambda: api.create("primitive_create", self.handle.value))
                    self.held.append(held)
                    self._primitive.append(Handle(primitive, "primitive_destroy", reads=self.handle))
        return self._primitive[0]

    @property
    def nbytes(self) -> int:
        """Bytes that the descriptor and its primitive take of the library's memory."""
        return sum(self.held)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arguments of each call, operands of post-ops and the scratchpad included; the same each time."""
        if not self._parameters:
            self._parameters.append(tuple(self._all_parameters()))
        return self._parameters[0]

    def _all_parameters(self) -> Iterator[Parameter]:
        for operand in (o for place in self.draft.places for o in self.draft.at(place) if o.argument):
            seen, parent = operand.memory, None
            owner = self.handle if seen.layout == ANY else seen.handle
            described = self.memory(operand.argument) if seen.layout == ANY else seen.handle.value
            if seen.inside is not None:
                parent = replace(seen, dims=seen.inside[0], inside=None).handle
            needed = nbytes(parent.value if parent else described)
            yield Parameter(operand.argument, operand.place, needed, described, owner, parent, operand.value)
        if self.scratch:
            described = self.memory(api.SCRATCHPAD)
            yield Parameter(api.SCRATCHPAD, SCRATCH, nbytes(described), described, self.handle)

    def layout(self, argument: int) -> str | None:
        """The layout that an argument has."""
        return layout_of(self.memory(argument))

    def memory(self, argument: int) -> int:
        """The descriptor of an argument; it belongs to this object."""
        memory = api.getter("primitive_desc_query_md")(self.handle.value, api.QUERY_EXEC_ARG, argument)
        if not memory:
            raise api.Refused(f"{self.implementation} has no argument {argument}")
        return int(memory)

    def relaid(self) -> list[tuple[Operand, int]]:
        """The operands of which a copy in another layout is needed, and the bytes of that."""
        operands = []
        for operand in self.draft.operands:
            if operand.relaid and operand.source is not None:
                target = self.memory(operand.argument)
                if not api.getter("memory_desc_equal")(target, operand.source.handle.value):
                    operands.append((operand, nbytes(target)))
        return operands


# Elements that are read and written, and multiplications, below which a second thread costs more than it saves (waking
# it takes some microseconds; where other programs use the processors too, as long as their turns last).
FEW_ELEMENTS, FEW_PRODUCTS = 1 << 15, 1 << 19


def worth_sharing(draft: Draft) -> bool:
    """True if several threads are faster than one."""
    sizes = [math.prod(o.memory.dims) for o in draft.operands]
    if sum(sizes) > FEW_ELEMENTS and draft.kind not in PRODUCTS:
        return True
    kernels = (api.WEIGHTS, api.WEIGHTS_1, api.DIFF_WEIGHTS)
    weights = [math.prod(o.memory.dims) for o in draft.operands if o.argument in kernels]
    results = [o.memory.dims for o in draft.operands if o.argument in (api.DST, api.DIFF_DST)]
    if draft.kind not in PRODUCTS or not weights or not results:
        return False
    size, columns = math.prod(results[0]), results[0][1 if "conv" in draft.kind else -1]
    return size * sum(weights) // max(columns, 1) > FEW_PRODUCTS


PRODUCTS = frozenset(
    "convolution_forward deconvolution_forward convolution_backward_data convolution_backward_weights matmul "
    "lstm_forward gru_forward lbr_gru_forward vanilla_rnn_forward".split()
)


DESCRIPTORS: Final[HeavyCache[Descriptor]] = HeavyCache("oneDNN: primitives", 16 << 20)


def describe(draft: Draft, count: int) -> Descriptor:
    """Ask for a primitive split over `count` threads, or left to one if it is small; Refused where oneDNN has none, or
    has one that is wrong."""
    return DESCRIPTORS.get((draft, count), lambda: _without_defect(draft, count))


def _without_defect(draft: Draft, count: int) -> Descriptor:
    descriptor = described(draft, count)
    if (why := defect(draft, descriptor.implementation)) is not None:
        raise api.Refused(why)
    return descriptor


def _weight(draft: Draft) -> tuple[Any, ...]:
    """Return what the bytes of a primitive depend on most: its kind, and roughly its sizes."""
    return (draft.kind, *(tuple(n.bit_length() for n in o.memory.dims) for o in draft.operands))


def described(draft: Draft, count: int) -> Descriptor:
    """Return the descriptor as `describe` does, whatever oneDNN answers."""
    short = not worth_sharing(draft)
    count = 1 if short else count
    with threads(count):
        attributes = _attributes(draft.attributes)
        descriptor, held = weighed(("descriptor", *_weight(draft)), lambda: _create(draft, attributes.value))
        handle = Handle(descriptor, "primitive_desc_destroy")
    scratch = api.getter("primitive_desc_query_md")(handle.value, api.QUERY_EXEC_ARG, api.SCRATCHPAD)
    name = api.text(handle.value, api.QUERY_IMPL)
    return Descriptor(draft, handle, name, nbytes(scratch) if scratch else 0, count, short, [held])


@lru_cache(maxsize=256)
def _attributes(wanted: Attributes) -> Handle:
    attributes = Handle(api.create("primitive_attr_create"), "primitive_attr_destroy")
    api.function("primitive_attr_set_scratchpad_mode")(attributes.value, api.SCRATCHPAD_USER)
    api.function("primitive_attr_set_fpmath_mode")(attributes.value, api.MATH[wanted.math])
    for argument, mask in wanted.scales:
        api.function("primitive_attr_set_scales_mask")(attributes.value, argument, mask)
    for argument, mask in wanted.zero_points:
        api.function("primitive_attr_set_zero_points_mask")(attributes.value, argument, mask)
    if wanted.post:
        post = Handle(api.create("post_ops_create"), "post_ops_destroy")
        for p in wanted.post:
            if p.kind == "sum":
                api.function("post_ops_append_sum")(post.value, 1.0, 0, 0)
            elif p.other is not None:
                algorithm = api.ALGORITHMS[p.kind]
                api.function("post_ops_append_binary")(post.value, algorithm, p.other.handle.value)
            else:
                api.function("post_ops_append_eltwise")(post.value, api.ALGORITHMS[p.kind], p.alpha, p.beta)
        api.function("primitive_attr_set_post_ops")(attributes.value, post.value)
    return attributes


def _create(draft: Draft, attributes: int) -> int:
    """The primitive descriptor. Which arguments and settings a kind takes is written here and nowhere else."""
    m, s = draft.memory, draft.settings
    e, forward = api.engine(), api.FORWARD_INFERENCE
    args: tuple[Any, ...]
    match draft.kind:
        case "convolution_forward" | "deconvolution_forward":
            algorithm, *windows = s
            args = (e, forward, api.ALGORITHMS[algorithm], m(api.SRC), m(api.WEIGHTS), m(api.BIAS), m(api.DST),
                    *map(api.dims, windows))  # fmt: skip
        case "convolution_backward_data":
            algorithm, *windows = s
            args = (e, api.ALGORITHMS[algorithm], m(api.DIFF_SRC), m(api.WEIGHTS), m(api.DIFF_DST),
                    *map(api.dims, windows))  # fmt: skip
        case "convolution_backward_weights":
            algorithm, *windows = s
            args = (e, api.ALGORITHMS[algorithm], m(api.SRC), m(api.DIFF_WEIGHTS), None, m(api.DIFF_DST),
                    *map(api.dims, windows))  # fmt: skip
        case "pooling_forward" | "pooling_training":
            algorithm, *windows = s
            forward = api.FORWARD_TRAINING if draft.kind == "pooling_training" else forward
            args = (e, forward, api.ALGORITHMS[algorithm], m(api.SRC), m(api.DST), *map(api.dims, windows))
        case "pooling_backward":
            algorithm, *windows = s
            args = (e, api.ALGORITHMS[algorithm], m(api.DIFF_SRC), m(api.DIFF_DST), *map(api.dims, windows))
        case "matmul":
            args = (e, m(api.SRC), m(api.WEIGHTS), m(api.BIAS), m(api.DST))
        case "inner_product_forward":
            args = (e, forward, m(api.SRC), m(api.WEIGHTS), m(api.BIAS), m(api.DST))
        case "binary":
            args = (e, api.ALGORITHMS[s[0]], m(api.SRC), m(api.SRC_1), m(api.DST))
        case "eltwise_forward":
            args = (e, forward, api.ALGORITHMS[s[0]], m(api.SRC), m(api.DST), s[1], s[2])
        case "eltwise_backward":
            args = (e, api.ALGORITHMS[s[0]], m(api.DIFF_SRC), m(api.DIFF_DST), m(api.SRC) or m(api.DST), s[1], s[2])
        case "softmax_forward":
            args = (e, forward, api.ALGORITHMS[s[0]], m(api.SRC), m(api.DST), s[1])
        case "softmax_backward":
            args = (e, api.ALGORITHMS[s[0]], m(api.DIFF_SRC), m(api.DIFF_DST), m(api.DST), s[1])
        case "layer_normalization_forward":
            # with statistics as results it is the forward of training
            forward = api.FORWARD_TRAINING if m(api.MEAN) else forward
            args = (e, forward, m(api.SRC), m(api.DST), m(api.MEAN), *s)
        case "layer_normalization_backward":
            args = (e, api.BACKWARD, m(api.DIFF_SRC), m(api.DIFF_DST), m(api.SRC), m(api.MEAN), *s)
        case "batch_normalization_training":
            args = (e, api.FORWARD_TRAINING, m(api.SRC), m(api.DST), *s)
        case "batch_normalization_backward":
            args = (e, api.BACKWARD, m(api.DIFF_SRC), m(api.DIFF_DST), m(api.SRC), *s)
        case "reduction":
            args = (e, api.ALGORITHMS[s[0]], m(api.SRC), m(api.DST), *s[1:])
        case "resampling_forward":
            args = (e, forward, api.ALGORITHMS[s[0]], None, m(api.SRC), m(api.DST))
        case "lrn_forward":
            args = (e, forward, api.ALGORITHMS[s[0]], m(api.SRC), m(api.DST), *s[1:])
        case "prelu_forward":
            args = (e, forward, m(api.SRC), m(api.WEIGHTS), m(api.DST))
        case "concat":
            parts = [o.memory.handle.value for o in draft.operands if o.argument != api.DST]
            array = (ctypes.c_void_p * len(parts))(*parts)
            args = (e, m(api.DST), len(parts), s[0], array)
        case "sum":
            parts = [o.memory.handle.value for o in draft.operands if o.argument != api.DST]
            scales = (ctypes.c_float * len(parts))(*([s[0]] * len(parts)))
            args = (e, m(api.DST), len(parts), scales, (ctypes.c_void_p * len(parts))(*parts))
        case "reorder":
            args = (m(api.SRC), e, m(api.DST), e)
        case "lstm_forward":
            args = (e, forward, s[0], m(api.SRC), m(api.SRC_1), m(api.SRC_2), m(api.WEIGHTS), m(api.WEIGHTS_1),
                    m(api.WEIGHTS_2), None, m(api.BIAS), m(api.DST), m(api.DST_1), m(api.DST_2), 0)  # fmt: skip
        case "gru_forward" | "lbr_gru_forward" | "vanilla_rnn_forward":
            args = (m(api.SRC), m(api.SRC_1), m(api.WEIGHTS), m(api.WEIGHTS_1), m(api.BIAS), m(api.DST), m(api.DST_1),
                    0)  # fmt: skip
            if draft.kind == "vanilla_rnn_forward":
                args = (e, forward, api.ALGORITHMS[s[1]], s[0], *args, s[2], 0.0)
            else:
                args = (e, forward, s[0], *args)
        case other:
            raise AssertionError(f"no primitive is called {other}")
    if "_backward" in draft.kind:
        hint = _forward_of(draft)
        return api.create(draft.kind, *args, hint.value, attributes)
    return api.create(draft.kind.replace("_training", "_forward"), *args, attributes)


# What the arguments of a backward primitive are to the forward one, from which it is made.
FORWARD_ARGUMENTS = {api.DIFF_SRC: api.SRC, api.DIFF_DST: api.DST, api.DIFF_WEIGHTS: api.WEIGHTS}


def _forward_of(draft: Draft) -> Handle:
    """The primitive descriptor of which a backward one is the gradient."""
    kind = draft.kind.partition("_backward")[0]
    operands: dict[int, Operand] = {}
    for o in draft.operands:
        argument = FORWARD_ARGUMENTS.get(o.argument, o.argument)
        operands.setdefault(argument, replace(o, argument=argument))
    ending = "_training" if kind in ("pooling", "batch_normalization") else "_forward"
    forward = Draft(kind + ending, tuple(operands.values()), draft.settings)
    attributes = _attributes(Attributes())
    return Handle(_create(forward, attributes.value), "primitive_desc_destroy")


class Execution(partial[int]):
    """A primitive bound to its buffers; calling it runs it and returns oneDNN's status, 0 for success. `needed` has the
    bytes that it accesses at each place; `rows` are the same call for machine code, `short` is true if it takes
    microseconds."""

    memories: Mapping[Place, Sequence[Handle]]
    needed: Mapping[Place, int]
    threads: int = 1
    asks: bool = True  # OpenMP for its threads when it runs, whatever it was made for
    short: bool = False
    rows: tuple[Row, ...]
    table: array[int]
    kept: tuple[Any, ...]

    @classmethod
    def of(cls, primitive: Handle, memories: Sequence[tuple[int, int]], short: bool = False) -> Execution:
        """Return the call of a primitive with these memories, each behind the number of its argument."""
        table = api.arguments(memories)
        words = (primitive.value, len(memories), table.buffer_info()[0])
        call = cls(*api.execution(*words, short))
        call.short, call.rows, call.table = short, (api.native_execution(*words),), table
        return call

    def rebind(self, place: Place, array: Array) -> None:
        """Let every argument at this place read or write another array of the same type; PlanError if it is shorter."""
        memories = self.memories.get(place)
        if memories:
            if self.needed[place] > array.nbytes:
                raise too_short(place, array, self.needed[place])
            for memory in memories:
                api.function("memory_set_data_handle")(memory.value, address(array))

    def forget(self, place: Place) -> None:
        """Let `rebind` leave this place alone: the call has an array of its own there."""
        self.kept = (*self.kept, self.memories)
        self.memories = {p: m for p, m in self.memories.items() if p != place}


class Summing:
    """A primitive that adds to the content of its result. The plan puts the operand there if it can; else the operand
    is copied first."""

    def __init__(self, call: Execution, source: Place, arrays: Mapping[Place, Array]) -> None:
        self._call, self._source, self.threads = call, source, call.threads
        self._ends = {p: arrays[p].reshape(-1).view(np.uint8) for p in (source, ("out", 0))}

    def __call__(self) -> int:
        np.copyto(self._ends["out", 0], self._ends[self._source])
        return self._call()

    def rebind(self, place: Place, array: Array) -> None:
        """Let the operand or the result be another array of the same type."""
        if place in self._ends:
            self._ends[place] = array.reshape(-1).view(np.uint8)
        self._call.rebind(place, array)

    def forget(self, place: Place) -> None:
        """See Execution."""
        self._call.forget(place)


def address(array: Array) -> int:
    """Return the address of an array."""
    return int(array.__array_interface__["data"][0])


def checked_bytes(described: int, array: Array, place: Place) -> int:
    """The bytes from the beginning of an array that a primitive touches; PlanError where it does not have so many. It
    may be a part of a larger array, so that its rows lie apart."""
    needed, held = nbytes(described), int(array.nbytes)
    if array.size and not array.flags.c_contiguous:  # also one whose elements are all at one place
        held = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
    if needed > held:
        needed = extent(described)
        if needed > held:
            raise too_short(place, array, needed)
    return needed


def too_short(place: Place, array: Array, needed: int) -> PlanError:
    """The error for an array behind whose end a primitive would read or write."""
    return PlanError(f"{place[0]} {place[1]} has {array.nbytes} bytes, and oneDNN would touch {needed}")


class Memories:
    """The memories of calls whose buffers stay where they are: one for each descriptor and address."""

    __slots__ = ("_begins", "_handles")

    def __init__(self) -> None:
        self._handles: dict[tuple[int, int], Handle] = {}
        self._begins: dict[int, tuple[int, Array]] = {}  # addresses by the identity of arrays, which stay alive

    def of(self, parameter: Parameter, array: Array) -> Handle:
        """The memory of an argument over this array."""
        begins = self._begins.get(id(array))
        if begins is None:
            begins = self._begins[id(array)] = address(array), array
        key = parameter.described, begins[0]
        memory = self._handles.get(key)
        if memory is None:
            memory = self._handles[key] = parameter.memory(begins[0])
        return memory


Bound = Execution | Summing


def bind(
    descriptor: Descriptor,
    arrays: Mapping[Place, Array],
    scratch: Array | None,
    memories: Memories | None = None,
) -> Bound:
    """The call of a primitive over these buffers, with `memories` that it shares with others; None: of its own."""
    primitive, parameters = descriptor.primitive, descriptor.parameters
    values = {p.place: _constant(p.value) for p in parameters if p.value}
    arrays = {**arrays, **values}
    if scratch is not None:
        arrays[SCRATCH] = scratch
    at: dict[Place, list[Handle]] = {}
    needed: dict[Place, int] = {}
    pairs: list[tuple[int, int]] = []
    for parameter in parameters:
        place, touched = parameter.place, parameter.needed
        array = arrays[place]
        if touched > array.nbytes or not array.flags.c_contiguous:
            parent = parameter.parent
            touched = checked_bytes(parent.value if parent else parameter.described, array, place)
        memory = parameter.memory(address(array)) if memories is None else memories.of(parameter, array)
        at.setdefault(place, []).append(memory)
        needed[place] = max(needed.get(place, 0), touched)
        pairs.append((parameter.number, memory.value))
    call = Execution.of(primitive, pairs, descriptor.short)
    call.memories, call.needed, call.kept = at, needed, (primitive, descriptor, values)
    call.threads, call.asks = descriptor.threads, descriptor.draft.kind not in PRODUCTS
    summed = descriptor.draft.summed
    if summed is not None and address(arrays[summed]) != address(arrays["out", 0]):
        return Summing(call, summed, arrays)
    return call


def _constant(value: bytes) -> Array:
    """An array of a value that the draft itself holds."""
    array = aligned_empty(len(value))
    array[...] = np.frombuffer(value, np.uint8)
    return array


def repacked(array: Array, source: Memory, target: int) -> Array:
    """The bytes of a contiguous array that `source` describes, in the layout that a descriptor has."""
    packed = aligned_empty(nbytes(target))
    if status := reordering((source.handle.value, array), (target, packed))():
        raise failed(status)
    return packed


def reorder(source: int, target: int) -> Handle:
    """The primitive descriptor of a copy between two descriptors; Refused where oneDNN has none."""
    e, attributes = api.engine(), _attributes(Attributes())
    return Handle(api.create("reorder", source, e, target, e, attributes.value), "primitive_desc_destroy")


def reordering(source: tuple[int, Array], target: tuple[int, Array]) -> Execution:
    """The call that copies one array into another of the same elements; each beside its descriptor. They are
    ("in", 0) and ("out", 0) of the call."""
    ends = {("in", 0): source, ("out", 0): target}
    needed = {place: checked_bytes(*end, place) for place, end in ends.items()}
    e, handle = api.engine(), reorder(source[0], target[0])
    held = api.getter("primitive_desc_query_md")(handle.value, api.QUERY_EXEC_ARG, api.SCRATCHPAD)
    workspace = aligned_empty(nbytes(held) if held else 0)
    primitive = Handle(api.create("primitive_create", handle.value), "primitive_destroy")
    sides = [(api.SRC, *source), (api.DST, *target)]
    sides += [(api.SCRATCHPAD, held, workspace)] if workspace.size else []
    memories = [Handle(api.create("memory_create", d, e, address(a)), "memory_destroy") for _, d, a in sides]
    call = Execution.of(primitive, [(s[0], m.value) for s, m in zip(sides, memories, strict=True)])
    call.memories = {("in", 0): memories[:1], ("out", 0): memories[1:2], SCRATCH: memories[2:]}
    call.needed = needed
    call.kept = (primitive, handle, workspace)
    return call
