"""Weights of quantised graphs: floats for learning, integers for storage.

A weight that learns is a float, and stands before a QuantizeLinear and a DequantizeLinear. In a file it is what the
first of the two makes of it. Biases learn as floats alone; they are stored in 32 bits, in units of the products that
they are added to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..ops import Context, DType, Tensor, Type
from ..ops.core.rules import axis_of
from ..ops.quantization.fake_quantize import LEAST
from ..ops.types import Array
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.prune import prune

STEPS = ":steps"  # how the name of a value ends that is counted in steps


def with_float_weights(graph: Graph) -> Graph:
    """The graph whose quantised weights are floats before a pair, and whose biases are floats.

    The floats are those that the integers stand for, so that the graph answers as before. Weights with a scale for
    each block stay as they are. Both halves of a pair read the same scale and zero point from here on.
    """
    if not any(_is(node, "DequantizeLinear") for node in graph.nodes):
        return graph
    edit, makers, uses = _Edit(graph), graph.producers(), graph.uses()
    for node in graph.nodes:
        if not _is(node, "DequantizeLinear"):
            edit.nodes.append(node)
            continue
        first = makers.get(node.inputs[0])
        if first is not None and _is(first, "Clip"):  # of fewer steps than the type has
            first = makers.get(first.inputs[0])
        if first is not None and _is(first, "QuantizeLinear"):
            edit.nodes.append(_of_one_scale(graph, first, node))
        elif _whole_weight(edit, node):
            edit.nodes += _floats(edit, node, uses[node.inputs[0]] == 1)
        else:
            edit.nodes.append(node)
    return edit.graph()


def with_integer_weights(graph: Graph) -> Graph:
    """The graph whose weights before a pair are integers, as are biases of products of 8-bit operands: to be stored."""
    if not any(_is(node, "QuantizeLinear") for node in graph.nodes):
        return graph
    edit = _Edit(graph)
    edit.values = _computed(edit)
    for node in graph.nodes:
        if not _is(node, "QuantizeLinear"):
            edit.nodes.append(node)
            continue
        scale = edit.constant(node.inputs[1])
        if scale is not None and scale.dtype == np.float32:  # as it counts: see ops/quantization/fake_quantize.py
            edit.constants[node.inputs[1]] = np.maximum(scale, np.float32(LEAST))
        known = [edit.value(i) if i else None for i in node.inputs]
        if node.outputs[0] in graph.outputs or any(i and a is None for i, a in zip(node.inputs, known, strict=True)):
            edit.nodes.append(node)
        else:
            (edit.constants[node.outputs[0]],) = node.record.run(Context(), known, node.attrs)
    return _with_integer_biases(edit.graph())


def _computed(edit: _Edit) -> Mapping[str, Type]:
    """The types, with their elements, of scales and zero points that are computed of others, as by a Cast."""
    graph = edit.source
    names = {i for n in graph.nodes if _is(n, "QuantizeLinear") for i in n.inputs[1:] if i}
    inner = tuple(n for n in names if n not in edit.constants and n not in edit.varies)
    typed = infer(prune(graph.but(outputs=inner))).types if inner else {}
    return {n: typed[n] for n in inner}


def _is(node: Node, op: str) -> bool:
    return (node.op, node.domain) == (op, "")


class _Edit:
    """A graph that is derived from another one: its nodes, its constants, and the names in use."""

    def __init__(self, graph: Graph) -> None:
        self.source, self.nodes, self.constants = graph, list[Node](), dict(graph.initializers)
        self.varies = {*graph.inputs, *(s.input for s in graph.states)}
        self.taken = set(graph.types) | graph.defined()
        self.values: Mapping[str, Type] = {}

    def constant(self, name: str) -> Array | None:
        """An initialiser that nobody changes."""
        return None if name in self.varies else self.constants.get(name)

    def value(self, name: str) -> Array | None:
        """The elements of a value that follows from such initialisers."""
        known = self.values.get(name)
        return self.constant(name) if not isinstance(known, Tensor) else known.value

    def hold(self, name: str, array: Array) -> str:
        name = unused_name(name, self.taken)
        self.constants[name] = array
        return name

    def graph(self) -> Graph:
        computed = {o for n in self.nodes for o in n.outputs}
        types = {n: t for n, t in self.source.types.items() if n in computed or n in self.source.inputs}
        return prune(self.source.but(nodes=tuple(self.nodes), initializers=self.constants, types=types))


# -- to floats --------------------------------------------------------------------------------------------------------


def _of_one_scale(graph: Graph, first: Node, back: Node) -> Node:
    """The second node of a pair, which reads what the first one reads where the two are equal."""

    def equal(a: str, b: str) -> bool:
        known = [graph.initializers.get(n) for n in (a, b)]
        return known[0] is not None and known[1] is not None and np.array_equal(known[0], known[1])

    own, its = back.inputs[1:], first.inputs[1:]
    return replace(back, inputs=(back.inputs[0], *its)) if len(own) == len(its) and all(map(equal, own, its)) else back


def _whole_weight(edit: _Edit, node: Node) -> bool:
    """True if a node dequantises a constant, per tensor or per axis, to the type of its scale."""
    counted, scale, *zero = (edit.constant(i) if i else None for i in node.inputs)
    if counted is None or scale is None or scale.ndim > 1 or node.attrs.get("block_size"):
        return False
    if any(i and z is None for i, z in zip(node.inputs[2:], zero, strict=True)) or not counted.ndim:
        return False
    kind, float_kind = DType.of(counted.dtype), DType.of(scale.dtype)
    return kind.integer and float_kind.bits >= 16 and node.attrs.get("output_dtype", 0) in (0, float_kind.onnx)


def _floats(edit: _Edit, node: Node, alone: bool) -> Iterator[Node]:
    """The node, with a float and a QuantizeLinear before it, whose result has the name of the integers if this node
    `alone` reads them; of a bias nothing but the float."""
    steps, scale = node.inputs[0], edit.constants[node.inputs[1]]
    counted = edit.constants.pop(steps) if alone else edit.constants[steps]
    given = [counted, *(edit.constants[i] if i else None for i in node.inputs[1:])]
    (real,) = node.record.run(Context(), given, node.attrs)
    if DType.of(counted.dtype).bits > 16:
        edit.constants[node.outputs[0]] = real
        return
    stem = steps.removesuffix(STEPS)
    weight = edit.hold(stem if stem != steps else f"{steps}:float", real)
    steps = steps if alone else unused_name(f"{weight}{STEPS}", edit.taken)
    zero = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] else ""
    zero = zero or edit.hold(f"{weight}:zero", np.zeros(scale.shape, counted.dtype))
    attrs = {"axis": node.attrs["axis"]} if "axis" in node.attrs else {}
    yield Node("QuantizeLinear", (weight, node.inputs[1], zero), (steps,), attrs, name=f"{weight}:quantize")
    yield replace(node, inputs=(steps, node.inputs[1], zero))


# -- to integers ------------------------------------------------------------------------------------------------------


def _with_integer_biases(graph: Graph) -> Graph:
    edit, makers, uses = _Edit(graph), graph.producers(), graph.uses()
    for node in graph.nodes:
        unit = _unit(edit, node, makers)
        real = None if unit is None else edit.constant(node.inputs[2])
        counted = None if unit is None or real is None else _in_units(real, unit)
        if unit is None or counted is None:
            edit.nodes.append(node)
            continue
        name = node.inputs[2]
        if uses[name] == 1:
            del edit.constants[name]
        else:
            name = unused_name(f"{node.outputs[0]}:bias", edit.taken)
        parts = edit.hold(f"{name}{STEPS}", counted), edit.hold(f"{name}:scale", unit)
        attrs: dict[str, Any] = {"axis": 0} if unit.ndim else {}
        edit.nodes.append(Node("DequantizeLinear", parts, (name,), attrs, name=f"{name}:dequantize"))
        edit.nodes.append(replace(node, inputs=(*node.inputs[:2], name)))
    return edit.graph() if len(edit.nodes) > len(graph.nodes) else graph


def _unit(edit: _Edit, node: Node, makers: Mapping[str, Node]) -> Array | None:
    """Return the value of one unit of the accumulator of a product with a bias, if both operands have 8 bits; else
    None."""
    op = node.record
    if node.domain or not (op.multiplies and op.quantized) or len(node.inputs) < 3 or not node.inputs[2]:
        return None
    left, right = (makers.get(name) for name in node.inputs[:2])
    if left is None or right is None or node.attrs.get("beta", 1.0) != 1:
        return None
    activations, weights = (_bytes_scale(edit, maker) for maker in (left, right))
    counted = edit.constant(right.inputs[0])
    if activations is None or weights is None or counted is None or activations.size != 1:
        return None
    alpha = np.float32(node.attrs.get("alpha", 1.0))
    if weights.size == 1:
        return np.asarray(weights.reshape(()) * activations.reshape(()) * alpha, np.float32)
    at = 0 if op.kind == "convolution" or node.attrs.get("transB", 0) else counted.ndim - 1
    along = axis_of(right.attrs.get("axis", 1), counted.ndim) == at
    return np.asarray(weights * activations.reshape(()) * alpha, np.float32) if along else None


def _bytes_scale(edit: _Edit, node: Node) -> Array | None:
    """The scale of a DequantizeLinear of 8 bits, for all or along an axis."""
    if not _is(node, "DequantizeLinear") or node.attrs.get("block_size") or len(node.inputs) < 3:
        return None
    scale, zero = (edit.constant(i) for i in node.inputs[1:])
    plain = scale is not None and scale.ndim < 2 and scale.dtype == np.float32
    return scale if plain and zero is not None and zero.dtype in (np.int8, np.uint8) else None


def _in_units(real: Array, unit: Array) -> Array | None:
    """A bias counted in units, one for each channel or for all; None where 32 bits do not hold it."""
    flat = real.reshape(-1)
    rows = real.ndim > 2 or (real.ndim == 2 and real.shape[0] != 1)
    if real.dtype != np.float32 or rows or flat.size not in (1, unit.size if unit.ndim else flat.size):
        return None
    counted = np.rint(flat.astype(np.float64) / unit.astype(np.float64))
    return counted.astype(np.int32) if (np.abs(counted) < 2**31).all() else None
