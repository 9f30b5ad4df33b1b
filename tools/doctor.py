"""What this machine has: versions, devices, features, and why one is off."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..ops import OPS, OPSETS
from .report import Report, Table

PACKAGES = ("mezzo", "numpy", "onnx", "ml_dtypes", "rich", "click", "pillow")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _blas() -> str:
    found = np.show_config(mode="dicts")
    blas: Any = (found or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def _devices() -> list[tuple[str, str, str]]:
    gpu = "the GPU kernels are not part of this version"
    if not find_spec("cupy"):
        gpu += "; CuPy is not installed"
    return [("cpu", "on", f"{os.cpu_count()} processors, NumPy kernels over {_blas()}"), ("gpu", "off", gpu)]


def _features() -> list[tuple[str, str, str]]:
    def package(module: str, name: str, what: str) -> tuple[str, str, str]:
        there = find_spec(module) is not None
        return (what, "on" if there else "off", f"{name} {_version(name)}" if there else f"pip install {name}")

    return [
        package("onnx", "onnx", "ONNX files"),
        package("ml_dtypes", "ml_dtypes", "bfloat16, float8, int4"),
        package("PIL", "pillow", "pictures"),
        ("oneDNN kernels", "off", "not part of this version: convolutions and pooling run their NumPy references"),
    ]


def doctor() -> Report:
    """The report of `mezzo doctor`."""
    facts = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "executable": sys.executable,
        "operators": len(OPS),
        "opsets": ", ".join(f"{domain or 'ai.onnx'} {opset}" for domain, opset in OPSETS.items()),
    }
    versions = [(name, _version(name)) for name in PACKAGES]
    return Report(
        "mezzo doctor",
        facts,
        (
            Table("Packages", ("package", "version"), versions),
            Table("Devices", ("device", "state", "why"), _devices()),
            Table("Features", ("feature", "state", "why"), _features()),
        ),
    )
