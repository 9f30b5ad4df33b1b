"""Environments of their own for peers that need one: MXNet 1.9.1 (a Python of 3.9 to 3.11), and MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
MXNET = ("mxnet==1.9.1", "numpy==1.23.5")
MPI = ("impi-rt>=2021.15,<2022", "mpi4py>=4.1,<5", "numpy>=2.0,<3")


def mxnet_python() -> str:
    """The Python of MXNet: that of the variable MXNET_PYTHON, else one whose environment is made if it is not there.
    RuntimeError with the reason if it cannot be had."""
    if "MXNET_PYTHON" in os.environ:
        return os.environ["MXNET_PYTHON"]
    names = [sys.executable] if sys.version_info < (3, 12) else []
    names += [p for v in ("3.11", "3.10", "3.9") if (p := shutil.which(f"python{v}"))]
    return _python(ROOT / ".venv-mxnet", names, MXNET, "mxnet", "it needs Python 3.9, 3.10 or 3.11")


def mpi_python() -> str:
    """The Python of Intel MPI, whose `mpiexec` lies beside it. RuntimeError with the reason if it cannot be had."""
    return _python(ROOT / ".venv-mpi", [sys.executable], MPI, "mpi4py", "")


def _python(place: Path, names: Sequence[str], needs: Sequence[str], module: str, said: str) -> str:
    """The Python of an environment that has these packages, made by the first of these Pythons that can."""
    python, done = place / "bin" / "python", place / "done"
    if done.exists():
        return str(python)
    for name in names:
        commands = [
            [name, "-m", "venv", "--clear", str(place)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs],
            [str(python), "-c", f"import {module}"],
        ]
        for command in commands:
            ended = subprocess.run(command, capture_output=True, text=True)
            if ended.returncode:
                said = (ended.stderr.strip().splitlines() or [said])[-1]
                break
        else:
            done.touch()
            return str(python)
    raise RuntimeError(f"{module} cannot be had here: {said}")
