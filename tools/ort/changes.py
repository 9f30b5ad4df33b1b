"""Changes that SessionOptions ask of a model: sizes of named dims, other values of initializers; and the model that is
written after the passes."""

from __future__ import annotations

from collections.abc import Mapping

from ...exporters import save_onnx
from ...ops import Tensor
from ...ops.errors import ArgumentError
from ...ops.types import type_of
from ...runtime.execution.session import Session
from ...runtime.ir.graph import Graph, Node
from .values import OrtValue


def changed(graph: Graph, dims: Mapping[str, int], initializers: Mapping[str, OrtValue]) -> Graph:
    """The graph with these sizes and values. Raises ArgumentError for names that it does not have, and for values of
    another type."""
    return _valued(_sized(graph, dims), initializers)


def _sized(graph: Graph, dims: Mapping[str, int]) -> Graph:
    if not dims:
        return graph
    types, met = dict(graph.types), set[str]()
    for name in graph.inputs:
        known = types.get(name)
        if isinstance(known, Tensor) and known.dims is not None:
            met.update(d for d in known.dims if isinstance(d, str))
            types[name] = known.of([dims.get(d, d) if isinstance(d, str) else d for d in known.dims])
    unknown = dims.keys() - met
    if unknown:
        raise ArgumentError(
            f"no input has a dim {', '.join(map(repr, sorted(unknown)))}",
            where="SessionOptions.add_free_dimension_override_by_name",
            hint=f"they are {', '.join(sorted(met)) or 'none'}",
        )
    inputs = set(graph.inputs)  # all else is inferred again from those
    return graph.but(types={n: t for n, t in types.items() if n in inputs or n not in _made(graph)})


def _made(graph: Graph) -> set[str]:
    """Names of the results of nodes."""
    return {o for node in graph.nodes for o in node.outputs}


def _valued(graph: Graph, initializers: Mapping[str, OrtValue]) -> Graph:
    if not initializers:
        return graph
    where = "SessionOptions.add_initializer"
    for name, value in initializers.items():
        if name not in graph.initializers:
            raise ArgumentError(f"the model has no initializer {name!r}", where=where, hint="`mezzo explain` lists all")
        if type_of(value.numpy()) != type_of(graph.initializers[name]):
            want = type_of(graph.initializers[name])
            raise ArgumentError(f"{name!r} is {want}, not {type_of(value.numpy())}", where=where, hint="give that")
    return graph.but(initializers={**graph.initializers, **{n: v.numpy() for n, v in initializers.items()}})


def save_optimised(session: Session, path: str) -> None:
    """Write the model as it is after the passes that need no sizes, in standard operators, with its own names of inputs
    and outputs. Raises as `save_onnx` does."""
    compiled = session.compiled(session.signature.outputs)
    graph, named = compiled.graph, dict(zip(compiled.outputs, compiled.graph.outputs, strict=True))
    copies = [Node("Identity", (value,), (name,)) for name, value in named.items() if name != value]
    types = {name: graph.types[value] for name, value in named.items()}
    made = graph.but(nodes=(*graph.nodes, *copies), outputs=compiled.outputs, types={**graph.types, **types})
    save_onnx(made, path)
