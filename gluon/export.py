"""Export of a block as one graph, for inputs of fixed sizes, or with open sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..exporters import save_onnx
from ..nd.array import Array
from ..nd.opened import Names, Opened, names_of
from ..nd.recorder import GraphBreak
from ..ops.errors import InputError
from ..runtime.execution.functions import save_compiled
from ..runtime.ir.graph import Graph
from ..runtime.ir.infer import infer
from ..runtime.ir.prune import prune
from ..runtime.passes.expand import expand
from ..runtime.passes.identities import PAIRS
from ..runtime.passes.rewrite import rewrite
from .guards import Guards
from .trace import Trace, trace

if TYPE_CHECKING:
    from .hybrid import HybridBlock

Dynamic = Names | Mapping[int, Names] | Mapping[str, Names] | Mapping[int | str, Names]
MOST = 4  # open sizes: each doubles the number of traces


def save(graph: Graph, path: str | os.PathLike[str], opset: int | None) -> None:
    """Write a graph to `.mezzo`, where a path says so, else to ONNX."""
    if str(path).endswith(".mezzo"):
        save_compiled(graph, path)
    else:
        save_onnx(graph, path, opset=opset)


def exported(block: HybridBlock, inputs: Sequence[Array], dynamic: Dynamic) -> Graph:
    """The graph of a block, whose outputs are `output0`, ...; see HybridBlock.export."""
    opened = _opened(block, inputs, dynamic)
    if not opened:
        return _plain(block, inputs)
    name = type(block).__name__
    return Opened(partial(_plain, block), inputs, opened, name, f"{name}.export(dynamic=)").graph()


def _plain(block: HybridBlock, inputs: Sequence[Array]) -> Graph:
    """The graph for inputs of these sizes."""
    params = block.collect_params()
    try:
        read, way, _ = trace(block.forward, list(inputs), params, cuts=False)
    except GraphBreak as error:
        raise InputError(error.reason, where=error.where, hint=error.remedy) from None
    recording = Trace(read, params, Guards())
    recording.add(way)
    traced = way[0].traced
    assert traced is not None
    graph = traced.graph
    known = {n: p.data().detach().asnumpy() for n, p in params.items() if n in graph.inputs}
    known |= {n: x.asnumpy() for n, x in traced.captured.items()}
    graph = graph.but(
        inputs=tuple(i for i in graph.inputs if i not in known),
        outputs=graph.outputs[: traced.count],
        initializers={**graph.initializers, **known},
        name=type(block).__name__,
    )
    return prune(_apart(_renamed(graph, {o: f"output{i}" for i, o in enumerate(graph.outputs)}))).verify()


def _apart(graph: Graph) -> Graph:
    """The graph without complex numbers that are put together and taken apart again: ONNX has hardly any."""
    written = expand(graph, lambda n: (n.domain, n.op) == ("mezzo", "Conj"), graph.types)
    return rewrite(graph if written is graph else infer(written), PAIRS)


def named(graph: Graph, inputs: Sequence[str], outputs: Sequence[str], where: str) -> Graph:
    """The graph with these names for its inputs and outputs. Raises InputError where they are not as many, or not all
    different."""
    for what, now, wanted in (("inputs", graph.inputs, inputs), ("outputs", graph.outputs, outputs)):
        if len(now) != len(wanted) or len({*wanted}) != len(wanted):
            raise InputError(
                f"the names {', '.join(wanted)} for {len(now)} {what}", where=f"{where}.export", hint="one for each"
            )
    names = dict(zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True))
    changed = {old: new for old, new in names.items() if old != new}
    held = {*graph.initializers, *(o for n in graph.nodes for o in n.outputs)} - changed.keys()
    if taken := sorted(held & {*changed.values()}):
        raise InputError(f"{taken[0]!r} is a value inside", where=f"{where}.export", hint="choose another name")
    return _renamed(graph, changed).verify() if changed else graph


def _renamed(graph: Graph, names: dict[str, str]) -> Graph:
    """The graph with other names for its inputs and outputs."""
    nodes = tuple(replace(n, outputs=tuple(names.get(o, o) for o in n.outputs)) for n in graph.rename(names).nodes)
    types = {names.get(n, n): t for n, t in graph.types.items()}
    inputs, outputs = (tuple(names.get(v, v) for v in values) for values in (graph.inputs, graph.outputs))
    return graph.but(inputs=inputs, nodes=nodes, outputs=outputs, types=types)


def _opened(block: HybridBlock, inputs: Sequence[Array], dynamic: Dynamic) -> dict[int, dict[int, str]]:
    """The names of open axes, by the number of the input."""
    given: Any = dynamic
    if given and all(isinstance(name, str) for name in given.values()):
        if len(inputs) != 1:
            raise _refused(block, f"{len(inputs)} inputs", 'say which: dynamic={0: {0: "batch"}, 1: {0: "batch"}}')
        given = {0: given}
    opened: dict[int, dict[int, str]] = {}
    for which, axes in given.items():
        number = which if isinstance(which, int) else int(which[1:]) if which[1:].isdecimal() else -1
        if not 0 <= number < len(inputs) or (isinstance(which, str) and which[:1] != "x"):
            raise _refused(block, f"there is no input {which!r}", f"there are x0 to x{len(inputs) - 1}")
        rank = inputs[number].ndim
        for axis, name in axes.items():
            if not -rank <= axis < rank or not name.isidentifier():
                raise _refused(block, f"axis {axis} named {name!r} of x{number}, of rank {rank}", "an axis and a word")
            opened.setdefault(number, {})[axis % rank] = name
    if len(names_of(opened)) > MOST:
        raise _refused(block, f"{len(names_of(opened))} open sizes", f"at most {MOST}; axes of one size share a name")
    return opened


def _refused(block: HybridBlock, what: str, hint: str = "") -> InputError:
    return InputError(what, where=f"{type(block).__name__}.export(dynamic=)", hint=hint)
