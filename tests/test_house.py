"""The structure of the product as tests/house.py reads it: what was reached stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from .house import ROOT, House

HOUSE = House(ROOT)


@pytest.mark.parametrize("top", ["nd", "sym", "gluon", "kvstore", "train", "importers", "exporters", "models", "tools"])
def test_no_module_imports_itself_by_way_of_others(top: str) -> None:
    """Imports inside of functions count, those for type checkers alone do not."""
    assert [circle for circle in HOUSE.circles if any(m.partition(".")[0] == top for m in circle)] == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    modules = {
        "nd/__init__.py": "",
        "nd/low.py": "def high():\n    from .high import function\n    return function\n",
        "nd/high.py": "from . import low\n",
        "nd/typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .user import User\n",
        "nd/user.py": "from .typed import Typed\n",
    }
    for name, text in modules.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf8")
    assert House(tmp_path).circles == (("nd.high", "nd.low"),)
