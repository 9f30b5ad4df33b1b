"""Providers by the devices that they are for: chosen one by one, by a policy, or by a function of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...ops.errors import ArgumentError
from .devices import OrtEpDevice, get_ep_devices
from .enumerations import OrtExecutionProviderDevicePolicy, OrtHardwareDeviceType
from .errors import Fail, InvalidArgument, WrongType
from .metadata import told_by

MOST = 8  # devices that a function may choose
ON_GPU = (OrtExecutionProviderDevicePolicy.PREFER_GPU, OrtExecutionProviderDevicePolicy.MAX_PERFORMANCE)
Choice = OrtExecutionProviderDevicePolicy | Callable[..., Any]
Providers = list[tuple[str, dict[str, str]]]


def of_devices(devices: Any, options: Mapping[str, Any], where: str) -> Providers:
    """The providers of these devices, in their order. Raises InvalidArgument for none, and for several of one."""
    if not isinstance(devices, Sequence) or not all(isinstance(d, OrtEpDevice) for d in devices):
        raise WrongType(f"{devices!r} are no devices", where=where, hint="give a list of those of get_ep_devices()")
    names = [d.ep_name for d in devices]
    if not names or len({*names}) < len(names):
        text = f"there are {len(names)} devices, of {', '.join(names) or 'no provider'}"
        raise InvalidArgument(text, where=where, hint="give one of each provider")
    return [(d.ep_name, {**d.ep_options, **{n: str(v) for n, v in options.items()}}) for d in devices]


def check_policy(policy: Any) -> OrtExecutionProviderDevicePolicy:
    """Raises ArgumentError for what is no policy. Those of ONNX Runtime are taken by their names."""
    known = OrtExecutionProviderDevicePolicy.__members__.get(getattr(policy, "name", ""))
    if known is None:
        where, names = (
            "SessionOptions.set_provider_selection_policy",
            ", ".join(OrtExecutionProviderDevicePolicy.__members__),
        )
        hint = f"give an OrtExecutionProviderDevicePolicy: {names}"
        raise WrongType(f"{policy!r} is no policy", where=where, hint=hint)
    return known


def selected(choice: Choice, source: Any) -> Providers:
    """The providers by a policy, or by a function of the devices, of what the model says of itself, of nothing more and
    of how many may be chosen. Raises Fail where the function does, and for what are no devices."""
    devices = get_ep_devices()
    if isinstance(choice, OrtExecutionProviderDevicePolicy):
        on_gpu = [d for d in devices if d.device.type is OrtHardwareDeviceType.GPU]
        return of_devices([*(on_gpu[:1] if choice in ON_GPU else ()), devices[-1]], {}, "")
    where, hint = "the delegate that selects providers", "return a list of some of the devices that it is given"
    try:
        found = choice(devices, told_by(source), {}, MOST)
    except Exception as error:
        raise Fail(f"it raised {type(error).__name__}: {error}", where=where, hint=hint) from error
    try:
        return of_devices(found, {}, where)
    except ArgumentError as error:
        raise Fail(error.message, where=where, hint=hint) from error
