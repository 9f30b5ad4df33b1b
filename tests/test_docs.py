"""What the pages show works as it stands there: blocks of Python (those that begin with the name of a file are such
files), and lines that begin with `mezzo train`, `mezzo convert`, `mezzo launch` and a few more."""

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
    ROOT / "docs/data.md",
    ROOT / "docs/export.md",
    ROOT / "docs/kvstore.md",
    ROOT / "docs/threats.md",
    ROOT / "docs/arrays.md",
    ROOT / "docs/gpu.md",
    ROOT / "docs/from-onnxruntime.md",
    ROOT / "docs/from-mxnet.md",
    ROOT / "docs/untrusted.md",
    ROOT / "docs/service.md",
    ROOT / "docs/serving.md",
    ROOT / "docs/generation.md",
    ROOT / "docs/models.md",
    ROOT / "docs/multi-gpu.md",
]

DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
WORDS_OF_A_DECISION = 400  # as `wc -w` counts; figures and attempts are in bench/notes/
LINKED = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/*.md")]


def test_the_first_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf8").splitlines()) <= 120


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
    commands = re.findall(r"^mezzo ((?:train|convert|launch|pack|report) .*)$", text, re.M)
    for command in commands:
        given = shlex.split(command, comments=True)
        if given[0] == "launch":  # ends with the exit code of the job
            subprocess.run([sys.executable, "-m", "mezzo", *given], check=True, timeout=120)
        else:
            try:
                cli.main(given, standalone_mode=False)
            except SystemExit as ended:  # checks end with a code
                code = ended.code
            else:
                code = 0
            assert not code


def test_decisions_are_short() -> None:
    words = {page.name: len(page.read_text("utf8").split()) for page in DECISIONS}
    assert not {name: count for name, count in words.items() if count > WORDS_OF_A_DECISION}


def anchors(page: Path) -> set[str]:
    """The names under which GitHub offers the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    broken: list[str] = []
    for page in LINKED:
        for link in re.findall(r"\]\(([^()\s]+)\)", page.read_text("utf8")):
            path, _, heading = link.partition("#")
            there = (page.parent / path).resolve() if path else page
            if "://" in link or link.startswith("mailto:"):
                continue
            if not there.exists() or (heading and heading not in anchors(there)):
                broken.append(f"{page.name}: {link}")
    assert not broken


def test_decisions_and_notes_name_files_that_exist() -> None:
    files = [path.as_posix() for path in ROOT.glob("*/**/*") if path.suffix in (".py", ".json", ".fbs", ".md")]
    lost = {
        f"{page.name}: {name}"
        for page in [*DECISIONS, *ROOT.glob("bench/notes/*.md")]
        for name in re.findall(r"`([\w/.-]+\.(?:py|json|fbs|md))`", page.read_text("utf8"))
        if not any(f"/{file}".endswith(f"/{name}") for file in files)
    }
    assert not lost
