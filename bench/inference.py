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

import argparse
import json
import os
import statistics
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cases import CASES, PEERS, QUICK, SMALLER, SMALLER_BAR, Case, Missing, contestants, feeds
from chart import chart
from rows import arguments, machine

from mezzo.tools.compare import OURS, Measured, milliseconds, race, ratios

NEAR = 0.98  # a bar is met when the median reaches it within two hundredths


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", default="", help="names or patterns, with commas between (default: all)")
    parser.add_argument("--peers", default=",".join(PEERS), help="with commas between (default: all)")
    parser.add_argument("--rounds", type=int, default=0, help="of each engine (default: 15)")
    parser.add_argument("--seconds", type=float, default=0.2, help="at least so long for a round (default: 0.2)")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: 2)")
    parser.add_argument("--redraw", action="store_true", help="only draw the chart of the --json file again")


def engine(m: Measured) -> dict[str, Any]:
    """One engine of a row, as JSON."""
    if m.failed:
        return {"failed": m.failed}
    times = {"median": m.median, "p50": m.p50, "p99": m.p99, "load": m.load, "first": m.first}
    return {
        **m.facts,
        **{f"{n}_ms": milliseconds(t) for n, t in times.items()},
        "peak_bytes": m.peak_bytes,
        "error": m.error,
        "rounds_ms": [milliseconds(t) for t in m.rounds],
    }


def row(case: Case, found: dict[str, Measured], args: argparse.Namespace, rounds: int) -> dict[str, Any]:
    """A row, as JSON."""
    compared = {}
    for peer, m in found.items():
        of = ratios(found[OURS], m) if peer != OURS else []
        if of:
            middle, low, high = (float(f"{v:.4g}") for v in (statistics.median(of), min(of), max(of)))
            compared[peer] = {"median": middle, "low": low, "high": high}
            if peer in case.bars:
                met = compared[peer]["median"] >= NEAR * case.bars[peer]
                compared[peer] |= {"bar": case.bars[peer], "met": met}
    engines = {n: engine(m) for n, m in found.items()}
    how = {"threads": args.threads, "rounds": rounds, "seconds": args.seconds, "machine": machine()}
    return {"case": case.name, "ratios": compared, "engines": engines, **how, "processors": os.cpu_count()}


def line(text: str) -> None:
    print(text, flush=True)


def show(made: dict[str, Any]) -> None:
    """A row for people."""
    line(made["case"])
    for name, e in made["engines"].items():
        if "failed" in e:
            line(f"  {name:<14} failed: {e['failed']}")
            continue
        ratio = made["ratios"].get(name, {})
        told = f"ratio {ratio['median']:.3f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""
        if "bar" in ratio:
            told += f", bar {ratio['bar']}: {'met' if ratio['met'] else 'missed'}"
        spans = " ".join(f"{w} {e[w + '_ms']:>8}" for w in ("median", "p50", "p99", "load"))
        error = "" if e["error"] is None else f"error {e['error']:.1e}"
        peak = "" if e["peak_bytes"] is None else f"{e['peak_bytes'] / 2**20:.0f} MiB"
        line(f"  {name:<14}{e['precision']:<10}{spans} ms  {peak:>9}  {error:<14} {told}")


def mean_of_smaller(rows: list[dict[str, Any]]) -> None:
    """The bar that several rows have together."""
    of = {r["case"]: r["ratios"]["ort"]["median"] for r in rows if r["case"] in SMALLER and "ort" in r["ratios"]}
    of = {n: v for n, v in of.items() if v > 0}
    if len(of) > 1:
        mean = statistics.geometric_mean(of.values())
        told = "met" if mean >= NEAR * SMALLER_BAR else "missed"
        line(f"geometric mean against ort over {', '.join(of)}: {mean:.3f}, bar {SMALLER_BAR}: {told}")


def main() -> None:
    args = arguments(__doc__, options)
    file = Path(args.json) if args.json and args.json != "-" else None
    rows = json.loads(file.read_text()) if file and file.exists() else []
    if args.redraw:
        assert file, "--redraw needs --json FILE"
        file.with_suffix(".svg").write_text(chart(rows), "utf8")
        return
    rounds = args.rounds or (3 if args.quick else 15)
    patterns = args.rows.split(",") if args.rows else QUICK if args.quick else ["*"]
    wanted = [c for n, c in CASES.items() if any(fnmatch(n, p) for p in patterns)]
    peers = tuple(args.peers.split(",")) if args.peers else ()
    for unknown in [p for p in patterns if not any(fnmatch(n, p) for n in CASES)] + [
        p for p in peers if p not in PEERS
    ]:
        sys.exit(f"there is no {unknown!r}; rows: {', '.join(CASES)}; peers: {', '.join(PEERS)}")
    if args.quick and args.peers == ",".join(PEERS):
        peers = ("ort", "torch-eager")  # a compiler and another environment take minutes of their own
    made: list[dict[str, Any]] = []
    for case in wanted:
        try:
            competing = contestants(case, peers)
        except Missing as reason:
            line(f"{case.name}\n  not run: {reason}")
            continue

        def tell(what: str, name: str = case.name) -> None:
            if sys.stderr.isatty():
                print(f"{name}: {what}".ljust(60), end="\r", file=sys.stderr, flush=True)

        found = race(competing, feeds(case), threads=args.threads, rounds=rounds, seconds=args.seconds, tell=tell)
        made.append(row(case, found, args, rounds))
        if args.json != "-":
            show(made[-1])
        if file:  # after each row: a long run that is stopped leaves what it has
            kept = {r["case"]: r for r in [*rows, *made]}
            rows = [kept[n] for n in CASES if n in kept]
            file.write_text(json.dumps(rows, indent=1) + "\n")
            file.with_suffix(".svg").write_text(chart(rows), "utf8")
    if args.json == "-":
        print(json.dumps(made, indent=1))
        return
    mean_of_smaller(rows or made)
    line(machine())


if __name__ == "__main__":
    main()
