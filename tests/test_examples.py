"""Classic programs: each gives the same losses step by step, hybridized and not, and learns."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))
SWINGS = "gan"  # two networks against each other: the sum of their losses does not fall


def program(name: str) -> Any:
    spec = util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_there_are_twelve() -> None:
    assert len(PROGRAMS) == 12


@pytest.mark.parametrize("name", PROGRAMS)
def test_hybridized_or_not_it_is_one_program(name: str) -> None:
    """Nothing is told of a graph that ends (warnings are errors), and no step differs."""
    made = program(name)
    eager, hybrid = (made.train(hybridize, 12) for hybridize in (False, True))
    np.testing.assert_allclose(hybrid[:6], eager[:6], rtol=1e-5)
    # A sum within rounding of 0 may pass a ReLU in one of both: inputs changed by 1e-6 move the 12th loss by 6e-5.
    np.testing.assert_allclose(hybrid[6:], eager[6:], rtol=1e-3)
    assert len({*eager}) == 12
    assert name == SWINGS or np.mean(eager[-3:]) < 0.97 * np.mean(eager[:2])


@pytest.mark.soak
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != SWINGS])
def test_it_learns_to_the_end(name: str) -> None:
    made = program(name)
    losses = made.train(True, made.STEPS)
    assert np.mean(losses[-5:]) < 0.35 * losses[0]
