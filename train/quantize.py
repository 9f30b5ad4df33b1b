"""Quantisation: a float graph and calibration data to a graph with QuantizeLinear and DequantizeLinear, to run or to
train.

Weights get signed steps around zero, one scale for each filter or column; activations steps over the range that they
take on the data. The result means what its nodes say and can be saved as ONNX; sessions run it on integers where
they have kernels (see runtime/passes/qdq.py), and a Trainer trains it through the steps
(ops/quantization/fake_quantize.py).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from ..importers import load_graph
from ..ops import OPS, OPSETS, DType, Op, Tensor
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import InputError
from ..ops.quantization.quantize import int_range
from ..ops.types import Array
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.prune import prune
from ..runtime.optimizer import Group, Optimizer
from ..runtime.passes import rewrite, simplify
from ..runtime.passes.batchnorm import BATCHNORM
from .integers import STEPS, with_integer_weights
from .ranges import Feeds, Method, Range, ranges

BEHIND: Final = ("Relu", "Clip")  # quantised with what they follow
ACTIVATIONS: Final = {str(t): t for t in (DType.UINT8, DType.INT8, DType.UINT16, DType.INT16, DType.UINT4, DType.INT4)}
WEIGHTS: Final = {str(t): t for t in (DType.INT8, DType.INT16, DType.INT4, DType.INT2)}
# those that stay alone would become a product and a sum of constants, which lose more in 8 bits
FOLDED: Final = tuple(r for r in BATCHNORM if r.name != "BatchNormalization as scale and shift")
OLDEST: Final = 13  # the opset since which there are scales by axis
OTHERS: Final = 21  # and since which there are other integers than those of 8 bits


def quantize(
    model: Graph | str | os.PathLike[str] | bytes,
    data: Iterable[Feeds | Array | Sequence[Array]],
    *,
    weights: Literal["int8", "int16", "int4", "int2"] = "int8",
    activations: Literal["uint8", "int8", "uint16", "int16", "uint4", "int4"] = "uint8",
    per_channel: bool = True,
    method: Method = "minmax",
    percentile: float = 99.99,
    skip: Iterable[str] = (),
    train: bool = False,
) -> Graph:
    """A graph, or an ONNX file, in few bits, calibrated on `data`: its weights are integers. With `train=True` they are
    floats that are quantised on their way, which a Trainer learns; what it exports has integers.

    Each item of `data` is one run: a dict by input name, an array, or arrays in the order of the inputs. `weights` and
    `activations` are types of integers; `per_channel` gives each filter or column a scale of its own. `method` is how
    ranges are found: "minmax" keeps all that was seen, "percentile" cuts the rarest extremes (`percentile` of the
    numbers stay), "entropy" the range that tells most of the distribution. `skip` names nodes or operators that stay
    in floats. Batch normalisation goes into convolutions first, so that what is quantised, and learns, are the
    convolution's weights and bias with it.

    Raises InputError for data that the graph does not take, ShapeError where operands do not fit.

    >>> from mezzo.models.digits import digits_model, held_out
    >>> made = quantize(digits_model(), [held_out().inputs[:64]])
    >>> sorted({n.op for n in made.nodes} & {"BatchNormalization", "QuantizeLinear", "DequantizeLinear"})
    ['DequantizeLinear', 'QuantizeLinear']
    """
    for what, given, known in (("activations", activations, ACTIVATIONS), ("weights", weights, WEIGHTS)):
        if given not in known:
            raise InputError(f"{what}={given!r} is unknown", hint=f"give one of {', '.join(known)}")
    graph = model if isinstance(model, Graph) else load_graph(model)
    plain = prune(rewrite(simplify(infer(graph)), FOLDED))
    typed = infer(prune(plain))
    left = frozenset([skip] if isinstance(skip, str) else skip)
    names = {n.name for g in (graph, typed) for n in g.nodes}
    if unknown := [s for s in left - names if not any((domain, s) in OPS for domain in OPSETS)]:
        raise InputError(
            f"skip={sorted(unknown)}", where="quantize", hint="names of nodes of the model, or of operators"
        )
    insertion = Insertion(typed, ACTIVATIONS[activations], WEIGHTS[weights], per_channel, left)
    values = insertion.choose()
    if not values:
        return typed
    levels = 1 << ACTIVATIONS[activations].bits
    whole = insertion.graph(ranges(typed, values, [_feeds(typed, item) for item in data], method, percentile, levels))
    whole = whole if train else with_integer_weights(whole)
    renamed = {o: name for o, name in zip(whole.outputs, graph.outputs, strict=True) if o != name}
    nodes = (
        Node("Identity", (o,), (name,), name=name) for o, name in renamed.items()
    )  # simplification renames results
    return infer(whole.but(nodes=(*whole.nodes, *nodes), outputs=graph.outputs))


def _feeds(graph: Graph, item: Feeds | Array | Sequence[Array]) -> Feeds:
    if isinstance(item, Mapping):
        return item
    arrays = [item] if isinstance(item, np.ndarray) else list(item)
    if len(arrays) > len(graph.inputs):
        raise InputError(f"{len(arrays)} arrays for {len(graph.inputs)} inputs", hint="give dicts by input name")
    return dict(zip(graph.inputs, arrays, strict=False))


Steps = tuple[Array, Array]  # scale and zero point


def _is_product(op: Op) -> bool:
    """True if an operator is a product or convolution that has a form for quantised operands."""
    return op.multiplies and bool(op.quantized)


def _keeps_steps(op: Op) -> bool:
    """True if results have the steps of the operands: elements move, or the largest of them is taken."""
    moves = op.moves in ("view", "permute", "slice", "join") and not op.outputs[0].variadic
    return moves or op.name == "MaxPool"


@dataclass(slots=True)
class Insertion:
    """Insertion of quantisation: chooses the values, and puts the nodes around them."""

    source: Graph
    dtype: DType  # of activations
    weight: DType
    per_channel: bool
    skip: frozenset[str]
    group: dict[str, str] = field(default_factory=dict[str, str])  # values that are counted alike, by one of them
    chosen: dict[str, Node] = field(default_factory=dict[str, Node])  # quantised nodes by their (last) result
    nodes: list[Node] = field(default_factory=list[Node])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    weights: dict[tuple[str, int | None], str] = field(default_factory=dict[tuple[str, int | None], str])
    named: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    taken: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        for graph in (self.source, *(b for _, n in self.source.walk() for b in n.bodies.values())):
            self.taken |= graph.defined()

    def _fresh(self, name: str) -> str:
        """A name that nothing has yet."""
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name

    # which values

    def choose(self) -> list[str]:
        """The values to quantise, in the order of the graph."""
        uses, readers = self.source.uses(), dict[str, Node]()
        for node in self.source.nodes:
            for name in node.inputs:
                readers[name] = node
        wanted: dict[str, None] = {}
        for node in self.source.nodes:
            if not self._fits(node, wanted):
                continue
            result = node.outputs[0]
            after = readers.get(result)
            keeps_steps = _keeps_steps(node.record)
            if after is not None and after.op in BEHIND and uses[result] == 1 and not keeps_steps:
                result = after.outputs[0]
            operands = [n for n in self._operands(node) if not self._known(n)]
            wanted |= dict.fromkeys((*operands, result))
            self.chosen[result] = node
            if keeps_steps:
                for name in operands:
                    self.group[self._first(name)] = self._first(result)
        return list(wanted)

    def _first(self, name: str) -> str:
        while name in self.group and self.group[name] != name:
            name = self.group[name]
        return name

    def _operands(self, node: Node) -> tuple[str, ...]:
        """Inputs that are tensors of the computation, not bounds, shapes or biases."""
        op = node.record
        if op.moves == "join":
            return node.inputs
        return node.inputs[:2] if op.quantized else node.inputs[:1]

    def _known(self, name: str) -> bool:
        known = self.source.types.get(name)
        return isinstance(known, Tensor) and known.value is not None

    def _fits(self, node: Node, wanted: Mapping[str, None]) -> bool:
        """True if a node is to be quantised."""
        op = node.record
        if node.domain or not (op.quantized or _keeps_steps(op)) or {node.name, node.op} & self.skip:
            return False
        types = [self.source.types.get(n) for n in (*self._operands(node), node.outputs[0])]
        if not all(isinstance(t, Tensor) and t.dtype is DType.FLOAT and t.dims is not None for t in types):
            return False
        operands = self._operands(node)
        if all(map(self._known, operands)) or len(list(filter(None, node.outputs))) > 1:
            return False
        if _keeps_steps(op):  # they pay only where their operands have steps already
            return all(n in wanted for n in operands)
        if op.multiplies:
            return self._plain_product(node)
        single = [t for n, t in zip(operands, types, strict=False) if self._known(n) and isinstance(t, Tensor)]
        return all(t.elements != 1 for t in single)

    def _plain_product(self, node: Node) -> bool:
        if node.record.kind == "convolution":
            return self._known(node.inputs[1]) and all(map(self._known, filter(None, node.inputs[2:])))
        if node.op == "Gemm" and len(node.inputs) > 2 and node.inputs[2]:
            c = self.source.types[node.inputs[2]]
            one_row = isinstance(c, Tensor) and c.dims is not None and (len(c.dims) < 2 or c.dims[0] == 1)
            return self._known(node.inputs[2]) and one_row and node.attrs.get("beta", 1.0) == 1
        return True

    # the nodes

    def graph(self, ranges_of: Mapping[str, Range]) -> Graph:
        """The graph with the nodes around the values whose ranges are given; its weights are floats."""
        joint: dict[str, Range] = {}
        for name, (low, high) in ranges_of.items():
            known = joint.get(self._first(name), (0.0, 0.0))
            joint[self._first(name)] = min(low, known[0]), max(high, known[1])
        steps = {name: self._steps(*joint[self._first(name)]) for name in ranges_of}
        by_node = {id(n): result for result, n in self.chosen.items()}
        renamed = {n: self._fresh(f"{n}:real") for n in ranges_of if n in self.source.inputs}
        for name, to in renamed.items():
            self._through(name, name, to, self._named(self._first(name), steps[name]))
        source = self.source.rename(renamed)
        for before, node in zip(self.source.nodes, source.nodes, strict=True):
            quantised = node
            if id(before) in by_node:
                quantised = self._quantised(before, node, steps)
            outputs = tuple(self._fresh(f"{o}:float") if o in steps else o for o in quantised.outputs)
            self.nodes.append(quantised if outputs == quantised.outputs else replace(quantised, outputs=outputs))
            for inner, o in zip(outputs, quantised.outputs, strict=True):
                if inner != o:
                    self._through(o, inner, o, self._named(self._first(o), steps[o]))
        opsets = dict(source.opsets)
        oldest = OLDEST if {self.dtype.bits, self.weight.bits} == {8} else OTHERS
        if 0 < opsets.get("", 0) < oldest:
            opsets[""] = oldest
        whole = source.but(
            nodes=tuple(self.nodes), initializers={**source.initializers, **self.constants}, opsets=opsets
        )
        # outputs that are inputs themselves keep their names
        return prune(whole.but(outputs=self.source.outputs)).verify()

    def _steps(self, low: float, high: float) -> Steps:
        """Scale and zero point of a range."""
        least, most = int_range(self.dtype)
        scale = np.float32((high - low) / (most - least)) if high > low else np.float32(1)
        if not scale:  # a range that float32 cannot divide
            scale = np.finfo(np.float32).tiny
        zero = np.clip(np.rint(least - np.float64(low) / np.float64(scale)), least, most)
        return np.asarray(scale, np.float32), np.asarray(zero, self.dtype.numpy)

    def _const(self, name: str, value: Array) -> str:
        name = self._fresh(name)
        self.constants[name] = value
        return name

    def _named(self, name: str, steps: Steps) -> tuple[str, str]:
        """The names of a scale and a zero point, which values that are counted alike share."""
        if name not in self.named:
            self.named[name] = self._const(f"{name}:scale", steps[0]), self._const(f"{name}:zero", steps[1])
        return self.named[name]

    def _through(self, name: str, source: str, to: str, steps: tuple[str, str], axis: int | None = None) -> None:
        """A value and back: what is read as `to` is `source` in these steps, named after `name`."""
        counted, attrs = self._fresh(f"{name}{STEPS}"), {} if axis is None else {"axis": axis}
        self.nodes += [
            Node("QuantizeLinear", (source, *steps), (counted,), attrs, name=f"{name}:quantize", origin=(name,)),
            Node("DequantizeLinear", (counted, *steps), (to,), attrs, name=f"{name}:dequantize", origin=(name,)),
        ]

    def _quantised(self, before: Node, node: Node, steps: Mapping[str, Steps]) -> Node:
        """The node with its constants in steps."""
        inputs = list(node.inputs)
        if _is_product(before.record):
            if self._known(before.inputs[1]):
                inputs[1] = self._weights(before, steps)
            if before.op == "MatMul" and self._known(before.inputs[0]):
                inputs[0] = self._operand(before.inputs[0])
        elif before.op in ("Add", "Mul"):
            inputs = [self._operand(n) if self._known(n) else i for n, i in zip(before.inputs, inputs, strict=True)]
        return replace(node, inputs=tuple(inputs))

    def _array(self, name: str) -> Array:
        known = self.source.types[name]
        assert isinstance(known, Tensor)
        return np.asarray(known.value)

    def _constant(self, name: str, steps: Steps, axis: int | None) -> str:
        """A constant in these steps."""
        key = f"{name}:{steps[0].tobytes()!r}:{steps[1].dtype}", axis
        if key not in self.weights:
            self.weights[key] = self._fresh(f"{name}:real")
            source = name if name in self.source.initializers else self._const(name, self._array(name))
            own = self._const(f"{name}:scale", steps[0]), self._const(f"{name}:zero", steps[1])
            self._through(name, source, self.weights[key], own, axis)
        return self.weights[key]

    def _operand(self, name: str) -> str:
        """A constant operand in the steps of activations, which its partner has."""
        real = self._array(name)
        return self._constant(name, self._steps(min(float(real.min()), 0.0), max(float(real.max()), 0.0)), None)

    def _weights(self, node: Node, steps: Mapping[str, Steps]) -> str:
        """The weights of a product in steps of their own."""
        name = node.inputs[1]
        real = self._array(name)
        axis = _axis(node, real.ndim)
        axis = axis if self.per_channel and axis is not None and real.shape[axis] > 1 else None
        others = None if axis is None else tuple(i for i in range(real.ndim) if i != axis)
        most = np.float32(int_range(self.weight)[1])
        scale = np.asarray(np.maximum(np.abs(real).max(others), np.float32(1e-30)) / most, np.float32)
        if self.weight.bits == self.dtype.bits == 8:
            scale = self._room_for_bias(node, scale, axis, steps)
        return self._constant(name, (scale, np.zeros(scale.shape, self.weight.numpy)), axis)

    def _room_for_bias(self, node: Node, scale: Array, axis: int | None, steps: Mapping[str, Steps]) -> Array:
        """Scales that are large enough for the bias to be counted in 32 bits."""
        if len(node.inputs) < 3 or not node.inputs[2] or node.inputs[0] not in steps:
            return scale
        bias = np.abs(self._array(node.inputs[2]).astype(np.float64)).reshape(-1)
        least = bias / (2.0**30 * float(steps[node.inputs[0]][0]))
        wanted = least.max() if axis is None else np.broadcast_to(least, scale.shape)
        return np.maximum(scale, wanted).astype(np.float32)


def _axis(node: Node, rank: int) -> int | None:
    """The axis of filters or columns; None where weights have but one scale."""
    if node.record.kind == "convolution":
        return 0
    if node.op == "Gemm":
        return 0 if node.attrs.get("transB", 0) else 1
    return 1 if rank == 2 else None


# -- scales that learn ------------------------------------------------------------------------------------------------


def shares(graph: Graph, learned: Iterable[str]) -> dict[str, float]:
    """Return the factors on the learning rates of the scales among `learned`: one over the number of steps that
    `graph`, in training, has above and below each.

    By so much a range is larger than a step: an optimizer that makes steps of the size of its rate, as Adam does, moves
    a range as far as a weight. For the others it is a part of the factor of LSQ (see
    ops/quantization/fake_quantize.py).
    """
    makers, asked, shares = graph.producers(), {*learned}, dict[str, float]()
    for node in graph.nodes:
        if (node.domain, node.op) == ("mezzo", "FakeQuantize"):
            maker = makers.get(node.inputs[1])
            name = maker.inputs[0] if maker is not None and maker.op == "Reshape" else node.inputs[1]
            if name in asked:
                shares[name] = 1 / (node.attrs["high"] - node.attrs["low"])
    return shares


def with_scales(optimizer: Optimizer, shares: Mapping[str, float]) -> Optimizer:
    """The optimizer with a group for each scale: its share of the rate, and no decay."""
    groups = [Group((glob.escape(n),), optimizer.group(n).scale * share, 0.0) for n, share in shares.items()]
    return replace(optimizer, groups=(*groups, *optimizer.groups)) if groups else optimizer
