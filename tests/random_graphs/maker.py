"""A graph that grows node by node, each run as it is added, so that the next one fits the numbers that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mezzo.ops import Body, DType, Tensor, Type
from mezzo.ops.errors import MezzoError
from mezzo.ops.types import type_of
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node, check_arity

from .oracle import Worlds

Array = np.ndarray[Any, Any]
SIZES = (1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8, 8, 12, 15, 16, 16, 17, 24, 31, 32, 32, 33)
CHANNELS = (1, 2, 3, 4, 5, 6, 8, 8, 12, 15, 16, 16, 16, 17, 24, 32, 32, 33)
BATCHES = (1, 1, 1, 2, 2, 3, 3, 4, 5, 8)
ELEMENTS = 1 << 12  # of one value at most; weights may have four times as many
LARGEST = 300.0  # no value is larger: what is computed from it stays well within a narrow float
SMALLEST = 1e-5  # of the largest element, where there is any but 0
CONDITION = 1e-3  # how far the worlds of a value may part, of its largest element


class Unfit(Exception):
    """A step that cannot stand here: nothing is added."""


@dataclass(frozen=True)
class Case:
    """A graph, what it is fed, and the seed that both come from."""

    seed: int
    graph: Graph
    feeds: dict[str, Any]
    batched: tuple[str, ...] = ()  # inputs whose first dim is the batch
    worlds: Worlds | None = field(default=None, compare=False, repr=False)  # as they were while it was made


@dataclass
class Maker:
    """What has been made so far. `rng` is all that chance there is."""

    seed: int
    rng: np.random.Generator
    batch: int
    prefix: str = ""  # of every name
    nodes: list[Node] = field(default_factory=list[Node])
    types: dict[str, Type] = field(default_factory=dict[str, Type])
    inputs: list[str] = field(default_factory=list[str])
    batched: list[str] = field(default_factory=list[str])
    feeds: dict[str, Any] = field(default_factory=dict[str, Any])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    made: list[str] = field(default_factory=list[str])  # values that nodes make, in order

    def __post_init__(self) -> None:
        self.worlds = Worlds(seed=self.seed)
        self._count = 0

    # -- chance -----------------------------------------------------------------------------------------------------

    def chance(self, of: float) -> bool:
        return bool(self.rng.random() < of)

    def one(self, options: Sequence[Any]) -> Any:
        if not len(options):
            raise Unfit("there is nothing to choose from")
        return options[int(self.rng.integers(len(options)))]

    def size(self) -> int:
        return int(self.one(SIZES))

    def dims(self, rank: int, most: int = ELEMENTS) -> tuple[int, ...]:
        """Sizes of a tensor; rarely one of them is 0, often one is 1."""
        found = [self.size() for _ in range(rank)]
        if rank and self.chance(0.01):
            found[int(self.rng.integers(rank))] = 0
        while prod(found) > most:
            largest = found.index(max(found))
            found[largest] = max(1, found[largest] // 2)
        return tuple(found)

    # -- values -----------------------------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{self.prefix}{stem}{self._count - 1}"

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.worlds.exact[name].shape)

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def dtype(self, name: str) -> DType:
        known = self.types[name]
        assert isinstance(known, Tensor)
        return known.dtype

    def exact(self, name: str) -> Any:
        return self.worlds.exact[name]

    def const(self, value: Any, dtype: DType = DType.FLOAT) -> str:
        name, array = self.fresh("c"), np.asarray(value, dtype.numpy)
        self.constants[name], self.types[name] = array, type_of(array, known=True)
        self.worlds.give(name, array)
        return name

    def ints(self, values: Sequence[int]) -> str:
        return self.const(np.asarray(list(values), np.int64), DType.INT64)

    def input(self, value: Any, *, batched: bool = False) -> str:
        """An input with what it is fed."""
        name, array = self.fresh("x"), np.asarray(value)
        self.inputs.append(name)
        if batched:
            self.batched.append(name)
        self.types[name] = Tensor(DType.of(array.dtype), array.shape)
        self.feeds[name] = array
        self.worlds.give(name, array)
        return name

    def numbers(self, shape: Sequence[int], spread: float = 1.0) -> Array:
        """Floats of either sign, none of them tiny: a value at an edge says nothing."""
        size = self.rng.uniform(0.1, 1.7, tuple(shape)) * self.rng.choice((-1, 1), tuple(shape))
        made: Array = (spread * size).astype(np.float32)
        return made

    def new(self, rank: int | None = None) -> str:
        """A further input of float32."""
        rank = int(self.one((0, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5))) if rank is None else rank
        dims = self.dims(rank)
        if rank and self.batch:
            dims = (self.batch, *self.dims(rank - 1, max(1, ELEMENTS // self.batch)))
        return self.input(self.numbers(dims), batched=bool(rank and self.batch))

    def weight(self, *shape: int, fan: int = 1) -> str:
        """Numbers that are learnt: a constant mostly, else an input or a value that happens to fit."""
        if prod(shape) > 4 * ELEMENTS:
            raise Unfit("a large weight")
        array = self.numbers(shape, max(1, fan) ** -0.5)
        return self.input(array) if self.chance(0.08) else self.const(array)

    def positive(self, *shape: int) -> str:
        return self.const(self.rng.uniform(0.5, 2.0, shape))

    def known(self) -> list[str]:
        return [*self.inputs, *self.made]

    def pick(self, fits: Callable[[str], bool] = lambda _: True, dtype: DType | None = DType.FLOAT) -> str:
        """A value to go on from, late ones sooner than early ones; Unfit where none fits."""
        names = [n for n in self.known() if self._tensor(n, dtype) and fits(n)]
        if not names:
            raise Unfit("no such value")
        at = len(names) - 1 - min(int(self.rng.geometric(0.45)) - 1, len(names) - 1)
        return names[at if self.chance(0.85) else int(self.rng.integers(len(names)))]

    def _tensor(self, name: str, dtype: DType | None) -> bool:
        known = self.types[name]
        return isinstance(known, Tensor) and known.dtype is not DType.STRING and (dtype is None or known.dtype is dtype)

    def ranked(self, *ranks: int) -> str:
        """A value of one of these ranks that has elements: one that is there, or made so, or a new input."""
        fits = [
            n for n in self.known() if self._tensor(n, DType.FLOAT) and self.rank(n) in ranks and 0 not in self.shape(n)
        ]
        if fits and self.chance(0.9):
            return self.pick(lambda n: n in fits)
        if self.chance(0.5):
            return self.as_rank(self.pick(lambda n: 0 not in self.shape(n)), int(self.one(ranks)))
        return self.new(int(self.one(ranks)))

    def as_rank(self, x: str, rank: int) -> str:
        """The value reshaped to a rank: unit dims are added, or dims run together."""
        shape = self.shape(x)
        if len(shape) == rank:
            return x
        if len(shape) < rank:
            axes = sorted(self.rng.permutation(rank)[: rank - len(shape)].tolist())
            return self.add("Unsqueeze", x, self.ints(axes))
        if rank == 0:
            raise Unfit("a scalar is no reshape of it")
        at = int(self.rng.integers(rank))
        gone = len(shape) - rank
        target = [*shape[:at], prod(shape[at : at + gone + 1]), *shape[at + gone + 1 :]]
        return self.add("Reshape", x, self.ints([0 if i < at else -1 if i == at else n for i, n in enumerate(target)]))

    # -- nodes ------------------------------------------------------------------------------------------------------

    def add(self, op: str, *inputs: str | None, domain: str = "", **attrs: Any) -> str:
        return self.several(op, *inputs, domain=domain, outputs=1, **attrs)[0]

    def several(
        self, op: str, *inputs: str | None, domain: str = "", outputs: int | Sequence[bool] = 1, **attrs: Any
    ) -> tuple[str, ...]:
        """Add a node; Unfit where its operands or its results are none to go on with. `outputs` is how many are asked
        for, or which."""
        stem = self.fresh("v")
        wanted = (True,) * outputs if isinstance(outputs, int) else tuple(outputs)
        names = tuple((f"{stem}.{i}" if i else stem) if w else "" for i, w in enumerate(wanted))
        values = {a: tuple(v) if isinstance(v, list) else v for a, v in attrs.items()}
        values = {a: _body(f"{stem}/{a}/", v) if isinstance(v, Body) else v for a, v in values.items()}
        ins = tuple(i or "" for i in inputs)
        while ins and not ins[-1]:
            ins = ins[:-1]
        node = Node(op, ins, names, values, domain, name=stem)
        try:
            check_arity(node)
            types = self._types(node, wanted)
            found = self.worlds.step(node, [getattr(t, "dtype", None) for t in types])
        except (
            MezzoError,
            ValueError,
            IndexError,
            TypeError,
            AssertionError,
            ZeroDivisionError,
            OverflowError,
        ) as error:
            raise Unfit(f"{op}: {error}") from error
        if not types:
            types = [_type_of(f) for f in found[: len(wanted)]]
        for name, made in zip(names, found, strict=False):
            if name:
                self._check(name, made)
        self.nodes.append(node)
        for name, known, made in zip(names, types, found, strict=False):
            if name:
                if isinstance(known, Tensor) and isinstance(made, np.ndarray):
                    known = known.of(made.shape).forget()
                self.types[name] = known
                self.made.append(name)
        return names

    def _types(self, node: Node, wanted: tuple[bool, ...]) -> list[Type]:
        if node.bodies:
            return []
        given = [self.types[i] if i else None for i in node.inputs]
        return list(node.record.infer_types(given, node.attrs, wanted))

    def _check(self, name: str, made: Any) -> None:
        """Unfit where a value is too large, infinite, or hangs on rounding."""
        if not isinstance(made, np.ndarray):
            if isinstance(made, list) and self.worlds.deviation(name) < CONDITION:
                return
            raise Unfit("no tensor")
        if made.size > ELEMENTS:
            raise Unfit("too many elements")
        largest = 0.0
        if made.dtype.kind == "f":
            largest = float(np.abs(made).max(initial=0.0))
            if not largest <= LARGEST:
                raise Unfit("too large, or not finite")
            if 0 < largest < SMALLEST:
                raise Unfit("too small")
        if not self.worlds.deviation(name) <= CONDITION * largest:
            raise Unfit("ill-conditioned")

    # -- the end ----------------------------------------------------------------------------------------------------

    def case(self) -> Case:
        """The graph: what nothing reads goes out, and some of what is read inside."""
        read = {i for n in self.nodes for i in n.reads()}
        outputs = [o for n in self.nodes for o in n.outputs if o and o not in read]
        inner = [n for n in self.made if n in read and isinstance(self.types[n], Tensor)]
        outputs += [n for n in inner if self.chance(0.06)]
        if not outputs or self.chance(0.02):
            outputs += [n for n in self.inputs[:1] if n not in outputs]
        given = {n: self.types[n] for n in self.inputs}
        used = {i for n in self.nodes for i in n.reads()} | set(outputs)
        graph = Graph(
            tuple(self.inputs),
            tuple(outputs),
            tuple(self.nodes),
            {n: a for n, a in self.constants.items() if n in used},
            given,
            name="random",
        )
        return Case(self.seed, graph.verify(), dict(self.feeds), tuple(self.batched), self.worlds)


def _type_of(made: Any) -> Type:
    """The type that a graph declares of a value that is held in float64."""
    known = type_of(made)
    return known.to(DType.FLOAT) if isinstance(known, Tensor) and known.dtype is DType.DOUBLE else known


def _body(prefix: str, body: Body) -> Graph:
    inner = GraphBuilder(prefix=prefix)
    names = [inner.input(f"{prefix}in_{i}", t) for i, t in enumerate(body.inputs)]
    return inner.graph(outputs=list(body.build(inner, *names)))


def united(cases: Sequence[Case]) -> Case:
    """Graphs without a name in common side by side: one program, where to make one is what takes the time."""
    graphs = [c.graph for c in cases]
    whole = Graph(
        tuple(n for g in graphs for n in g.inputs),
        tuple(n for g in graphs for n in g.outputs),
        tuple(n for g in graphs for n in g.nodes),
        {n: a for g in graphs for n, a in g.initializers.items()},
        {n: t for g in graphs for n, t in g.types.items()},
    )
    return Case(cases[0].seed, whole.verify(), {n: x for c in cases for n, x in c.feeds.items()})
