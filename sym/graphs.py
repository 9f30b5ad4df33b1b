"""Conversion of symbols to graphs: every variable is an input, every use a node, every body a subgraph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..ops import Type
from ..ops.errors import InputError
from ..ops.types import type_of
from ..runtime.ir.graph import Graph, Node
from . import rules
from .expression import Body, Constant, Entry, Maker, Use, Variable, captured, inside, makers, output_name
from .typed import Typed, plain


class Naming:
    """The name of each entry in a graph."""

    def __init__(self) -> None:
        self.constants: dict[Constant, str] = {}

    def __call__(self, entry: Entry | None) -> str:
        if entry is None:
            return ""
        if isinstance(entry[0], Constant):
            return self.constants.setdefault(entry[0], f"constant{len(self.constants)}")
        return output_name(entry)


def graph_of(
    outputs: Sequence[Entry],
    inferred: Typed,
    more: Iterable[Entry] = (),
    name: str = "",
    devices: Mapping[str, str] | None = None,
) -> Graph:
    """The graph of these outputs; its inputs are all variables, auxiliary ones too. `more` are entries that the graph
    computes and does not return, `devices` those of groups."""
    naming, entries = Naming(), [*outputs, *more]
    inputs: list[str] = []
    nodes: list[Node] = []
    types: dict[str, Type] = {}
    constants: dict[str, np.ndarray[Any, Any]] = {}
    for maker in makers(entries):
        device = (devices or {}).get(maker.group, "") if isinstance(maker, Use) else ""
        if isinstance(maker, Variable):
            inputs.append(maker.name)
        elif isinstance(maker, Constant):
            constants[naming((maker, 0))] = inferred.constants[maker]
        elif maker.domain == rules.DOMAIN:
            results = [naming((maker, i)) for i in range(maker.outputs)]
            c = rules.nodes(maker, inferred, list(map(naming, maker.inputs)), results)
            nodes += [replace(n, device=device) for n in c.nodes()] if device else c.nodes()
            constants |= c.constants()
            types |= {n: t for n, t in c.types.items() if n not in types}
        else:
            nodes.append(replace(_node(maker, naming), device=device))
        for i in range(maker.outputs if isinstance(maker, Use) else 1):
            known = plain(inferred.entries[maker, i])
            assert known is not None
            types[naming((maker, i))] = known
    return Graph(
        inputs=tuple(inputs),
        outputs=tuple(map(naming, outputs)),
        nodes=tuple(nodes),
        initializers=constants,
        types=types,
        name=name,
    ).verify()


def _node(maker: Use, naming: Naming, outputs: Sequence[str] = ()) -> Node:
    if maker.domain == rules.DOMAIN:
        raise InputError(f"{maker.op} inside of a body", where=maker.where, hint="write it with operators of ONNX")
    attrs = {a: _body(v, naming) if isinstance(v, Body) else v for a, v in maker.attrs.items()}
    results = tuple(outputs) or tuple(naming((maker, i)) for i in range(maker.outputs))
    return Node(maker.op, tuple(map(naming, maker.inputs)), results, attrs, maker.domain, maker.name, maker.where)


def _body(body: Body, naming: Naming) -> Graph:
    return Graph(
        inputs=tuple(v.name for v in body.inputs),
        outputs=tuple(map(naming, body.outputs)),
        nodes=tuple(_node(m, naming) for m in inside(body) if isinstance(m, Use)),
    )


def lonely(maker: Use, inferred: Typed) -> Graph:
    """One use as a graph of its own, to have its bodies typed; the outputs are `out0`, `out1`, ..."""
    naming = Naming()
    around = dict.fromkeys([e for e in maker.inputs if e is not None])
    for value in maker.attrs.values():
        if isinstance(value, Body):
            around |= dict.fromkeys(captured(value))
    types: dict[str, Type] = {}
    constants: dict[str, np.ndarray[Any, Any]] = {}
    for entry in around:
        if isinstance(entry[0], Constant):
            constants[naming(entry)] = inferred.constants[entry[0]]
            types[naming(entry)] = type_of(inferred.constants[entry[0]], known=True)
        else:
            types[naming(entry)] = inferred.entries[entry]
    outputs = tuple(f"out{i}" for i in range(maker.outputs))
    given = tuple(n for n in types if n not in constants)
    return Graph(given, outputs, (_node(maker, naming, outputs),), constants, types)


__all__ = ["Maker", "graph_of", "lonely"]
