"""A step of a recurrence as phases: the computation of each thread on its own unit, with products across units in
between.

A value of a step is [batch, parts * units]. The elements of all its parts at one unit follow from those of others at
that unit alone, but for matrix products: these read a whole row. So a step is cut into phases. Each begins with
products, goes on with expressions (ops/core/expr.py), and ends with what is stored; the next may read what others
stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....ops import DType, Op, Tensor
from ....ops.core.expr import Expr
from ....ops.dataclasses import dataclass, field
from ....ops.recurrent.recurrence import inside_of, stepped
from ...compile.kernel import KernelRequest
from .pointwise import CASTS, tree_over
from .source import Unwritten

MOST_PARTS = 16  # of a value: more are no recurrent network, and their source would be long


@dataclass(frozen=True, slots=True)
class Place:
    """Location of an element in each step: `space` is input (of the node), made, after or kept, `index` counts
    there."""

    space: str
    index: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Dot:
    """The product of a row of `left` (`inner` elements) with the columns of one part of the matrix `right`, an input
    of the node with `columns` columns."""

    left: Place
    right: int
    part: int
    inner: int
    columns: int


@dataclass(slots=True)
class Phase:
    """Products, then the stores of their results."""

    dots: list[Dot] = field(default_factory=list[Dot])
    stores: list[tuple[Place, Expr]] = field(default_factory=list[tuple[Place, Expr]])


@dataclass(frozen=True, slots=True)
class StepParts:
    """A value: an expression for each of its parts, or one for all its units (`flat`)."""

    parts: tuple[Expr, ...]
    flat: bool = False
    source: Place | None = None  # where it lies as a whole


class Steps:
    """The links of a recurrence as phases. Raises Unwritten for links without such a form.

    `leaves` are what expressions read, by the number of their inputs: places and products. `kept` holds the widths of
    what is stored from phase to phase, in parts.
    """

    def __init__(self, request: KernelRequest) -> None:
        attrs, types = request.node.attrs, [t for t in request.inputs if isinstance(t, Tensor)]
        self.request, self.after, self.rows = request, attrs["after"], attrs["rows"]
        n = self.states = len(self.after)
        self.steps = types[n].sizes[0]
        inside = list(inside_of(types, n, self.rows))
        self.types: list[Any] = stepped(
            inside, attrs["links"], lambda o, xs, settings, some: o.infer_types(xs, settings, (True,) * some)
        )
        results = [self.types[i] for i in (*self.after, *attrs["made"])]
        ranks = {t.rank for t in (*inside[:n], *results)}
        if not n or len(ranks) > 1 or max(ranks) > 2:
            raise Unwritten("states and results of a step are not all matrices of batch and units")
        self.kind, self.batch = inside[0].dtype, inside[0].sizes[0] if ranks == {2} else 1
        if self.kind not in (DType.FLOAT, DType.DOUBLE) or any(t.dtype is not self.kind for t in results):
            raise Unwritten(f"states and results of a step are not all {self.kind}, or no plain floats")
        # a matrix stands nowhere but at the right of a product
        matrices = {x[2][1] for x in attrs["links"] if x[1] == "MatMul"}
        widths = [t.sizes[-1] for i, t in enumerate(self.types) if t.rank and i not in matrices]
        self.units = math.gcd(*(w for w in widths if w > 1)) or 1
        if max(widths, default=1) > MOST_PARTS * self.units:
            raise Unwritten(f"values of {max(widths, default=1)} columns, of which only {self.units} go together")
        self.leaves: list[Place | Dot] = []
        self.kept: list[int] = []
        self.phases = [Phase()]
        self._numbers: dict[Place | Dot, int] = {}
        self._levels: dict[int, int] = {}  # the phase that takes a product, by its leaf
        self._stored: dict[Expr, Place] = {}
        self._phase: dict[Expr, int] = {}
        self._crossing: dict[Expr, bool] = {}
        self._read: dict[tuple[Expr, int], Expr] = {}
        self._whole: dict[tuple[Expr, ...], Place] = {}
        self._count = len(inside)
        self.known = stepped([self._input(i, t) for i, t in enumerate(inside)], attrs["links"], self._link)
        for space, which in (("after", self.after), ("made", attrs["made"])):
            for i, number in enumerate(which):
                value = self.known[number]
                if len(value.parts) * self.units != self.width(number):
                    raise Unwritten("a result is one number for all units")
                for part, tree in enumerate(value.parts):
                    self._store(Place(space, i, part), tree)
        self.phases = [phase for phase in self.phases if phase.stores]

    def width(self, number: int) -> int:
        """The columns of a value."""
        columns: int = self.types[number].sizes[-1] if self.types[number].rank else 1
        return columns

    # Values

    def _leaf(self, what: Place | Dot, dtype: DType) -> Expr:
        if what not in self._numbers:
            self._numbers[what] = len(self.leaves)
            self.leaves.append(what)
        return Expr("input", (), dtype, self._numbers[what])

    def _input(self, i: int, known: Tensor) -> StepParts | None:
        """An input of the node; None for a matrix, which only products read."""
        lead = math.prod(known.sizes[:-1])
        shared = i >= self.states + self.rows
        if shared and known.elements == 1 and known.value is not None and self.request.constant(i):
            return StepParts((Expr("const", (), known.dtype, known.value.reshape(-1)[0].item()),), True)
        if known.rank > 2 or lead not in (1, self.batch):
            return None
        width = known.sizes[-1] if known.rank else 1
        flat = width == 1 and self.units > 1
        if not flat and width % self.units:
            return None
        count = 1 if flat else width // self.units
        parts = tuple(self._leaf(Place("input", i, c), known.dtype) for c in range(count))
        return StepParts(parts, flat, None if flat or lead != self.batch else Place("input", i))

    def _link(self, record: Op, operands: list[Any], attrs: Mapping[str, Any], some: int) -> list[StepParts]:
        number = self._count
        self._count += some
        op = "" if record.domain else record.name
        if op == "MatMul":
            return [self._product(operands[0], number)]
        if any(x is None for x in operands[:1]):
            raise Unwritten(f"{record.name} of a matrix in a step")
        if op == "Identity":
            return [operands[0]]
        rank = self.types[number].rank
        if op in ("Split", "Concat") and attrs.get("axis", 0) in (-1, rank - 1) and rank:
            return self._split(operands[0], number, some) if op == "Split" else [self._joined(operands)]
        if record.tree is None and op not in CASTS:
            raise Unwritten(f"{record.name} in a step")
        return [self._pointwise(record, operands, attrs)]

    def _product(self, left: StepParts | None, number: int) -> StepParts:
        operands = next(self._operands(number))
        right = self.types[operands[1]]
        if left is None or left.flat or operands[1] >= len(self.request.inputs) or right.rank != 2:
            raise Unwritten("a product with something else than a matrix that all steps share")
        inner, columns = right.sizes
        if columns % self.units or self.types[number].rank != 2:
            raise Unwritten(f"a product with {right}")
        source, level = left.source, 0
        if source is None:
            level = 1 + max(map(self._level, left.parts))
            if left.parts not in self._whole:
                self._whole[left.parts] = self._keep(left)
            source = self._whole[left.parts]
        leaves = []
        for part in range(columns // self.units):
            leaf = self._leaf(Dot(source, operands[1], part, inner, columns), self.kind)
            self._levels[int(leaf.value or 0)] = level
            leaves.append(leaf)
        return StepParts(tuple(leaves))

    def _operands(self, number: int) -> Iterator[tuple[int, ...]]:
        """The operands of the link whose first result has this number."""
        count = len(self.request.inputs)
        for link in self.request.node.attrs["links"]:
            if count == number:
                yield link[2]
            count += link[3]

    def _split(self, x: StepParts, number: int, some: int) -> list[StepParts]:
        pieces, begin = [], 0
        for i in range(some):
            width = self.types[number + i].sizes[-1]
            if width % self.units or x.flat:
                raise Unwritten("a split within units")
            pieces.append(StepParts(x.parts[begin : begin + width // self.units]))
            begin += width // self.units
        return pieces

    def _joined(self, xs: Sequence[StepParts | None]) -> StepParts:
        if any(x is None or x.flat for x in xs):
            raise Unwritten("a row of numbers that are no units")
        return StepParts(tuple(p for x in xs if x is not None for p in x.parts))

    def _pointwise(self, record: Op, operands: Sequence[StepParts | None], attrs: Mapping[str, Any]) -> StepParts:
        wide = [x for x in operands if x is not None and not x.flat]
        count = max((len(x.parts) for x in wide), default=1)
        if any(len(x.parts) not in (1, count) for x in wide) or (count > 1 and any(len(x.parts) == 1 for x in wide)):
            raise Unwritten("operands of several widths")
        arguments = [
            [None if x is None else x.parts[c if len(x.parts) > 1 else 0] for x in operands] for c in range(count)
        ]
        results = [tree_over(record, trees, attrs) for trees in arguments]
        return StepParts(tuple(results), not wide)

    # Phases

    def _level(self, tree: Expr) -> int:
        """The first phase that can compute it."""
        if tree not in self._phase:
            own = self._levels.get(int(tree.value or 0), 0) if tree.kind == "input" else 0
            self._phase[tree] = max((own, *map(self._level, tree.args)))
        return self._phase[tree]

    def _at(self, level: int) -> Phase:
        while len(self.phases) <= level:
            self.phases.append(Phase())
        return self.phases[level]

    def _keep(self, value: StepParts) -> Place:
        """Store all parts of a value side by side, for products."""
        place = Place("kept", len(self.kept))
        self.kept.append(len(value.parts))
        for part, tree in enumerate(value.parts):
            self._store(Place("kept", place.index, part), tree)
        return place

    def _store(self, place: Place, tree: Expr) -> None:
        level = self._level(tree)
        self._at(level).stores.append((place, self._read_at(tree, level)))

    def _read_at(self, tree: Expr, level: int) -> Expr:
        """The expression as a phase computes it: what took products before is stored there and read here."""
        if (tree, level) not in self._read:
            self._read[tree, level] = self._rewritten(tree, level)
        return self._read[tree, level]

    def _rewritten(self, tree: Expr, level: int) -> Expr:
        if self._level(tree) < level and self._multiplies(tree):
            if tree not in self._stored:
                self._stored[tree] = Place("kept", len(self.kept))
                self.kept.append(1)
                self._store(self._stored[tree], tree)
            return self._leaf(self._stored[tree], tree.dtype)
        if tree.kind == "input":
            leaf = self.leaves[int(tree.value or 0)]
            if isinstance(leaf, Dot):
                self._at(level).dots.append(leaf)
        args = tuple(self._read_at(a, level) for a in tree.args)
        return tree if args == tree.args else Expr(tree.kind, args, tree.dtype, tree.value)

    def _multiplies(self, tree: Expr) -> bool:
        """True if a tree contains products."""
        if tree not in self._crossing:
            leaf = self.leaves[int(tree.value or 0)] if tree.kind == "input" else None
            self._crossing[tree] = isinstance(leaf, Dot) or any(map(self._multiplies, tree.args))
        return self._crossing[tree]
