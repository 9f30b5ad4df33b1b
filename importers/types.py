"""ONNX's types and attributes, converted to ours."""

from __future__ import annotations

import onnx

from ..ops.errors import ModelError, ShapeError
from ..ops.types import Dim, DType, Map, Optional, Sequence, Tensor, Type

# What exporters write where they mean that a dim is unknown.
NAMELESS = ("", "?", "-1", "None")


def type_from(proto: onnx.TypeProto, where: str) -> Type | None:
    """The type that a TypeProto describes; None if it says nothing."""
    kind = proto.WhichOneof("value")
    try:
        if kind in ("tensor_type", "sparse_tensor_type"):
            body = getattr(proto, kind)
            if not body.elem_type:
                return None
            dims = tuple(map(_dim, body.shape.dim)) if body.HasField("shape") else None
            return Tensor(DType.from_onnx(body.elem_type), dims)
        if kind == "sequence_type":
            inner = type_from(proto.sequence_type.elem_type, where)
            return inner and Sequence(inner)
        if kind == "optional_type":
            inner = type_from(proto.optional_type.elem_type, where)
            return inner and Optional(inner)
        if kind == "map_type":
            inner = type_from(proto.map_type.value_type, where)
            return inner and Map(DType.from_onnx(proto.map_type.key_type), inner)
    except ShapeError as error:
        raise ModelError(error.message, where=where, hint=error.hint) from error
    return None


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    if not isinstance(dim.dim_param, str):
        raise ShapeError(f"the name {dim.dim_param!r} of a dim is not UTF-8", hint="export the model again")
    return None if dim.dim_param in NAMELESS else dim.dim_param
