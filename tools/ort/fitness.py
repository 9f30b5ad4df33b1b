"""Questions whether a model that was compiled for a provider fits a machine, by the names of ONNX Runtime's extension
module. No provider here compiles models, so that their answers are those for any other model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...ops.errors import ArgumentError, ModelError
from .devices import OrtEpDevice, OrtHardwareDevice, get_ep_devices
from .enumerations import OrtCompiledModelCompatibility, OrtDeviceEpIncompatibilityReason
from .errors import InvalidArgument, WrongType
from .metadata import metadata_of_file

PREFIX = "ep_compatibility_info."


class UnreadableModel(ModelError, RuntimeError):
    """The model file is missing, or no ONNX file."""


def get_model_compatibility_for_ep_devices(devices: Sequence[Any], info: Any) -> OrtCompiledModelCompatibility:
    """EP_NOT_APPLICABLE: no provider here compiles models. Raises ArgumentError for what is no list of devices."""
    where = "get_model_compatibility_for_ep_devices"
    if not isinstance(info, str) or not all(isinstance(d, OrtEpDevice) for d in devices):
        raise WrongType(f"{devices!r} and {info!r}", where=where, hint="give devices of get_ep_devices(), and a text")
    if not devices or len({d.ep_name for d in devices}) > 1:
        raise ArgumentError("the devices are of no provider, or of several", where=where, hint="give those of one")
    return OrtCompiledModelCompatibility.EP_NOT_APPLICABLE


def get_compatibility_info_from_model_bytes(model: bytes, ep: str) -> str | None:
    """Tell what a compiled model says of its provider; None where it says nothing. Raises UnreadableModel."""
    return _info(model, ep, "get_compatibility_info_from_model_bytes")


def get_compatibility_info_from_model(path: str | os.PathLike[str], ep: str) -> str | None:
    """`get_compatibility_info_from_model_bytes` of a file."""
    return _info(os.fspath(path), ep, "get_compatibility_info_from_model")


def _info(source: Any, ep: str, where: str) -> str | None:
    if not source or not ep:
        raise ArgumentError(f"nothing is said: {source!r}, {ep!r}", where=where, hint="give a model and a provider")
    try:
        return metadata_of_file(source).custom_metadata_map.get(PREFIX + ep)
    except (OSError, ValueError, IndexError) as error:
        raise UnreadableModel(f"it cannot be read: {error}", where=where, hint="give an ONNX file") from error


def get_hardware_devices() -> list[OrtHardwareDevice]:
    """The devices of this machine on which models can run."""
    return [d.device for d in get_ep_devices()]


def get_hardware_device_ep_incompatibility_details(ep: str, device: OrtHardwareDevice) -> dict[str, Any]:
    """Why a provider does not run on a device: it does. Raises InvalidArgument for a provider that is not here."""
    fitting = [d for d in get_ep_devices() if d.ep_name == ep]
    where = "get_hardware_device_ep_incompatibility_details"
    if not fitting:
        hint = f"here are {', '.join(d.ep_name for d in get_ep_devices())}"
        raise InvalidArgument(f"there is no provider {ep!r}", where=where, hint=hint)
    fits = device.type is fitting[0].device.type
    reason = OrtDeviceEpIncompatibilityReason.NONE if fits else OrtDeviceEpIncompatibilityReason.DEVICE_INCOMPATIBLE
    return {"reasons_bitmask": int(reason), "notes": None if fits else f"{ep} does not run there", "error_code": 0}
