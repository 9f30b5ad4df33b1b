"""Changes that SessionOptions ask of a model: sizes of dims, other values of initializers; options that a model has for
its sessions; and the model that is written after the passes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...exporters import save_onnx
from ...ops import Tensor
from ...ops.errors import ArgumentError
from ...ops.types import type_of
from ...runtime.execution.session import Session
from ...runtime.ir.graph import Graph, Node
from .entries import EXTERNAL_FILE, EXTERNAL_SIZE
from .errors import opening
from .values import OrtValue

if TYPE_CHECKING:
    import onnx

    from ...ops.budget import Budget
    from .options import SessionOptions


def changed(source: Any, options: SessionOptions, budget: Budget | None, folder: Path | None) -> Graph:
    """The graph of a model with what was said of its sizes and values; `folder` has the external data of one that is
    no file. Raises ArgumentError for names that it does not have, and for values of another type; and as `load`
    does."""
    from ...importers import load_graph
    from ...importers.tensors import ExternalData

    values = {name: value.numpy() for name, value in options.initializers.items()}
    data = ExternalData(values, options.files)
    graph = load_graph(source, budget=budget, folder=folder, mapped=True, data=data)
    return _valued(_meant(source, _sized(graph, options.dims), options.meanings), options.initializers)


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


def _meant(source: Any, graph: Graph, meanings: Mapping[str, int]) -> Graph:
    """The graph with the sizes of dims that an ONNX file gives these meanings."""
    if not meanings:
        return graph
    with opening():
        proto = parsed(source)
    types, met = dict(graph.types), set[str]()
    for port in proto.graph.input:
        known, dims = types.get(port.name), port.type.tensor_type.shape.dim
        if not isinstance(known, Tensor) or known.dims is None or len(known.dims) != len(dims):
            continue
        met.update(d.denotation for d in dims if d.denotation)
        types[port.name] = known.of(
            [n if isinstance(n, int) else meanings.get(d.denotation, n) for n, d in zip(known.dims, dims, strict=True)]
        )
    unknown = meanings.keys() - met
    if unknown:
        raise ArgumentError(
            f"no input has a dim that means {', '.join(map(repr, sorted(unknown)))}",
            where="SessionOptions.add_free_dimension_override_by_denotation",
            hint=f"they mean {', '.join(sorted(met)) or 'nothing'}",
        )
    inputs = set(graph.inputs)
    return graph.but(types={n: t for n, t in types.items() if n in inputs or n not in _made(graph)})


def parsed(source: Any) -> onnx.ModelProto:
    """The protobuf of a model, without its external data."""
    import onnx

    return (
        onnx.load_model_from_string(source)
        if isinstance(source, bytes)
        else onnx.load_model(source, load_external_data=False)
    )


# Options that a model may have for its sessions, in JSON under this key of its metadata; threads and levels as numbers.
CONFIG = "ort_config"


def configured(metadata: Mapping[str, str], options: SessionOptions) -> None:
    """Set the options that a model's metadata have, which others were not given for. Raises ArgumentError for what is
    none."""
    text = metadata.get(CONFIG)
    if text is None:
        return
    where = f"{CONFIG} in the model's metadata"
    try:
        given = json.loads(text)["session_options"]
        pairs = dict(given).items()
    except (ValueError, TypeError, KeyError) as error:
        hint = 'it is {"session_options": {"intra_op_num_threads": 2, ...}}'
        raise ArgumentError(f"it cannot be read: {error}", where=where, hint=hint) from error
    for name, value in pairs:
        default = options._about[name].default if name in options._about else None
        kind: Any = type(default)
        try:
            setattr(options, name, kind(value) if isinstance(value, int) and default is not None else value)
        except ValueError as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(f"{name} = {value!r}", where=where, hint="leave it out") from error


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


def optimised(session: Session) -> Graph:
    """The model as it is after the passes that need no sizes, with its own names of inputs and outputs."""
    compiled = session.compiled(session.signature.outputs)
    graph, named = compiled.graph, dict(zip(compiled.outputs, compiled.graph.outputs, strict=True))
    copies = [Node("Identity", (value,), (name,)) for name, value in named.items() if name != value]
    types = {name: graph.types[value] for name, value in named.items()}
    return graph.but(nodes=(*graph.nodes, *copies), outputs=compiled.outputs, types={**graph.types, **types})


def save_optimised(session: Session, path: str, entries: Mapping[str, str]) -> None:
    """Write the model after the passes that need no sizes, in standard operators; large weights into a file that
    `entries` name. Raises as `save_onnx` does."""
    graph, aside = optimised(session), entries.get(EXTERNAL_FILE)
    if aside is None:
        save_onnx(graph, path)
    else:
        save_onnx(graph, path, external_data="always", threshold=int(entries.get(EXTERNAL_SIZE, 1024)), location=aside)
