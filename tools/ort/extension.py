"""The classes of ONNX Runtime's extension module where their calls are others than those of its Python module.

Packages reach for them by private names (`session._sess`, `onnxruntime.capi._pybind_state`); all of it is a second way
to say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .binding import IOBinding
from .devices import KINDS, OrtDevice
from .values import OrtValue, OrtValueVector

if TYPE_CHECKING:
    from .options import RunOptions
    from .session import InferenceSession


class DeviceByNumber(OrtDevice):
    """OrtDevice by the number of its kind, that of a kind of memory, and its own."""

    __slots__ = ()

    def __init__(self, kind: int, memory: int = 0, number: int = 0) -> None:
        super().__init__(next((name for name, k in KINDS.items() if k == kind), str(kind)), number)

    @staticmethod
    def cpu() -> int:
        return KINDS["cpu"]

    @staticmethod
    def gpu() -> int:
        return KINDS["gpu"]

    cuda = dml = webgpu = gpu

    @staticmethod
    def npu() -> int:
        return KINDS["npu"]

    cann = npu

    @staticmethod
    def default_memory() -> int:
        return 0


class SessionIOBinding(IOBinding):
    """IOBinding whose calls take a device in the place of its kind and number, and whose results are a vector."""

    def __init__(self, session: InferenceSession | ExtensionSession) -> None:
        super().__init__(session.session if isinstance(session, ExtensionSession) else session)

    def bind_input(self, name: str, device: Any, *details: Any) -> None:
        """Feed an array; or, behind a device, an element type, a shape and an address."""
        if not details:
            self.bind_cpu_input(name, device)
        elif isinstance(device, OrtDevice):
            super().bind_input(name, device.kind, device.number, *details)
        else:
            super().bind_input(name, device, *details)

    def bind_output(self, name: str, device: Any = "cpu", *details: Any, **more: Any) -> None:  # type: ignore[override]
        """Ask for an output on a device; behind it an element type, a shape and an address."""
        place = (device.kind, device.number) if isinstance(device, OrtDevice) else (device,)
        super().bind_output(name, *place, *details, **more)

    def get_outputs(self) -> OrtValueVector:
        """Results of the latest run, in the order in which they were bound."""
        return self.get_outputs_as_ortvaluevector()

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        return OrtValueVector(super().get_outputs())


class ExtensionSession:
    """A session whose calls take feeds before names; all others are its own."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run_with_ort_values(
        self, feeds: Mapping[str, OrtValue], output_names: Sequence[str], run_options: RunOptions | None = None
    ) -> OrtValueVector:
        """`run` from values to values."""
        return OrtValueVector(self.session.run_with_ort_values(output_names, feeds, run_options))
