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


PAGES = [p for p in sorted((Path(__file__).parents[1] / "docs").glob("*.md")) if ">>> " in p.read_text("utf8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_pages(page: Path) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testfile(str(page), module_relative=False, optionflags=flags, encoding="utf8")
    assert result.attempted > 0
    assert result.failed == 0
