"""The calls that users of ONNX Runtime already write, on our sessions.

https://onnxruntime.ai/docs/api/python/api_summary.html#inferencesession
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..ops import DType, Map, Optional, Tensor, Type
from ..ops import Sequence as SequenceType
from ..ops.budget import Budget
from ..ops.dataclasses import dataclass
from ..runtime.program import Port
from .load import load

_NAMES = {
    DType.FLOAT: "float",
    DType.DOUBLE: "double",
    DType.FLOAT16: "float16",
    DType.BFLOAT16: "bfloat16",
    DType.STRING: "string",
    DType.BOOL: "bool",
}


def _type_name(type: Type) -> str:
    if isinstance(type, Tensor):
        return f"tensor({_NAMES.get(type.dtype, str(type.dtype))})"
    if isinstance(type, SequenceType):
        return f"seq({_type_name(type.element)})"
    if isinstance(type, Optional):
        return f"optional({_type_name(type.element)})"
    assert isinstance(type, Map)
    return f"map({type.key},{_type_name(type.element)})"


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: its name, its type as `tensor(float)`, and its shape (a name or None where not known)."""

    name: str
    type: str
    shape: list[int | str | None]

    @classmethod
    def of(cls, port: Port) -> NodeArg:
        dims = port.type.dims if isinstance(port.type, Tensor) else None
        return cls(port.name, _type_name(port.type), list(dims or ()))


class InferenceSession:
    """A model with ONNX Runtime's `run(output_names, input_feed)`.

    >>> import numpy as np
    >>> from mezzo.models.digits import digits_model
    >>> s = InferenceSession(digits_model())
    >>> s.get_inputs()[0].name, s.get_inputs()[0].shape
    ('image', ['batch', 1, 8, 8])
    >>> (logits,) = s.run(None, {"image": np.zeros((2, 1, 8, 8), np.float32)})
    >>> logits.shape
    (2, 10)
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: None = None,
        providers: Sequence[str] | None = None,
        *,
        budget: Budget | None = None,
    ) -> None:
        """`providers` is taken for compatibility: everything runs on this build's devices."""
        self.session = load(path_or_bytes, budget=budget)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: None = None
    ) -> list[Any]:
        """Run once; returns the named outputs in that order (None: all). Raises as Session.run does."""
        names = list(output_names) if output_names else [p.name for p in self.session.outputs]
        results = self.session.run(input_feed, names=tuple(dict.fromkeys(names)))
        return [results[n] for n in names]

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""
        return [NodeArg.of(p) for p in self.session.inputs if p.name not in self.session.signature.defaults]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that may be fed and otherwise have the file's value."""
        return [NodeArg.of(p) for p in self.session.inputs if p.name in self.session.signature.defaults]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, with their shapes as far as they are known before a run."""
        return [NodeArg.of(p) for p in self.session.outputs]

    def get_providers(self) -> list[str]:
        """The devices in use, by ONNX Runtime's names."""
        return ["CPUExecutionProvider"]
