"""ONNX Runtime's descriptions of devices and of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...ops.dataclasses import dataclass, field
from ...ops.errors import ArgumentError
from ...runtime.version import __version__
from .enumerations import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from .providers import CPU, CUDA

KINDS = {"cpu": 0, "gpu": 1, "cuda": 1, "dml": 1, "webgpu": 1, "npu": 2, "cann": 2}
VENDORS = {"cuda": OrtDeviceVendorId.NVIDIA, "dml": OrtDeviceVendorId.MICROSOFT, "cann": OrtDeviceVendorId.HUAWEI}


@dataclass(frozen=True, slots=True)
class OrtDevice:
    """A place for values: the name of its kind, the number of the device and its vendor's."""

    kind: str = "cpu"
    number: int = 0
    vendor: int = 0

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """The device of this kind and number. Raises ArgumentError for a kind that ONNX Runtime does not know."""
        if ort_device_name not in KINDS:
            raise ArgumentError(
                f"there is no kind of device {ort_device_name!r}", where="OrtDevice", hint=f"one of {', '.join(KINDS)}"
            )
        vendor = VENDORS.get(ort_device_name, 0) if vendor_id < 0 else vendor_id
        return OrtDevice(ort_device_name, int(device_id), int(vendor))

    def on_host(self) -> None:
        """Raises ArgumentError unless this is the memory of the host."""
        if self.kind != "cpu":
            raise ArgumentError(
                f"values lie in the memory of the host, not on {self.kind}:{self.number}",
                where="OrtValue",
                hint="sessions on a GPU take and give arrays by DLPack: mz.load(device='gpu:0').run(feeds, outputs=)",
            )

    def device_id(self) -> int:
        return self.number

    def device_type(self) -> int:
        """ONNX Runtime's number of the kind: 0 for a CPU, 1 for GPUs, 2 for others."""
        return KINDS[self.kind]

    def device_vendor_id(self) -> int:
        return self.vendor

    def device_mem_type(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class OrtMemoryInfo:
    """A kind of memory."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """The description of memory of any device."""
        return OrtMemoryInfo(name, allocator_type, device_id, OrtMemType.DEFAULT, mem_type, vendor_id)


class OrtArenaCfg:
    """Sizes by which an arena grows, in bytes; -1 says nothing. It describes: arenas are planned here."""

    _names = (
        "max_mem",
        "arena_extend_strategy",
        "initial_chunk_size_bytes",
        "max_dead_bytes_per_chunk",
        "initial_growth_chunk_size_bytes",
        "max_power_of_two_extend_bytes",
    )
    __slots__ = _names

    def __init__(self, first: int | Mapping[str, int], *others: int) -> None:
        """The first four in their order, or any of them by their names. Raises ArgumentError for others."""
        values = dict(zip(self._names, (first, *others), strict=False)) if isinstance(first, int) else dict(first)
        count = len(others) + 1 if isinstance(first, int) else 4
        unknown = [name for name in values if name not in self._names]
        if unknown or count != 4 or not all(type(n) is int for n in values.values()):
            text = f"there is no {', '.join(unknown)}" if unknown else f"{(first, *others)} are not four numbers"
            raise ArgumentError(text, where="OrtArenaCfg", hint=f"give {{name: number}} of {', '.join(self._names)}")
        for name in self._names:
            setattr(self, name, values.get(name, -1))


HOST = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)


@dataclass(frozen=True, slots=True)
class OrtHardwareDevice:
    """A device of this machine."""

    type: OrtHardwareDeviceType
    vendor: str
    vendor_id: int = 0
    device_id: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class OrtEpDevice:
    """A device and the provider that runs models on it."""

    ep_name: str
    ep_vendor: str
    device: OrtHardwareDevice
    ep_metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    ep_options: Mapping[str, str] = field(default_factory=dict[str, str])

    def memory_info(self, kind: OrtDeviceMemoryType) -> OrtMemoryInfo | None:
        """None, as ONNX Runtime answers for the CPU: values need no allocator of a device."""
        return None

    def create_sync_stream(self, *_: Any) -> Any:
        """Refused: runs end before they return."""
        raise ArgumentError(
            "there are no streams", where="OrtEpDevice.create_sync_stream", hint="runs end before they return"
        )


def get_ep_devices() -> list[OrtEpDevice]:
    """The devices of this machine with their providers, the processor last.

    >>> get_ep_devices()[-1].ep_name
    'CPUExecutionProvider'
    """
    import platform  # of a start, a millisecond

    from .process import get_available_providers

    about = {"version": __version__}
    processor = OrtHardwareDevice(OrtHardwareDeviceType.CPU, platform.processor() or platform.machine())
    gpu = OrtHardwareDevice(OrtHardwareDeviceType.GPU, "NVIDIA", int(OrtDeviceVendorId.NVIDIA))
    gpus = [OrtEpDevice(CUDA, "mezzo", gpu, about, {"device_id": "0"})] if CUDA in get_available_providers() else []
    return [*gpus, OrtEpDevice(CPU, "mezzo", processor, about)]
