"""Planning leaves garbage collection as it found it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mezzo.runtime.compile.collection import collection_paused


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("collects", [True, False])
def test_collection_is_as_it_was(collects: bool) -> None:
    (gc.enable if collects else gc.disable)()
    with suppress(ValueError), collection_paused():
        assert not gc.isenabled()
        raise ValueError("halfway")
    assert gc.isenabled() is collects


def test_garbage_of_a_plan_is_found_later() -> None:
    class Circle:
        alive = 0

        def __init__(self) -> None:
            Circle.alive += 1
            self.me = self

        def __del__(self) -> None:
            Circle.alive -= 1

    many = 10 * gc.get_threshold()[0]
    with collection_paused():
        for _ in range(many):
            Circle()
        assert Circle.alive == many  # here: behind the block a collection may begin by itself
    gc.collect()
    assert Circle.alive == 0
