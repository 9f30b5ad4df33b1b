"""Comparison of an exported model with ONNX Runtime, where that is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..ops.dataclasses import dataclass
from ..ops.types import Array
from .compare import relative_error


@dataclass(frozen=True, slots=True)
class ExportVerdict:
    """The version of ONNX Runtime and the error of its answers against ours, or the reason why it gave none."""

    version: str
    error: float | None = None
    failed: str = ""


def in_onnxruntime(model: Path, feeds: Mapping[str, Array], answers: Sequence[Array]) -> ExportVerdict | None:
    """Run the file once on one thread, and compare its outputs with `answers`; None without ONNX Runtime."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, dict(feeds))
    except Exception as error:  # its errors have no base of their own
        return ExportVerdict(onnxruntime.__version__, failed=str(error).splitlines()[0])
    return ExportVerdict(onnxruntime.__version__, relative_error(outputs, answers))
