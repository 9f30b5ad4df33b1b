"""The calls of a layer, prepared once and run step by step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from .....ops import DType
from .....ops.dataclasses import dataclass
from .....ops.types import Array
from ....compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest
from ....ir.graph import Node
from ....memory.liveness import aligned
from .. import api
from ..api import WEIGHTS, Refused
from ..invalid import keeping_flag
from ..kernel import unavailable
from ..library import threads
from ..memory import Memory, nbytes
from ..primitive import Descriptor, Draft, Execution, address, bind, describe, reordering
from .layer import Layer, Space, layer_of, matrix

ONE = np.float32(1)
SHARED = 1 << 18  # elements from which on several threads copy them
Do = Callable[[], Any]  # a prepared call; oneDNN's answer with a status, NumPy's with their result


def done(calls: Sequence[Do]) -> int:
    """Calls one after the other; answers with the first bad status."""
    for call in calls:
        status = call()
        if status.__class__ is int and status:
            return int(status)
    return 0


def alone(calls: Sequence[Do]) -> int:
    """The same by one thread: on arrays of a span of steps a second one takes longer to wake than it saves."""
    with threads(1):
        return done(calls)


@dataclass(frozen=True, slots=True)
class RecurrentPlan:
    """The products of a layer and its workspace, by name."""

    layer: Layer
    products: Mapping[str, Descriptor]
    needs: Mapping[str, Space]

    @property
    def nbytes(self) -> int:
        return sum(aligned(dtype.itemsize * math.prod(shape)) for dtype, shape in self.needs.values())


@dataclass(frozen=True, slots=True)
class Stepwise:
    """The kernel of an operator of domain `mezzo`, for a kind of `Run`."""

    name: str
    op: str
    run: type[Run]

    def serves(self, node: Node) -> bool:
        return (node.domain, node.op) == ("mezzo", self.op)

    def select(self, request: KernelRequest) -> Choice | Declined:
        if (why := unavailable(request)) is not None:
            return Declined(why)
        try:
            layer = layer_of(request)
            drafts = self.run.drafts(layer)
            plan = self.run.plan(layer, drafts)
        except Refused as error:
            return Declined(str(error))
        names = dict.fromkeys(d.implementation for d in plan.products.values())
        return Choice(
            self.name,
            {"products": tuple(drafts)},
            workspace=plan.nbytes,
            implementation=", ".join(names),
            primitives=tuple(drafts.values()),
        )

    def prepare(self, args: KernelArgs) -> Call:
        drafts = dict(zip(args.choice.params["products"], args.choice.primitives, strict=True))
        return self.run(self.run.plan(layer_of(args.request), drafts), args)


class Run(ABC):
    """The calls of one layer; `rebind` prepares them again if more than its input moves.

    A kind says which products it needs (`drafts`), which of their weights are laid out (`packs`: by the name of the
    laid-out ones that of the product, if there is one), its further workspace (`needs`), and what is called for each
    direction (`way`).
    """

    packs: ClassVar[Mapping[str, str]] = {}
    _begin: int  # where the input lies, and the memories that lie so far behind
    _of_input: list[tuple[int, int]]

    @classmethod
    @abstractmethod
    def drafts(cls, layer: Layer) -> Mapping[str, Draft]: ...

    @classmethod
    @abstractmethod
    def needs(cls, layer: Layer) -> Mapping[str, Space]: ...

    @abstractmethod
    def way(self, d: int) -> Sequence[Do]:
        """Return all calls of a direction, in order."""

    @classmethod
    def plan(cls, layer: Layer, drafts: Mapping[str, Draft]) -> RecurrentPlan:
        """The layer with these products. Refused where oneDNN has no fast one of a kind."""
        descriptors = {name: describe(draft, layer.threads) for name, draft in drafts.items()}
        for d in descriptors.values():
            if d.implementation.startswith("ref"):
                raise Refused(f"only {d.implementation} would do")
        sizes = {
            packed: nbytes(descriptors[name].memory(WEIGHTS))
            for packed, name in cls.packs.items()
            if name in descriptors
        }
        sizes["scratch"] = max(d.scratch for d in descriptors.values())
        held: dict[str, Space] = {name: (DType.UINT8, (n,)) for name, n in sizes.items() if n}
        return RecurrentPlan(layer, descriptors, {**held, **cls.needs(layer)})

    def __init__(self, plan: RecurrentPlan, args: KernelArgs) -> None:
        self.layer, self._products = plan.layer, plan.products
        self.space: dict[str, Any] = {n: args.scratch(dtype, shape) for n, (dtype, shape) in plan.needs.items()}
        record = args.node.record
        self._names = {"in": [p.name for p in record.inputs], "out": [p.name for p in record.outputs]}
        self.arrays: dict[str, Any] = dict.fromkeys((*self._names["in"], *self._names["out"]))
        self.arrays |= zip(self._names["in"], args.inputs, strict=False)
        self.arrays |= zip(self._names["out"], args.outputs, strict=False)
        shape = plan.layer.step()[1]
        self.zeros: Any = np.zeros(shape, plan.layer.dtype.numpy)  # the state before the first step where none is given
        self._run = keeping_flag(lambda: done(self.calls), args.request.target)
        self._build()

    def rebind(self, place: tuple[str, int], array: Array) -> None:
        """Let an operand or a result be another array."""
        side, i = place
        self.arrays[self._names[side][i]] = array
        if place != ("in", 0):
            return self._build()
        begin = address(array)
        if begin != self._begin:
            self._begin = begin
            for memory, offset in self._of_input:
                api.function("memory_set_data_handle")(memory, begin + offset)

    def _build(self) -> None:
        # the products with these steps of the input, as `a` or `b`
        self.of_input: list[tuple[Execution, str, int | slice]] = []
        self.calls = [call for d in range(len(self.layer.backwards)) for call in self.way(d)]
        self._begin = address(self.arrays["X"])
        self._of_input = [
            (memory.value, address(self.arrays["X"][t]) - self._begin)
            for call, operand, t in self.of_input
            for memory in call.memories[operand, 0]
        ]

    def __call__(self) -> int:
        return int(self._run())

    def call(self, name: str, a: Any, b: Any, out: Any, **others: Any) -> Execution:
        """A product over these arrays."""
        arrays = {"a": a, "b": b, "out": out, "held": out, **others}
        execution = bind(self._products[name], {(n, 0): x for n, x in arrays.items()}, self.space.get("scratch"))
        assert isinstance(execution, Execution)
        return execution

    def lay(self, packed: str, weights: Any, *, turned: bool = False) -> Do:
        """Lays weights out as their product reads them: the transposed ones if they are turned."""
        rows, columns = weights.shape
        shape = (columns, rows) if turned else (rows, columns)
        source = matrix(*shape, self.layer.dtype, turned=turned).handle.value
        target = self._products[self.packs[packed]].memory(WEIGHTS)
        with threads(self.layer.threads):
            return reordering((source, weights), (target, self.space[packed]))

    def move(self, source: Any, target: Any) -> Do:
        """Copies an array into one of another float type."""
        sides = [(_seen(x).handle.value, x) for x in (source, target)]
        with threads(self.layer.threads if source.size > SHARED else 1):
            return reordering(*sides)

    def array(self, name: str, d: int) -> Any:
        """Return one direction of an operand or a result, None if it is absent."""
        return None if self.arrays[name] is None else self.arrays[name][d]

    def state(self, name: str, d: int) -> Any:
        """The state before the first step, as it is given or zero."""
        x = self.array(name, d)
        return self.zeros if x is None else x


def _seen(x: Any) -> Memory:
    """An array, maybe a part of a larger one, as oneDNN sees it."""
    return Memory(x.shape, DType.of(x.dtype), strides=tuple(s // x.itemsize for s in x.strides))


def gate_after_gate(x: Any, count: int) -> Any:
    """Gates that lie beside each other, in front of all other axes."""
    return np.moveaxis(x.reshape(*x.shape[:-1], count, -1), -2, 0)


def copied(target: Any, source: Any) -> Do:
    """Copies an array, or a number, into another, whatever their types."""
    return partial(np.copyto, target, source, casting="unsafe")
