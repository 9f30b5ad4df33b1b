"""Would the search find what it is there for? Defects planted one at a time in a copy of the checkout, each looked for
by as many graphs as a suite run has, until the first that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import ROOT
from .random_graphs.children import PART, Part, parts, run
from .random_graphs.mutations import MUTATIONS, Mutation, planted

GRAPHS = 3000
each = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what)


def turns(mutation: Mutation) -> list[Part]:
    """Half of the graphs where the defect is, half of any kind, in turn."""
    near = parts(GRAPHS, GRAPHS // 2, focus=mutation.focus, most=0, shrinks=False, stops=True)
    any_kind = parts(0, GRAPHS // 2, most=0, shrinks=False, stops=True)
    return [part for pair in zip(near, any_kind, strict=True) for part in pair]


@each
def test_mutations_can_be_planted(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    assert text.count(mutation.old) == 1
    assert mutation.new != mutation.old


def test_there_are_enough_mutations() -> None:
    assert len(MUTATIONS) >= 30
    assert sum(bool(m.missed) for m in MUTATIONS) <= 2
    assert {m.known for m in MUTATIONS} >= {1, 2, 3, 4, 5, 7}
    assert GRAPHS % (2 * PART) == 0


@pytest.mark.soak
@each
def test_planted_defects_are_found(
    mutation: Mutation, checkout: Path, record_property: Callable[[str, object], None]
) -> None:
    planted(mutation, checkout)
    report = run(turns(mutation), root=checkout)
    record_property("counts", f"{mutation.what}: {report.graphs} graphs, {report.kinds}")
    if mutation.missed:
        pytest.xfail(mutation.missed)
    assert report.failures


@pytest.mark.soak
def test_nothing_is_found_where_nothing_is_planted(checkout: Path) -> None:
    report = run(parts(0, GRAPHS // 2, stops=True), root=checkout)
    assert not report.failures, report.failures
