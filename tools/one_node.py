"""A sample of an operator as an ONNX model of one node, as one opset writes it.

The way down is that of the table of upgrades, without the exporter: what a referee says of such a model tells whether
old nodes are read as they were meant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper

from ..exporters import to_onnx
from ..exporters.lower import kind_of, misfit, schema_of
from ..exporters.proto import IR_OF_TYPES, attribute, tensor, value_info
from ..ops import OPS, OPSETS, DType, Op, Sample, Tensor
from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import UnsupportedModel
from ..ops.op import REQUIRED
from ..ops.types import Array
from ..ops.upgrade import CHANGES, Form, Scope, UpgradeDeclined, before
from ..ops.upgrade.form import unchanged
from ..runtime.ir.graph import Graph
from ..runtime.ir.infer import infer
from .differs import differing
from .samples import sample_graph

BESIDE = 21  # the opset of ai.onnx in models of other domains
SINCE_INITIALIZERS = 4  # the IR version from which on an initialiser is no input
FIRST_EXPORTED = 7  # the oldest opset that is read with certainty by others, and written by us


@dataclass(frozen=True, slots=True)
class OneNode:
    """A model of one node, its feeds, and the same as a graph of ours."""

    model: onnx.ModelProto
    feeds: dict[str, Any]
    graph: Graph
    given: dict[str, Any]
    node: onnx.NodeProto
    opset: int  # of the node's domain
    unasked: frozenset[str] = frozenset()  # the referees that are known to differ about it


@dataclass(slots=True)
class _Around:
    """`upgrade.Scope` of a lone node: all its arrays may become constants."""

    graph: Graph
    arrays: dict[str, Array]
    source: int = 0
    added: dict[str, Array] = field(default_factory=dict[str, Array])
    looked_at: set[str] = field(default_factory=set[str])

    def const(self, stem: str, value: Array) -> str:
        self.added[stem] = value
        return stem

    def value(self, name: str) -> Array | None:
        if name in self.arrays:
            self.looked_at.add(name)
        return self.arrays.get(name, self.added.get(name))

    def take(self, name: str) -> Array:
        value = self.value(name)
        if value is None:
            raise UpgradeDeclined(f"{name!r} would have to be a constant")
        return np.asarray(value)

    def type(self, name: str) -> Tensor | None:
        kind = self.graph.types.get(name)
        return kind if isinstance(kind, Tensor) else None

    def used(self, name: str) -> bool:
        return name in self.graph.outputs


def versions(domain: str, op: str) -> list[int]:
    """The opsets at which the schema of an operator changed, oldest first, as far as it was to be used.

    >>> versions("", "Relu")
    [1, 6, 13, 14]
    """
    opsets, at = list[int](), OPSETS[domain]
    while at > 0:
        schema = any_schema(domain, op, at)
        if schema is None:
            break
        if not schema.deprecated:
            opsets.append(int(schema.since_version))
        at = int(schema.since_version) - 1
    return opsets[::-1]


def any_schema(domain: str, op: str, opset: int) -> Any:
    """The schema of an operator at an opset, to be used or not; None if it has none."""
    try:
        return onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None


def records(domain: str, op: str, opset: int = 0) -> list[Op]:
    """The records that an operator of a file of this opset can become: its own, and those of later names and of former
    meanings."""
    keys = [c.made for (d, o, v), c in CHANGES.items() if (d, o) == (domain, op) and v > opset and c.made]
    return [OPS[k] for k in dict.fromkeys([(domain, op), *keys]) if k in OPS]


def one_node(o: Op, sample: Sample, domain: str, op: str, opset: int) -> OneNode:
    """The sample of a record as a node `domain`::`op` at the opset of one of its `versions`. Raises Declined, saying
    why, where that opset cannot express it."""
    free = frozenset(f"x{i}" for i, x in enumerate(sample.inputs) if isinstance(x, Tensor))
    model = model_of(*sample_graph(o, sample), free, domain, op, opset)
    return replace(model, unasked=frozenset(differing(o.name, sample)))


def model_of(graph: Graph, feeds: dict[str, Any], free: Collection[str], domain: str, op: str, opset: int) -> OneNode:
    """The same of a graph of one node; its inputs become constants where an opset asks for that, but for `free`."""
    graph = infer(graph)
    at = written_at(domain, op, opset)
    if graph.nodes[-1].bodies:
        at = max(at, FIRST_EXPORTED)
        model, node = _exported(graph, op, opset, at)
        return OneNode(model, dict(feeds), graph, feeds, node, at)
    around = _Around(graph, {n: x for n, x in feeds.items() if n not in free and isinstance(x, np.ndarray)})
    form, record = _down(graph, around, domain, op, opset), graph.nodes[-1].record
    schema = schema_of(domain, op, at)
    if schema is None:
        raise UpgradeDeclined(f"{op} is not part of opset {at}")
    form = form.without(*(a for a, v in form.attrs.items() if a not in schema.attributes and _is_default(record, a, v)))
    reason = misfit(form, schema, graph.types, frozenset(graph.outputs))
    if reason:
        raise UpgradeDeclined(reason)
    node = onnx.NodeProto(op_type=op, domain=domain, name="it", input=form.inputs, output=form.outputs)
    for key, value in form.attrs.items():
        if value is not None:
            node.attribute.append(attribute(key, value, kind_of(schema, key), _no_graph))
    fixed = {n: around.arrays[n] for n in around.looked_at if n in form.inputs}
    fixed |= {n: a for n, a in around.added.items() if n in form.inputs}
    fed = {n: x for n, x in feeds.items() if n in form.inputs and n not in fixed}
    onnx_graph = onnx.helper.make_graph(
        [node],
        op,
        [value_info(n, graph.types[n]) for n in fed],
        [value_info(n, graph.types[n]) for n in graph.outputs],
        [tensor(n, a) for n, a in fixed.items()],
    )
    opsets = {"": BESIDE, domain: at}
    ids = [onnx.helper.make_opsetid(d, v) for d, v in opsets.items()]
    kinds = [getattr(t, "dtype", None) for t in graph.types.values()]
    least = max(SINCE_INITIALIZERS, onnx.helper.find_min_ir_version_for(ids, ignore_unknown=True))
    ir = max([least, *(IR_OF_TYPES.get(k, 0) for k in kinds if k is not None)])
    model = onnx.helper.make_model(onnx_graph, opset_imports=ids, ir_version=ir)
    return OneNode(model, fed, graph, feeds, node, at)


def written_at(domain: str, op: str, version: int) -> int:
    """The opset at which one of the `versions` is written: itself, or the first that everybody reads, if it lasted so
    long."""
    later = [v for v in [*versions(domain, op), OPSETS[domain] + 1] if v > version]
    return version if domain else max(version, min(FIRST_EXPORTED, _last_of(domain, op, version, later[0] - 1)))


def _last_of(domain: str, op: str, version: int, last: int) -> int:
    """The last opset of a version: one below the next, or below the opset that retired the operator."""
    while last > version and schema_of(domain, op, last) is None:
        last -= 1
    return last


def _down(graph: Graph, around: _Around, domain: str, op: str, opset: int) -> Form:
    """The node of a graph as an older opset wrote it."""
    node = graph.nodes[-1]
    defaults = {a: v for a, v in node.record.attrs.items() if v is not None and v is not REQUIRED}
    attrs = {**defaults, **node.attrs} if node.domain == "mezzo" else node.attrs  # the old name had others
    form = Form(node.op, node.inputs, node.outputs, attrs, node.domain)
    for at in range(OPSETS[domain], opset, -1):
        change = before(form, at)
        if change is not None:
            form = OLDEST.get((form.op, at), change.down)(form, around)
    if (form.domain, form.op) != (domain, op):
        raise UpgradeDeclined(f"it is no {op} at opset {opset}")
    return form


def _unbroadcast(form: Form, scope: Scope) -> Form:
    """Broadcast the last operand explicitly: before opset 7 it could, on demand, have the last dims of the result."""
    whole, last = (scope.type(n) for n in (form.outputs[0], form.inputs[-1]))
    assert whole is not None
    assert last is not None
    if whole.shape[len(whole.shape) - len(last.shape) :] != last.shape:
        raise UpgradeDeclined("before opset 7 its operands could not be broadcast like this")
    first = scope.type(form.inputs[0])
    if form.op != "Gemm" and (first is None or first.shape != whole.shape):
        raise UpgradeDeclined("before opset 7 the first operand had the shape of the result")
    return form if whole.shape == last.shape else form.having(broadcast=1)


def _type_by_name(form: Form, scope: Scope) -> Form:
    return form.having(to=DType.from_onnx(form.attrs["to"]).name)


# Opsets that brought or dropped what a node could do without: `consumed_inputs` for one.
WRITTEN_ALIKE = {
    2: "LpPool Split",
    4: "Concat",
    6: """Abs Add Ceil Clip Div Dropout Elu Exp Floor HardSigmoid InstanceNormalization LeakyRelu Log Max Mean Min Mul
    Neg PRelu Reciprocal Relu Selu Sigmoid Sqrt Sub Sum Tanh""",
    7: "GRU LSTM RNN",
}
# What the table of upgrades reads and does not write, since nobody exports to opsets so old: operator, opset.
OLDEST: dict[tuple[str, int], Callable[[Form, Scope], Form]] = {
    **{(op, 7): _unbroadcast for op in "Add Sub Mul Div Pow And Or Xor Equal Less Greater Gemm".split()},
    ("Cast", 6): _type_by_name,
    **{(op, opset): unchanged for opset, ops in WRITTEN_ALIKE.items() for op in ops.split()},
    **{(op, 7): lambda form, _: form.having(is_test=1) for op in ("BatchNormalization", "Dropout")},
    ("BatchNormalization", 6): lambda form, _: form.having(consumed_inputs=(0, 0, 0, 0, 0)),
}


def _exported(graph: Graph, op: str, version: int, opset: int) -> tuple[onnx.ModelProto, onnx.NodeProto]:
    """A graph whose node has bodies, as the exporter writes it."""
    try:
        model = to_onnx(graph, opset=opset)
    except UnsupportedModel as error:
        raise UpgradeDeclined(error.message) from error
    (node,) = [n for n in model.graph.node if n.op_type not in ("Identity", "Constant")][-1:]
    since = any_schema(node.domain, node.op_type, opset)
    if node.op_type != op or since is None or since.since_version != version:
        raise UpgradeDeclined(f"it is no {op} of opset {version}")
    return model, node


def _is_default(o: Op, name: str, value: Any) -> bool:
    default = o.attrs.get(name)
    return isinstance(value, int | float | str) and value == default


def _no_graph(graph: Graph) -> onnx.GraphProto:
    raise UpgradeDeclined("it has bodies")
