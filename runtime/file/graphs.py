"""Writing of graphs and nodes as columns of a file's tables, and reading them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...ops.types import Type
from ..ir.graph import Graph, Node, Signature, State
from .pool import BodyRef, ConstantPool, Ends, Indexed, PoolWriter, same_length, spans
from .table import Table, malformed


class NodeWriter:
    """Writer of nodes as columns."""

    def __init__(self, pool: PoolWriter) -> None:
        self._pool = pool
        self._rows: list[tuple[int, ...]] = []
        self._inputs, self._outputs, self._attrs, self._origins = Ends(), Ends(), Ends(), Ends()
        self._attr_values: list[int] = []

    def add(self, node: Node) -> None:
        text = self._pool.text
        self._rows.append(tuple(map(text, (node.op, node.domain, node.name, node.where, node.device))))
        self._inputs.add(map(text, node.inputs))
        self._outputs.add(map(text, node.outputs))
        self._attrs.add(map(text, node.attrs))
        self._attr_values += map(self._pool.value, node.attrs.values())
        self._origins.add(map(text, node.origin))

    def content(self) -> dict[str, Any]:
        """The Nodes table."""
        op, domain, name, where, device = (list(c) for c in zip(*self._rows, strict=True)) if self._rows else [[]] * 5
        return {
            "op": op,
            "domain": domain,
            "name": name,
            "where": where,
            "device": device,
            "inputs_end": self._inputs.ends,
            "inputs": self._inputs.items,
            "outputs_end": self._outputs.ends,
            "outputs": self._outputs.items,
            "attrs_end": self._attrs.ends,
            "attr_names": self._attrs.items,
            "attr_values": self._attr_values,
            "origins_end": self._origins.ends,
            "origins": self._origins.items,
        }


def read_nodes(table: Table, pool: ConstantPool, body: Callable[[int], Graph]) -> list[Node]:
    """The nodes of a Nodes table; `body` gives the graph of a number."""
    strings, values = pool.strings, pool.values
    rows = [[strings[i] for i in table.column(c)] for c in ("op", "domain", "name", "where", "device")]
    count = same_length(*rows)

    def lists(name: str) -> list[tuple[str, ...]]:
        column = [strings[i] for i in table.column(name)]
        return [tuple(column[a:b]) for a, b in spans(table.column(f"{name}_end"), count, column)]

    inputs, outputs, origins = map(lists, ("inputs", "outputs", "origins"))
    names = [strings[i] for i in table.column("attr_names")]
    attr_values = [values[i] for i in table.column("attr_values")]
    if any(v.__class__ is BodyRef for v in values):  # in a tuple too it is a value of its own
        attr_values = [_with_bodies(v, body) for v in attr_values]
    attrs = [
        dict(zip(names[a:b], attr_values[a:b], strict=True))
        for a, b in spans(table.column("attrs_end"), count, names, attr_values)
    ]
    return [
        Node(op, ins, outs, own, domain, name, where, origin, device)
        for op, domain, name, where, device, ins, outs, own, origin in zip(
            *rows, inputs, outputs, attrs, origins, strict=True
        )
    ]


def _with_bodies(value: Any, body: Callable[[int], Graph]) -> Any:
    """The value with graphs in place of their numbers; itself where it has none, so that equal values stay one."""
    if isinstance(value, BodyRef):
        return body(value.number)
    if isinstance(value, tuple) and any(isinstance(v, (BodyRef, tuple)) for v in value):
        resolved = tuple([_with_bodies(v, body) for v in value])
        return resolved if any(a is not b for a, b in zip(resolved, value, strict=True)) else value
    return value


class GraphWriter:
    """Writer of a graph and its bodies, bodies first."""

    def __init__(self, array: Callable[[Any], int]) -> None:
        self.tables: list[dict[str, Any]] = []
        self._array = array
        self.pool = PoolWriter(array, self.add)

    def add(self, graph: Graph) -> int:
        """Append a graph after its bodies; returns its number."""
        text, type_of = self.pool.text, self.pool.type
        nodes = NodeWriter(self.pool)
        for node in graph.nodes:
            nodes.add(node)
        self.tables.append(
            {
                "name": text(graph.name),
                "doc": text(graph.doc),
                "ir_version": graph.ir_version,
                "inputs": list(map(text, graph.inputs)),
                "outputs": list(map(text, graph.outputs)),
                "initializers": flat((text(n), self._array(a)) for n, a in graph.initializers.items()),
                "types": flat((text(n), type_of(t)) for n, t in graph.types.items()),
                "states": flat((text(s.name), text(s.input), text(s.output)) for s in graph.states),
                "opsets": flat((text(d), v) for d, v in graph.opsets.items()),
                "metadata": flat((text(k), text(v)) for k, v in graph.metadata.items()),
                "nodes": nodes.content(),
            }
        )
        return len(self.tables) - 1


def flat(rows: Iterable[Sequence[int]]) -> list[int]:
    """Tuples written one after another."""
    return [n for row in rows for n in row]


def grouped(column: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """The tuples of a column that holds them one after another; ModelError if one is cut short."""
    if len(column) % size:
        raise malformed("a column ends in the middle of an entry")
    return list(zip(*(iter(column),) * size, strict=True))


def read_types(table: Table, pool: ConstantPool) -> dict[str, Type]:
    """Name to type."""
    strings, types = pool.strings, pool.types
    return {strings[n]: types[t] for n, t in grouped(table.column("types"), 2)}


def read_signature(table: Table, pool: ConstantPool, arrays: Indexed) -> Signature:
    """The signature of a Graph table, whose nodes are left alone. ModelError where it contradicts itself."""
    strings = pool.strings
    types, constants = (
        {strings[n]: i for n, i in grouped(table.column(c), 2)} for c in ("types", "initializers")
    )  # most of them belong to values that no caller meets: their numbers are not looked up
    inputs = [strings[i] for i in table.column("inputs")]
    first = [strings[i] for _, i, _ in grouped(table.column("states"), 3)]
    wrong = [n for n in inputs if n not in types] + [n for n in first if n not in constants]
    if wrong or len(set(inputs)) < len(inputs):
        raise malformed(f"{wrong} have no type or no first value, or two inputs have one name")
    return Signature(
        strings[table.number("name")],
        {n: pool.types[types[n]] for n in inputs},
        tuple([strings[i] for i in table.column("outputs")]),
        {n: arrays[constants[n]] for n in inputs if n in constants},
        {n: arrays[constants[n]] for n in first},
    )


def read_graph(tables: Sequence[Table], pool: ConstantPool, arrays: Indexed, nesting: Callable[[int], None]) -> Graph:
    """The last graph of a section, with the others as bodies of its nodes, each used exactly once.

    `nesting` is told how deep bodies lie inside one another, and may refuse.
    """
    graphs: list[Graph] = []
    depth: list[int] = []
    used: set[int] = set()
    for table in tables:
        deepest = -1

        def body(number: int) -> Graph:
            nonlocal deepest
            if number in used:
                raise malformed("two attributes share one subgraph")
            used.add(number)
            deepest = max(deepest, depth[number])  # IndexError: it is not among the graphs before this one
            return graphs[number]

        graphs.append(_graph(table, pool, arrays, body))
        depth.append(deepest + 1)
        nesting(depth[-1])
    if len(used) != len(graphs) - 1 or len(graphs) - 1 in used:
        raise malformed("the file holds no graph, or graphs that nothing uses")
    return graphs[-1]


def _graph(table: Table, pool: ConstantPool, arrays: Indexed, body: Callable[[int], Graph]) -> Graph:
    strings = pool.strings

    def names(column: str) -> tuple[str, ...]:
        return tuple([strings[i] for i in table.column(column)])

    def pairs(column: str, second: Indexed | None) -> Mapping[str, Any]:
        rows = grouped(table.column(column), 2)
        return {strings[a]: b if second is None else second[b] for a, b in rows}

    return Graph(
        inputs=names("inputs"),
        outputs=names("outputs"),
        nodes=tuple(read_nodes(table.table("nodes"), pool, body)),
        initializers=pairs("initializers", arrays),
        types=read_types(table, pool),
        states=tuple(State(*(strings[i] for i in row)) for row in grouped(table.column("states"), 3)),
        name=strings[table.number("name")],
        doc=strings[table.number("doc")],
        metadata=pairs("metadata", strings),
        opsets=pairs("opsets", None),
        ir_version=table.number("ir_version"),
    )
