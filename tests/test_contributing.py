"""The recipes of CONTRIBUTING.md work as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mezzo.importers.registry import IMPORTERS
from mezzo.ops import OPS
from mezzo.runtime.devices import DEVICES
from mezzo.runtime.optimizer import KINDS

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def recipes() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf8"), re.S | re.M)


def test_an_operator_is_a_module(checkout: Path) -> None:
    """The first recipe is all that a new operator of ours takes."""
    (checkout / "ops" / "math" / "new.py").write_text(recipes()[0], "utf8")
    code = """
import mezzo as mz
from mezzo.ops import OPS
print(OPS.index["acme", "Cube"], OPS["acme", "Median"], OPS.outside())
print(mz.nd.operator("Cube", "acme")(mz.nd.asarray([2])).item())
"""
    own = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["math.new acme::Median-1(X; axis) -> Y []", "8"]


def test_recipes_run() -> None:
    blocks = recipes()
    assert len(blocks) == 7
    tables: tuple[dict[Any, Any], ...] = (OPS, DEVICES, IMPORTERS, KINDS)
    before, names = [dict(t) for t in tables], dict[str, Any]()
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
        assert {name for domain, name in OPS if domain == "acme"} == {"Cube", "Median"}
        for record in (names["cube"], names["median"]):
            assert record.samples
    finally:
        DEVICES["cpu"].target.registered.clear()
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)
