"""A worker of ours for `bench/kvstore.py`: `mezzo_kvstore.py KIND`. The job is in the environment."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from teams import answer

from mezzo.kvstore.create import create


def main() -> None:
    with create(sys.argv[1]) as kv:

        def measure(size: int, how: str) -> Callable[[], object]:
            """`empty`: arrays of the store, and the value is read where it lies. `ordinary`: arrays of NumPy, the value
            is copied into one."""
            key = f"{size}/{how}"
            kv.init(key, np.zeros(size // 4, np.float32))
            given = kv.empty(size // 4) if how == "empty" else np.empty(size // 4, np.float32)
            given[...] = kv.rank + 1
            out = None if how == "empty" else np.empty(size // 4, np.float32)
            found = kv.pushpull(key, given, out=out)
            found = out if found is None else found
            expected = sum(range(1, kv.num_workers + 1))
            if sys.argv[1] == "dist_sync" and not (found[0] == found[-1] == expected):
                raise ArithmeticError(f"{found} is not {expected}")
            return lambda: kv.pushpull(key, given, out=out)

        answer(measure)


if __name__ == "__main__":
    main()
