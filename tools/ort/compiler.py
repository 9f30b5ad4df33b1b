"""ONNX Runtime's ModelCompiler: models that are written as sessions would load them.

No provider here puts compiled parts into a model, nor does ONNX Runtime's CPU: what is written is the model itself,
after the passes where they are asked for; or, where a path ends in .mezzo, a planned model.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ...ops.dataclasses import dataclass
from ...ops.errors import ArgumentError
from ...runtime.files import replace_file
from .entries import EXTERNAL_FOLDER
from .enumerations import GraphOptimizationLevel, OrtCompileApiFlags
from .errors import Fail, InvalidArgument, WrongType, opening
from .hints import overlooked
from .options import SessionOptions
from .providers import choose
from .values import OrtValue

if TYPE_CHECKING:
    import onnx

    from ...runtime.ir.graph import Graph

WHERE = "ModelCompiler"


@dataclass(frozen=True, slots=True)
class OrtExternalInitializerInfo:
    """A place for the bytes of an initializer: a file, an offset in it, and their number."""

    filepath: str
    file_offset: int
    byte_size: int


Locate = Callable[[str, OrtValue, OrtExternalInitializerInfo | None], OrtExternalInitializerInfo | None]


class ModelCompiler:
    """A model that is written for sessions to come.

    >>> from mezzo.models.digits import digits_model
    >>> compiler = ModelCompiler(SessionOptions(), digits_model())
    >>> len(compiler.compile_to_bytes()) > 1000
    True
    """

    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: str | os.PathLike[str] | bytes,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: str | os.PathLike[str] | None = None,
        external_initializers_size_threshold: int = 1024,
        flags: int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: Locate | None = None,
    ) -> None:
        """Weights of more than `external_initializers_size_threshold` bytes go to the file of that name beside the
        model, or each to where the function says. Raises ArgumentError for what would be ignored."""
        if not isinstance(sess_options, SessionOptions):
            text, hint = f"a {type(sess_options).__name__} are no options", "give a SessionOptions()"
            raise WrongType(text, where=WHERE, hint=hint)
        source = input_model_path_or_bytes
        if not isinstance(source, (str, os.PathLike, bytes)):
            raise WrongType(f"a {type(source).__name__} is no model", where=WHERE, hint="give a path, or bytes(...)")
        if not source:
            raise ArgumentError("the path, or the model, is empty", where=WHERE, hint="give a path, or bytes(...)")
        if external_initializers_file_path and get_initializer_location_func:
            text = "both external_initializers_file_path and get_initializer_location_func are given"
            raise ArgumentError(text, where=WHERE, hint="give one of them")
        level = GraphOptimizationLevel.__members__.get(getattr(graph_optimization_level, "name", ""))
        said = f"{WHERE}(graph_optimization_level=)"
        between = level not in (GraphOptimizationLevel.ORT_DISABLE_ALL, GraphOptimizationLevel.ORT_ENABLE_ALL)
        if level is None or (between and not overlooked(said, level)):
            hint = "ORT_DISABLE_ALL leaves all passes out, ORT_ENABLE_ALL none"
            raise ArgumentError(f"{graph_optimization_level!r} would be ignored", where=said, hint=hint)
        options = sess_options.snapshot()
        choose(options.providers, None)
        self._source, self._options, self._level = source, options, level
        self._flags, self._locate = OrtCompileApiFlags(int(flags)), get_initializer_location_func
        self._aside, self._threshold = external_initializers_file_path, external_initializers_size_threshold

    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> None:
        """Write the model to a file, or to that of the model with _ctx behind its name. Raises Fail for a file that is
        there where it must not be, and as sessions do."""
        if output_model_path is None:
            if isinstance(self._source, bytes):
                raise InvalidArgument("the model has no path", where=f"{WHERE}.compile_to_file", hint="give one")
            source = Path(self._source)
            output_model_path = source.with_name(f"{source.stem}_ctx{source.suffix}")
        path = Path(output_model_path)
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and path.exists():
            hint = "give another path, or leave the flag out"
            raise Fail(f"{path} exists already", where=f"{WHERE}.compile_to_file", hint=hint)
        graph = self._graph()
        if path.suffix == ".mezzo":
            self._planned(graph, path)
        elif self._locate is not None:
            replace_file(path, [self._proto(graph, path.parent).SerializeToString()])
        else:
            from ...exporters import save_onnx

            if self._aside is None:
                save_onnx(graph, path)
                return
            aside = Path(self._aside)
            if aside.parent not in (Path(), path.parent):
                hint = "give the name of a file beside the model"
                raise ArgumentError(f"{aside} is in another folder", where=WHERE, hint=hint)
            save_onnx(graph, path, external_data="always", threshold=self._threshold + 1, location=aside.name)

    def compile_to_bytes(self) -> bytes:
        """The model as bytes. Raises ArgumentError where weights are to lie beside it, and as sessions do."""
        if self._aside is not None:
            hint = "compile_to_file(path) writes both"
            raise ArgumentError(f"{self._aside} lies beside no file", where=f"{WHERE}.compile_to_bytes", hint=hint)
        return bytes(self._proto(self._graph(), None).SerializeToString())

    def compile_to_stream(self, write_function: Callable[[bytes], Any]) -> None:
        """Give the bytes of the model to a function. Raises Fail where it raises, and as `compile_to_bytes`."""
        content = self.compile_to_bytes()
        try:
            write_function(content)
        except Exception as error:
            where, hint = f"{WHERE}.compile_to_stream", "give a function that writes bytes"
            raise Fail(f"it raised {type(error).__name__}: {error}", where=where, hint=hint) from error

    def _graph(self) -> Graph:
        """The graph that is written."""
        from ...runtime.execution.session import Session
        from .changes import changed, optimised

        if self._flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            hint = "leave the flag out: a path that ends in .mezzo holds a planned model"
            raise Fail(
                "Unable to compile any nodes: no provider puts compiled parts into a model", where=WHERE, hint=hint
            )
        with opening():
            folder = self._options.entries.given.get(EXTERNAL_FOLDER)
            graph = changed(self._source, self._options, None, None if folder is None else Path(folder))
            return graph if self._level is GraphOptimizationLevel.ORT_DISABLE_ALL else optimised(Session(graph))

    def _planned(self, graph: Graph, path: Path) -> None:
        from ...runtime.execution.session import Session

        if self._locate is not None or self._aside is not None:
            hint = "leave out where weights go"
            raise ArgumentError("a .mezzo file holds all weights", where=f"{WHERE}.compile_to_file", hint=hint)
        Session(graph).save(path)

    def _proto(self, graph: Graph, folder: Path | None) -> onnx.ModelProto:
        """The model, whose weights lie where the function says."""
        from ...exporters import to_onnx

        proto = to_onnx(graph)
        if self._locate is None:
            return proto
        before = self._places()
        for tensor in proto.graph.initializer:
            known = before.get(tensor.name)
            found = self._locate(tensor.name, OrtValue(graph.initializers[tensor.name]), known)
            if found is None:
                continue
            place = Path(found.filepath)
            if found == known and not isinstance(self._source, bytes):
                place = Path(self._source).resolve().parent / place
            location = _beside(place, folder)
            for name in [f.name for f, _ in tensor.ListFields() if f.name not in ("name", "dims", "data_type")]:
                tensor.ClearField(name)
            tensor.data_location = 1  # EXTERNAL
            for key, value in (("location", location), ("offset", found.file_offset), ("length", found.byte_size)):
                tensor.external_data.add(key=key, value=str(value))
        return proto

    def _places(self) -> dict[str, OrtExternalInitializerInfo]:
        """Return where the weights of the model lie that are not in it."""
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        from .changes import parsed

        try:
            proto = parsed(self._source)
        except DecodeError:  # a .mezzo file, whose weights are inside
            return {}
        held = {t.name: {e.key: e.value for e in t.external_data} for t in proto.graph.initializer if t.external_data}
        return {
            name: OrtExternalInitializerInfo(e["location"], int(e.get("offset", 0)), int(e.get("length", 0)))
            for name, e in held.items()
        }

    def clear_ep_context_data_write_func(self) -> None:
        """Nothing is to be cleared: no provider has compiled parts to write."""

    def set_ep_context_data_write_func(self, write_func: Any) -> NoReturn:
        """Refused: no provider has compiled parts to write."""
        hint = "leave it out: compile_to_stream(write) gives the whole model to a function"
        raise ArgumentError("it would never be called", where=f"{WHERE}.set_ep_context_data_write_func", hint=hint)

    def set_ep_context_binary_information(self, output_directory: Any, model_name: Any) -> NoReturn:
        """Refused: no provider has compiled parts to write."""
        where = f"{WHERE}.set_ep_context_binary_information"
        raise ArgumentError("they would be ignored", where=where, hint="leave them out")


def _beside(path: Path, folder: Path | None) -> str:
    """The path of a file from the folder of its model. Raises ArgumentError for one that lies outside, where no session
    reads it."""
    if path.is_absolute():
        path = Path(os.path.relpath(path, folder.resolve())) if folder is not None else Path("..") / path.name
    if ".." in path.parts:
        hint = "write the model to a folder above it"
        raise ArgumentError(f"{path} is not in the folder of the model", where=WHERE, hint=hint)
    return path.as_posix()
