"""Checks of a file's value names: each is defined, and once, and there are no cycles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx

from .order import reads, runnable
from .walk import bodies, label

Problem = tuple[str, str]  # what is wrong, and what to do


def graph_problems(graph: onnx.GraphProto, where: str, outer: frozenset[str] = frozenset()) -> Iterator[Problem]:
    """Yield the problems with the names of a graph and its subgraphs."""
    inputs = [i.name for i in graph.input]
    constants = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    for group, kind in ((inputs, "input"), (constants, "initialiser")):
        yield from (
            (f"{where}: the {kind} {name!r} is declared twice", "rename one of them") for name in _repeated(group)
        )
    yield from node_problems(graph.node, {*inputs, *constants}, [o.name for o in graph.output], where, outer)


def node_problems(
    nodes: Sequence[onnx.NodeProto], known: set[str], outputs: Iterable[str], where: str, outer: frozenset[str]
) -> Iterator[Problem]:
    """Yield the problems with the names of a list of nodes that starts with the values `known`."""
    makers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in known or name in makers:
                yield f"{where}: {label(index, node)} defines {name!r} a second time", "rename one of the values"
            makers.setdefault(name, index)
    wanted = [list(dict.fromkeys(reads(n))) for n in nodes]
    # A name of an outer scope that is defined again here means the outer value up to there.
    waits = [[n for n in names if n not in outer or makers.get(n, i) < i] for i, names in enumerate(wanted)]
    _, circle = runnable(waits, makers)
    if circle:
        path = " -> ".join(label(i, nodes[i]) for i in circle)
        yield f"{where}: the nodes wait for one another in a circle: {path}", "a graph must not be cyclic"
    for index, node in enumerate(nodes):
        for name in wanted[index]:
            if name in known or (name in outer and name not in makers):
                continue
            if name not in makers:
                yield f"{where}: {label(index, node)} reads {name!r}, which nothing defines", "check the value's name"
        inside = [*bodies(node)]
        if inside:
            visible = outer | known | {n for n, maker in makers.items() if maker < index}
            for attribute, body in inside:
                yield from graph_problems(body, f"{where}: {label(index, node)} {attribute}", visible)
    lost = [o for o in outputs if o not in known and o not in makers and o not in outer]
    if lost:
        yield f"{where}: nothing defines the outputs {', '.join(map(repr, lost))}", "check the names of the outputs"


def _repeated(names: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    return [n for n in names if n in seen or seen.add(n)]  # type: ignore[func-returns-value]
