"""What the pages show works as it stands there: blocks of Python (those that begin with the name of a file are such
files), and lines that begin with `mezzo train`, `mezzo convert` or `mezzo launch`."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.models.digits import digits_model, held_out
from mezzo.tools.cli import cli

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs/training.md",
    ROOT / "docs/export.md",
    ROOT / "docs/kvstore.md",
    ROOT / "docs/arrays.md",
    ROOT / "docs/gpu.md",
]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the pages speak of: digits as a model and in all forms of data."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    shutil.copy(digits_model(), "model.onnx")
    digits = held_out()
    images, labels = digits.inputs[:96], digits.labels[:96]
    np.savez("data.npz", image=images, target=labels)
    header = ",".join([*(f"pixel{i}" for i in range(64)), "digit"])
    table = np.column_stack([images.reshape(96, -1), labels])
    np.savetxt("data.csv", table, delimiter=",", header=header, comments="", fmt=["%.4f"] * 64 + ["%d"])
    for i in np.flatnonzero(labels < 2):
        path = Path(f"photos/{labels[i]}/{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.images[i, 0] * 15).save(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_and_commands_run(desk: None, page: Path) -> None:
    text = page.read_text("utf8")
    names: dict[str, Any] = {"image": held_out().inputs[:2], "batches": [dict(np.load("data.npz"))]}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    assert blocks
    for block in blocks:
        if file := re.match(r"# (\w+\.py)$", block, re.M):
            Path(file[1]).write_text(block)
        else:
            exec(compile(block, str(page), "exec"), names)
    commands = re.findall(r"^mezzo ((?:train|convert|launch) .*)$", text, re.M)
    for command in commands:
        given = shlex.split(command, comments=True)
        if given[0] == "launch":  # ends with the exit code of the job
            subprocess.run([sys.executable, "-m", "mezzo", *given], check=True, timeout=120)
        else:
            cli.main(given, standalone_mode=False)
