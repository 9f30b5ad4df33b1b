"""Tensor parallelism: products of matrices that several devices compute together, each with its part of the weights.

A product with a weight is split along its columns; what follows is computed apart, by the rules of split_rules.py, up
to the product along whose rows it is split: of that the devices' parts are added up, on the first device and in the
order of devices. So it goes with attention (queries, keys and values, then the projection) and with the two products
of a feed-forward layer. All else is on the first device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ops import Tensor, Type
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import InputError, MezzoError
from ...ops.symbolic import NotSymbolic, SizeTrace, tracing
from ...ops.types import Array
from ..ir.graph import Graph, Node
from ..ir.infer import infer
from ..ir.typed import TypedBuilder
from ..optimizer.record import matches
from .place import TensorParallel
from .split_rules import NotSplit, Operands, Parted, Split, equal, parted

FIRST_SIZE = 97  # of open dims while rules look at them: such sizes equal no other one by chance
CARRIED = ("Transpose", "Cast", "Identity")  # between a weight and its product


@dataclass(frozen=True, slots=True, eq=False)
class SplitGraph:
    """A graph whose products are shared out, and its `weights`: how each of those that devices have parts of is
    split."""

    graph: Graph
    weights: Mapping[str, Split]
    devices: tuple[str, ...]

    def parts(self, name: str) -> tuple[str, ...]:
        """The names of the parts of a weight, or its own if it is whole."""
        return part_names(name, len(self.devices)) if name in self.weights else (name,)


def part_names(name: str, count: int) -> tuple[str, ...]:
    """The names of the parts of a value.

    >>> part_names("w", 2)
    ('w[0 of 2]', 'w[1 of 2]')
    """
    return tuple(f"{name}[{i} of {count}]" for i in range(count))


def split_array(array: Array, split: Split, count: int) -> list[Array]:
    """The parts of an array.

    >>> [p.tolist() for p in split_array(np.arange(8), Split(0, (4, 4)), 2)]
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    blocks = np.split(np.asarray(array), np.cumsum(split.blocks)[:-1], split.axis)
    pieces = [np.split(b, count, split.axis) for b in blocks]
    return [np.ascontiguousarray(np.concatenate([p[i] for p in pieces], split.axis)) for i in range(count)]


def whole_array(parts: Sequence[Array], split: Split) -> Array:
    """The array of which these are the parts.

    >>> whole_array([np.array([0, 1, 4, 5]), np.array([2, 3, 6, 7])], Split(0, (4, 4))).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    edges = np.cumsum([b // len(parts) for b in split.blocks])[:-1]
    pieces = [np.split(np.asarray(p), edges, split.axis) for p in parts]
    return np.concatenate([p[b] for b in range(len(split.blocks)) for p in pieces], split.axis)


def tensor_parallel(graph: Graph, asked: TensorParallel, weights: Mapping[str, Split] | None = None) -> SplitGraph:
    """The typed graph in which products are shared out among devices, and how.

    With `weights` these alone have parts, which are split as is told, whatever this graph would like. Raises InputError
    where no product can be shared out.
    """
    devices = tuple(asked.devices)
    typed = _sized(graph)
    search = _Search(graph, typed, len(devices), asked.weights, weights)
    search.run()
    if not search.sums and weights is None:
        raise InputError(
            "no two products of matrices follow each other that the devices could share",
            where="place=TensorParallel",
            hint=f"columns of weights have to be divisible by {len(devices)}, and no other node may read a weight; "
            "place= with patterns puts layers on devices",
        )
    return _Writer(graph, search, devices, weights).written()


def untied(graph: Graph) -> Graph:
    """The graph whose constants that Identity passes on are constants of their own names: exporters write equal weights
    once, and each may be split in its own way where nothing is learned."""
    passed = {
        n.outputs[0]: graph.initializers[n.inputs[0]]
        for n in graph.nodes
        if (n.op, n.domain) == ("Identity", "")
        and n.inputs[0] in graph.initializers
        and n.inputs[0] not in (*graph.inputs, *(s.input for s in graph.states))
        and n.outputs[0] not in graph.outputs
    }
    nodes = tuple(n for n in graph.nodes if passed.keys().isdisjoint(n.outputs))
    return graph.but(nodes=nodes, initializers={**graph.initializers, **passed}) if passed else graph


def _sized(graph: Graph) -> Mapping[str, Type]:
    """The types of all values, with symbolic sizes for open dims where the operators take them: each its own, or one
    for the batches of all inputs, whose dims may have no names."""
    for batch in (None, "batch"):
        try:
            with tracing():
                return infer(graph, _symbolic(graph, batch)).types
        except (NotSymbolic, MezzoError):  # an operator looks at a size, or takes other ones
            continue
    return graph.types


def _symbolic(graph: Graph, batch: str | None) -> dict[str, Type]:
    """The types of the inputs with symbolic sizes; `batch` names the first dim of each, if it is open."""
    trace, sizes, inputs = SizeTrace(), dict[Any, Any](), dict[str, Type]()

    def size(name: str, axis: int, dim: Any) -> Any:
        if isinstance(dim, int):
            return dim
        key = batch if batch and not axis else dim or (name, axis)
        if key not in sizes:
            sizes[key] = trace.symbol(FIRST_SIZE + 2 * len(sizes))
        return sizes[key]

    for name in graph.inputs:
        known = graph.types[name]
        if isinstance(known, Tensor) and known.dims is not None and name not in graph.initializers:
            known = known.of([size(name, axis, d) for axis, d in enumerate(known.dims)])
        inputs[name] = known
    return inputs


class _Search:
    """The splits of a graph: of values by name, how each node is parted, and where parts are added up."""

    def __init__(
        self, graph: Graph, types: Mapping[str, Type], devices: int, patterns: Sequence[str],
        decided: Mapping[str, Split] | None,
    ) -> None:  # fmt: skip
        self.graph, self.types, self.devices, self._patterns, self._decided = graph, types, devices, patterns, decided
        self._uses, self._makers = graph.uses(), graph.producers()
        self._kept = {*graph.inputs, *(s.input for s in graph.states), *graph.outputs}
        self._refused: set[str] = set()  # weights whose columns stay together
        self._blocks: dict[str, tuple[int, ...]] = {}  # in which the columns of a weight are split
        self.splits: dict[str, Split] = {}
        self.nodes: dict[int, Parted] = {}  # by the node's number
        self.weights: dict[str, Split] = {}
        self.sums = 0

    def run(self) -> None:
        """Look again until all that is split ends in sums."""
        while True:
            again = self._pass()
            if not again:
                return

    def _pass(self) -> bool:
        self.splits, self.nodes, self.weights, self.sums = {}, {}, {}, 0
        groups, columns, other = _Groups(), dict[str, str](), dict[str, tuple[int, ...]]()
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
                found = self._parted(node, splits)
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
            self.nodes[i] = found
            if found.otherwise:
                other[split_inputs[0]] = found.otherwise
            groups.join(*split_inputs, *(n for n, s in zip(node.inputs, found.operands, strict=True) if s))
            self._take(node, found)
            for name, split in zip(node.outputs, found.results, strict=True):
                if name and split is not None:
                    self.splits[name] = split
                    groups.join(name, *split_inputs)
            if found.adds:
                self.sums += 1
                ending.update(split_inputs)
        stuck.update(n for n in self._kept if n in self.splits and not equal(self.splits[n].repeat, 1))
        ends = {groups.of(n) for n in ending} - {groups.of(n) for n in stuck}
        lost = {w: value for w, value in columns.items() if groups.of(value) not in ends}
        first = {w: v for w, v in lost.items() if groups.of(v) == groups.of(next(iter(lost.values())))}
        for weight, value in first.items():  # others may end in sums when these do, or are whole
            ways = [b for n, b in other.items() if groups.of(n) == groups.of(value) and equal(sum(b), self._width(value))]
            if ways and weight not in self._blocks:
                self._blocks[weight] = ways[0]
            else:
                self._refused.add(weight)
        return bool(lost)

    def _width(self, value: str) -> Any:
        return self.splits[value].size

    def _parted(self, node: Node, splits: tuple[Split | None, ...]) -> Parted:
        found = parted(Operands(node, self.types, splits, self.devices))
        for name, given, wanted in zip(node.inputs, splits, found.operands, strict=True):
            if given is not None and wanted != given:
                raise NotSplit(f"{name!r} is split in another way")
            if wanted is not None and any(b % self.devices for b in wanted.blocks):
                raise NotSplit(f"{wanted.blocks} cannot be shared by {self.devices} devices")
            if wanted is not None and given is None and not equal(wanted.repeat, 1):
                raise NotSplit(f"{name!r} is whole")
        return found

    def _columns(self, node: Node) -> str:
        """The weight of a product whose columns are split from here on, if it has one."""
        if node.op not in ("MatMul", "Gemm") or node.domain or (self._decided is not None and not self._decided):
            return ""
        value = node.inputs[1]
        found = self._weight(value)
        if found is None or found[0] in self._refused or not matches(found[0], *self._patterns):
            return ""
        weight, way = found
        known = self.types[value]
        if not isinstance(known, Tensor) or known.dims is None or len(known.dims) != 2:
            return ""
        axis = 0 if node.op == "Gemm" and node.attrs.get("transB", 0) else 1
        size = known.dims[axis]
        assert isinstance(size, int)
        blocks = self._blocks.get(weight, (size,))
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
            if node is None or node.op not in CARRIED or node.domain or self._uses.get(value) != 1:
                return None
            way.insert(0, node)
            value = node.inputs[0]
        array = self.graph.initializers[value]
        if self._uses.get(value) != 1 or value in self._kept or not hasattr(array, "shape"):
            return None
        return (value, way) if value not in self.weights else None

    def _give(self, weight: str, way: Sequence[Node], value: str, split: Split) -> bool:
        """Split a weight so that the value which is made of it is split in this way. False where another way has been
        decided on."""
        found = {value: split}
        for node in reversed(way):
            behind = found[node.outputs[0]]
            perm = node.attrs.get("perm") or tuple(reversed(range(len(self.graph.initializers[weight].shape))))
            axis = perm[behind.axis] if node.op == "Transpose" else behind.axis
            found[node.inputs[0]] = behind.at(axis)
        if self._decided is not None and self._decided.get(weight) != found[weight]:
            return False
        self.weights[weight] = found[weight]
        self.splits |= found
        numbers = {n.outputs[0]: i for i, n in enumerate(self.graph.nodes)} if way else {}
        for node in way:
            results = (found[node.outputs[0]],)
            operands = (found[node.inputs[0]], *[None] * (len(node.inputs) - 1))
            self.nodes[numbers[node.outputs[0]]] = Parted(operands, results)
        return True

    def _take(self, node: Node, found: Parted) -> None:
        """Split the weights among a node's other operands, as it takes them."""
        for name, split in zip(node.inputs, found.operands, strict=True):
            if split is None or name in self.splits:
                continue
            known = self._weight(name)
            if known is not None and matches(known[0], *self._patterns):
                self._give(*known, name, split)


class _Groups:
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


@dataclass(slots=True)
class _Writer:
    """The graph with the parts of its nodes, each on its device."""

    graph: Graph
    search: _Search
    devices: tuple[str, ...]
    decided: Mapping[str, Split] | None
    g: TypedBuilder = field(init=False)
    parts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # of values, by device
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    made: set[str] = field(default_factory=set[str])  # values that are whole

    def __post_init__(self) -> None:
        own = {n: t for n, t in self.graph.types.items() if n in self.graph.inputs or n in self.graph.initializers}
        self.g = TypedBuilder(own, prefix="split/")
        self.weights = dict(self.graph.initializers)
        self.made = {*self.graph.inputs, *self.graph.initializers, *(s.input for s in self.graph.states)}

    def written(self) -> SplitGraph:
        graph, search, count = self.graph, self.search, len(self.devices)
        told = search.weights if self.decided is None else self.decided
        for name, split in told.items():
            if name not in graph.initializers:
                continue
            self.parts[name] = [*part_names(name, count)]
            self.made.discard(name)
            for part, array in zip(self.parts[name], split_array(self.weights.pop(name), split, count), strict=True):
                self.g.hold(part, array)
        self.search.splits |= told
        for i, node in enumerate(graph.nodes):
            found = search.nodes.get(i)
            if found is None:
                self._whole_node(node)
            elif node.op == "Shape":
                self._sizes(node, found)
            else:
                self._parts(node, found)
        for name in (*graph.outputs, *(s.output for s in graph.states)):
            self._whole(name)
        written = graph.but(
            nodes=self.g.nodes(), initializers={**self.weights, **self.g.constants()}, types=self.g.types
        ).verify()
        return SplitGraph(infer(written), dict(told), self.devices)

    def _whole_node(self, node: Node) -> None:
        for name in node.reads():
            self._whole(name)
        known: Any = [self.graph.types.get(o) for o in node.outputs]
        self.g.add(replace(node, device=self.devices[0]), known if all(known) else None)
        self.made.update(filter(None, node.outputs))

    def _whole(self, name: str) -> str:
        """The whole of a value, on the first device: put together where it is first read."""
        if name in self.made or name not in self.parts:
            return name
        split, g = self.search.splits[name], self.g
        g.device, pieces = self.devices[0], list[str]()
        if len(split.blocks) == 1:
            pieces = self.parts[name]
        else:
            edges = [0, *np.cumsum([b // len(self.devices) for b in split.blocks]).tolist()]
            for begin, end in zip(edges, edges[1:], strict=False):
                pieces += [self._cut(p, begin, end, split.axis) for p in self.parts[name]]
        g.add(Node("Concat", tuple(pieces), (name,), {"axis": split.axis}, name=name))
        g.device = ""
        self.made.add(name)
        return name

    def _cut(self, name: str, begin: int, end: int, axis: int) -> str:
        g = self.g
        cut: str = g.Slice(name, g.const([begin]), g.const([end]), g.const([axis]))
        return cut

    def _operand(self, name: str, split: Split | None) -> list[str]:
        """An operand for each device: its part, or the whole."""
        if split is None or not name:
            return [self._whole(name) if name else ""] * len(self.devices)
        if name not in self.parts:
            self._share(name, split)
        return self.parts[name]

    def _share(self, name: str, split: Split) -> None:
        """Cut a value that is whole."""
        count, parts = len(self.devices), list[str]()
        edges = [0, *np.cumsum(split.blocks).tolist()]
        self.g.device = self.devices[0]
        for i in range(count):
            pieces = list[str]()
            for begin, size in zip(edges, split.blocks, strict=False):
                width = size // count
                pieces.append(self._cut(name, begin + i * width, begin + (i + 1) * width, split.axis))
            parts.append(pieces[0] if len(pieces) == 1 else self.g.Concat(*pieces, axis=split.axis))
        self.g.device = ""
        self.parts[name], self.search.splits[name] = parts, split

    def _parts(self, node: Node, found: Parted) -> None:
        g, count = self.g, len(self.devices)
        operands = [self._operand(n, s) for n, s in zip(node.inputs, found.operands, strict=True)]
        outputs = [part_names(o, count) if o else ("",) * count for o in node.outputs]
        for i, array in found.constants.items():
            operands[i] = [g.const(array)] * count
        if found.divided is not None:
            operands[found.divided[0]] = [self._divided(node, found.divided)] * count
        if found.bias >= 0:
            operands[found.bias] = [""] * count
        for i, device in enumerate(self.devices):
            inputs, results = tuple(o[i] for o in operands), tuple(o[i] for o in outputs)
            while inputs and not inputs[-1]:
                inputs = inputs[:-1]
            attrs = {**node.attrs, **found.attrs}
            name = part_names(node.name, count)[i] if node.name else ""
            g.add(replace(node, name=name, inputs=inputs, outputs=results, attrs=attrs, device=device))
        for o, parts in zip(node.outputs, outputs, strict=True):
            if o:
                self.parts[o] = [*parts]
        if found.adds:
            self._add_up(node, found)

    def _add_up(self, node: Node, found: Parted) -> None:
        """Add the parts of a product, and then what it adds itself."""
        g, parts, name = self.g, self.parts.pop(node.outputs[0]), node.outputs[0]
        g.device = self.devices[0]
        biased = found.bias >= 0
        total = f"{name}/sum" if biased else name
        g.add(Node("Add" if len(parts) == 2 else "Sum", tuple(parts), (total,), name=total))
        if biased:
            g.add(Node("Add", (total, self._whole(node.inputs[found.bias])), (name,), name=name))
        g.device = ""
        self.made.add(name)

    def _divided(self, node: Node, divided: tuple[int, int]) -> str:
        """Sizes that are only known in a run, of which one is a part's."""
        g, (operand, axis) = self.g, divided
        known = self.search.types[node.inputs[operand]]
        assert isinstance(known, Tensor) and known.value is not None
        by = np.ones(known.value.size, np.int64)
        by[axis] = len(self.devices)
        g.device = self.devices[0]
        sizes: str = g.Div(self._whole(node.inputs[operand]), g.const(by))
        g.device = ""
        return sizes

    def _sizes(self, node: Node, found: Parted) -> None:
        """The sizes of a value that is split: those of a part, of which one is multiplied."""
        g, split, name = self.g, found.operands[0], node.inputs[0]
        assert split is not None
        known = self.search.types[name]
        assert isinstance(known, Tensor)
        by = np.ones(known.rank, np.int64)
        by[split.axis] = len(self.devices)
        end = node.attrs.get("end", known.rank)
        own = by[node.attrs.get("start", 0) : end]
        part = f"{node.outputs[0]}/part"
        g.add(replace(node, inputs=(self.parts[name][0],), outputs=(part,), name=part, device=self.devices[0]))
        g.device = self.devices[0]
        g.add(Node("Mul", (part, g.const(own)), node.outputs, name=node.name))
        g.device = ""
        self.made.update(node.outputs)


def split_states(names: Iterable[str], weights: Mapping[str, Split], count: int) -> dict[str, tuple[str, ...]]:
    """The states that are whole in a checkpoint, with the names of their parts: of weights, and what optimizers keep of
    each (`optimizer/SLOT/WEIGHT`)."""
    given, found = [*names], dict[str, tuple[str, ...]]()
    for weight in weights:
        parts = part_names(weight, count)
        for name in given:
            prefix = name.removesuffix(parts[0])
            own = prefix.startswith("optimizer/") and prefix.endswith("/") and prefix.count("/") == 2
            if name.endswith(parts[0]) and (own or not prefix):
                found[prefix + weight] = tuple(prefix + p for p in parts)
    return found
