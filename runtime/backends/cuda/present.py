"""Libraries for a GPU and which of them are installed, for `mezzo doctor` and `mz.runtime.Features`."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec

from ....ops.errors import MissingPackage
from . import driver
from .memory import gpu_memory_info

LIBRARIES = (  # what it is for, the module, the packages that bring it
    ("CuPy: memory, streams, graphs", "cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy")),
    ("NVRTC: our kernels", "nvidia.cuda_nvrtc", ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")),
    ("cuDNN: convolutions, attention", "nvidia.cudnn", ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")),
    ("cuDNN's frontend", "cudnn", ("nvidia-cudnn-frontend",)),
    ("cuBLASLt: products", "nvmath", ("nvmath-python",)),
    ("NVML: how busy a GPU is", "pynvml", ("nvidia-ml-py",)),
)


def gpus() -> list[tuple[str, str, str]]:
    """The GPUs, or what is missing for one."""
    try:
        devices = driver.count()
    except MissingPackage as error:
        return [("gpu", "off", f"{error.message}; {error.hint}")]
    runtime = driver.cupy().cuda.runtime
    versions = f"driver for CUDA {_cuda(runtime.driverGetVersion())}, CUDA {_cuda(runtime.runtimeGetVersion())}"
    if not devices:
        return [("gpu", "off", f"{versions}: no device is visible; CUDA_VISIBLE_DEVICES may hide them")]
    return [(f"gpu:{i}", "on", f"{driver.described(i)}; {gpu_memory_info(i)}; {versions}") for i in range(devices)]


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def libraries() -> list[tuple[str, str, str]]:
    """Return the libraries that GPUs need besides CuPy, each with its version, or the line that installs it."""
    rows = []
    for what, module, packages in LIBRARIES:
        installed = next((f"{p} {version(p)}" for p in packages if version(p) != "not installed"), "")
        usable = bool(installed) or _importable(module)
        rows.append(
            (what, "on" if usable else "off", installed or ("present" if usable else "pip install 'mezzo[cuda13]'"))
        )
    return rows


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # of the package that it is in
        return False


def version(package: str) -> str:
    """The installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
