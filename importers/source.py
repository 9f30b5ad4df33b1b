"""Reading of model files: a path, bytes or a parsed model become a ModelProto; every failure is a ModelError."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

import onnx
from google.protobuf.message import Error  # type: ignore[import-untyped]

from ..ops.budget import Budget
from ..ops.dataclasses import dataclass
from ..ops.errors import ModelError
from .kinds import kind_of
from .wire import StoredWeights, without_weights

ProtobufError: type[Exception] = Error
EXPORT_AGAIN = "export or download the model again"


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed model and its origin; `folder` is where external data may be, None if it was not a file and none was
    given (`beside`). `weights` are those that stayed in the file, which `close` closes."""

    model: onnx.ModelProto
    name: str
    path: Path | None = None
    weights: StoredWeights | None = None
    beside: Path | None = None

    @property
    def folder(self) -> Path | None:
        folder = self.beside if self.path is None else self.path.parent
        return None if folder is None else Path(os.path.realpath(folder))

    @property
    def home(self) -> Path | None:
        """The folder of the file itself, where the path is a link to it; else None."""
        home = None if self.path is None else Path(os.path.realpath(self.path)).parent
        return None if home == self.folder else home

    def close(self) -> None:
        """Close the file that weights are read from."""
        if self.weights is not None:
            self.weights.file.close()


def read(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, budget: Budget, folder: Path | None = None
) -> Source:
    """Parse a model. Sizes are checked before anything is read. `folder` has the external data of bytes."""
    if isinstance(source, onnx.ModelProto):
        return Source(source, source.graph.name or "model", beside=folder)
    if isinstance(source, (bytes, bytearray, memoryview)):
        budget.check("file_bytes", len(source), "bytes of the model", where="model")
        return Source(parse(bytes(source), "model"), "model", beside=folder)
    if not isinstance(source, (str, os.PathLike)):
        raise ModelError(
            f"{type(source).__name__} is no source of a model",
            where="load_onnx",
            hint="give a path, the bytes of a file, or an onnx.ModelProto",
        )
    path = Path(source)
    file = opened(path, budget)
    try:
        split = without_weights(file, path.name)
        if split is not None:
            light, weights = split
            return Source(parse(light, path.name), path.name, path, weights)
        file.seek(0)
        data = file.read()
    except OSError as error:
        file.close()
        raise _unreadable(path, error) from error
    except BaseException:
        file.close()
        raise
    file.close()
    return Source(parse(data, path.name), path.name, path)


def opened(path: Path, budget: Budget) -> BufferedReader:
    """A regular file within the budget, open for reading."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            inside = sorted(p.name for p in path.glob("*.onnx"))
            hint = f"open one of the files in it: {', '.join(inside[:5])}" if inside else "give the path of a file"
            raise ModelError("this is a directory, not a model file", where=str(path), hint=hint)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError("this is not a regular file", where=str(path), hint="give the path of a model file")
        budget.check("file_bytes", status.st_size, "bytes of the model file", where=str(path))
        return open(path, "rb")
    except FileNotFoundError as error:
        text = "it is a link, and there is no such file as it names" if path.is_symlink() else "there is no such file"
        raise ModelError(text, where=str(path), hint=_neighbours(path)) from error
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(f"the file cannot be read: {error}", where=str(path), hint="check the path and its permissions")


def _neighbours(path: Path) -> str:
    inside = sorted(p.name for p in path.parent.glob("*.onnx") if p.exists()) if path.parent.is_dir() else []
    return f"models in that folder: {', '.join(inside[:5])}" if inside else "check the path"


def parse(data: bytes, where: str) -> onnx.ModelProto:
    """Parse the bytes of a model file."""
    if not data:
        raise ModelError("the file is empty", where=where, hint=EXPORT_AGAIN)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (ProtobufError, RecursionError, RuntimeError, ValueError) as error:
        known = kind_of(data)
        if known is not None:
            raise ModelError(f"the file is no ONNX model, but {known.name}", where=where, hint=known.remedy) from error
        large = len(data) >= 2**31
        raise ModelError(
            "the file is no ONNX model, or only a part of one",
            where=where,
            hint="files of 2 GB and more cannot be protobufs: save the weights as external data"
            if large
            else f"{EXPORT_AGAIN}; an interrupted copy looks like this too",
        ) from error
    if not model.HasField("graph") or not (model.ir_version or model.opset_import):
        raise ModelError(
            "the file holds no ONNX graph, or is only a part of one",
            where=where,
            hint=f"{EXPORT_AGAIN}; tensors (.pb) and other protobufs are not models",
        )
    return model
