"""The environment that MXNet 1.9.1 needs: NumPy 1.23.5, and so a Python of 3.9 to 3.11."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PLACE = Path(__file__).parents[2] / ".venv-mxnet"
NEEDS = ("mxnet==1.9.1", "numpy==1.23.5")


def mxnet_python() -> str:
    """Its Python; the environment is made if it is not there. RuntimeError with the reason if it cannot be had."""
    python, done = PLACE / "bin" / "python", PLACE / "done"
    if done.exists():
        return str(python)
    names = [sys.executable] if sys.version_info < (3, 12) else []
    names += [p for v in ("3.11", "3.10", "3.9") if (p := shutil.which(f"python{v}"))]
    said = "it needs Python 3.9, 3.10 or 3.11"
    for name in names:
        commands = [
            [name, "-m", "venv", "--clear", str(PLACE)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *NEEDS],
            [str(python), "-c", "import mxnet"],
        ]
        for command in commands:
            ended = subprocess.run(command, capture_output=True, text=True)
            if ended.returncode:
                said = ended.stderr.strip().splitlines()[-1]
                break
        else:
            done.touch()
            return str(python)
    raise RuntimeError(f"MXNet 1.9.1 cannot be had here: {said}")
