"""Padding: a graph whose open sizes are rounded up, such that no result depends on what lies in between.

At other sizes a program has to be planned; rounded up, one serves many. Each axis that follows an open size has its
elements first and padding behind them. Rules (padding_rules.py) tell for each operator where padding comes to lie;
where an operator would read it (a sum, a softmax, a product over the axis) it is overwritten before by what changes
nothing, and an operator without a rule for such an axis is refused. Results are equal to those without padding but for
the order in which sums are taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ops import Tensor
from ...ops.dataclasses import dataclass, field
from ...ops.symbolic import SymbolicSize, Terms, concrete, is_symbolic
from ...ops.types import Array, DType
from ..ir.graph import Node
from .sizes import NormalSizes, Size
from .template import Traced

Axis = tuple[Size, ...]  # the sizes that an axis is the product of, outermost first; none of them is 1
OWN = "pad@"  # begins the names of what padding adds


class NotPadded(Exception):
    """Raised with the reason why a graph cannot be padded."""


def rounded_up(size: int) -> int:
    """The size that is planned for one: itself up to 4, else a multiple of at most an eighth of it, or of 4.

    >>> [rounded_up(n) for n in (1, 3, 5, 17, 33, 65, 100, 129, 500)]
    [1, 3, 8, 20, 36, 72, 104, 144, 512]
    """
    step = 1 if size <= 4 else max(4, 1 << (size - 1).bit_length() >> 4)
    return -(-size // step) * step


def rounded_rows(size: int) -> int:
    """The size that is planned for a cache: a multiple of at least 64. Rows that are not new cost little: attention
    reads them once, and all weights are read for each new one.

    >>> [rounded_rows(n) for n in (1, 65, 500, 2000, 2049)]
    [64, 128, 512, 2048, 2304]
    """
    step = max(64, 1 << (size - 1).bit_length() >> 4)
    return -(-size // step) * step


def planned_size(size: int, *, rows: bool) -> int:
    """The size that is planned for one, which may be that of a cache's `rows`."""
    return rounded_rows(size) if rows else rounded_up(size)


@dataclass(slots=True)
class PaddedValue:
    """A value of the padded graph: its axes, and the number that fills the padding of an axis, where that is known for
    all elements that count in the other axes."""

    dtype: DType
    axes: tuple[Axis, ...]
    fills: dict[int, float] = field(default_factory=dict[int, float])


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """The sizes of a decoder that are planned as those of its caches: `grown` is what sizes of inputs grow to (both are
    planned alike, so that one can lie in the other's place), `masks` are symbols that nothing but masks has."""

    grown: Mapping[Terms, Terms]
    masks: frozenset[int]
    sizes: frozenset[Terms]


NO_CACHES = CacheSizes({}, frozenset(), frozenset())


@dataclass(slots=True, eq=False)
class PaddedGraph:
    """A graph being padded for `values` of the symbols, of which those in `open` are rounded up.

    What is known only at the true sizes are inputs: `counts` how many elements count, by their terms; `numbers` arrays
    with sizes as elements, by name; `shares` how many elements are planned for each that counts, by name. `places` are
    indices, by name: the value or array that tells the true ones, and the axis that they are of; several axes where the
    last axis of the indices has one for each. `filled_later` names values with all that others hold, and padding
    overwritten that held anything: who reads them there lets them lie in the place of these.
    """

    traced: Traced
    normal: NormalSizes
    open: Collection[int]
    values: Sequence[int]
    caches: CacheSizes
    nodes: list[Node] = field(default_factory=list[Node])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    known: dict[str, PaddedValue] = field(default_factory=dict[str, PaddedValue])
    counts: dict[Terms, str] = field(default_factory=dict[Terms, str])
    numbers: dict[str, Array] = field(default_factory=dict[str, Array])
    shares: dict[str, tuple[Terms, ...]] = field(default_factory=dict[str, tuple[Terms, ...]])
    places: dict[str, tuple[str | Array, tuple[Axis, ...], bool]] = field(
        default_factory=dict[str, tuple[str | Array, tuple[Axis, ...], bool]]
    )
    rounded: dict[Terms, int] = field(default_factory=dict[Terms, int])
    filled_later: dict[str, str] = field(default_factory=dict[str, str])

    # -- sizes ------------------------------------------------------------------------------------------------------

    @property
    def given(self) -> int:
        """The number of inputs that the graph itself has; those behind them follow from sizes."""
        return len(self.traced.symbols.types)

    def padded(self, size: Size) -> bool:
        """True if a size is rounded up."""
        return not isinstance(size, int) and not self.normal.symbols(size).isdisjoint(self.open)

    def pads(self, axis: Axis) -> bool:
        """True if there is padding in an axis."""
        return any(map(self.padded, axis))

    def planned(self, size: Size) -> int:
        """The number that is planned for a size."""
        if isinstance(size, int):
            return size
        value = self.true(self.caches.grown.get(size, size))
        if not self.padded(size):
            return value
        if any(s in self.normal.trace.quotients for symbols, _ in size for s in symbols):
            return self._following(size)
        rows = size in self.caches.sizes or self.normal.symbols(size) <= self.caches.masks
        value = self.rounded[size] = planned_size(value, rows=rows)
        return value

    def _following(self, size: Terms) -> int:
        """The number that is planned for a size with quotients: what it is where the sizes of inputs are as planned, so
        that windows with a stride fit as they do at true sizes."""
        if not self.normal.rises(size):
            raise NotPadded("a size does not grow with those of inputs")
        values = [*self.values]
        for symbol in self.normal.symbols(size):
            values[symbol] = self.planned((((symbol,), 1),))
        return self.normal.at(size, values)

    def true(self, size: Size) -> int:
        """The number that a size is at the sizes of this trace."""
        return size if isinstance(size, int) else self.normal.trace.value(size, self.values)

    def sizes(self, axes: Iterable[Axis]) -> tuple[int, ...]:
        """The planned size of each axis."""
        return tuple(int(np.prod([self.planned(s) for s in axis], dtype=np.int64)) for axis in axes)

    def axis_of(self, dim: Any) -> Axis:
        """An axis of one size."""
        size = self.normal.of(dim)
        return () if size == 1 else (size,)

    def dims_of(self, name: str) -> tuple[Any, ...]:
        """The true sizes of a value as its type says, symbolic ones as such. Raises NotPadded where one is unknown."""
        known = self.traced.graph.types[name]
        if not isinstance(known, Tensor) or known.dims is None or not all_known(known.dims):
            raise NotPadded(f"{name!r} is {known}")
        return known.dims

    def axes_of(self, name: str) -> tuple[Axis, ...]:
        """The axes of a value as its type says. Raises NotPadded where that is unknown."""
        return tuple(map(self.axis_of, self.dims_of(name)))

    # -- values -----------------------------------------------------------------------------------------------------

    def value(self, name: str) -> PaddedValue:
        """A value that a node reads; what is an array of sizes becomes an input if these are rounded up."""
        known = self.known.get(name)
        if known is None:
            known = self.known[name] = self._constant(name)
        return known

    def _constant(self, name: str) -> PaddedValue:
        array = self.traced.graph.initializers[name]
        if is_symbolic(array):
            sizes = [self.normal.of(v) for v in array.ravel().tolist()]
            if any(map(self.padded, sizes)):
                self.numbers[name] = array
            else:
                self.constants[name] = concrete(self.normal.trace, self.values)(array)
            return PaddedValue(DType.INT64, tuple(map(self.axis_of, array.shape)))
        self.constants[name] = array
        return PaddedValue(DType.of(array.dtype), tuple(map(self.axis_of, array.shape)))

    def array(self, sizes: Sequence[Size], shape: tuple[int, ...]) -> str:
        """The name of an input whose elements are true sizes."""
        array = np.empty(len(sizes), object)
        array[:] = [n if isinstance(n, int) else SymbolicSize(self.normal.trace, n) for n in sizes]
        name = f"{OWN}number{len(self.numbers)}"
        self.numbers[name] = array.reshape(shape)
        self.known[name] = PaddedValue(DType.INT64, tuple(map(self.axis_of, shape)))
        return name

    def place(self, source: str, axes: Sequence[Axis], *, each: bool = False) -> str:
        """The name of an input with indices into an axis with padding, which `source` tells as if there were none: a
        constant, or what follows from sizes; `each`: one for each of several axes. Raises NotPadded for what data
        tell."""
        padded = self.value(source)
        array = self.constants.get(source, self.numbers.get(source))
        if array is None and source not in self.traced.graph.inputs[self.given :]:
            raise NotPadded(f"data tell indices into an axis with padding: {source!r}")
        name = f"{OWN}places{len(self.places)}"
        self.places[name] = (source if array is None else array), tuple(axes), each
        self.known[name] = PaddedValue(DType.INT64, padded.axes, dict.fromkeys(range(len(padded.axes)), 0.0))
        return name

    def share(self, sizes: Sequence[Terms]) -> str:
        """The name of an input that tells how many elements are planned for each that counts."""
        name = f"{OWN}share{len(self.shares)}"
        self.shares[name] = tuple(sizes)
        self.known[name] = PaddedValue(DType.DOUBLE, ())
        return name

    def count(self, terms: Terms) -> str:
        """The name of the input that says how many elements of a rounded size count."""
        return self.counts.setdefault(terms, f"{OWN}count{len(self.counts)}")

    def constant(self, array: Any) -> str:
        """The name of a new constant."""
        name = f"{OWN}constant{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def ints(self, name: str) -> list[int] | None:
        """The elements of a constant of integers; None if they are not known, or depend on open sizes."""
        if not name or name not in self.traced.graph.initializers:
            return None
        self.value(name)
        array = self.constants.get(name)
        return None if array is None or array.dtype.kind not in "iu" else [int(v) for v in array.ravel().tolist()]

    # -- nodes ------------------------------------------------------------------------------------------------------

    def emit(
        self,
        node: Node,
        inputs: Sequence[str],
        results: Mapping[str, PaddedValue],
        *,
        op: str = "",
        domain: str | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a node like another one that reads `inputs`; with `op`, another operator in its place, whose outputs are
        `results`."""
        outputs = tuple(results) if op else node.outputs
        origin = node.origin or ((node.name,) if node.name else ())
        self.nodes.append(
            Node(
                op or node.op, tuple(map(self._latest, inputs)), outputs, node.attrs if attrs is None else attrs,
                node.domain if domain is None else domain, node.name, node.where, origin, node.device,
            )
        )  # fmt: skip
        self.known.update(results)

    def filled(self, node: Node, name: str, axis: int, value: float) -> str:
        """The value with its padding along an axis overwritten."""
        padded = self.value(name)
        if padded.fills.get(axis) == value or not self.pads(padded.axes[axis]):
            return name
        for i, size in enumerate(padded.axes[axis]):
            if not self.padded(size):
                continue
            assert not isinstance(size, int)
            (outer,) = self.sizes([padded.axes[axis][:i]])
            if self.sizes([padded.axes[axis][i + 1 :]]) != (1,):  # rows of this size are blocks: seen as an axis more
                raise NotPadded(f"padding of {name!r} lies between elements of axis {axis}")
            result = f"{OWN}{len(self.nodes)}"
            fills = {axis: value} if len(padded.axes[axis]) == 1 else {}
            filled = PaddedValue(padded.dtype, padded.axes, {**padded.fills, **fills})
            attrs = {"axis": axis, "outer": outer, "value": value}
            self.emit(node, (name, self.count(size)), {result: filled}, op="FillTail", domain="mezzo", attrs=attrs)
            if axis not in padded.fills and name not in self.traced.graph.inputs:
                self.filled_later[name] = result
            name = result
        return name

    def _latest(self, name: str) -> str:
        while name in self.filled_later:
            name = self.filled_later[name]
        return name


def all_known(dims: Iterable[Any]) -> bool:
    """True for dims that are numbers and symbolic sizes."""
    return not any(d is None or isinstance(d, str) for d in dims)
