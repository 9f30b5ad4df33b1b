"""The examples in the docstrings say what happens."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import mezzo

PACKAGE = Path(mezzo.__file__).parent
WITH_EXAMPLES = [
    path
    for folder in (PACKAGE, *sorted(p for p in PACKAGE.iterdir() if p.is_symlink()))
    for path in sorted(folder.glob("*.py") if folder == PACKAGE else folder.rglob("*.py"))
    if ">>> " in path.read_text("utf8")
]


def dotted(path: Path) -> str:
    """The name that a file of the package is imported by."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", [dotted(path) for path in WITH_EXAMPLES])
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0
