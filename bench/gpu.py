"""Inference on a GPU beside PyTorch: eager, captured as a CUDA graph, and torch.compile(max-autotune).

Inputs lie on the device and answers stay there; a call ends when its answer is final. Each engine runs in a process of
its own; rounds are interleaved, and a ratio is the median over the rounds of the peer's time over ours: above 1, ours
is faster. Before, the outputs are compared with PyTorch's. Beside each row stand the floor (gpu_floors.py), the
launches of one run, the arena, and how long a graph of as many empty kernels takes: at batch 1 the chain decides.

    python bench/gpu.py --minutes 9 --json bench/results/X-gpu.json

It needs no network: ONNX models are made here, and what is missing is named in the row. Rows that the JSON file already
has are not run again, so that a table can be made in parts of a few minutes; `--again` runs them anew.
"""

from __future__ import annotations

import json
import statistics
import sys
from argparse import ArgumentParser, Namespace
from fnmatch import fnmatch
from pathlib import Path
from time import monotonic

from cases import Case, Missing, engine, feeds, model, weights
from gpu_floors import floor_ms
from racing import JsonRow, line, row, show
from rows import arguments

from mezzo.models.workloads import WORKLOADS
from mezzo.tools.compare import OURS, Agreement, Contestant, race

HOW = ("eager", "graphs", "compile")
PEERS = tuple(f"torch-{how}" for how in HOW)
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 3e-2, "bf16": 1e-1}
SHAPES = (("resnet50", 1), ("resnet50", 64), ("mobilenetv2", 1), ("bert", 1), ("bert", 32), ("mlp", 1))
CASES = {
    c.name: c
    for c in (
        Case(f"{net}/b{batch}/{precision}", net, batch, precision, dict.fromkeys(PEERS, 1.0))
        for precision in ("fp16", "tf32", "fp32")
        for net, batch in SHAPES
    )
}


def contestants(case: Case, peers: tuple[str, ...]) -> list[Contestant]:
    """Ours first, then PyTorch in its ways."""
    made = [engine(OURS, "mezzo_gpu_engine.py", {"model": str(model(case)), "precision": case.precision})]
    kept = weights(case.workload, WORKLOADS[case.workload].build)
    settings = {"net": case.workload, "weights": str(kept), "precision": case.precision}
    ways = [how for how in HOW if f"torch-{how}" in peers]
    return made + [engine(f"torch-{how}", "torch_gpu_engine.py", {**settings, "how": how}) for how in ways]


def measured(case: Case, peers: tuple[str, ...], rounds: int, seconds: float) -> JsonRow:
    """A row: the race, and what stands beside it."""
    found = race(
        contestants(case, peers), feeds(case), threads=4, rounds=rounds, seconds=seconds,
        agreement=Agreement(judge=PEERS[0], tolerance=TOLERANCE[case.precision]),
    )  # fmt: skip
    made = row(case, found, {"rounds": rounds, "seconds": seconds})
    ours, floor = found[OURS].median, floor_ms(WORKLOADS[case.workload].build(case.batch), case.precision)
    best = min((m.median for n, m in found.items() if n != OURS and m.median), default=None)
    return made | {
        "unit": "ms",
        "ours": None if ours is None else 1e3 * ours,
        "peers": {n: 1e3 * m.median for n, m in found.items() if n != OURS and m.median},
        "floor": floor,
        "best_peer_over_ours": best / ours if best and ours else None,
        "ours_over_floor": 1e3 * ours / floor if ours else None,
    }


def summary(rows: list[JsonRow]) -> None:
    """One line for each row."""
    heads = ("ms", "best peer", "x floor", "launches", "arena MiB", "empty graph ms")
    line(f"{'case':<24}" + "".join(f"{h:>16}" for h in heads))
    for r in rows:
        facts = r["engines"][OURS]
        told: list[str] = []
        for value, form in (
            (r["ours"], "{:.4f}"),
            (r["best_peer_over_ours"], "{:.2f} x"),
            (r["ours_over_floor"], "{:.2f} x"),
            (facts.get("launches"), "{}"),
            (int(facts["arena_bytes"]) / 2**20 if "arena_bytes" in facts else None, "{:.1f}"),
            (facts.get("empty_graph_ms"), "{}"),
        ):
            told.append("not run" if value is None else form.format(value))
        line(f"{r['case']:<24}" + "".join(f"{t:>16}" for t in told))
    over = [r["best_peer_over_ours"] for r in rows if r["best_peer_over_ours"]]
    if over:
        line(
            f"geometric mean of the best peer's time over ours: {statistics.geometric_mean(over):.2f}, goal 1.0 in each"
        )


def options(parser: ArgumentParser) -> None:
    parser.add_argument("--rows", default="*", help="names or patterns, with commas between (default: all)")
    parser.add_argument("--peers", default=",".join(PEERS), help="with commas between (default: all)")
    parser.add_argument("--rounds", type=int, default=15, help="of each engine (default: 15)")
    parser.add_argument("--seconds", type=float, default=0.2, help="at least so long for a round (default: 0.2)")
    parser.add_argument("--minutes", type=float, default=0, help="begin no row after so long (default: no limit)")
    parser.add_argument("--again", action="store_true", help="also rows that the JSON file has")


def main(args: Namespace) -> None:
    file = Path(args.json) if args.json and args.json != "-" else None
    kept: dict[str, JsonRow] = {r["case"]: r for r in json.loads(file.read_text())} if file and file.exists() else {}
    patterns, peers = args.rows.split(","), tuple(args.peers.split(","))
    wanted = [c for n, c in CASES.items() if any(fnmatch(n, p) for p in patterns)]
    if not wanted:
        sys.exit(f"there is no {args.rows!r}; rows: {', '.join(CASES)}")
    rounds = 3 if args.quick else args.rounds
    end = monotonic() + 60 * args.minutes if args.minutes else float("inf")
    left: list[str] = []
    for case in wanted:
        if case.name in kept and kept[case.name]["ours"] is not None and not args.again:
            continue
        if monotonic() > end:
            left.append(case.name)
            continue
        try:
            made = measured(case, peers, rounds, args.seconds)
        except Missing as reason:
            line(f"{case.name}\n  not run: {reason}")
            continue
        kept[case.name] = made
        if args.json != "-":
            show(made)
        if file:
            file.write_text(json.dumps([kept[n] for n in CASES if n in kept], indent=1) + "\n")
    rows = [kept[c.name] for c in wanted if c.name in kept]
    if args.json == "-":
        print(json.dumps(rows, indent=1))
    else:
        summary(rows)
    if left:
        line(f"time was up before {', '.join(left)}: run the same command again")


if __name__ == "__main__":
    main(arguments(__doc__, options))
