"""The memory plan is small, keeps the paper's order of strategies, and proves itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.ops.errors import PlanError
from mezzo.runtime.plan import ALIGN, Life, MemoryPlan, Slot, Space, Strategy, plan

LIVES = [Life("a", 256, 0, 1), Life("b", 128, 1, 2), Life("c", 256, 2, 3), Life("w", 999, 0, 3, Space.WEIGHT)]


def test_bytes_of_the_dead_are_used_again() -> None:
    made = plan(LIVES)
    assert made.size == 384
    assert made.bound == 384
    assert made.by_value["a"].offset == made.by_value["c"].offset
    assert "w" not in str(made)


def test_an_output_takes_the_place_of_a_dying_input() -> None:
    lives = [Life("x", 64, 0, 1), Life("y", 64, 1, 2)]
    assert plan(lives, [("y", "x")]).size == 64
    assert plan(lives, [("y", "x")]).inplace == (("y", "x"),)
    assert plan(lives, [("y", "x")], Strategy.SHARING).size == 128


def test_an_input_that_lives_on_is_not_overwritten() -> None:
    lives = [Life("x", 64, 0, 2), Life("y", 64, 1, 2)]
    assert plan(lives, [("y", "x")]).inplace == ()


def test_check_names_the_culprits() -> None:
    a, b = LIVES[:2]
    with pytest.raises(PlanError, match="b and a overlap"):
        MemoryPlan(256, (Slot(a, 0), Slot(b, 0))).check()
    with pytest.raises(PlanError, match="outside"):
        MemoryPlan(64, (Slot(a, 0),)).check()


def test_check_accepts_shared_bytes_only_where_the_input_dies() -> None:
    a, b = Life("a", 64, 0, 2), Life("b", 64, 1, 3)
    with pytest.raises(PlanError, match="overlap"):
        MemoryPlan(64, (Slot(a, 0), Slot(b, 0)), (("b", "a"),)).check()


lifetimes = st.lists(
    st.builds(
        lambda first, length, nbytes: (first, first + length, nbytes),
        st.integers(0, 20),
        st.integers(0, 6),
        st.integers(0, 2000),
    ),
    max_size=24,
)


@given(lifetimes, st.lists(st.tuples(st.integers(0, 23), st.integers(0, 23)), max_size=12))
def test_any_lives_any_offers(rows: list[tuple[int, int, int]], offers: list[tuple[int, int]]) -> None:
    lives = [Life(f"v{i}", nbytes, first, last) for i, (first, last, nbytes) in enumerate(rows)]
    pairs = [(f"v{a}", f"v{b}") for a, b in offers]
    plans = {s: plan(lives, pairs, s) for s in Strategy}
    for made in plans.values():
        assert made.check() is made
        assert made.size >= made.bound
        assert all(s.offset % ALIGN == 0 for s in made.slots)
    none, inplace, sharing, both = (plans[s].size for s in Strategy)
    assert none >= inplace >= both
    assert none >= sharing >= both
