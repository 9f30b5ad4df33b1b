"""Traversal of the protobufs of a model: nodes, subgraphs, functions, tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from ..ops import OPS
from ..ops.dataclasses import dataclass
from ..ops.op import REQUIRED
from ..ops.training.optimizers import DOMAIN

OURS = "mezzo"
# Operators that ONNX Runtime's optimiser writes into ai.onnx whatever the opset, and what the standard calls them.
EARLY = {"LayerNormalization": "LayerNormalization", "SimplifiedLayerNormalization": "RMSNormalization"}
FunctionKey = tuple[str, str, str]  # domain, name, overload


def domain_of(name: str) -> str:
    """The default domain has two spellings."""
    return "" if name == "ai.onnx" else name


def opsets_of(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """The opset of each domain that a model or function imports."""
    return {domain_of(o.domain): int(o.version) for o in proto.opset_import}


def functions_of(model: onnx.ModelProto) -> dict[FunctionKey, onnx.FunctionProto]:
    """The local functions of a model, without those that stand for operators of ours."""
    return {(domain_of(f.domain), f.name, f.overload): f for f in model.functions if not stands_for_ours(f)}


def stands_for_ours(function: onnx.FunctionProto) -> bool:
    """True if calls of a function are nodes of an operator that has a record, and give all required attributes."""
    record = OPS.get((OURS, operator_of(function.domain, function.name)))
    if function.domain != OURS or record is None:
        return False
    required = {a for a, default in record.attrs.items() if default is REQUIRED}
    return required <= set(function.attribute) <= set(record.attrs)


def operator_of(domain: str, name: str) -> str:
    """The operator that a node names, as the standard calls it. Our functions have a number behind the operator's name
    where several were written for one operator, of other attributes, ranks or element types."""
    if not domain and name in EARLY:
        return EARLY[name]
    stem, _, number = str(name).rpartition("_")  # a damaged file may have bytes that are no text here
    return stem if domain == OURS and number.isdecimal() and stem else name


def key_of(node: onnx.NodeProto) -> FunctionKey:
    """Return the key of the local function that a node may call."""
    return domain_of(node.domain), node.op_type, node.overload


def bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The subgraphs of a node with the names of their attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for graph in attribute.graphs:
            yield attribute.name, graph


def names_read(graph: onnx.GraphProto) -> set[str]:
    """Return every name that a node, an output or a subgraph reads."""
    names = {o.name for o in graph.output} | {i for n in graph.node for i in (*n.input, *differentiated(n))}
    return names.union(*(names_read(body) for n in graph.node for _, body in bodies(n)))


def names_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[str | bytes]:
    """Yield every name in nodes, subgraphs included."""
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
        for _, body in bodies(node):
            yield from graph_names(body)


def graph_names(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    """Yield every name in a graph."""
    yield from (graph.name, graph.doc_string)
    yield from (i.name for i in (*graph.input, *graph.output, *graph.value_info))
    yield from (t.name for t in tensors(graph))
    yield from names_in(graph.node)


def model_names(model: onnx.ModelProto) -> Iterator[str | bytes]:
    """Yield every name in a model."""
    yield model.doc_string
    yield from (text for p in model.metadata_props for text in (p.key, p.value))
    yield from (o.domain for holder in (model, *model.functions) for o in holder.opset_import)
    yield from graph_names(model.graph)
    for function in model.functions:
        yield from (function.name, function.domain, function.overload, *function.input, *function.output)
        yield from (*function.attribute, *(a.name for a in function.attribute_proto))
        yield from names_in(function.node)


def differentiated(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a Gradient names in its attributes."""
    if (node.domain, node.op_type) == (DOMAIN, "Gradient"):
        for attribute in node.attribute:
            yield from (n.decode("utf-8", "replace") for n in (*attribute.strings, attribute.s) if n)


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor stored in a graph, those of attributes and subgraphs included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from attribute_tensors(graph.node)


def attribute_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """Yield every tensor stored in attributes of these nodes, subgraphs included."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
        for _, body in bodies(node):
            yield from tensors(body)


def label(index: int, node: onnx.NodeProto) -> str:
    """Return the label of a file's node in error messages."""
    name = f"{domain_of(node.domain)}::{node.op_type}" if domain_of(node.domain) else node.op_type
    return f"node {index} {node.name!r} ({name})"


@dataclass(frozen=True, slots=True)
class Place:
    """A list of nodes in a file: the graph, a subgraph, or a function body."""

    where: str
    nodes: Iterable[onnx.NodeProto]
    opsets: dict[str, int]
    depth: int


def places(where: str, nodes: Iterable[onnx.NodeProto], opsets: dict[str, int], depth: int = 0) -> Iterator[Place]:
    """Yield this list of nodes, and those of all subgraphs below it."""
    yield Place(where, nodes, opsets, depth)
    for index, node in enumerate(nodes):
        for attribute, body in bodies(node):
            yield from places(f"{where}: {label(index, node)} {attribute}", body.node, opsets, depth + 1)
