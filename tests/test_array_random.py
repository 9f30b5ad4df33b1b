"""Random arrays: the same numbers everywhere, whatever draws them."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

import mezzo as mz

from .array_modes import Using, every_mode  # noqa: F401 (a fixture)

nd: Any = mz.nd


def test_a_seed_gives_the_same_numbers_everywhere(mode: str) -> None:
    def drawn(ctx: Any = None) -> list[Any]:
        r = mz.random
        first = [r.normal((5,), ctx=ctx), r.uniform(-1, 1, (2, 3), ctx=ctx), r.randint(-3, 9, (7,), ctx=ctx)]
        more = [r.permutation(6, ctx=ctx), r.bernoulli(0.5, (9,), ctx=ctx), r.randn(2, 2, ctx=ctx)]
        return [x.tolist() for x in (*first, *more)]

    mz.random.seed(7)
    here = drawn()
    assert drawn(mz.cpu(1)) == here, "the same on every device"
    assert drawn() != here
    mz.random.seed(8)
    assert drawn() != here
    mz.random.seed(7, ctx=mz.cpu(1))
    assert drawn(mz.cpu(1)) == here, "and does not go on with another's"
    assert mz.random.generator().state[0] == (8,)
    assert here == EXPECTED.setdefault("here", here), "with every engine"


EXPECTED: dict[str, Any] = {}


def test_threads_and_resuming_change_no_number() -> None:
    with Using("threaded"):
        root = mz.random.Generator(3)
        one = [root.child(i).normal((4,)).tolist() for i in range(8)]
        found: dict[int, Any] = {}

        def draw(i: int) -> None:
            found[i] = root.child(i).normal((4,)).tolist()

        threads = [threading.Thread(target=draw, args=(i,)) for i in reversed(range(8))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[i] for i in range(8)] == one
        assert len({str(x) for x in one}) == 8
        root.uniform(shape=(3,))
        kept, follows = root.state, root.normal((2,)).tolist()
        again = mz.random.Generator()
        again.state = kept
        assert again.normal((2,)).tolist() == follows


def test_random_numbers_are_spread_as_they_should_be() -> None:
    g = mz.random.Generator(1)
    normal, whole = g.normal((20000,), 3.0, 2.0).asnumpy(), g.randint(-2, 3, (20000,)).asnumpy()
    assert abs(normal.mean() - 3) < 0.1
    assert abs(normal.std() - 2) < 0.1
    assert np.all(np.abs(np.bincount(whole + 2) / 20000 - 0.2) < 0.02)
    assert sorted(g.permutation(50).tolist()) == list(range(50))
    x = nd.arange(50)
    g.shuffle(x)
    assert x.tolist() != list(range(50)) == sorted(x.tolist())
    often = g.bernoulli(nd.full((20000,), 0.25)).asnumpy()
    assert often.dtype == bool
    assert abs(often.mean() - 0.25) < 0.02
    assert g.randint(0, 1 << 40, (100,)).asnumpy().max() > 1 << 38
    with pytest.raises(mz.InputError, match="from 3 to 3"):
        g.randint(3, 3)
    with pytest.raises(mz.InputError, match="int32"):
        g.normal((2,), dtype="int32")


def test_the_seed_of_all() -> None:
    noted = mz.random.seed_all(5)
    first = (mz.random.randn(2).tolist(), random.random(), np.random.random())
    assert noted == mz.random.seed_all(5)
    assert first == (mz.random.randn(2).tolist(), random.random(), np.random.random())
    assert noted.seed == 5
    assert noted.versions["numpy"] == np.__version__
