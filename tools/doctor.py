"""`mezzo doctor`: versions, devices and features of this machine, with reasons where a feature is off."""

from __future__ import annotations

import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..ops import OPS, OPSETS, MezzoError
from ..runtime.backends.cuda.present import gpus, libraries, version
from ..runtime.backends.onednn.library import find, library, openmp
from ..runtime.devices import device_named
from ..runtime.environment import processors, quota
from ..runtime.file import Opened, VariantKey, open_file
from .report import Report, Table

PACKAGES = ("mezzo", "numpy", "onnx", "ml_dtypes", "flatbuffers", "rich", "click", "pillow")


def _blas() -> str:
    config = np.show_config(mode="dicts")
    blas: Any = (config or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def _devices() -> list[tuple[str, str, str]]:
    limit = quota()
    allowed = "" if limit is None else f", a quota of {limit:g} of their time"
    count = f"{processors()} of {os.cpu_count()} processors{allowed}"
    return [("cpu", "on", f"{count}, NumPy kernels over {_blas()}"), *gpus()]


def _openmp() -> tuple[str, str, str]:
    """The OpenMP library that oneDNN's threads come from: the one that this process loaded first."""
    paths = openmp() if library() else []
    if not paths:
        return ("OpenMP", "off", "no library of this process has it")
    first, other = paths[0], "/torch/" in paths[0]
    return ("OpenMP", "on", f"{first}, PyTorch's: it was loaded first, and spins as it likes" if other else first)


def _narrow() -> tuple[str, str]:
    onednn = library()
    if onednn is None or not onednn.bf16:
        return "off", "precision='bf16' needs oneDNN on a processor that has such products"
    return "on", "precision='bf16'" + (
        " and 'bf16-math'" if "amx" in onednn.isa else "; 'bf16-math' gains where AMX is"
    )


def _features() -> list[tuple[str, str, str]]:
    def package(module: str, name: str, what: str) -> tuple[str, str, str]:
        there = find_spec(module) is not None
        return (what, "on" if there else "off", f"{name} {version(name)}" if there else f"pip install {name}")

    return [
        package("onnx", "onnx", "ONNX files"),
        package("ml_dtypes", "ml_dtypes", "bfloat16, float8, int4"),
        package("PIL", "pillow", "pictures"),
        ("oneDNN kernels", "on" if library() else "off", str(find())),
        _openmp(),
        ("bfloat16 on the CPU", *_narrow()),
    ]


def doctor_file(path: Path) -> tuple[Report, int]:
    """The report on a `.mezzo` file, whose weights are all read, and an exit code: 0 whole, 3 damaged."""
    opened = open_file(path)
    names: dict[int, list[str]] = {}
    for graph in (opened.graph, *(g for _, n in opened.graph.walk() for g in n.bodies.values())):
        for name, array in graph.initializers.items():
            names.setdefault(opened.place_of(array), []).append(name)
    damaged = [(", ".join(names.get(s.at, ["-"])), str(s.dtype), str(list(s.dims)), s.at) for s in opened.damaged()]
    here = [(k.device, k.isa, k.signature, "yes" if _fits(opened, k) else "no") for k in opened.variants]
    about = opened.about
    facts = {
        "bytes": path.stat().st_size,
        "written_by": about.written_by,
        "source": about.source,
        "producer": about.producer,
        "opsets": ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in about.vocabulary.items()),
        "digest": "right",
        "arrays": len(opened.stored),
        "damaged_arrays": len(damaged),
    }
    tables = (
        Table("Variants", ("device", "processor", "signature", "fits here"), here),
        Table("Damaged arrays", ("initialiser", "element type", "shape", "at byte"), damaged),
    )
    return Report(str(path), facts, tables), 3 if damaged else 0


def _fits(opened: Opened, key: VariantKey) -> bool:
    """True if a variant can be used on this machine."""
    try:
        return opened.fits(key, device_named(key.device).target)
    except MezzoError:  # of a device that is not here
        return False


def doctor() -> Report:
    """The report of `mezzo doctor`."""
    facts = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "executable": sys.executable,
        "operators": len(OPS),
        "opsets": ", ".join(f"{domain or 'ai.onnx'} {opset}" for domain, opset in OPSETS.items()),
    }
    versions = [(name, version(name)) for name in PACKAGES]
    return Report(
        "mezzo doctor",
        facts,
        (
            Table("Packages", ("package", "version"), versions),
            Table("Devices", ("device", "state", "why"), _devices()),
            Table("Features", ("feature", "state", "why"), _features()),
            Table("Libraries of GPUs", ("library", "state", "why"), libraries()),
        ),
    )
