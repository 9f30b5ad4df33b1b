"""Tensor parallelism: products of matrices that several devices compute together, each with its part of the weights.

A product with a weight is split along its columns; what follows is computed apart, by the rules of split_rules.py, up
to the product along whose rows it is split: of that the devices' parts are added up, on the first device and in the
order of devices. So it goes with attention (queries, keys and values, then the projection) and with the two products
of a feed-forward layer. All else is on the first device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...ops import Tensor
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import InputError
from ...ops.types import Array
from ..ir.graph import SPLIT, Graph, Node
from ..ir.infer import infer
from ..ir.typed import TypedBuilder
from .place import TensorParallel
from .split_rules import Parted, Split
from .split_search import SplitSearch, sized_types


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
    typed = sized_types(graph)
    search = SplitSearch(graph, typed, len(devices), asked.weights, weights)
    search.run()
    if not search.sums and weights is None:
        raise InputError(
            "no two products of matrices follow each other that the devices could share",
            where="place=TensorParallel",
            hint=f"columns of weights have to be divisible by {len(devices)}, and no other node may read a weight; "
            "place= with patterns puts layers on devices",
        )
    return SplitWriter(graph, search, devices, weights).written()


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


@dataclass(slots=True)
class SplitWriter:
    """The graph with the parts of its nodes, each on its device."""

    graph: Graph
    search: SplitSearch
    devices: tuple[str, ...]
    decided: Mapping[str, Split] | None
    g: TypedBuilder = field(init=False)
    parts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # of values, by device
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    entire: set[str] = field(default_factory=set[str])  # values that are whole
    cuts: dict[tuple[str, Split], list[str]] = field(default_factory=dict[tuple[str, Split], list[str]])  # of these

    def __post_init__(self) -> None:
        own = {n: t for n, t in self.graph.types.items() if n in self.graph.inputs or n in self.graph.initializers}
        self.g = TypedBuilder(own, prefix="split/")
        self.weights = dict(self.graph.initializers)
        self.entire = {*self.graph.inputs, *self.graph.initializers, *(s.input for s in self.graph.states)}

    def written(self) -> SplitGraph:
        graph, search, count = self.graph, self.search, len(self.devices)
        weights = search.weights if self.decided is None else self.decided
        for name, split in weights.items():
            if name not in graph.initializers:
                continue
            self.parts[name] = [*part_names(name, count)]
            self.entire.discard(name)
            for part, array in zip(self.parts[name], split_array(self.weights.pop(name), split, count), strict=True):
                self.g.hold(part, array)
        self.search.splits |= weights
        for i, node in enumerate(graph.nodes):
            form = search.nodes.get(i)
            if form is None:
                self._whole_node(node)
            elif node.op == "Shape":
                self._sizes(node, form)
            else:
                self._parts(node, form)
        for name in (*graph.outputs, *(s.output for s in graph.states)):
            self._whole(name)
        written = graph.but(
            nodes=self.g.nodes(), initializers={**self.weights, **self.g.constants()}, types=self.g.types,
            metadata={**graph.metadata, SPLIT: ",".join(self.devices)},
        ).verify()  # fmt: skip
        return SplitGraph(infer(written), dict(weights), self.devices)

    def _whole_node(self, node: Node) -> None:
        for name in node.reads():
            self._whole(name)
        known: Any = [self.graph.types.get(o) for o in node.outputs]
        self.g.add(replace(node, device=self.devices[0]), known if all(known) else None)
        self.entire.update(filter(None, node.outputs))

    def _whole(self, name: str) -> str:
        """The whole of a value, on the first device: put together where it is first read."""
        if name in self.entire or name not in self.parts:
            return name
        split, g = self.search.splits[name], self.g
        g.device, pieces = self.devices[0], list[str]()
        if len(split.blocks) == 1:
            pieces = self.parts[name]
        else:
            edges = [0, *np.cumsum([b // len(self.devices) for b in split.blocks]).tolist()]
            for begin, end in pairwise(edges):
                pieces += [self._cut(p, begin, end, split.axis) for p in self.parts[name]]
        g.add(Node("Concat", tuple(pieces), (name,), {"axis": split.axis}, name=name))
        g.device = ""
        self.entire.add(name)
        return name

    def _cut(self, name: str, begin: int, end: int, axis: int) -> str:
        g = self.g
        cut: str = g.Slice(name, g.const([begin]), g.const([end]), g.const([axis]))
        return cut

    def _operand(self, name: str, split: Split | None) -> list[str]:
        """An operand for each device: its part, or the whole."""
        if split is None or not name:
            return [self._whole(name) if name else ""] * len(self.devices)
        if name in self.parts and self.search.splits[name] == split:
            return self.parts[name]
        if (name, split) not in self.cuts:
            self.cuts[name, split] = self._share(self._whole(name), split)
        return self.cuts[name, split]

    def _share(self, name: str, split: Split) -> list[str]:
        """Cut a value that is whole: its readers may want it cut along several axes."""
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
        return parts

    def _parts(self, node: Node, form: Parted) -> None:
        g, count = self.g, len(self.devices)
        operands = [self._operand(n, s) for n, s in zip(node.inputs, form.operands, strict=True)]
        outputs = [part_names(o, count) if o else ("",) * count for o in node.outputs]
        for i, array in form.constants.items():
            operands[i] = [g.const(array)] * count
        if form.divided is not None:
            operands[form.divided[0]] = [self._divided(node, form.divided)] * count
        if form.bias >= 0:
            operands[form.bias] = [""] * count
        for i, device in enumerate(self.devices):
            inputs, results = tuple(o[i] for o in operands), tuple(o[i] for o in outputs)
            while inputs and not inputs[-1]:
                inputs = inputs[:-1]
            attrs = {**node.attrs, **form.attrs}
            name = part_names(node.name, count)[i] if node.name else ""
            g.add(replace(node, name=name, inputs=inputs, outputs=results, attrs=attrs, device=device))
        for o, parts in zip(node.outputs, outputs, strict=True):
            if o:
                self.parts[o] = [*parts]
        if form.adds:
            self._add_up(node, form)

    def _add_up(self, node: Node, form: Parted) -> None:
        """Add the parts of a product, and then what it adds itself."""
        g, parts, name = self.g, self.parts.pop(node.outputs[0]), node.outputs[0]
        g.device = self.devices[0]
        biased = form.bias >= 0
        total = f"{name}/sum" if biased else name
        g.add(Node("Add" if len(parts) == 2 else "Sum", tuple(parts), (total,), name=total))
        if biased:
            g.add(Node("Add", (total, self._whole(node.inputs[form.bias])), (name,), name=name))
        g.device = ""
        self.entire.add(name)

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

    def _sizes(self, node: Node, form: Parted) -> None:
        """The sizes of a value that is split: those of a part, of which one is multiplied."""
        g, split, name = self.g, form.operands[0], node.inputs[0]
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
        self.entire.update(node.outputs)
