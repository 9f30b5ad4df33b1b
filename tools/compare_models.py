"""Reference runtimes as sides of a comparison: ONNX Runtime, and ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import onnx

from ..exporters import save_onnx
from ..ops.errors import ExecutionError, MissingPackage
from ..runtime.file import is_mezzo
from ..runtime.ir.graph import Graph
from .sides import Side

NEWEST = 26, 13  # opset of ai.onnx and IR version that ONNX Runtime 1.31 takes
PROVIDERS = {
    "onnxruntime": "CPUExecutionProvider",
    "ort": "CPUExecutionProvider",  # as `mezzo bench` calls it
    "onnxruntime-gpu": "CUDAExecutionProvider",
}
REFEREES = (*PROVIDERS, "reference")


def referee(name: str, path: Path, graph: Graph) -> Side:
    """The referee of this name for a model: MissingPackage where it is not installed, UnsupportedModel where the
    model cannot be written for it."""
    if name == "reference":
        return Evaluator(_File(path, graph, None))
    return OnnxRuntime(_File(path, graph, NEWEST), PROVIDERS[name])


class _File:
    """A model file that a reference runtime can read: the original, or a copy for an older opset. `note` tells
    which."""

    def __init__(self, path: Path, graph: Graph, newest: tuple[int, int] | None) -> None:
        self.path, self.note = path, ""
        proto = None if is_mezzo(path) else onnx.load_model(str(path), load_external_data=False)
        opset, ir = newest or (1 << 31, 1 << 31)
        if proto is None or proto.ir_version > ir or any(o.version > opset for o in proto.opset_import if not o.domain):
            folder = Path(mkdtemp(prefix="mezzo-check-"))
            finalize(self, rmtree, folder, ignore_errors=True)
            self.path = folder / "model.onnx"
            save_onnx(graph, self.path, opset=min(opset, graph.opsets.get("", opset)) if newest else None)
            proto = onnx.load_model(str(self.path), load_external_data=False)
            written = next(int(o.version) for o in proto.opset_import if not o.domain)
            self.note = f"of a copy at opset {written}"
        self.proto = proto
        self.outputs = {o.name: deepcopy(o) for o in proto.graph.output}
        self.values = frozenset(o for n in proto.graph.node for o in n.output if o)

    def asking_for(self, names: Sequence[str]) -> bytes:
        """The model with these values as its outputs."""
        del self.proto.graph.output[:]
        self.proto.graph.output.extend(self.outputs.get(n) or onnx.ValueInfoProto(name=n) for n in names)
        return bytes(self.proto.SerializeToString())


class OnnxRuntime:
    """ONNX Runtime with its defaults, on one provider."""

    def __init__(self, file: _File, provider: str) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingPackage("ONNX Runtime is not installed", hint="pip install onnxruntime") from error
        if provider not in onnxruntime.get_available_providers():
            raise MissingPackage(
                f"this ONNX Runtime has no {provider}", where="--against", hint="pip install onnxruntime-gpu"
            )
        self._ort, self._file, self._provider = onnxruntime, file, provider
        self.values = file.values
        self._latest: tuple[tuple[str, ...], Any] | None = None
        self.about = ", ".join(filter(None, (f"ONNX Runtime {onnxruntime.__version__}", provider, "fp32", file.note)))

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        try:
            session = self._session(tuple(names))
            taken = {i.name for i in session.get_inputs()}
            outputs = session.run(list(names), {n: a for n, a in feeds.items() if n in taken})
        except Exception as error:  # its errors have no base of their own
            text = " ".join(str(error).split())[:400]
            raise ExecutionError(
                f"ONNX Runtime does not run it: {text}", hint="compare with --against reference instead"
            ) from error
        return dict(zip(names, outputs, strict=True))

    def _session(self, names: tuple[str, ...]) -> Any:
        if self._latest is None or self._latest[0] != names:
            options = self._ort.SessionOptions()
            options.log_severity_level = 4
            folder = str(self._file.path.resolve().parent)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
            session = self._ort.InferenceSession(self._file.asking_for(names), options, providers=[self._provider])
            self._latest = names, session
        return self._latest[1]


class Evaluator:
    """ONNX's reference evaluator: slow, and right by definition from opset 13 on."""

    def __init__(self, file: _File) -> None:
        from onnx.reference import ReferenceEvaluator

        self._evaluator = ReferenceEvaluator(str(file.path))
        self.values = file.values
        self.about = ", ".join(filter(None, (f"onnx.reference {onnx.__version__}, cpu", file.note)))

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        try:
            values: Any = self._evaluator.run(None, dict(feeds), intermediate=True)
            return {n: values[n] for n in names}
        except Exception as error:  # whatever it raises, it does not run the model
            raise ExecutionError(
                f"onnx.reference does not run it: {type(error).__name__}: {' '.join(str(error).split())[:400]}",
                hint="compare with --against onnxruntime instead",
            ) from error


__all__ = ["REFEREES", "referee"]
