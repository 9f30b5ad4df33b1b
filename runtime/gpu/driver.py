"""The side of CUDA: CuPy on first use, kernels loaded and launched on CuPy's current stream."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...ops.errors import MissingPackage
from ..kernels.kernel import Call, Work
from .launch import Written


def cupy() -> Any:
    """The module; MissingPackage names the line that installs it."""
    try:
        return import_module("cupy")
    except ImportError as error:
        raise MissingPackage(
            f"a GPU is asked for and CuPy cannot be imported: {error}",
            hint="pip install 'mezzo[cuda13]', or 'mezzo[cuda12]' for drivers of CUDA 12",
        ) from error


def bound(written: Written, work: Work) -> Call:
    """The launches of a step as one call over its buffers."""
    raise NotImplementedError
