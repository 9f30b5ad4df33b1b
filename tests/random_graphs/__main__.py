"""The search for developers: prints each failure as it is found, in as few nodes as show it.

python -m tests.random_graphs --graphs 1000 --seed 0 --isa AVX2 --focus layouts --jobs 2
"""

from __future__ import annotations

import argparse
import json
import sys

from .children import ISAS, Part, parts, run, work


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs", description=__doc__)
    parser.add_argument("--graphs", type=int, default=200, help="how many graphs")
    parser.add_argument("--seed", type=int, default=0, help="of the first graph; the others follow")
    parser.add_argument("--focus", default="", help="a field whose moves are taken more often: layouts, norms, ...")
    parser.add_argument("--isa", default="", choices=ISAS, help="the most that oneDNN may use (default: all there is)")
    parser.add_argument("--full", action="store_true", help="every combination of switches in place of a sample")
    parser.add_argument("--most", type=int, default=8, help="combinations for each graph (0: by its size)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--as-found", action="store_true", help="do not shrink failures")
    parser.add_argument("--first", action="store_true", help="stop at the first failure")
    parser.add_argument("--show", action="store_true", help="print the graph of --seed and look no further")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(Part(**json.loads(given.worker)))
        return 0
    if given.show:
        from .generate import generate

        print(generate(given.seed, given.focus).graph)
        return 0
    chosen = parts(
        given.seed, given.graphs, focus=given.focus, full=given.full, most=given.most,
        shrinks=not given.as_found, stops=given.first,
    )  # fmt: skip
    report = run(chosen, isa=given.isa, jobs=given.jobs, told=lambda text: print(f"{text}\n", flush=True))
    print(report)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
