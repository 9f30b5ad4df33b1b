"""Half imperative: eager and hybridized blocks, PyTorch's eager modules, and a step of a graph with its update in array
code beside the same step as one program.

Each runs in a process of its own with two threads; rounds are interleaved, and a ratio is the median over the rounds of
the peer's time over ours: above 1, ours is faster. `eager` rows have a bar below 1: at most 1.3 times PyTorch's time.
What a small operation on an array costs beyond NumPy's is in `bench/arrays.py`.

    python bench/blocks.py --rounds 15 --json bench/results/X.json
"""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import Case, engine
from racing import Races, run

from mezzo.tools.compare import OURS, Agreement, Contestant

SHAPES = {"mlp": (64, 784), "lenet": (64, 1, 28, 28), "transformer": (8, 128, 256)}
PEERS = ("eager", "torch-eager", "one-graph")
CASES = {
    c.name: c
    for c in (
        Case("mlp/b1/hybridized", "mlp", 1, bars={"eager": 3.0}),
        Case("mlp/b64/hybridized", "mlp", 64, bars={"eager": 3.0}),
        Case("lenet/b64/eager", "lenet", 64, bars={"torch-eager": 1 / 1.3}),
        Case("transformer/b8/eager", "transformer", 8, bars={"torch-eager": 1 / 1.3}),
        Case("lenet/b64/hybridized", "lenet", 64),
        Case("transformer/b8/hybridized", "transformer", 8),
        Case("lenet/b64/mixed", "lenet", 64, bars={"one-graph": 0.9}),
    )
}


def feeds(case: Case) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    data = rng.standard_normal((case.batch, *SHAPES[case.workload][1:]), np.float32)
    return {"data": data, "label": rng.integers(0, 10, case.batch)}


def contestants(case: Case, peers: tuple[str, ...]) -> list[Contestant]:
    how = case.name.rpartition("/")[2]
    made = [engine(OURS, "mezzo_blocks.py", {"net": case.workload, "how": how})]
    if how == "mixed":
        others = {"one-graph": ("mezzo_blocks.py", {"how": "graph"})}
    else:
        others = {"torch-eager": ("torch_blocks.py", {})}
        if how == "hybridized":
            others["eager"] = ("mezzo_blocks.py", {"how": "eager"})
    return made + [engine(n, p, {"net": case.workload, **s}) for n, (p, s) in others.items() if n in peers]


RACES = Races(CASES, PEERS, tuple(CASES), ("eager", "torch-eager", "one-graph"), contestants, feeds,
              lambda _: Agreement(tolerance=float("inf")))  # fmt: skip

if __name__ == "__main__":
    run(__doc__, RACES)
