"""Settings of this process, and functions of ONNX Runtime's module."""

from __future__ import annotations

from typing import Any

from ...ops.errors import ArgumentError, MissingPackage
from ...runtime.devices import device_named
from ...runtime.version import __version__
from .hints import overlooked
from .providers import CPU, CUDA, KNOWN

# By ONNX Runtime's names: `version` is that of the ONNX Runtime whose names docs/from-onnxruntime.md lists.
version, package_name, cuda_version = "1.32.0", "mezzo", ""


class Process:
    """Settings that sessions begin with which are made from now on."""

    seed = 0
    threads = 0


def set_seed(seed: int) -> None:
    """Begin the random numbers of sessions that are made from now on. Raises ArgumentError for what is no number."""
    if type(seed) is not int or seed < 0:
        raise ArgumentError(f"{seed!r} is no seed", where="set_seed", hint="give an integer")
    Process.seed = seed


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Threads of a step in sessions whose options say `use_per_session_threads = False`."""
    where, count = "set_global_thread_pool_sizes", inter_op_num_threads
    usual = count in (0, 1) or (type(count) is int and count > 1 and overlooked(f"{where}: inter_op", count))
    if type(intra_op_num_threads) is not int or intra_op_num_threads < 0 or not usual:
        raise ArgumentError(
            f"{intra_op_num_threads} and {inter_op_num_threads} threads",
            where=where,
            hint="give a number, and 0 or 1: steps of one run follow each other",
        )
    Process.threads = intra_op_num_threads


def get_all_providers() -> list[str]:
    """Names of providers that are known, the CPU last."""
    return [*(name for name in KNOWN if name != CPU), CPU]


def get_available_providers() -> list[str]:
    """Names of the providers that are here, the preferred one first."""
    return [CUDA, CPU] if _gpu() else [CPU]


def get_device() -> str:
    """ "GPU" or "CPU": where models can run."""
    return "GPU" if _gpu() else "CPU"


def _gpu() -> bool:
    try:
        device_named("gpu:0")
    except MissingPackage:
        return False
    return True


def get_version_string() -> str:
    """The version of ONNX Runtime whose names are here; `mezzo.__version__` is our own."""
    return version


def get_build_info() -> str:
    """Our version, and that of the API.

    >>> get_build_info().startswith("ORT Build Info: mezzo ")
    True
    """
    return f"ORT Build Info: mezzo {__version__}, the Python API of ONNX Runtime {version}"


def has_collective_ops() -> bool:
    return False


def disable_telemetry_events() -> None:
    """Nothing is ever sent."""


def enable_telemetry_events() -> None:
    """Refused, but for programs that were not written for Mezzo: nothing is ever sent."""
    if not overlooked("enable_telemetry_events", True):
        raise ArgumentError("nothing is ever sent", where="enable_telemetry_events", hint="leave it out")


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Any = None) -> None:
    """Libraries are found and loaded where they are first used. Raises ArgumentError for a folder to look in."""
    if directory is not None:
        hint = "set LD_LIBRARY_PATH; `mezzo doctor` tells what is found"
        raise ArgumentError("the folder would be ignored", where="preload_dlls", hint=hint)


def print_debug_info() -> None:
    """Print versions and devices; `mezzo doctor` tells more."""
    print(get_build_info(), *get_available_providers(), sep="\n")
