"""ONNX Runtime's execution providers, mapped to devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...ops.dataclasses import dataclass
from ...ops.errors import ArgumentError, MissingPackage
from ...runtime.devices import device_named
from .hints import PROVIDER_OPTIONS, overlooked

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Those that ONNX Runtime knows (get_all_providers of 1.32), and names that it had before.
KNOWN = (
    CPU, CUDA, "ACLExecutionProvider", "ArmNNExecutionProvider", "AzureExecutionProvider", "CANNExecutionProvider",
    "CoreMLExecutionProvider", "DmlExecutionProvider", "DnnlExecutionProvider", "JsExecutionProvider",
    "MIGraphXExecutionProvider", "NnapiExecutionProvider", "NvTensorRTRTXExecutionProvider",
    "OpenVINOExecutionProvider", "QNNExecutionProvider", "ROCMExecutionProvider", "RknpuExecutionProvider",
    "SNPEExecutionProvider", "TensorrtExecutionProvider", "TvmExecutionProvider", "VSINPUExecutionProvider",
    "VitisAIExecutionProvider", "WebGpuExecutionProvider", "WebNNExecutionProvider", "XnnpackExecutionProvider",
)  # fmt: skip
WHERE = "InferenceSession(providers=)"
Asked = tuple[str, Mapping[str, Any]]  # a provider, and its options


@dataclass(frozen=True, slots=True)
class Place:
    """Placement of a session: `device` and `precision` as mz.load takes them, and the names of the matching providers,
    the preferred one first, each with all of its options."""

    device: str
    precision: str
    providers: Mapping[str, Mapping[str, str]]


def choose(providers: Sequence[Any] | None, options: Sequence[Mapping[str, Any]] | None) -> Place:
    """The first provider that is here. Warns of those before that are not, and of those behind that do nothing.

    `providers` are names, or pairs of a name and its options; `options` gives them apart. Raises ArgumentError for
    names and options that are not known.

    >>> choose(["CPUExecutionProvider"], None).providers
    {'CPUExecutionProvider': {}}
    """
    asked: dict[str, Mapping[str, Any]] = {}
    for name, given in _pairs(providers, options):
        _known(name)
        if name in asked:
            _warn(f"{name} is given twice; its first place and options count")
        else:
            asked[name] = given
    place = None
    for name, given in asked.items():
        if place is not None:
            if name != CPU:  # what has no kernel on another device runs there
                _warn(f"{name} is not used: {next(iter(place.providers))} runs the whole model")
            elif given:
                _no_options(name, given)
        elif name not in PLACES:
            _warn(f"{name} is not one of {', '.join(PLACES)}, which this build has; the next one is taken")
        else:
            try:
                place = PLACES[name](given)
            except MissingPackage as error:
                _warn(f"{name} is not available: {error.message}; the next one is taken")
    return place or _on_cpu({})


def _pairs(providers: Any, options: Any) -> list[Asked]:
    """Names and options side by side, in either way of writing them."""
    if providers is None:
        if options is not None:
            raise ArgumentError("there are options and no providers", where="InferenceSession(provider_options=)")
        return []
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ArgumentError(f"{providers!r} is no list", where=WHERE, hint=f"give [{CPU!r}]")
    if options is None:
        return [_pair(each) for each in providers]
    if not isinstance(options, Sequence) or len(options) != len(providers):
        raise ArgumentError(
            f"{options!r} is no list with options for each of {len(providers)} providers",
            where="InferenceSession(provider_options=)",
            hint="give one mapping for each, in their order",
        )
    for each in providers:
        if not isinstance(each, str):
            raise ArgumentError(f"{each!r} has options of its own, and provider_options= gives others", where=WHERE)
    return [_pair(pair) for pair in zip(providers, options, strict=True)]


def check_and_normalize_provider_args(
    providers: Any, provider_options: Any, available_provider_names: Sequence[str]
) -> tuple[list[str], list[dict[str, str]]]:
    """Names, and the options of each as texts, in either way of writing them. Warns of names that are not available,
    and of those that are given twice.

    >>> check_and_normalize_provider_args([("here", {"device_id": 1})], None, ["here"])
    (['here'], [{'device_id': '1'}])
    """
    normalized = dict[str, dict[str, str]]()
    for name, given in _pairs(providers, provider_options):
        if name not in available_provider_names:
            _warn(f"{name} is not one of {', '.join(available_provider_names)}", stacklevel=3)
        if name in normalized:
            _warn(f"{name} is given twice; its first place and options count", stacklevel=3)
        else:
            normalized[name] = {str(key): str(value) for key, value in given.items()}
    return [*normalized], [*normalized.values()]


def _pair(given: Any) -> Asked:
    match given:
        case str():
            return given, {}
        case (str() as name, Mapping() as options):
            return name, options
    raise ArgumentError(f"{given!r} is neither a name nor a pair (name, options)", where=WHERE)


def _known(name: str) -> None:
    if name not in KNOWN:
        from difflib import get_close_matches  # of a start, a millisecond

        near = get_close_matches(name, KNOWN, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ArgumentError(f"Unknown Provider Type: {name}", where=WHERE, hint=f"{hint}Here are {', '.join(PLACES)}")


def _on_cpu(options: Mapping[str, Any]) -> Place:
    """`arena_extend_strategy` may say what is so: arenas have the bytes that are asked for."""
    settings = {name: str(value) for name, value in options.items()}
    if settings.get("arena_extend_strategy") == "kSameAsRequested":
        del settings["arena_extend_strategy"]
    _no_options(CPU, settings)
    return Place("cpu", "fp32", {CPU: {}})


def _on_gpu(options: Mapping[str, Any]) -> Place:
    """The GPU of `device_id`; `use_tf32` says whether operands of float32 products are rounded to TF32 (1 if it is
    not given, as there)."""
    _no_options(CUDA, {name: value for name, value in options.items() if name not in ("device_id", "use_tf32")})
    settings = {name: str(options.get(name, usual)) for name, usual in (("device_id", 0), ("use_tf32", 1))}
    number = settings["device_id"].isascii() and settings["device_id"].isdigit()
    if not number or settings["use_tf32"] not in ("0", "1"):
        raise ArgumentError(
            f"device_id={settings['device_id']}, use_tf32={settings['use_tf32']}",
            where=f"{CUDA}'s options",
            hint="device_id is the number of a GPU, use_tf32 0 or 1",
        )
    device = device_named(f"gpu:{int(settings['device_id'])}")
    return Place(device.name, "auto" if settings["use_tf32"] == "1" else "fp32", {CUDA: settings, CPU: {}})


PLACES: dict[str, Callable[[Mapping[str, Any]], Place]] = {CUDA: _on_gpu, CPU: _on_cpu}


def _no_options(name: str, options: Mapping[str, Any]) -> None:
    options = {n: v for n, v in options.items() if n not in PROVIDER_OPTIONS or not overlooked(f"{name}: {n}", v)}
    if options:
        raise ArgumentError(
            f"{', '.join(map(repr, options))} would be ignored",
            where=f"{name}'s options",
            hint="leave them out; device_id and use_tf32 are known" if name == CUDA else "leave them out",
        )


def said_twice() -> None:
    """Warn of providers that SessionOptions have, where InferenceSession is given others."""
    _warn("SessionOptions have providers too; these here count", stacklevel=4)


def _warn(message: str, stacklevel: int = 4) -> None:
    warnings.warn(f"{WHERE}: {message}", UserWarning, stacklevel=stacklevel)
