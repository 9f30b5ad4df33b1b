"""Would what CI runs without a GPU find a defect? Defects planted one at a time in a copy of the checkout, each looked
for by the tests of CI that look at its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT
from .gpu_mutations import MUTATIONS, Mutation
from .gpu_mutations.mutation import CUDA

each = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what)


@each
def test_mutations_can_be_planted(mutation: Mutation) -> None:
    text = (ROOT / CUDA / mutation.file).read_text("utf8")
    assert text.count(mutation.old) == 1
    assert mutation.new != mutation.old


def test_there_are_enough_mutations() -> None:
    assert len(MUTATIONS) >= 80
    assert sum(bool(m.missed) for m in MUTATIONS) <= len(MUTATIONS) // 20
    assert len({m.what for m in MUTATIONS}) == len(MUTATIONS)


def ran(root: Path, mutation: Mutation) -> subprocess.CompletedProcess[str]:
    """The tests over the package of another checkout; they stop at the first failure."""
    files = [f"tests/{name}.py" for name in mutation.tests]
    only = ["-k", mutation.only] if mutation.only else []
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *only, *files]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(root / "src")}, capture_output=True, text=True
    )


@pytest.mark.soak
@each
def test_planted_defects_are_found(mutation: Mutation, checkout: Path) -> None:
    mutation.planted(checkout)
    said = ran(checkout, mutation)
    if mutation.missed:
        pytest.xfail(mutation.missed)
    assert said.returncode == 1, said.stdout[-2000:]
    assert "failed" in said.stdout


@pytest.mark.soak
@pytest.mark.parametrize(
    "mutation", {(m.tests, m.only): m for m in MUTATIONS}.values(), ids=lambda m: m.only or m.tests[0]
)
def test_nothing_is_found_where_nothing_is_planted(mutation: Mutation, checkout: Path) -> None:
    said = ran(checkout, mutation)
    assert said.returncode == 0, said.stdout[-2000:]
