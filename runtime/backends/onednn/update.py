"""Optimizer steps by oneDNN: chains of binary primitives over blocks of the tensors.

Sums, products, quotients and roots are rounded alike everywhere, and nothing is contracted in these chains, so that the
results are those of `numpy.update` to the last bit: it makes what is left of a tensor behind whole blocks here, and it
steps the values of a store (kvstore/updater.py).

https://oneapi-src.github.io/oneDNN/dev_guide_binary.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....ops import DType
from ....ops.core.evaluate import Blocks, Steps
from ....ops.core.lowered import Lowered
from ....ops.dataclasses import dataclass
from ....ops.training.update import steps_of
from ....ops.types import Array
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, tensors
from ...ir.graph import Node
from ...memory.liveness import aligned
from ..cpu.update import BLOCK as MOST
from ..cpu.update import Update, flat
from . import api
from .kernel import REFERENCE, chosen, unavailable
from .library import threads
from .memory import Handle, Memory
from .primitive import (
    SCRATCH,
    Attributes,
    Descriptor,
    Draft,
    Execution,
    Memories,
    Operand,
    Parameter,
    Place,
    PostOp,
    address,
    bind,
    describe,
)

BLOCK = 1 << 17  # elements: fewer calls for each of them; two threads have them in their second-level caches in part
LINE = 16  # elements of a line of the caches: blocks begin with one
FEW = 1 << 14  # elements that NumPy steps as fast
Post = tuple[str, int | None]
Link = tuple[str, int, int, list[Post]]
ONE, MINUS = -1, -2  # the numbers 1 and -1, among the numbers of values
BINARY = {"add", "sub", "mul", "div"}


@dataclass(frozen=True, slots=True)
class UpdateChain:
    """A binary primitive over two values, and its post-ops: a binary kind with another value, or `sqrt` with none.
    `end` is the value that is written, `target` its place."""

    kind: str
    a: int
    b: int
    post: tuple[Post, ...]
    end: int
    target: Place


def chains(code: Lowered, states: int) -> tuple[tuple[UpdateChain, ...], int]:
    """The chains that do what the instructions of `code` do, in their order, and how many temporaries they need. An
    instruction goes on with the chain that makes one of its operands, where nobody else reads that. Refused for other
    operators.
    """
    inputs = len(code.inputs)
    uses = Counter(
        a for i, instruction in enumerate(code.code) if not code.scalar[inputs + i] for a in instruction.args
    )
    uses.update(code.roots)
    links: dict[int, Link] = {}  # by the value that it ends in so far

    def goes_on(value: int) -> bool:
        return value in links and uses[value] == 1

    for me, instruction in enumerate(code.code, inputs):
        if code.scalar[me]:
            continue
        if instruction.dtype is not DType.FLOAT or instruction.kind not in {*BINARY, "sqrt"}:
            raise api.Refused(f"{instruction.kind} of {instruction.dtype} is no link of a chain")
        a, b = (instruction.args[0], instruction.args[0]) if instruction.kind == "sqrt" else instruction.args
        link: Link
        if instruction.kind == "sqrt":
            link = links.pop(a) if goes_on(a) else ("mul", a, ONE, [])
            link[3].append(("sqrt", None))
        elif goes_on(a):
            link = links.pop(a)
            link[3].append((instruction.kind, b))
        elif goes_on(b) and instruction.kind != "div":
            link = links.pop(b)
            link[3].extend([("mul", MINUS), ("add", a)] if instruction.kind == "sub" else [(instruction.kind, a)])
        elif not code.scalar[a]:
            link = (instruction.kind, a, b, [])
        elif instruction.kind == "div":
            raise api.Refused("a number is divided by a tensor")
        else:
            link = ("mul", b, MINUS, [("add", a)]) if instruction.kind == "sub" else (instruction.kind, b, a, [])
        links[me] = link
    return _placed(code, states, links)


def _placed(code: Lowered, states: int, links: Mapping[int, Link]) -> tuple[tuple[UpdateChain, ...], int]:
    """Chains with the places of what they write: over a tensor or a state only if no later one reads it."""
    if any(root not in links for root in code.roots) or len(set(code.roots)) < len(code.roots):
        raise api.Refused("a result is an operand, or two results are the same")
    inputs = len(code.inputs)
    old = [0, *range(inputs - states, inputs)]  # what the outputs may be written over
    reads = {end: {a, b, *(v for _, v in post)} for end, (_, a, b, post) in links.items()}
    last = {v: end for end, values in reads.items() for v in values}
    busy: list[int] = []  # the last chain that reads each temporary
    placed: list[UpdateChain] = []
    for end, (kind, a, b, post) in links.items():
        if end in code.roots:
            output = code.roots.index(end)
            if last.get(old[output], end) > end:
                raise api.Refused("a state is read after its next value is known")
            target = ("out", output)
        else:
            t = next((t for t, reader in enumerate(busy) if reader < end), len(busy))
            busy[t : t + 1] = [last[end]]
            target = ("temporary", t)
        placed.append(UpdateChain(kind, a, b, tuple(post), end, target))
    return tuple(placed), len(busy)


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """An update: its steps, its chains, the number of temporaries, and the elements of a block."""

    steps: Steps
    chains: tuple[UpdateChain, ...]
    temporaries: int
    block: int

    def drafts(self, inputs: int) -> tuple[Draft, ...]:
        """The primitives of the chains, for a block."""
        places = {i: ("in", i) for i in range(inputs)} | {c.end: c.target for c in self.chains}
        return tuple(_draft(self.steps.code, c, places, self.block) for c in self.chains)


def plan(node: Node, dtypes: Sequence[DType], size: int) -> UpdatePlan:
    """The update that a step on tensors of `size` elements is; Refused where it is no sequence of chains."""
    steps = steps_of(tuple(dtypes), **node.attrs)
    chained, temporaries = chains(steps.code, node.attrs.get("states", 0))
    return UpdatePlan(steps, chained, temporaries, max(size // -(-size // BLOCK) & -LINE, 1))


def _row(count: int) -> Memory:
    return Memory((1, count), DType.FLOAT, strides=(count, 1))


def _draft(code: Lowered, chain: UpdateChain, places: Mapping[int, Place], block: int) -> Draft:
    def at(value: int) -> tuple[Place, Memory]:
        number = value < 0 or code.scalar[value]
        return (("number", value) if number else places[value]), _row(1 if number else block)

    def post(kind: str, value: int | None) -> PostOp:
        if value is None:
            return PostOp(f"eltwise_{kind}")
        place, memory = at(value)
        return PostOp(f"binary_{kind}", other=memory, place=place)

    operands = [Operand(argument, *at(value)) for argument, value in ((api.SRC, chain.a), (api.SRC_1, chain.b))]
    operands.append(Operand(api.DST, chain.target, _row(block)))
    return Draft("binary", tuple(operands), (f"binary_{chain.kind}",), Attributes(tuple(post(*p) for p in chain.post)))


class ChainedUpdate(Update):
    """Optimizer steps on blocks of the tensors by oneDNN, the remainder by NumPy; results overwrite W and its
    states."""

    name = "onednn.update"

    def select(self, request: KernelRequest) -> Choice | Declined:
        if (why := unavailable(request)) is not None:
            return Declined(why)
        choice = super().select(request)
        if isinstance(choice, Declined):
            return choice
        inputs = tensors(request.inputs)
        assert inputs is not None
        size = inputs[0].elements or 0
        if size < FEW:
            return Declined(f"there are fewer than {FEW} elements")
        try:
            planned = plan(request.node, [t.dtype for t in inputs], size)
            descriptors = [describe(draft, request.target.threads) for draft in planned.drafts(len(inputs))]
        except api.Refused as error:
            return Declined(str(error))
        slow = [d.implementation for d in descriptors if d.implementation.startswith(REFERENCE)]
        if slow:
            return Declined(f"only {slow[0]} would do")
        held = planned.temporaries * aligned(planned.block * DType.FLOAT.itemsize)
        return Choice(
            self.name,
            workspace=held + aligned(max(d.scratch for d in descriptors)) + choice.workspace,
            aliases=choice.aliases,
            implementation=", ".join(dict.fromkeys(d.implementation for d in descriptors)),
            primitives=tuple(d.draft for d in descriptors),
        )

    def prepare(self, args: KernelArgs) -> Call:
        inputs = [a for a in args.inputs if a is not None]
        planned = plan(args.node, [DType.of(a.dtype) for a in inputs], inputs[0].size)
        return _Pieces(planned, chosen(args.choice, args.request.target), args)


class _Moving(Memories):
    """The memories of calls that see each place alike, so that all of them move when it does."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[Place, Handle] = {}

    def of(self, parameter: Parameter, array: Array) -> Handle:
        if parameter.place == SCRATCH:
            return super().of(parameter, array)
        memory = self.at.get(parameter.place)
        if memory is None:
            memory = self.at[parameter.place] = parameter.memory(address(array))
        return memory


class _Pieces:
    """The chains of a block, which move from block to block, and NumPy's blocks for the remainder."""

    def __init__(self, planned: UpdatePlan, descriptors: Sequence[Descriptor], args: KernelArgs) -> None:
        self._plan, self._threads = planned, args.request.target.threads
        self._xs: list[Any] = [*args.inputs]
        self._outs = [y.reshape(-1) for y in args.outputs if y is not None]
        code, block = planned.steps.code, planned.block
        used = {v for c in planned.chains for v in (c.a, c.b, *(v for _, v in c.post))} - {None}
        values = [v for v in used if v is not None and (v < 0 or code.scalar[v])]
        self._numbers = {v: np.full(1, {ONE: 1, MINUS: -1}.get(v, 0), np.float32) for v in values}
        arrays: dict[Place, Array] = {("number", v): x for v, x in self._numbers.items()}
        arrays |= {("temporary", t): args.scratch(DType.FLOAT, (block,)) for t in range(planned.temporaries)}
        self._tensors = {("in", i): i for i in range(len(self._xs)) if not code.scalar[i]}
        arrays |= {place: self._xs[i].reshape(-1) for place, i in self._tensors.items()}
        arrays |= {("out", o): y for o, y in enumerate(self._outs)}
        scratch = args.scratch(DType.UINT8, (n,)) if (n := max(d.scratch for d in descriptors)) else None
        self._memories = _Moving()
        self._calls: list[Execution] = []
        for d in descriptors:
            call = bind(d, arrays, scratch, self._memories)
            assert isinstance(call, Execution)
            self._calls.append(call)
        size = self._outs[0].size
        self._starts = range(0, size - block + 1, block)
        self._remainder = size % block
        self._temps = [args.scratch(d, (min(self._remainder, MOST),)) for d in code.temps]
        self._aim()

    def rebind(self, place: tuple[str, int], array: Array) -> None:
        """Let an operand or a result be another array of its type."""
        if place[0] == "in":
            self._xs[place[1]] = array
        else:
            self._outs[place[1]] = array.reshape(-1)
        self._aim()

    def _aim(self) -> None:
        """Note where the arrays begin, and which part of them NumPy steps."""
        steps, remainder = self._plan.steps, self._remainder
        arrays = {place: self._xs[i] for place, i in self._tensors.items()}
        arrays |= {("out", o): y for o, y in enumerate(self._outs)}
        memories = self._memories.at
        begins = [(memories[p].value, address(x)) for p, x in arrays.items() if p in memories]
        moves = [[(memory, at + start * 4) for memory, at in begins] for start in self._starts]
        self._moves = moves if len(moves) > 1 else [[]]
        for memory, at in moves[0]:
            api.function("memory_set_data_handle")(memory, at)
        tail = slice(self._outs[0].size - remainder, None)
        inputs = [x if s else x[tail] for x, s in zip(flat(steps.code, self._xs), steps.code.scalar, strict=False)]
        self._blocks = Blocks(steps, inputs, [y[tail] for y in self._outs], self._temps, MOST)

    def __call__(self) -> int:
        values = self._blocks.numbers()
        for v, held in self._numbers.items():
            if v >= 0:
                held[0] = values[v]
        move, calls = api.function("memory_set_data_handle"), self._calls
        with threads(self._threads):  # these primitives read their number when they run
            for moves in self._moves:
                for memory, at in moves:
                    move(memory, at)
                for call in calls:
                    if status := call():
                        return int(status)
        if self._remainder:
            self._blocks.each_block()
        return 0
