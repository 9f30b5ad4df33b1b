"""The recipes of CONTRIBUTING.md work as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mezzo.importers.registry import IMPORTERS
from mezzo.ops import OPS
from mezzo.runtime.devices import DEVICES
from mezzo.runtime.optimizer import KINDS

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def test_recipes_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf8"), re.S | re.M)
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
