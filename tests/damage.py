"""Damage to ONNX models that parse: fields changed to what no exporter writes, one to three at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import onnx
import onnx.helper
from onnx import AttributeProto as Attribute
from onnx import GraphProto as Graph
from onnx import NodeProto as Node
from onnx import TensorProto as Tensor

NUMBERS = (0, 1, -1, 2, 3, 7, -7, 100, 65537, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "linear", "SAME_UPPER", "constant", "ij,jk->ik", "...", "(", "\0", "ä" * 40)


def damaged(data: bytes, rng: Random) -> bytes:
    """The bytes of a model with one to three fields changed."""
    model = onnx.load_model_from_string(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(KINDS)(model, rng)
    return bytes(model.SerializeToString())


def graphs(model: onnx.ModelProto) -> list[Graph]:
    """The graph and all subgraphs, those in functions too."""
    found = [model.graph]
    for graph in found:
        found += [g for n in graph.node for a in n.attribute for g in bodies(a)]
    return found + [g for f in model.functions for n in f.node for a in n.attribute for g in bodies(a)]


def bodies(attribute: Attribute) -> list[Graph]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def nodes(model: onnx.ModelProto) -> list[Node]:
    return [n for g in graphs(model) for n in g.node] + [n for f in model.functions for n in f.node]


def tensors(model: onnx.ModelProto) -> list[Tensor]:
    inside = [a.t for n in nodes(model) for a in n.attribute if a.HasField("t")]
    return inside + [t for g in graphs(model) for t in g.initializer]


def names(model: onnx.ModelProto) -> list[str]:
    """Every name of a value, and some that no value has."""
    made = [o for n in nodes(model) for o in (*n.output, *n.input)]
    return [*made, *(v.name for g in graphs(model) for v in (*g.input, *g.output)), "", "nothing", "\0"]


def integers(values: Sequence[int], rng: Random) -> list[int]:
    """A list of numbers with one changed, added or lost."""
    made = list(values)
    kind = rng.randrange(5) if made else 3
    if kind == 0:
        made[rng.randrange(len(made))] = rng.choice(NUMBERS)
    elif kind == 1:
        del made[rng.randrange(len(made))]
    elif kind == 2:
        rng.shuffle(made)
    elif kind == 3:
        made.insert(rng.randint(0, len(made)), rng.choice(NUMBERS))
    else:
        made = made * 2
    return made


def wiring(model: onnx.ModelProto, rng: Random) -> None:
    """Operands swapped, renamed, lost, added; cycles, and outputs that are made twice."""
    if not (found := nodes(model)):
        return
    node = rng.choice(found)
    lists = [node.input, node.output] if rng.random() < 0.3 else [node.input]
    operands = rng.choice(lists)
    kind = rng.randrange(5)
    if kind == 0 and operands:
        operands[rng.randrange(len(operands))] = rng.choice(names(model))
    elif kind == 1 and operands:
        del operands[rng.randrange(len(operands))]
    elif kind == 2:
        operands.append(rng.choice(names(model)))
    elif kind == 3 and len(operands) > 1:
        order = list(operands)
        rng.shuffle(order)
        operands[:] = order
    elif node.input and node.output:
        node.input[rng.randrange(len(node.input))] = rng.choice(node.output)


def attribute(model: onnx.ModelProto, rng: Random) -> None:
    """Attributes lost, renamed, of another value or another kind."""
    found = [(n, a) for n in nodes(model) for a in n.attribute]
    if not found:
        return
    node, one = rng.choice(found)
    kind = rng.randrange(8)
    if kind == 0:
        node.attribute.remove(one)
    elif kind == 1:
        one.name = rng.choice([a.name for _, a in found] + ["", "axis", "nothing"])
    elif kind == 2:
        node.attribute.append(one)
    elif kind == 3:
        one.type = rng.choice(Attribute.AttributeType.values())
    elif one.type == Attribute.INT:
        one.i = rng.choice((*NUMBERS, -one.i // 2, one.i // 2 + 1))
    elif one.type == Attribute.FLOAT:
        one.f = rng.choice(REALS)
    elif one.type == Attribute.STRING:
        one.s = rng.choice((*(t.encode() for t in TEXTS), one.s[:-1], b"\xff"))
    elif one.type == Attribute.INTS:
        one.ints[:] = integers(one.ints, rng)
    elif one.type == Attribute.FLOATS:
        one.floats[:] = [*one.floats[1:], rng.choice(REALS)]
    elif one.type == Attribute.STRINGS:
        one.strings[:] = [*one.strings[1:], rng.choice(TEXTS).encode()]


def more(model: onnx.ModelProto, rng: Random) -> None:
    """An attribute that the operator has, or has not, with a number that it should not have."""
    if not (found := nodes(model)):
        return
    known = ("axis", "keepdims", "axes", "mode", "to", "group", "strides", "pads", "dilations", "kernel_shape",
             "perm", "epsilon", "hidden_size", "direction", "num_outputs", "start", "end", "batch_dims")  # fmt: skip
    value = rng.choice((rng.choice(NUMBERS), rng.choice(REALS), rng.choice(TEXTS), integers((1, 1), rng)))
    rng.choice(found).attribute.append(onnx.helper.make_attribute(rng.choice(known), value))


def tensor(model: onnx.ModelProto, rng: Random) -> None:
    """Constants of other sizes, element types, data, or none."""
    if not (found := tensors(model)):
        return
    one = rng.choice(found)
    kind = rng.randrange(6)
    if kind == 0:
        one.dims[:] = integers(one.dims, rng)
    elif kind == 1:
        one.data_type = rng.choice((*Tensor.DataType.values(), -1, 99))
    elif kind == 2:
        one.raw_data = one.raw_data[: rng.randint(0, len(one.raw_data))]
    elif kind == 3:
        one.raw_data = one.raw_data + bytes(rng.randrange(256) for _ in range(rng.randint(1, 16)))
    elif kind == 4 and one.raw_data:
        at = rng.randrange(len(one.raw_data))
        one.raw_data = one.raw_data[:at] + bytes([rng.randrange(256)]) + one.raw_data[at + 1 :]
    elif one.data_type == Tensor.INT64 and len(one.raw_data) >= 8:
        at = 8 * rng.randrange(len(one.raw_data) // 8)
        number = rng.choice(NUMBERS).to_bytes(8, "little", signed=True)
        one.raw_data = one.raw_data[:at] + number + one.raw_data[at + 8 :]


def port(model: onnx.ModelProto, rng: Random) -> None:
    """Inputs and outputs of other types, sizes and names, lost or there twice."""
    graph = rng.choice(graphs(model))
    infos = rng.choice((graph.input, graph.input, graph.output, graph.value_info))
    if not infos:
        return
    info = rng.choice(infos)
    kind, shaped = rng.randrange(6), info.type.tensor_type
    if kind == 0:
        shaped.elem_type = rng.choice(Tensor.DataType.values())
    elif kind == 1 and shaped.shape.dim:
        shaped.shape.dim[rng.randrange(len(shaped.shape.dim))].dim_value = rng.choice(NUMBERS)
    elif kind == 2 and shaped.shape.dim:
        shaped.shape.dim[rng.randrange(len(shaped.shape.dim))].dim_param = rng.choice(("n", "n", "m", ""))
    elif kind == 3:
        shaped.ClearField("shape") if rng.random() < 0.5 else shaped.shape.dim.add()
    elif kind == 4:
        info.name = rng.choice(names(model))
    else:
        infos.remove(info) if rng.random() < 0.5 else infos.append(info)


def structure(model: onnx.ModelProto, rng: Random) -> None:
    """Nodes lost, repeated, in another order or of another operator; bodies put in one another's place."""
    graph = rng.choice(graphs(model))
    found = graph.node
    if not found:
        return
    node = rng.choice(found)
    kind = rng.randrange(6)
    if kind == 0:
        found.remove(node)
    elif kind == 1:
        found.append(node)
    elif kind == 2:
        order = [Node.FromString(n.SerializeToString()) for n in found]
        rng.shuffle(order)
        del found[:]
        found.extend(order)
    elif kind == 3:
        node.op_type = rng.choice([s.name for s in onnx.defs.get_all_schemas()])
    elif kind == 4:
        node.domain = rng.choice(("", "ai.onnx.ml", "com.microsoft", "own", "nowhere"))
    else:
        inner = graphs(model)[1:]
        if inner:
            rng.choice(inner).CopyFrom(Graph.FromString(rng.choice(inner).SerializeToString()))


def header(model: onnx.ModelProto, rng: Random) -> None:
    """Versions and functions."""
    kind = rng.randrange(4)
    if kind == 0 and model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((*range(-1, 30), *NUMBERS))
    elif kind == 1:
        model.ir_version = rng.choice((*range(15), 2**62))
    elif kind == 2 and model.functions:
        function = rng.choice(model.functions)
        function.name = rng.choice(("Relu", "If", "", function.name + "x"))
    elif model.functions:
        function = rng.choice(model.functions)
        fields = rng.choice((function.input, function.output, function.node, function.opset_import))
        del fields[rng.randint(0, len(fields)) :]


KINDS: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    wiring, wiring, attribute, attribute, attribute, more, tensor, tensor, port, structure, header,
)  # fmt: skip
