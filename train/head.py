"""A new head on a trained model: the last layer is cut off, and a new one learns in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..ops import Tensor, Type
from ..ops.errors import InputError
from ..ops.types import Array, Dim
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.prune import prune
from .prepare import hoisted


def _same(node: Node) -> bool:
    """True if a node hands on its first input, perhaps rounded."""
    return node.record.rounds or (node.domain, node.op) == ("", "Identity")


def _after_head(node: Node) -> bool:
    """True if a node may stand between a head and the output: it rearranges or rescales the scores."""
    op = node.record
    return op.moves == "view" or op.kind == "softmax" or op.rounds or node.op in ("Add", "Sigmoid", "Cast")


def with_head(graph: Graph, size: int, *, output: str | None = None, at: str | None = None, seed: int = 0) -> Graph:
    """The graph whose output is a new linear layer of `size` numbers for each sample.

    `output` names the output to replace (default: the only one). The layer reads the value `at`; by default what the
    last Gemm or MatMul before the output reads. Values of rank 4 are averaged over their pixels first. Weights are
    drawn as by Glorot and Bengio 2010 from `seed`. The new output has the old one's name. Raises InputError where no
    such layer is found, or the features' count is not known.

    >>> from mezzo.importers import load_onnx
    >>> from mezzo.models.digits import digits_model
    >>> even_or_odd = with_head(load_onnx(digits_model()), 2)
    >>> print(even_or_odd.outputs, even_or_odd.types["logits"])
    ('logits',) float32[batch,2]
    """
    graph = infer(hoisted(graph))
    name = output_of(graph, output)
    source, count = (at, None) if at else _features(graph, name)
    known = graph.types.get(source)
    if not isinstance(known, Tensor) or known.dims is None or not known.dtype.floating or len(known.dims) < 2:
        raise InputError(f"the features {source!r} are {known}", where=graph.name, hint="give at=, the name of a value")
    count = count or (known.dims[1] if len(known.dims) == 4 else known.dims[-1])
    if not isinstance(count, int):
        raise InputError(f"the count of the features {source!r} is not known: {known}", where=graph.name)
    taken = set(graph.types)
    nodes, value = [], source
    if len(known.dims) == 4:
        pooled, value = unused_name(f"{name}/pooled", taken), unused_name(f"{name}/features", taken)
        nodes += [Node("GlobalAveragePool", (source,), (pooled,)), Node("Flatten", (pooled,), (value,))]
    weight, bias, product = (unused_name(f"{name}/{part}", taken) for part in ("weight", "bias", "product"))
    bound = np.sqrt(6 / (count + size))
    drawn = np.random.default_rng(seed).uniform(-bound, bound, (count, size))
    weights: Mapping[str, Array] = {
        weight: drawn.astype(known.dtype.numpy),
        bias: np.zeros(size, known.dtype.numpy),
    }
    nodes += [Node("MatMul", (value, weight), (product,)), Node("Add", (product, bias), (name,))]
    kept = _without(graph, name, unused_name(f"{name}/former", taken))
    types = {n: t for n, t in kept.types.items() if n != name}
    grown = kept.but(nodes=(*kept.nodes, *nodes), initializers={**kept.initializers, **weights}, types=types)
    return infer(prune(grown)).verify()


def output_of(graph: Graph, output: str | None) -> str:
    """The output of this name, or the only one."""
    if output is None and len(graph.outputs) == 1:
        return graph.outputs[0]
    if output not in graph.outputs:
        names = ", ".join(graph.outputs)
        raise InputError(f"which output? {output!r} is none", where=graph.name, hint=f"one of {names}")
    return output


def _features(graph: Graph, output: str) -> tuple[str, Dim]:
    """Return the value that the last linear layer before an output reads, and the number of its features."""
    makers, value = graph.producers(), output

    def fixed(name: str) -> bool:
        """True if a value is an initializer, perhaps through operators that do not change it."""
        while (maker := makers.get(name)) is not None and _same(maker):
            name = maker.inputs[0]
        return name in graph.initializers

    while (node := makers.get(value)) is not None and node.domain in ("", "mezzo"):
        moving = [i for i in node.inputs if i and not fixed(i)]
        if node.record.kind == "matmul" and moving == [node.inputs[0]]:
            weights = graph.types[node.inputs[1]]
            assert isinstance(weights, Tensor)
            return moving[0], weights.shape[1 if node.attrs.get("transB") else -2]
        if not _after_head(node) or not moving:
            break
        value = moving[0]
    raise InputError(
        f"no linear layer makes the output {output!r}", where=graph.name, hint="give at=, the value that the head reads"
    )


def _without(graph: Graph, output: str, former: str) -> Graph:
    """The graph in which the value of an output has another name."""

    def renamed(node: Node) -> Node:
        return replace(node, outputs=tuple(former if o == output else o for o in node.outputs))

    moved = graph.rename({output: former})
    return moved.but(nodes=tuple(map(renamed, moved.nodes)), outputs=graph.outputs)


def logits_of(graph: Graph, output: str) -> str:
    """The value before the Softmax over the classes (axis 1) that makes an output of a typed graph; the output itself
    where none does."""
    makers, value = graph.producers(), output
    while (node := makers.get(value)) is not None and _same(node):
        value = node.inputs[0]
    return node.inputs[0] if node is not None and _over_classes(node, graph.types[value]) else output


def _over_classes(node: Node, type: Type) -> bool:
    """True if a node is a Softmax or LogSoftmax over axis 1 alone; before opset 13 they went over all axes from `axis`
    on."""
    if not isinstance(type, Tensor) or type.dims is None:
        return False
    rank, axis = len(type.dims), {**node.record.attrs, **node.attrs}.get("axis", 0)
    if (node.domain, node.op) in (("", "Softmax"), ("", "LogSoftmax")):
        return bool(axis % rank == 1)
    return (
        node.domain == "mezzo"
        and node.op in ("SoftmaxFlattened", "LogSoftmaxFlattened")
        and axis % rank == 1 == rank - 1
    )
