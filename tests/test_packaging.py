"""What is built from a checkout: the wheel, and the command in an environment that holds nothing else."""

from __future__ import annotations

import configparser
import email
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))


def build(checkout: Path) -> Path:
    """Build a wheel with the setuptools that is installed: no registry is asked."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "."]
    done = subprocess.run(wheel, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = (checkout / "dist").iterdir()
    return path


def test_the_wheel(checkout: Path) -> None:
    path = build(checkout)
    assert path.name == f"mezzo-{PYPROJECT['project']['version']}-py3-none-any.whl"
    expected = {f"{module}.py" for module in PYPROJECT["tool"]["setuptools"]["py-modules"]}
    for package in PYPROJECT["tool"]["setuptools"]["packages"]:
        folder = checkout / "src" / Path(*package.split("."))
        data = PYPROJECT["tool"]["setuptools"]["package-data"].get(package, [])
        files = [*folder.glob("*.py"), *(folder / name for name in data)]
        expected |= {file.relative_to(checkout / "src").as_posix() for file in files}
    with ZipFile(path) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected
        assert {"mezzo/ops/types.py", "mezzo/py.typed", "mezzo/models/digits/digits.onnx"} <= expected
        assert not [i.filename for i in wheel.infolist() if stat.S_ISLNK(i.external_attr >> 16)]
        about = path.name.removesuffix("-py3-none-any.whl") + ".dist-info"
        metadata = email.message_from_bytes(wheel.read(f"{about}/METADATA"))
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Requires-Python"] == ">=3.11"
        assert wheel.read(f"{about}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        commands = configparser.ConfigParser()
        commands.read_string(wheel.read(f"{about}/entry_points.txt").decode())
        assert dict(commands["console_scripts"]) == PYPROJECT["project"]["scripts"]
        assert dict(commands["pytest11"]) == PYPROJECT["project"]["entry-points"]["pytest11"]


def test_a_checkout_without_links_builds_nothing(checkout: Path) -> None:
    (checkout / "src/mezzo/ops").unlink()
    with pytest.raises(AssertionError, match=r"package directory .*ops.* does not exist"):
        build(checkout)


@pytest.mark.soak
def test_the_demo_from_the_wheel(checkout: Path, tmp_path: Path) -> None:
    wheel, environment = build(checkout), tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    commands = environment / ("Scripts" if sys.platform == "win32" else "bin")
    subprocess.run([commands / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
    done = subprocess.run([commands / "mezzo", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
