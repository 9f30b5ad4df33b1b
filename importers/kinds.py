"""Kinds of files that are no ONNX models, by their first bytes, each with what to do about it."""

from __future__ import annotations

from typing import Final

from ..ops.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: `begins` is what stands at byte `offset` of it, `remedy` how its user comes to a model."""

    begins: bytes
    name: str
    remedy: str
    offset: int = 0


TO_ONNX: Final = "write the model with its framework's ONNX exporter"
KINDS: Final = (
    FileKind(b"version https://git-lfs", "a pointer of Git LFS", "`git lfs pull` fetches the file in its place"),
    FileKind(b"PK\3\4", "a zip archive, as torch.save, numpy.savez and Keras write",
             "torch.onnx.export writes a PyTorch model as ONNX"),
    FileKind(b"\x80\x02", "a pickle, which is never read", TO_ONNX),
    FileKind(b"\x80\x04", "a pickle, which is never read", TO_ONNX),
    FileKind(b"\x80\x05", "a pickle, which is never read", TO_ONNX),
    FileKind(b"\x93NUMPY", "an array of NumPy", "numpy.load reads it"),
    FileKind(b"\x89HDF\r\n", "an HDF5 file, as Keras writes", "tf2onnx converts models of Keras"),
    FileKind(b"TFL3", "a model of TensorFlow Lite", "tf2onnx --tflite converts it", 4),
    FileKind(b"ORTM", "a model in ONNX Runtime's own .ort format", "take the .onnx file that it was made from", 4),
    FileKind(b"GGUF", "a model in GGUF", "export the original model to ONNX"),
    FileKind(b'{"', "safetensors, which hold weights and no graph", TO_ONNX, 8),
    FileKind(b"\x1f\x8b", "compressed with gzip", "gunzip it"),
    FileKind(b"<?xml", "XML", "OpenVINO's IR and PMML are no ONNX: take the .onnx file that it was made from"),
    FileKind(b"<!doctype html", "a page of HTML: a download that failed", "look at it in a browser for the reason"),
    FileKind(b"<html", "a page of HTML: a download that failed", "look at it in a browser for the reason"),
)  # fmt: skip


def kind_of(data: bytes) -> FileKind | None:
    """The kind that bytes begin as, other than ONNX.

    >>> kind_of(b"version https://git-lfs.github.com/spec/v1").name
    'a pointer of Git LFS'
    >>> kind_of(b"\\x08\\x0a")
    """
    head = data[:64].lower()
    return next((k for k in KINDS if head[k.offset :].startswith(k.begins.lower())), None)
