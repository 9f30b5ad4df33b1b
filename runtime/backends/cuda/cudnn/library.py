"""Loading of cuDNN: the module `cudnn` of nvidia-cudnn-frontend, the library behind it, and the GPU that plans are
for."""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from .....ops.dataclasses import dataclass
from .....ops.errors import MissingPackage
from ..driver import cupy, index_of
from ..found import needed, tried

HINT = "pip install 'nvidia-cudnn-frontend>=1.28,<1.29' 'nvidia-cudnn-cu13>=9.19,<10'"
DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
OLDEST = 91100  # the first cuDNN that makes plans without a GPU


@dataclass(frozen=True, slots=True)
class Cudnn:
    """The module and the versions that plans depend on."""

    module: Any
    version: str
    frontend: str

    def __str__(self) -> str:
        return f"cuDNN {self.version} (frontend {self.frontend})"


@cache
def find() -> Cudnn | str:
    """cuDNN, or why there is none; looked for once."""

    def load() -> Cudnn:
        # a part of cuDNN is linked with the driver, and says nothing but that a part is missing where there is none
        ctypes.CDLL(DRIVER)
        with suppress(Exception):  # engines that are compiled at run time find NVRTC only where it is loaded
            import_module("cuda.pathfinder").load_nvidia_dynamic_lib("nvrtc")
        module = import_module("cudnn")
        if int(module.backend_version()) < OLDEST:
            raise MissingPackage(f"{module.backend_version()} is older than {OLDEST}")
        return Cudnn(module, str(module.backend_version_string()), str(module.__version__))

    return tried("cuDNN", HINT, load)


def library() -> Cudnn:
    """cuDNN. Raises MissingPackage without it."""
    return needed(find(), HINT)


def is_plan(device: str) -> bool:
    """True if a device is for planning only, such as `gpu:0@sm_90`."""
    return "@" in device


@cache
def properties(device: str, sm: int) -> tuple[Any, str]:
    """Return the properties of a GPU for cuDNN, and the same as text: of the device itself, or, for planning only, of
    one of its architecture."""
    create = library().module.create_device_properties
    if is_plan(device):
        text = described(sm)
        return create(text), text
    created = create(index_of(device))
    return created, str(created.serialize())


def described(sm: int) -> str:
    """The properties of a GPU of this architecture, as text that cuDNN reads. Raises MissingPackage for one of which
    none are at hand."""
    path = Path(__file__).parent / f"sm_{sm}.json"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("sm_*.json")))
        raise MissingPackage(f"no properties of a GPU of sm_{sm} are at hand", hint=f"there are those of {known}")
    return path.read_text("utf8")


class _CudnnHandles(threading.local):
    """A handle of cuDNN for each device and thread; it holds the stream."""

    def __init__(self) -> None:
        self.by_device: dict[int, Any] = {}


_HANDLES = _CudnnHandles()


def handle(device: str) -> Any:
    """Return this thread's handle for a device, set to CuPy's current stream."""
    module, index = library().module, index_of(device)
    handle = _HANDLES.by_device.get(index)
    if handle is None:
        with cupy().cuda.Device(index):
            handle = _HANDLES.by_device[index] = module.create_handle()
    module.set_stream(handle=handle, stream=cupy().cuda.get_current_stream().ptr)
    return handle
