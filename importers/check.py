"""onnx's own checks and inference, with the weights set aside: protobufs are limited to 2 GB, weights are not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import onnx
import onnx.checker
import onnx.defs
import onnx.shape_inference

from ..ops import upgrade
from ..ops.errors import ModelError
from ..ops.types import Tensor
from .source import EXPORT_AGAIN, ProtobufError, Source
from .types import type_from
from .walk import EARLY, attribute_tensors, bodies, domain_of, opsets_of, tensors

SMALL = 1024  # elements: what shape inference may want to read


def check(source: Source, *, changed: bool = False) -> None:
    """Let onnx.checker judge the model, which may have `changed` since it was read; ModelError tells what it says."""
    opset = opsets_of(source.model).get("", 0)
    foreign = any(_foreign(n, opset) for n in _all_nodes(source.model.graph))
    ports = [*source.model.graph.input, *source.model.graph.output]
    shapeless = [p.name for p in ports if any(_shapeless(p.type)) or _typeless(p)]
    early = source.model.ir_version < INITIALIZERS_APART
    external = any(t.data_location == onnx.TensorProto.EXTERNAL for t in tensors(source.model.graph))  # see survey.py
    borrowed = any(map(_borrowed, _all_bodies(source.model.graph.node)))
    copied = (
        not source.path
        or source.weights is not None
        or foreign
        or shapeless
        or borrowed
        or early
        or external
        or changed
    )
    try:
        if copied:
            light = without_weights(source.model, nested=True)
            light.ir_version = max(light.ir_version, INITIALIZERS_APART)
            for node in _all_nodes(light.graph) if foreign else ():
                if _foreign(node, opset):
                    node.domain = PASSED_OVER
            if foreign:
                light.opset_import.add(domain=PASSED_OVER, version=1)
            for body in _all_bodies(light.graph.node):
                _own_outputs(body)
            for output in filter(_typeless, light.graph.output):
                output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            for port in (*light.graph.input, *light.graph.output):
                for tensor in _shapeless(port.type):
                    tensor.shape.SetInParent()
            onnx.checker.check_model(light)
        else:
            onnx.checker.check_model(str(source.path))
    except (onnx.checker.ValidationError, ProtobufError, ValueError, RuntimeError, TypeError) as error:
        text = " ".join(str(error).split())
        raise ModelError(
            f"the model breaks a rule of ONNX: {text[:600] or type(error).__name__}",
            where=source.name,
            hint=f"correct the node or value that the message names, or {EXPORT_AGAIN}",
        ) from error


PASSED_OVER = "mezzo.foreign"  # the checker lets nodes of domains that it does not know alone


# Before this version of the format a graph's initializers had to be among its inputs, too. Not all exporters kept to
# it, and runtimes never minded.
INITIALIZERS_APART = 4


def _shapeless(kind: onnx.TypeProto) -> Iterator[onnx.TypeProto.Tensor]:
    """The tensors of unknown rank in a type, which the checker refuses among inputs and outputs: ONNX has no other way
    to say that only the run will tell (a Squeeze without axes, a Reshape to a computed shape), and runtimes take it."""
    match kind.WhichOneof("value"):
        case "tensor_type" if not kind.tensor_type.HasField("shape"):
            yield kind.tensor_type
        case "sequence_type":
            yield from _shapeless(kind.sequence_type.elem_type)
        case "optional_type":
            yield from _shapeless(kind.optional_type.elem_type)
        case "map_type":
            yield from _shapeless(kind.map_type.value_type)


def _typeless(output: onnx.ValueInfoProto) -> bool:
    """True if nothing is said of the elements of an output: the nodes tell, as they do for all values inside."""
    kind = output.type
    return kind.WhichOneof("value") is None or (kind.HasField("tensor_type") and not kind.tensor_type.elem_type)


def _foreign(node: onnx.NodeProto, opset: int) -> bool:
    """True if the opset lacks an operator that we support: one of `EARLY`, or one that onnx calls deprecated there and
    that a later opset brought back in another form. (GroupNormalization of opset 18 to 20: the checker refuses files
    that exporters wrote and runtimes take.)"""
    if domain_of(node.domain) or not 0 < opset < 1 << 31:
        return False
    returns = any(v > opset for v in upgrade.changes("", node.op_type))
    if not returns and node.op_type not in EARLY:
        return False
    try:
        return bool(onnx.defs.get_schema(node.op_type, opset).deprecated)
    except onnx.defs.SchemaError:
        return node.op_type in EARLY


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    yield from graph.node
    for body in _all_bodies(graph.node):
        yield from body.node


def _all_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        for _, body in bodies(node):
            yield body
            yield from _all_bodies(body.node)


def _borrowed(body: onnx.GraphProto) -> list[str]:
    """Outputs that a subgraph takes from outside as they are. The checker does not know such, though the
    specification allows them and exporters write them (onnx issue 3328)."""
    own = {i.name for i in body.input} | {t.name for t in body.initializer} | {o for n in body.node for o in n.output}
    own |= {t.values.name for t in body.sparse_initializer}
    return [o.name for o in body.output if o.name not in own]


def _own_outputs(body: onnx.GraphProto) -> None:
    """Give a subgraph copies of the outputs that it borrows, for the checker's sake."""
    for count, name in enumerate(dict.fromkeys(_borrowed(body))):
        copy = f"{name}/checked copy {count}"
        body.node.append(onnx.helper.make_node("Identity", [name], [copy]))
        for output in body.output:
            output.name = copy if output.name == name else output.name


def without_weights(model: onnx.ModelProto, *, nested: bool = False) -> onnx.ModelProto:
    """The model with large initialisers declared as inputs instead. With `nested`, large tensors of attributes and
    subgraphs become empty too, which is enough for the checker and not for inference."""
    light = onnx.ModelProto()
    _copy_fields(model, light, without="graph")
    _copy_fields(model.graph, light.graph, without="initializer")
    declared = {i.name for i in light.graph.input}
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            light.graph.initializer.append(tensor)
        elif tensor.name not in declared:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    if nested:
        for tensor in attribute_tensors(light.graph.node):
            if len(tensor.raw_data) > SMALL or tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                tensor.raw_data = b""
                tensor.dims[:] = [0]
    return light


def _copy_fields(source: Any, target: Any, *, without: str) -> None:
    for field, content in source.ListFields():
        if field.name == without:
            continue
        if isinstance(content, (str, bytes, int, float)):
            setattr(target, field.name, content)
        else:
            getattr(target, field.name).extend(content)


def inferred_types(model: onnx.ModelProto) -> dict[str, Tensor]:
    """Types that onnx infers, by value name, as far as it can; dims that it invents are unknown."""
    try:
        done = onnx.shape_inference.infer_shapes(without_weights(model), data_prop=True)
    except Exception:  # whatever stops inference costs only precision: upgrades then take the general form
        return {}
    types: dict[str, Tensor] = {}
    for info in _infos(done.graph):
        try:
            inferred = type_from(info.type, "")
        except ModelError:
            continue
        if isinstance(inferred, Tensor):
            dims = inferred.dims and tuple(
                None if isinstance(d, str) and d.startswith("unk__") else d for d in inferred.dims
            )
            known = types.setdefault(info.name, inferred.of(dims))
            if known != inferred.of(dims):  # two scopes use one name
                types[info.name] = Tensor(inferred.dtype, None) if known.dtype is inferred.dtype else known.of(None)
    return types


def _infos(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info
    for node in graph.node:
        for _, body in bodies(node):
            yield from _infos(body)
