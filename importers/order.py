"""The order of a file's nodes. ONNX asks that each stands behind those that it reads from; files of the float16
converters of ONNX Runtime and onnxconverter-common end in their casts all the same, and runtimes take them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx

from .uses import OutOfOrder
from .walk import bodies, differentiated, label


def in_order(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model with all nodes in an order in which they can run, and the labels of those that stood before what
    they read; the model itself if there are none. Nodes that wait for one another stay where they are."""
    early = [*_early(model)]
    if not early:
        return model, []
    ordered = onnx.ModelProto()
    ordered.CopyFrom(model)
    _sort(ordered.graph.node, _given(ordered.graph))
    for function in ordered.functions:
        _sort(function.node, {*function.input})
    return ordered, early


def tell(where: str, early: Sequence[str]) -> None:
    """Say in one warning that nodes stand before what they read from."""
    whose = f"{early[0]} and {len(early) - 1} more stand" if len(early) > 1 else f"{early[0]} stands"
    text = f"{where}: {whose} before nodes that they read from; they run, and are numbered, behind these"
    warnings.warn(f"{text}. ONNX asks for an order in which nodes can run (topological)", OutOfOrder, stacklevel=2)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the values that a node needs before it can run."""
    yield from filter(None, node.input)
    yield from differentiated(node)
    for _, body in bodies(node):
        own = _given(body) | _made(body.node)
        inner = [name for n in body.node for name in reads(n)] + [o.name for o in body.output]
        yield from (name for name in inner if name and name not in own)


def runnable(reads: Sequence[Sequence[str]], makers: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Return the indices of nodes in an order in which they can run, each as near to its place as it can be; or, as the
    second list, those that wait for one another, the first one repeated at the end."""
    order: dict[int, None] = {}
    for start in range(len(reads)):
        if start in order:
            continue
        path: list[int] = [start]
        on_path = {start}
        waiting = [iter(reads[start])]
        while path:
            name = next(waiting[-1], None)
            if name is None:
                on_path.discard(path[-1])
                order[path.pop()] = None
                waiting.pop()
                continue
            maker = makers.get(name)
            if maker is None or maker in order:
                continue
            if maker in on_path:
                return [], [*path[path.index(maker) :], maker]
            path.append(maker)
            on_path.add(maker)
            waiting.append(iter(reads[maker]))
    return [*order], []


def _given(graph: onnx.GraphProto) -> set[str]:
    names = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    return names | {t.values.name for t in graph.sparse_initializer}


def _made(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    return {o for n in nodes for o in n.output}


def _early(model: onnx.ModelProto) -> Iterator[str]:
    yield from _early_nodes(model.graph.node, "", _given(model.graph))
    for function in model.functions:
        yield from _early_nodes(function.node, f"function {function.name!r}: ", {*function.input})


def _early_nodes(nodes: Sequence[onnx.NodeProto], where: str, outer: set[str]) -> Iterator[str]:
    """Yield nodes that read what only a later one makes. A name that is visible in an outer scope means that one."""
    readers: dict[str, int] = {}
    late: set[int] = set()
    for index, node in enumerate(nodes):
        for name in reads(node):
            readers.setdefault(name, index)
        for name in node.output:
            if readers.get(name, index) < index and name not in outer:
                late.add(readers[name])
    yield from (where + label(index, nodes[index]) for index in sorted(late))
    around = outer | _made(nodes)
    for index, node in enumerate(nodes):
        for attribute, body in bodies(node):
            yield from _early_nodes(body.node, f"{where}{label(index, node)} {attribute}: ", around | _given(body))


def _sort(nodes: Any, outer: set[str]) -> None:
    """Put the nodes of a repeated field, and of the subgraphs below it, into an order in which they can run."""
    makers = {o: i for i, n in reversed([*enumerate(nodes)]) for o in n.output if o}
    waits = [[r for r in reads(n) if r not in outer or makers.get(r, i) < i] for i, n in enumerate(nodes)]
    order, _ = runnable(waits, makers)
    around = outer | {*makers}
    for node in nodes:
        for _, body in bodies(node):
            _sort(body.node, around | _given(body))
    if order and order != [*range(len(nodes))]:
        sorted_nodes = [nodes[i] for i in order]
        del nodes[:]
        nodes.extend(sorted_nodes)
