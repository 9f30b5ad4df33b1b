"""The API of ONNX Runtime's InferenceSession on our sessions.

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
from ..ops.errors import ArgumentError, InputError
from ..runtime.compile.program import Port
from .load import load
from .providers import CPU, choose
from .session_options import RunOptions, SessionOptions, check_kind

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
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        budget: Budget | None = None,
    ) -> None:
        """The first of `providers` that is here runs the model, the CPU where none is given: see tools/providers.py for
        their options, and SessionOptions for those of the session. Warns of providers that are not here or do nothing.

        Raises ArgumentError for what is not known or would be ignored, and as `load` does.
        """
        check_kind(sess_options, SessionOptions, "sess_options")
        said = sess_options or SessionOptions()
        self._place = place = choose(providers, provider_options)
        if said.use_deterministic_compute and place.device != "cpu":
            why = "libraries of GPUs promise no equal bits"
            raise ArgumentError(why, where="SessionOptions.use_deterministic_compute", hint=f"give providers=[{CPU!r}]")
        self.session = load(
            path_or_bytes,
            device=place.device,
            budget=budget,
            strategy="both" if said.enable_mem_reuse else "none",
            threads=said.intra_op_num_threads or None,
            precision=place.precision,
        )

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run once; returns the named outputs in that order (None: all). Raises as Session.run does, ArgumentError (a
        ValueError) for feeds that do not fit."""
        check_kind(run_options, RunOptions, "run_options")
        names = list(output_names) if output_names else [p.name for p in self.session.outputs]
        cancel = None if run_options is None else run_options.cancel
        try:
            results = self.session.run(input_feed, names=tuple(dict.fromkeys(names)), cancel=cancel)
        except InputError as error:
            raise ArgumentError(error.message, where=error.where, hint=error.hint, parts=error.parts) from error
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
        """The devices in use, by ONNX Runtime's names; steps without a kernel on the first run on the next."""
        return list(self._place.providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each of them."""
        return {name: dict(options) for name, options in self._place.providers.items()}
