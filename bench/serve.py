"""A server: 8 threads call one session with batch 1 as fast as they can; throughput and the latency of single calls.

Rows `serve/NET`. Each engine runs in a process of its own, once with one and once with two threads for each call, the
rounds interleaved; a row shows both engines with the count that gave them more calls per second (the medians of the
rounds), the other is in the JSON.

    python bench/serve.py --rows serve/mlp --rounds 5 --json FILE
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from cases import Case, feeds, model
from rows import arguments, machine

from mezzo.tools.compare import OURS, Contestant, EngineFailed, command, lined_up

CLIENTS = 8
CASES = {"serve/resnet50": Case("serve/resnet50", "resnet50"), "serve/mlp": Case("serve/mlp", "mlp")}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", default=",".join(CASES), help="with commas between (default: all)")
    parser.add_argument("--rounds", type=int, default=0, help="of each engine (default: 9)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round (default: 2)")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="threads that call (default: 8)")


def served(case: Case, clients: int, rounds: int, seconds: float) -> dict[str, Any]:
    """A row: for each engine and thread count calls per second, p50 and p99 in milliseconds."""
    path = str(model(case))
    names = {f"{e}-{n}t": (e, n) for n in (1, 2) for e in (OURS, "ort")}
    competing = [
        Contestant(name, command(engine), {"model": path, "threads": n}, {"OMP_NUM_THREADS": str(n)})
        for name, (engine, n) in names.items()
    ]
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with lined_up(competing, feeds(case), threads=2) as (measured, engines):
        for _ in range(rounds):
            for name, engine in list(engines.items()):
                try:
                    taken[name].append(engine.ask("crowd", seconds=seconds, threads=clients))
                except EngineFailed as failed:
                    measured[name].failed = failed.message
                    del engines[name]
        peaks = {name: engine.ask("stats")["peak_bytes"] for name, engine in engines.items()}
    found: dict[str, Any] = {}
    for name, rounds_of in taken.items():
        if measured[name].failed:
            found[name] = {"failed": measured[name].failed}
            continue
        middle = {k: statistics.median(r[k] for r in rounds_of) for k in ("per_second", "p50", "p99")}
        found[name] = {
            "per_second": round(middle["per_second"], 2),
            "p50_ms": float(f"{middle['p50'] * 1e3:.4g}"),
            "p99_ms": float(f"{middle['p99'] * 1e3:.4g}"),
            "peak_bytes": peaks[name],
            "rounds": [round(r["per_second"], 2) for r in rounds_of],
        }
    best = {
        engine: max((n for n in found if n.startswith(engine)), key=lambda n: found[n].get("per_second", 0.0))
        for engine in (OURS, "ort")
    }
    ours, theirs = (found[n] for n in best.values())
    ratio = {}
    if "failed" not in ours and "failed" not in theirs:
        of = [a / b for a, b in zip(ours["rounds"], theirs["rounds"], strict=True)]
        ratio = {"throughput": round(statistics.median(of), 3), "p99": round(theirs["p99_ms"] / ours["p99_ms"], 3)}
    return {"case": case.name, "clients": clients, "ratios": ratio, "best": best, "engines": found}


def main() -> None:
    args = arguments(__doc__, options)
    made = []
    for name in args.rows.split(","):
        rounds = args.rounds or (2 if args.quick else 9)
        row = served(CASES[name], args.clients, rounds, args.seconds)
        made.append(row | {"seconds": args.seconds, "machine": machine()})
        if args.json == "-":
            continue
        print(f"{name}: {args.clients} threads on one session")
        for engine, e in row["engines"].items():
            if "failed" in e:
                print(f"  {engine:<10} failed: {e['failed']}")
                continue
            mark = "*" if engine in row["best"].values() else " "
            times = f"p50 {e['p50_ms']:>8} ms  p99 {e['p99_ms']:>8} ms  {e['peak_bytes'] / 2**20:.0f} MiB"
            print(f" {mark}{engine:<10}{e['per_second']:>12.1f} calls/s  {times}")
        if row["ratios"]:
            told = "above 1: ours is better, of those marked"
            print(
                f"  throughput {row['ratios']['throughput']} x ort, p99 {row['ratios']['p99']} x ({told})", flush=True
            )
    text = json.dumps(made, indent=1)
    if args.json == "-":
        print(text)
    elif args.json:
        Path(args.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
