"""The search for developers: prints each seed that fails, and how to run it again.

python -m tests.simulation --seeds 0:1000
python -m tests.simulation --seed 17 --trace
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .jobs import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default="0:200", help="from FIRST to before LAST")
    parser.add_argument("--trace", action="store_true", help="print what happens in the seed")
    parser.add_argument("--first", action="store_true", help="stop at the first failure")
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    seeds = range(first, last) if given.seed is None else [given.seed]
    failures, faults, begun = 0, Counter[str](), time.perf_counter()
    for seed in seeds:
        result = simulate(seed)
        faults[result.fault] += 1
        if given.trace:
            print("\n".join(result.trace))
            print("\n".join(result.errors))
        if result.violations:
            failures += 1
            print(result, flush=True)
            if given.first:
                break
    seconds = time.perf_counter() - begun
    print(f"{faults.total()} seeds in {seconds:.1f} s, {failures} failures; {dict(faults.most_common())}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
