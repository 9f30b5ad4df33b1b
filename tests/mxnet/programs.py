"""Programs in the manner of MXNet's tutorials, and what they print. They stand as texts, since they import mxnet.

In an environment with mxnet 1.9.1 `python -m tests.mxnet.programs`, from the root of the repository, writes
tests/mxnet/tutorials.json: what a real MXNet makes of each.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).with_name("tutorials")
NUMBERS = Path(__file__).with_name("tutorials.json")
NAMES = sorted(p.stem for p in FOLDER.glob("*.txt") if p.stem != "common")


def printed(name: str) -> list[str]:
    """Run a program in a folder of its own; return the lines that it prints."""
    before, said = Path.cwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        os.chdir(folder)
        common = ModuleType("common")
        exec((FOLDER / "common.txt").read_text("utf8"), common.__dict__)
        sys.modules["common"] = common
        try:
            runpy.run_path(str(FOLDER / f"{name}.txt"))
        finally:
            os.chdir(before)
            del sys.modules["common"]
    return said.getvalue().splitlines()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    NUMBERS.write_text(json.dumps({name: printed(name) for name in NAMES}, indent=1) + "\n")
