"""Arrays, types and attributes as ONNX stores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from ..ops.errors import ModelError
from ..ops.types import Array, DType, Map, Optional, Sequence, Tensor, Type, type_of
from ..runtime.ir.graph import Graph

AttributeKind = onnx.AttributeProto

# The IR version that brought each element type; all others are as old as ONNX.
IR_OF_TYPES = {
    DType.FLOAT8E4M3FN: 9,
    DType.FLOAT8E4M3FNUZ: 9,
    DType.FLOAT8E5M2: 9,
    DType.FLOAT8E5M2FNUZ: 9,
    DType.INT4: 10,
    DType.UINT4: 10,
    DType.FLOAT4E2M1: 11,
    DType.FLOAT8E8M0: 12,
    DType.INT2: 13,
    DType.UINT2: 13,
    DType.FLOAT6E2M3: 14,
    DType.FLOAT6E3M2: 14,
}


def payload(array: Array, dtype: DType) -> bytes:
    """The bytes of `raw_data`: elements in order, those below a byte packed lowest bits first."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.bits >= 8:
        return bytes(flat.data.cast("B")) if flat.dtype.isbuiltin == 1 else flat.tobytes()
    bits = flat.view(np.uint8) if not dtype.integer else flat.astype(np.int8).view(np.uint8)
    apart = np.unpackbits(bits[:, None], axis=1, count=dtype.bits, bitorder="little")
    return np.packbits(apart, bitorder="little").tobytes()


def stored_bytes(array: Array) -> int:
    """Return the number of bytes that an array takes in a file (0 for strings, which are never set aside)."""
    array = np.asarray(array)
    return -(-int(array.size) * DType.of(array.dtype).bits // 8)


def tensor(name: str, array: Array) -> onnx.TensorProto:
    """An array as a TensorProto that holds its elements."""
    array = np.asarray(array)
    dtype = DType.of(array.dtype)
    proto = onnx.TensorProto(name=name, data_type=dtype.onnx, dims=array.shape)
    if dtype is DType.STRING:
        proto.string_data.extend(s if isinstance(s, bytes) else str(s).encode() for s in array.reshape(-1))
    else:
        proto.raw_data = payload(array, dtype)
    return proto


def type_proto(kind: Type) -> onnx.TypeProto:
    """A type in ONNX's words; unknown dims stay empty."""
    proto = onnx.TypeProto()
    match kind:
        case Tensor():
            proto.tensor_type.elem_type = kind.dtype.onnx
            if kind.dims is not None:
                proto.tensor_type.shape.SetInParent()
                for dim in kind.dims:
                    entry = proto.tensor_type.shape.dim.add()
                    if isinstance(dim, str):
                        entry.dim_param = dim
                    elif dim is not None:
                        entry.dim_value = dim
        case Sequence():
            proto.sequence_type.elem_type.CopyFrom(type_proto(kind.element))
        case Optional():
            proto.optional_type.elem_type.CopyFrom(type_proto(kind.element))
        case Map():
            proto.map_type.key_type = kind.key.onnx
            proto.map_type.value_type.CopyFrom(type_proto(kind.element))
    return proto


def value_info(name: str, kind: Type | None) -> onnx.ValueInfoProto:
    """A named value with its type, where known."""
    proto = onnx.ValueInfoProto(name=name)
    if kind is not None:
        proto.type.CopyFrom(type_proto(kind))
    return proto


def attribute(name: str, value: Any, kind: int, write: Callable[[Graph], onnx.GraphProto]) -> onnx.AttributeProto:
    """An attribute of the kind that its schema asks for; `write` makes subgraphs. ModelError if it does not fit."""
    proto = onnx.AttributeProto(name=name, type=kind)  # type: ignore[arg-type]
    try:
        match kind:
            case AttributeKind.FLOAT:
                proto.f = float(value)
            case AttributeKind.INT:
                proto.i = int(value)
            case AttributeKind.STRING:
                proto.s = _bytes(value)
            case AttributeKind.TENSOR:
                proto.t.CopyFrom(tensor("", value))
            case AttributeKind.SPARSE_TENSOR:
                proto.sparse_tensor.CopyFrom(sparse(value))
            case AttributeKind.GRAPH:
                proto.g.CopyFrom(write(value))
            case AttributeKind.TYPE_PROTO:
                proto.tp.CopyFrom(type_proto(value))
            case AttributeKind.FLOATS:
                proto.floats.extend(map(float, value))
            case AttributeKind.INTS:
                proto.ints.extend(map(int, value))
            case AttributeKind.STRINGS:
                proto.strings.extend(map(_bytes, value))
            case AttributeKind.TENSORS:
                proto.tensors.extend(tensor("", v) for v in value)
            case AttributeKind.GRAPHS:
                proto.graphs.extend(map(write, value))
            case AttributeKind.TYPE_PROTOS:
                proto.type_protos.extend(map(type_proto, value))
    except (TypeError, ValueError, AttributeError) as error:
        wanted = onnx.AttributeProto.AttributeType.Name(kind)
        raise ModelError(
            f"the attribute {name}={value!r} is no {wanted}", hint="give the attribute the type that ONNX asks for"
        ) from error
    return proto


def kind_by_value(value: Any) -> int:
    """The kind of an attribute that no schema describes."""
    kinds = AttributeKind
    singles: list[tuple[type | tuple[type, ...], int, int]] = [
        ((bool, int, np.integer), kinds.INT, kinds.INTS),
        ((float, np.floating), kinds.FLOAT, kinds.FLOATS),
        ((str, bytes), kinds.STRING, kinds.STRINGS),
        (Graph, kinds.GRAPH, kinds.GRAPHS),
        (np.ndarray, kinds.TENSOR, kinds.TENSORS),
        ((Tensor, Sequence, Optional, Map), kinds.TYPE_PROTO, kinds.TYPE_PROTOS),
    ]
    several = isinstance(value, (tuple, list))
    for types, one, many in singles:
        if all(isinstance(v, types) for v in value) if several else isinstance(value, types):
            return many if several else one
    if several and all(isinstance(v, (int, float)) for v in value):
        return kinds.FLOATS
    raise ModelError(f"an attribute cannot be {value!r}", hint="give numbers, strings, arrays, types or graphs")


def sparse(array: Array) -> onnx.SparseTensorProto:
    """A dense array as a sparse tensor of its elements other than zero."""
    flat = np.asarray(array).reshape(-1)
    at = np.flatnonzero(flat)
    proto = onnx.SparseTensorProto(dims=np.asarray(array).shape)
    proto.values.CopyFrom(tensor("", flat[at]))
    proto.indices.CopyFrom(tensor("", at.astype(np.int64)))
    return proto


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


__all__ = [
    "IR_OF_TYPES",
    "attribute",
    "kind_by_value",
    "payload",
    "sparse",
    "stored_bytes",
    "tensor",
    "type_of",
    "value_info",
]
