"""Classes, by the name of ONNX Runtime's module of them."""

from ...tools.ort.providers import check_and_normalize_provider_args
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
    "check_and_normalize_provider_args",
    "copy_tensors",
]
