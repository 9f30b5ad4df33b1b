"""Fusion of chains: a node and its successors become one `mezzo.Fused`, where one kernel of the device computes them.

Nothing is fused on suspicion: a chain grows by one node as long as a kernel that fuses takes the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from ...ops import Tensor
from ...ops.core.fused import ABSENT, PREVIOUS, Link
from ...ops.dataclasses import dataclass, replace
from ..ir.graph import SPLIT, Graph, Node
from .bodies import map_bodies

Takes = Callable[[Graph, Node], str | None]  # None if a kernel computes the node at once, else why not


@dataclass(frozen=True, slots=True)
class Chain:
    """Nodes that one kernel computes, and the node that replaces them."""

    nodes: tuple[Node, ...]
    fused: Node


# By the first result and which of its dims are 1: other sizes rarely change what kernels take
Chains = dict[tuple[str, tuple[bool, ...]], Chain]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The end of a chain, and the reason."""

    where: str
    reason: str


def fuse_chains(
    graph: Graph,
    takes: Takes,
    keep: Container[str] = (),
    stopped: list[Stopped] | None = None,
    chains: Chains | None = None,
) -> Graph:
    """Fuse what `takes` accepts, but values in `keep` stay; why chains end goes to `stopped`. Subgraphs are fused on
    their own.

    `chains` holds what was found for other sizes. Nodes that can still stand in such a chain are fused as they were,
    without asking; the chains of others are added.
    """
    chains = {} if chains is None else chains
    graph = map_bodies(graph, lambda body: fuse_chains(body.but(types=graph.types), takes, keep, stopped, chains))
    uses, readers = graph.uses(), dict[str, Node]()
    for node in graph.nodes:
        for name in node.inputs:
            readers[name] = node
    gone, split = set[str](), SPLIT in graph.metadata
    placed: dict[str, Node] = {}

    def following(nodes: list[Node]) -> Node | None:
        """The node that a chain can go on with."""
        last = nodes[-1]
        result = last.outputs[0]
        if uses.get(result) != 1 or result not in readers or result in keep:
            return None
        reader = readers[result]
        if split and reader.device != last.device and nodes[0].record.multiplies:  # its part of a weight stays there
            return None
        return reader if _plain(reader) and reader.outputs[0] not in gone and _same_size(graph, last, reader) else None

    def known(first: Node) -> Chain | None:
        """The chain as it was, if it can be so again."""
        earlier = chains.get(_place(graph, first))
        if earlier is None:
            return None
        nodes = [first]
        for before in earlier.nodes[1:]:
            reader = following(nodes)
            if reader is None or reader.outputs != before.outputs:
                return None
            nodes.append(reader)
        return earlier if all(a is b for a, b in zip(nodes, earlier.nodes, strict=True)) else _chained(nodes)

    def grown(first: Node) -> Chain:
        """The longest chain that a kernel takes."""
        nodes = [first]
        while (reader := following(nodes)) is not None:
            reason = takes(graph, _fused([*nodes, reader]))
            if reason is not None:
                if stopped is not None:
                    stopped.append(Stopped(reader.place, reason))
                break
            nodes.append(reader)
        result = chains[_place(graph, first)] = _chained(nodes)
        return result

    for node in graph.nodes:
        if node.outputs[0] in gone or not _plain(node):
            continue
        chain = known(node) or grown(node)
        if len(chain.nodes) > 1:
            gone.update(n.outputs[0] for n in chain.nodes)
            placed[chain.fused.outputs[0]] = chain.fused
    if not placed:
        return graph
    nodes = list(_rebuilt(graph, gone, placed))
    return graph.but(nodes=tuple(_overwriting(graph, nodes)))


def _chained(nodes: list[Node]) -> Chain:
    return Chain(tuple(nodes), _fused(nodes) if len(nodes) > 1 else nodes[0])


def _place(graph: Graph, first: Node) -> tuple[str, tuple[bool, ...]]:
    known = graph.types.get(first.outputs[0])
    return first.outputs[0], tuple(d == 1 for d in known.dims or ()) if isinstance(known, Tensor) else ()


def _overwriting(graph: Graph, nodes: list[Node]) -> Iterator[Node]:
    """The nodes; those that add a value which dies with them to a result of its type say so."""
    last: dict[str, int] = {}
    for i, node in enumerate(nodes):
        last.update(dict.fromkeys(node.reads(), i))
    written = {o for n in nodes for o in n.outputs if o}
    kept = {*graph.outputs, *(s.output for s in graph.states)}
    for i, node in enumerate(nodes):
        added = _added(graph, node) if node.op == "Fused" else -1
        name = node.inputs[added] if added >= 0 else ""
        once = added >= 0 and sum(link[2].count(added) for link in node.attrs["chain"]) == 1
        if once and name in written - kept and last[name] == i:
            node = replace(node, attrs={**node.attrs, "overwrites": added})
        yield node


def _added(graph: Graph, node: Node) -> int:
    """The input of the result's type that is added to the first operator's result, perhaps behind a bias; else -1."""
    for _, op, operands, _ in node.attrs["chain"][1:3]:
        other = next((i for i in operands if i >= 0), -1) if op == "Add" else -1
        if other < 0 or graph.types.get(node.inputs[other]) == graph.types.get(node.outputs[0]):
            return other
    return -1


def _rebuilt(graph: Graph, gone: set[str], placed: dict[str, Node]) -> Iterator[Node]:
    for node in graph.nodes:
        name = node.outputs[0]
        if name in placed:
            yield placed[name]
        elif name not in gone:
            yield node


def _plain(node: Node) -> bool:
    standard = not node.domain or (node.domain, node.op) == ("com.microsoft", "QLinearAdd")
    return len(node.outputs) == 1 and not node.bodies and standard


def _same_size(graph: Graph, before: Node, after: Node) -> bool:
    x, y = graph.types.get(before.outputs[0]), graph.types.get(after.outputs[0])
    return isinstance(x, Tensor) and isinstance(y, Tensor) and x.static and x.dims == y.dims


def _fused(nodes: list[Node]) -> Node:
    """The node that stands for a chain."""
    inputs: dict[str, int] = {}
    links: list[Link] = []
    previous = ""
    for node in nodes:
        operands = tuple(
            ABSENT if not n else PREVIOUS if n == previous else inputs.setdefault(n, len(inputs)) for n in node.inputs
        )
        links.append((node.domain, node.op, operands, tuple(sorted(node.attrs.items()))))
        previous = node.outputs[0]
    first, last = nodes[0], nodes[-1]
    origin = tuple(dict.fromkeys(o for n in nodes for o in (n.origin or (n.name,))))
    return Node("Fused", tuple(inputs), last.outputs, {"chain": tuple(links)}, "mezzo", last.name, first.where, origin)
