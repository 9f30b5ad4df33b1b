"""Inference beside ONNX Runtime, PyTorch (eager and compiled) and MXNet 1.9.1: one call with its inputs at hand.

Each engine runs in a process of its own with two threads; rounds are interleaved, and a ratio is the median over the
rounds of the peer's time over ours: above 1, ours is faster. Before, the outputs are compared with ONNX Runtime's in
fp32. Rows of a reduced precision say which one each engine ran in: ONNX Runtime and MXNet stay in fp32, so these ratios
compare precisions as well.

    python bench/inference.py --rows 'resnet50/*,mlp/b1/fp32' --peers ort,mxnet --rounds 15 --json bench/results/X.json

Rows of other runs that the JSON file already has stay in it, so that a table can be made in parts; the chart is drawn
beside it. Models and MXNet's environment are made on first use (build/bench, .venv-mxnet).
"""

from __future__ import annotations

import statistics

from cases import CASES, PEERS, QUICK, SMALLER, SMALLER_BAR, contestants, feeds
from racing import NEAR, JsonRow, Races, line, run


def mean_of_smaller(rows: list[JsonRow]) -> None:
    """The bar that several rows have together."""
    of = {r["case"]: r["ratios"]["ort"]["median"] for r in rows if r["case"] in SMALLER and "ort" in r["ratios"]}
    of = {n: v for n, v in of.items() if v > 0}
    if len(of) > 1:
        mean = statistics.geometric_mean(of.values())
        told = "met" if mean >= NEAR * SMALLER_BAR else "missed"
        line(f"geometric mean against ort over {', '.join(of)}: {mean:.3f}, bar {SMALLER_BAR}: {told}")


RACES = Races(CASES, PEERS, QUICK, ("ort", "torch-eager"), contestants, feeds, summary=mean_of_smaller)

if __name__ == "__main__":
    run(__doc__, RACES)
