"""ONNX Runtime's module `onnxruntime.backend`: ONNX's backend API on sessions.

https://onnxruntime.ai/docs/api/python/api_summary.html#backend. Options are attributes of SessionOptions and of
RunOptions; those that write files, or end a run, are refused, and names that nobody has are overlooked, as there.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import numpy as np
from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep
from onnx.checker import check_model

from ...ops.errors import ArgumentError
from .options import RunOptions, SessionOptions
from .process import get_available_providers, get_device
from .session import InferenceSession

LOGS = frozenset(("log_severity_level", "log_verbosity_level", "logid"))
OF_SESSIONS = LOGS | {
    "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
    "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads", "use_deterministic_compute",
    "use_per_session_threads",
}  # fmt: skip
OF_RUNS = LOGS | {"only_execute_path_to_fetches"}


def _set(options: SessionOptions | RunOptions, given: dict[str, Any], permitted: frozenset[str]) -> None:
    """Raises ArgumentError, a RuntimeError, for options that are not permitted."""
    for name, value in given.items():
        if name in permitted:
            setattr(options, name, value)
        elif name in dir(options):
            raise ArgumentError(
                f"{name} is not permitted here",
                where=f"onnxruntime.backend: {type(options).__name__}",
                hint=f"set it on a session; permitted are {', '.join(sorted(permitted))}",
            )


class OnnxRuntimeBackendRep(BackendRep):
    """A session as ONNX's backend API has it."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **given: Any) -> list[Any]:  # type: ignore[override]
        """The outputs, a list as there, for a list of inputs in their order, or for the only one."""
        options = RunOptions()
        _set(options, given, OF_RUNS)
        names = [port.name for port in self._session.get_inputs()]
        arrays = inputs if isinstance(inputs, list) else [inputs]
        if len(arrays) < len(names) or (not isinstance(inputs, list) and len(names) != 1):
            hint = f"give a list for {', '.join(names)}"
            raise ArgumentError(f"there are {len(names)} inputs", where="onnxruntime.backend: run", hint=hint)
        fed = {n: np.asarray(x) if isinstance(x, np.generic) else x for n, x in zip(names, arrays, strict=False)}
        return self._session.run(None, fed, options)


class OnnxRuntimeBackend(Backend):
    """Sessions by ONNX's backend API."""

    _devices: ClassVar[dict[str, str]] = {"CUDA": "GPU"}

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **_: Any) -> bool:
        """True if this device is here; None for any."""
        return device is None or cls.supports_device(device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for the kind of device that sessions run on: CPU, or where there is one, GPU."""
        return cls._devices.get(device, device) in {"CPU", get_device()}

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **given: Any) -> OnnxRuntimeBackendRep:
        """A path, the bytes of a file, a protobuf or a session, ready to run. Raises ArgumentError for a device that is
        not here, and for options that are not permitted; and as a session does."""
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        if isinstance(model, ModelProto):
            check_model(model)
            model = model.SerializeToString()
        if not cls.is_compatible(model, device):
            where, hint = "onnxruntime.backend: prepare", f"here is {get_device()}"
            raise ArgumentError(f"there is no device {device!r}", where=where, hint=hint)
        options = SessionOptions()
        _set(options, given, OF_SESSIONS)
        return OnnxRuntimeBackendRep(InferenceSession(model, options, providers=get_available_providers()))

    @classmethod
    def run_model(  # type: ignore[override]
        cls, model: Any, inputs: Any, device: str | None = None, **given: Any
    ) -> list[Any]:
        """`prepare` and `run` with the options of either."""
        return cls.prepare(model, device, **given).run(inputs, **given)

    @classmethod
    def run_node(cls, node: Any, inputs: Any, device: Any = None, outputs_info: Any = None, **_: Any) -> NoReturn:
        """Refused: a whole model is run."""
        raise NotImplementedError("onnxruntime.backend runs whole models; mezzo.onnx.Backend runs nodes")


is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device
