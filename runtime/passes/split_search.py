"""Search for the products that devices share: which weights are split, and how, by the rules of split_rules.py.

Columns of a weight are split where nothing before is; what follows is split by the rules, up to products whose parts
add up. Where no such product comes, the columns stay together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...ops import Tensor, Type
from ...ops.errors import MezzoError
from ...ops.symbolic import NotSymbolic, SizeTrace, tracing
from ..ir.graph import Graph, Node
from ..ir.infer import infer
from ..optimizer.record import matches
from . import split_moves, split_products  # noqa: F401 (they enter their rules)
from .split_rules import NotSplit, Operands, Parted, Split, equal, parted

# How symbolic sizes are given to open dims, one way after the other, until the operators take them: whether the first
# dims of all inputs are one batch, what sizes begin at (positions have an end, and windows have to fit), and that of
# inputs of three dims and more where all are alike: keys and values of nothing before, so that masks fit.
TRIED: tuple[tuple[bool, int, int | None], ...] = (
    *((False, 97, None), (True, 97, None), (False, 5, None), (True, 5, None), (True, 5, 0), (True, 4001, None)),
)


def sized_types(graph: Graph) -> Mapping[str, Type]:
    """The types of all values, with symbolic sizes for open dims where the operators take them: see `TRIED`."""
    for tried in TRIED:
        try:
            with tracing():
                return infer(graph, _symbolic(graph, *tried)).types
        except (NotSymbolic, MezzoError):  # an operator looks at a size, or sizes have to fit each other
            continue
    return graph.types


def _symbolic(graph: Graph, batch: bool, first: int, before: int | None) -> dict[str, Type]:
    """The types of the inputs with symbolic sizes."""
    trace, sizes, inputs = SizeTrace(), dict[Any, Any](), dict[str, Type]()

    def size(name: str, rank: int, axis: int, dim: Any) -> Any:
        if isinstance(dim, int):
            return dim
        key = "" if batch and not axis else dim or (name, axis)
        if key not in sizes:
            own = first + 2 * len(sizes)
            sizes[key] = trace.symbol(own if before is None or not axis else before if rank > 2 else first)
        return sizes[key]

    for name in graph.inputs:
        known = graph.types[name]
        if isinstance(known, Tensor) and known.dims is not None and name not in graph.initializers:
            known = known.of([size(name, known.rank, axis, d) for axis, d in enumerate(known.dims)])
        inputs[name] = known
    return inputs


class SplitSearch:
    """The splits of a graph: of values by name, how each node is parted, and where parts are added up."""

    def __init__(
        self, graph: Graph, types: Mapping[str, Type], devices: int, patterns: Sequence[str],
        decided: Mapping[str, Split] | None,
    ) -> None:  # fmt: skip
        self.graph, self.types, self.devices, self._patterns, self._decided = graph, types, devices, patterns, decided
        self._uses, self._makers = graph.uses(), graph.producers()
        self._numbers = {n.outputs[0]: i for i, n in enumerate(graph.nodes)}
        self._kept = {*graph.inputs, *(s.input for s in graph.states), *graph.outputs}
        self._refused: set[str] = set()  # weights whose columns stay together
        self._blocks: dict[str, tuple[int, ...]] = {}  # in which the columns of a weight are split
        self.splits: dict[str, Split] = {}
        self.nodes: dict[int, Parted] = {}  # by the node's number
        self.weights: dict[str, Split] = {}
        self.sums = 0

    def run(self) -> None:
        """Look again until all that is split ends in sums."""
        while self._pass():
            pass

    def _pass(self) -> bool:
        self.splits, self.nodes, self.weights, self.sums = {}, {}, {}, 0
        groups, columns, other = Groups(), dict[str, str](), dict[str, tuple[int, ...]]()
        ending, stuck = set[str](), set[str]()  # in sums, and where they would have to be put together and cannot be
        for i, node in enumerate(self.graph.nodes):
            if node.record.multiplies and all(n not in self.splits for n in node.inputs):
                weight = self._columns(node)
                if weight:
                    columns[weight] = node.inputs[1]
            splits = tuple(self.splits.get(n) for n in node.inputs)
            if not any(splits) or i in self.nodes:
                continue
            split_inputs = [n for n in node.inputs if n in self.splits]
            try:
                form = self._parted(node, splits)
            except NotSplit as error:
                group = {groups.of(n) for n in split_inputs}
                wide = [
                    w
                    for w, v in columns.items()
                    if w not in self._blocks and groups.of(v) in group and equal(sum(error.blocks), self._width(v))
                ]
                if error.blocks and wide:
                    self._blocks |= dict.fromkeys(wide, error.blocks)
                    return True
                stuck.update(n for n in split_inputs if not equal(self.splits[n].repeat, 1))
                continue
            self.nodes[i] = form
            if form.otherwise:
                other[split_inputs[0]] = form.otherwise
            groups.join(*split_inputs, *(n for n, s in zip(node.inputs, form.operands, strict=True) if s))
            self._take(node, form)
            for name, split in zip(node.outputs, form.results, strict=True):
                if name and split is not None:
                    self.splits[name] = split
                    groups.join(name, *split_inputs)
            if form.adds:
                self.sums += 1
                ending.update(split_inputs)
        stuck.update(n for n in self._kept if n in self.splits and not equal(self.splits[n].repeat, 1))
        ends = {groups.of(n) for n in ending} - {groups.of(n) for n in stuck}
        lost = {w: value for w, value in columns.items() if groups.of(value) not in ends}
        first = {w: v for w, v in lost.items() if groups.of(v) == groups.of(next(iter(lost.values())))}
        for weight, value in first.items():  # others may end in sums when these do, or are whole
            own = groups.of(value), self._width(value)
            ways = [b for n, b in other.items() if groups.of(n) == own[0] and equal(sum(b), own[1])]
            if ways and weight not in self._blocks:
                self._blocks[weight] = ways[0]
            else:
                self._refused.add(weight)
        return bool(lost)

    def _width(self, value: str) -> Any:
        return self.splits[value].size

    def _parted(self, node: Node, splits: tuple[Split | None, ...]) -> Parted:
        form = parted(Operands(node, self.types, splits, self.devices))
        for name, given, wanted in zip(node.inputs, splits, form.operands, strict=True):
            if given is not None and wanted != given:
                raise NotSplit(f"{name!r} is split in another way")
            if wanted is not None and any(b % self.devices for b in wanted.blocks):
                raise NotSplit(f"{wanted.blocks} cannot be shared by {self.devices} devices")
            if wanted is not None and given is None and not equal(wanted.repeat, 1):
                raise NotSplit(f"{name!r} is whole")
        return form

    def _columns(self, node: Node) -> str:
        """The weight of a product whose columns are split from here on, if it has one."""
        if node.op not in ("MatMul", "Gemm") or node.domain:
            return ""
        value = node.inputs[1]
        source = self._weight(value)
        if source is None or source[0] in self._refused or not matches(source[0], *self._patterns):
            return ""
        weight, way = source
        known = self.types[value]
        if not isinstance(known, Tensor) or known.dims is None or len(known.dims) != 2:
            return ""
        axis = 0 if node.op == "Gemm" and node.attrs.get("transB", 0) else 1
        size = known.dims[axis]
        assert isinstance(size, int)
        decided = (self._decided or {}).get(weight)
        blocks = self._blocks.get(weight, (size,)) if decided is None else decided.blocks
        if any(b % self.devices for b in blocks):
            return ""
        if not self._give(weight, way, value, Split(axis, blocks)):
            return ""
        return weight

    def _weight(self, value: str) -> tuple[str, list[Node]] | None:
        """The weight that is this value, or becomes it by nodes that nothing else reads."""
        way = list[Node]()
        while value not in self.graph.initializers:
            node = self._makers.get(value)
            if node is None or not self._carries(node) or self._uses.get(value) != 1:
                return None
            way.insert(0, node)
            value = node.inputs[0]
        array = self.graph.initializers[value]
        if self._uses.get(value) != 1 or value in self._kept or not hasattr(array, "shape"):
            return None
        return (value, way) if value not in self.weights else None

    def _carries(self, node: Node) -> bool:
        """True if a node makes the value of a weight that a product reads, whose parts are those of the weight."""
        if len(node.inputs) != 1 or node.domain:
            return False
        record, before, after = node.record, self.types[node.inputs[0]], self.types[node.outputs[0]]
        same = isinstance(before, Tensor) and isinstance(after, Tensor) and before.dims == after.dims
        return record.moves == "permute" or (same and (record.moves == "view" or node.op == "Cast"))

    def _give(self, weight: str, way: Sequence[Node], value: str, split: Split) -> bool:
        """Split a weight so that the value which is made of it is split in this way. False where another way has been
        decided on."""
        splits = {value: split}
        for node in reversed(way):
            behind = splits[node.outputs[0]]
            perm = node.attrs.get("perm") or tuple(reversed(range(len(self.graph.initializers[weight].shape))))
            axis = perm[behind.axis] if node.record.moves == "permute" else behind.axis
            splits[node.inputs[0]] = behind.at(axis)
        if self._decided is not None and self._decided.get(weight) != splits[weight]:
            return False
        self.weights[weight] = splits[weight]
        self.splits |= splits
        for node in way:
            results = (splits[node.outputs[0]],)
            operands = (splits[node.inputs[0]], *[None] * (len(node.inputs) - 1))
            self.nodes[self._numbers[node.outputs[0]]] = Parted(operands, results)
        return True

    def _take(self, node: Node, form: Parted) -> None:
        """Split the weights among a node's other operands, as it takes them."""
        for name, split in zip(node.inputs, form.operands, strict=True):
            if split is None or name in self.splits:
                continue
            known = self._weight(name)
            if known is not None and matches(known[0], *self._patterns):
                self._give(*known, name, split)


class Groups:
    """Values that are split together."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The value that stands for a group."""
        while (above := self._above.get(name, name)) != name:
            name = above
        return name

    def join(self, *names: str) -> None:
        first = self.of(names[0])
        for name in names[1:]:
            self._above[self.of(name)] = first
