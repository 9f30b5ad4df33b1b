"""`mx.context`: devices under MXNet's names."""

from __future__ import annotations

from typing import Any

from ...nd.place import Place
from ...nd.place import cpu as our_cpu
from ...nd.place import gpu as our_gpu
from ...nd.place import num_gpus as num_gpus
from ...ops.errors import InputError


def cpu(device_id: int = 0) -> Place:
    return our_cpu(device_id)


def gpu(device_id: int = 0) -> Place:
    return our_gpu(device_id)


def cpu_pinned(device_id: int = 0) -> Place:
    return cpu()


def current_context() -> Place:
    return cpu()


class Context:
    """A device by its kind and number."""

    def __new__(cls, device_type: Any = "cpu", device_id: int = 0) -> Any:
        if not isinstance(device_type, str):
            return device_type
        if device_type not in ("cpu", "cpu_pinned", "cpu_shared", "gpu"):
            raise InputError(f"there is no device {device_type!r}", where="mx.Context", hint="cpu or gpu")
        return gpu(device_id) if device_type == "gpu" else cpu()
