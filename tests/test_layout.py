"""The package is exactly the folders of the root: every folder linked, packed and imported once."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mezzo

ROOT = Path(__file__).parents[1]
NOT_PACKAGES = {"bench", "examples", "src", "tests"}
# In the root, whoever runs Python there would import it in the place of ONNX Runtime's own.
OF_ANOTHER_NAME = {"compat", "onnxruntime"}
SCRIPTS = {"mezzo.__main__", "mezzo.models.digits.train"}  # run, never imported


def folders(root: Path) -> list[str]:
    """Folders of the root that hold code of the package."""
    found = [p for p in sorted(root.iterdir()) if p.is_dir() and not p.name.startswith(".") and any(p.rglob("*.py"))]
    return [p.name for p in found if p.name not in NOT_PACKAGES]


def packages(root: Path) -> dict[str, Path]:
    """Every package by name, with its folder."""
    files = [path for folder in folders(root) for path in (root / folder).rglob("*.py")]
    inside = {".".join(("mezzo", *path.parent.relative_to(root).parts)): path.parent for path in files}
    for path in (p for name in OF_ANOTHER_NAME for p in (root / "src/mezzo" / name).rglob("*.py")):
        inside[".".join(path.parent.relative_to(root / "src").parts)] = path.parent
    return {"mezzo": root / "src/mezzo", **dict(sorted(inside.items()))}


def setuptools(root: Path) -> dict[str, Any]:
    """The table of pyproject.toml that says what is packed."""
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf8"))["tool"]["setuptools"]
    return table


def links(root: Path) -> list[str]:
    """src/mezzo has one relative link per folder of the root, and no folder of its own but those OF_ANOTHER_NAME."""
    expected = {folder: f"../../{folder}" for folder in folders(root)}
    found = {p.name: str(p.readlink()) for p in (root / "src/mezzo").iterdir() if p.is_symlink()}
    bad = [f"src/mezzo/{name}: no link to {target}" for name, target in expected.items() if name not in found]
    for name, target in found.items():
        if target != expected.get(name):
            bad.append(f"src/mezzo/{name} leads to {target}, not {expected.get(name, 'to a folder with code')}")
    inside = [p for p in (root / "src/mezzo").iterdir() if p.is_dir() and not p.is_symlink()]
    real = [p for p in inside if p.name not in {"__pycache__", *OF_ANOTHER_NAME}]
    return bad + [f"src/mezzo/{p.name} is a folder: code lives in the folders of the root" for p in real]


def committed(root: Path) -> list[str]:
    """Git keeps each link as a link."""
    listing = subprocess.run(
        ["git", "ls-files", "-s", "src/mezzo"], cwd=root, check=True, capture_output=True, text=True
    )
    modes = {line.split("\t")[1]: line.split()[0] for line in listing.stdout.splitlines()}
    found = {folder: modes.get(f"src/mezzo/{folder}", "nothing") for folder in folders(root)}
    return [f"git keeps {mode} for src/mezzo/{folder}" for folder, mode in found.items() if mode != "120000"]


def packed(root: Path) -> list[str]:
    """pyproject.toml lists every package, and every file in them that is not Python."""
    listed, table = setuptools(root)["packages"], setuptools(root)["package-data"]
    found = packages(root)
    bad = [f"pyproject.toml does not list {name}" for name in found if name not in listed]
    bad += [f"pyproject.toml lists {name}, which has no code" for name in listed if name not in found]
    for name, folder in found.items():
        bad += [f"{name} has no __init__.py"] if not (folder / "__init__.py").is_file() else []
        data = {p.name for p in folder.iterdir() if p.is_file() and p.suffix not in (".py", ".pyc")}
        bad += [f"{name}: {file} is data but not packed" for file in sorted(data - {*table.get(name, ())})]
        bad += [f"{name}: {file} is packed but absent" for file in sorted({*table.get(name, ())} - data)]
    return bad


def twice(root: Path, modules: Mapping[str, ModuleType]) -> list[str]:
    """Files of ours that several modules were made from, as when `runtime` is imported beside `mezzo.runtime`."""
    ours = [root / name for name in (*folders(root), *NOT_PACKAGES)]
    different = {id(module): module for module in modules.values()}  # one may have two names, as mezzo.nd
    files = [Path(f).resolve() for module in different.values() if (f := getattr(module, "__file__", None))]
    counts = Counter(f for f in files if any(f.is_relative_to(folder) for folder in ours))
    return [f"{file.relative_to(root)} was imported {n} times" for file, n in sorted(counts.items()) if n > 1]


Check = Callable[[Path], list[str]]


@pytest.mark.parametrize("check", [links, packed], ids=lambda check: check.__name__)
def test_the_checkout(check: Check) -> None:
    assert check(ROOT) == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_the_links_are_committed() -> None:
    assert committed(ROOT) == []


def test_nothing_is_imported_twice() -> None:
    for name, folder in packages(ROOT).items():
        for path in folder.glob("*.py"):
            module = name if path.stem == "__init__" else f"{name}.{path.stem}"
            if module not in SCRIPTS:
                importlib.import_module(module)
    assert Path(mezzo.__file__).parent == ROOT / "src/mezzo", "another mezzo is installed: make install"
    assert twice(ROOT, dict(sys.modules)) == []


def test_a_module_imported_twice() -> None:
    first, second = ModuleType("mezzo.ops.types"), ModuleType("ops.types")
    first.__file__, second.__file__ = str(ROOT / "src/mezzo/ops/types.py"), str(ROOT / "ops/types.py")
    assert twice(ROOT, {m.__name__: m for m in (first, second)}) == ["ops/types.py was imported 2 times"]


def unlink(root: Path) -> None:
    (root / "src/mezzo/ops").unlink()


def dangle(root: Path) -> None:
    (root / "src/mezzo/nowhere").symlink_to("../../nowhere")


def make_absolute(root: Path) -> None:
    unlink(root)
    (root / "src/mezzo/ops").symlink_to("/ops")


def copy_instead(root: Path) -> None:
    unlink(root)
    (root / "src/mezzo/ops").mkdir()


def add_package(root: Path) -> None:
    (root / "ops/new").mkdir()
    (root / "ops/new/__init__.py").touch()


def add_bare_folder(root: Path) -> None:
    add_package(root)
    (root / "ops/new/__init__.py").rename(root / "ops/new/code.py")


def add_data(root: Path) -> None:
    (root / "models/digits/more.npz").touch()


def lose_data(root: Path) -> None:
    (root / "models/digits/digits.onnx").unlink()


BROKEN: list[tuple[Check, Callable[[Path], None], list[str]]] = [
    (links, unlink, ["src/mezzo/ops: no link to ../../ops"]),
    (links, dangle, ["src/mezzo/nowhere leads to ../../nowhere, not to a folder with code"]),
    (links, make_absolute, ["src/mezzo/ops leads to /ops, not ../../ops"]),
    (links, copy_instead, ["src/mezzo/ops: no link to ../../ops", "src/mezzo/ops is a folder: code lives in"]),
    (packed, add_package, ["pyproject.toml does not list mezzo.ops.new"]),
    (packed, add_bare_folder, ["pyproject.toml does not list mezzo.ops.new", "mezzo.ops.new has no __init__.py"]),
    (packed, add_data, ["mezzo.models.digits: more.npz is data but not packed"]),
    (packed, lose_data, ["mezzo.models.digits: digits.onnx is packed but absent"]),
]


@pytest.mark.parametrize(("check", "damage", "found"), BROKEN, ids=[b[1].__name__ for b in BROKEN])
def test_a_broken_checkout(checkout: Path, check: Check, damage: Callable[[Path], None], found: list[str]) -> None:
    before = set(check(checkout))
    damage(checkout)
    problems = sorted(set(check(checkout)) - before)
    assert len(problems) == len(found)
    assert all(problem.startswith(start) for problem, start in zip(problems, sorted(found), strict=True))


def test_a_link_committed_as_a_file(checkout: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=checkout, check=True)
    unlink(checkout)
    (checkout / "src/mezzo/ops").write_text("../../ops")
    subprocess.run(["git", "add", "src"], cwd=checkout, check=True)
    assert "git keeps 100644 for src/mezzo/ops" in committed(checkout)
