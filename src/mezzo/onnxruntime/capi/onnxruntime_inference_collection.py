"""Classes, by the name of ONNX Runtime's module of them."""

from .. import (
    AdapterFormat,
    InferenceSession,
    IOBinding,
    ModelCompiler,
    OrtDevice,
    OrtDeviceVendorId,
    OrtValue,
    SparseTensor,
    copy_tensors,
)

__all__ = [
    "AdapterFormat",
    "IOBinding",
    "InferenceSession",
    "ModelCompiler",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "SparseTensor",
    "copy_tensors",
]
