"""The memory plan is small, keeps the paper's order of strategies, and proves itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.ops.errors import BudgetError, PlanError
from mezzo.runtime.memory.arrangement import Arrangement
from mezzo.runtime.memory.liveness import ALIGN, Life, Parallel, Sharing, Space
from mezzo.runtime.memory.plan import MemoryPlan, Slot, Strategy, plan

LIVES = [Life("a", 256, 0, 1), Life("b", 128, 1, 2), Life("c", 256, 2, 3), Life("w", 999, 0, 3, Space.WEIGHT)]


def test_bytes_of_the_dead_are_used_again() -> None:
    made = plan(LIVES)
    assert made.size == 384
    assert made.bound == 384
    assert made.by_value["a"].offset == made.by_value["c"].offset
    assert "w" not in str(made)


@pytest.mark.parametrize("strategy", Strategy, ids=lambda s: s.value)
def test_more_bytes_than_any_machine_has_are_refused(strategy: Strategy) -> None:
    with pytest.raises(BudgetError, match="18446744073709551680 bytes would be alive"):
        plan([Life("a", 1 << 64, 0, 1), Life("b", 64, 0, 1)], strategy=strategy)


def inplace(value: str, other: str) -> Sharing:
    return Sharing(value, other)


def test_an_output_takes_the_place_of_a_dying_input() -> None:
    lives = [Life("x", 64, 0, 1), Life("y", 64, 1, 2)]
    assert plan(lives, [inplace("y", "x")]).size == 64
    assert plan(lives, [inplace("y", "x")]).shared == (inplace("y", "x"),)
    assert plan(lives, [inplace("y", "x")], Strategy.SHARING).size == 128


def test_an_input_that_lives_on_is_not_overwritten() -> None:
    lives = [Life("x", 64, 0, 2), Life("y", 64, 1, 2)]
    assert plan(lives, [inplace("y", "x")]).shared == ()


def test_views_and_parts_share_bytes_while_both_live() -> None:
    lives = [Life("a", 64, 0, 2), Life("b", 64, 1, 2), Life("both", 128, 2, 3), Life("second", 64, 3, 4)]
    offers = [Sharing("a", "both", "view"), Sharing("b", "both", "view", 64), Sharing("second", "both", "view", 64)]
    made = plan(lives, offers)
    assert (made.size, made.bound) == (128, 128)
    assert made.by_value["second"].offset == made.by_value["b"].offset == made.by_value["both"].offset + 64
    assert plan(lives, offers, Strategy.SHARING).size > 128


def test_a_view_that_lives_keeps_its_bytes_from_being_overwritten() -> None:
    lives = [Life("x", 64, 0, 1), Life("view", 64, 1, 3), Life("y", 64, 2, 3)]
    offers = [Sharing("view", "x", "view"), inplace("y", "view")]
    assert plan(lives, offers).shared == tuple(offers[:1])
    lives = [Life("x", 64, 0, 3), Life("view", 64, 1, 2), Life("y", 64, 2, 4)]
    assert plan(lives, offers).shared == tuple(offers[:1])
    slots = (Slot(lives[0]), Slot(lives[1], 0, "x"), Slot(lives[2]))
    with pytest.raises(PlanError, match="overlap"):
        MemoryPlan(64, slots, tuple(offers)).check()


def test_views_must_lie_where_their_elements_are() -> None:
    whole, part = Life("whole", 128, 0, 2), Life("part", 64, 1, 2)
    MemoryPlan(128, (Slot(whole), Slot(part, 64, "whole", 64))).check()
    with pytest.raises(PlanError, match="overlap"):
        MemoryPlan(128, (Slot(whole), Slot(part, 64, "whole", 0))).check()


def test_parallel_branches_never_share_bytes() -> None:
    # 0 makes x; 1 and 2 read it, each into its own value; 3 reads both
    needs, touches = [[], [0], [0], [1, 2]], {"x": [0, 1, 2], "a": [1, 3], "t": [1], "b": [2, 3], "y": [3]}
    lives = [Life(n, 64, min(s), max(s)) for n, s in touches.items()]
    time = Parallel(needs, touches)
    made = plan(lives, [inplace("b", "x")], time=time)
    assert made.shared == ()
    offsets = {n: made.by_value[n].offset for n in touches}
    assert len({offsets[n] for n in ("x", "a", "t", "b")}) == 4
    assert plan(lives).size < made.size
    with pytest.raises(PlanError, match="overlap"):
        MemoryPlan(640, tuple(Slot(v) for v in lives), time=time).check()


def test_check_names_the_culprits() -> None:
    a, b = LIVES[:2]
    with pytest.raises(PlanError, match="b and a overlap"):
        MemoryPlan(256, (Slot(a, 0), Slot(b, 0))).check()
    with pytest.raises(PlanError, match="outside"):
        MemoryPlan(64, (Slot(a, 0),)).check()


def test_check_accepts_shared_bytes_only_where_the_input_dies() -> None:
    a, b = Life("a", 64, 0, 2), Life("b", 64, 1, 3)
    with pytest.raises(PlanError, match="overlap"):
        MemoryPlan(64, (Slot(a, 0), Slot(b, 0)), (inplace("b", "a"),)).check()


def test_a_value_is_part_of_one_concatenation_only() -> None:
    lives = [Life("part", 64, 0, 2), Life("one", 128, 1, 3), Life("two", 192, 2, 3)]
    made = plan(lives, [Sharing("part", "one", "view"), Sharing("part", "two", "view")])
    assert [s.other for s in made.shared] == ["one"]


lifetimes = st.lists(
    st.builds(
        lambda first, length, nbytes: (first, first + length, nbytes),
        st.integers(0, 20),
        st.integers(0, 6),
        st.integers(0, 2000),
    ),
    max_size=24,
)


offers = st.lists(
    st.builds(
        lambda a, b, kind, delta: Sharing(f"v{a}", f"v{b}", kind, 0 if kind == "inplace" else delta * 32),
        st.integers(0, 23),
        st.integers(0, 23),
        st.sampled_from(["inplace", "view"]),
        st.integers(0, 8),
    ),
    max_size=16,
)


@given(lifetimes, offers)
def test_any_lives_any_offers(rows: list[tuple[int, int, int]], given_offers: list[Sharing]) -> None:
    lives = [Life(f"v{i}", nbytes, first, last) for i, (first, last, nbytes) in enumerate(rows)]
    plans = {s: plan(lives, given_offers, s) for s in Strategy}
    for made in plans.values():
        assert made.check() is made
        assert made.size >= made.bound
        assert all(s.offset % ALIGN == 0 for s in made.slots)
    none, inplace, sharing, both, linear = (plans[s].size for s in Strategy)
    assert none >= inplace >= both
    assert none >= sharing >= both
    assert linear >= both or plans[Strategy.LINEAR].bound < plans[Strategy.BOTH].bound


def contents(made: MemoryPlan, rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    """Random bytes for every value, equal exactly where the views that were taken say so."""
    first = np.cumsum([0, *(s.life.nbytes for s in made.slots)])
    names = {s.life.value: np.arange(a, a + s.life.nbytes) for s, a in zip(made.slots, first, strict=False)}
    views = [(names[o.value], names[o.other], o.delta) for o in made.shared if o.kind == "view"]
    changed = True
    while changed:
        changed = False
        for value, other, delta in views:
            part = other[delta : delta + len(value)]
            low = np.minimum(value, part)
            changed |= not (np.array_equal(low, value) and np.array_equal(low, part))
            value[:] = part[:] = low
    noise = rng.integers(0, 256, int(first[-1]) + 1, np.uint8)
    return {name: noise[where] for name, where in names.items()}


@given(lifetimes, offers, st.integers(0, 2**32))
def test_check_agrees_with_a_replay(rows: list[tuple[int, int, int]], given_offers: list[Sharing], seed: int) -> None:
    """Write every value's bytes where the plan puts them, step by step: what is read later must still be there."""
    lives = [Life(f"v{i}", nbytes, first, last) for i, (first, last, nbytes) in enumerate(rows)]
    made = plan(lives, given_offers)
    arena, rng = np.zeros(made.size, np.uint8), np.random.default_rng(seed)
    content = contents(made, rng)
    for step in range(30):
        for slot in made.slots:  # readers of the step see what was written
            if slot.life.first < step <= slot.life.last and slot.life.nbytes:
                held = arena[slot.offset : slot.end]
                np.testing.assert_array_equal(held, content[slot.life.value])
        for slot in made.slots:
            if slot.life.first == step:
                arena[slot.offset : slot.end] = content[slot.life.value]


@given(lifetimes, offers, st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 9))
def test_an_arrangement_places_other_sizes_as_planning_would(
    rows: list[tuple[int, int, int]], given_offers: list[Sharing], factors: list[int], more: int
) -> None:
    """Nothing overlaps, and the bound and the floor are those of the buffers: of the same values they are the same."""
    lives = [Life(f"v{i}", nbytes, first, last) for i, (first, last, nbytes) in enumerate(rows)]
    made = plan(lives, given_offers)
    arrangement = Arrangement.of(made)
    assert arrangement is not None
    same = arrangement.placed({v.value: v.nbytes for v in lives}, None)
    assert (same is None) == (made.size > made.floor * made.attempt.enough)
    if same is not None:
        assert (same.check().size, same.bound, same.floor, same.shared) == (
            made.size,
            made.bound,
            made.floor,
            made.shared,
        )
    sizes = {v.value: v.nbytes * factors[i % len(factors)] + more for i, v in enumerate(lives)}
    others = [Sharing(o.value, o.other, o.kind, o.delta * factors[0]) for o in given_offers]
    for deltas in (None, others):
        found = arrangement.placed(sizes, deltas)
        if found is not None:
            assert found.floor * made.attempt.enough >= found.check().size >= found.floor >= found.bound
            assert {s.life.value: s.life.nbytes for s in found.slots} == sizes
            assert found.attempt == made.attempt
            again = Arrangement.of(found)
            assert again is not None
            assert again.placed(sizes, None) is not None


def test_an_arrangement_of_parallel_steps_is_none() -> None:
    assert Arrangement.of(plan(LIVES, time=Parallel([[]] * 4, {}))) is None
