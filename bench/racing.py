"""What the benchmarks that let engines race share: options, rounds, rows as JSON and for people, the chart beside.

Each engine runs in a process of its own; rounds are interleaved, and a ratio is the median over the rounds of the
peer's time over ours: above 1, ours is faster. Rows of other runs that the JSON file already has stay in it, so that a
table can be made in parts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cases import Case, Missing
from chart import chart
from rows import arguments, machine

from mezzo.tools.compare import ONE_ANSWER, OURS, Agreement, Contestant, Measured, milliseconds, race, ratios

NEAR = 0.98  # a bar is met when the median reaches it within two hundredths
JsonRow = dict[str, Any]


@dataclass(frozen=True)
class Races:
    """A table of races: its cases, the peers that may take part, what --quick leaves of both, who runs a case on which
    inputs, and how far apart their answers may be. `summary` prints what several rows have together."""

    cases: Mapping[str, Case]
    peers: tuple[str, ...]
    quick: tuple[str, ...]
    quick_peers: tuple[str, ...]
    contestants: Callable[[Case, tuple[str, ...]], list[Contestant]]
    feeds: Callable[[Case], dict[str, Any]]
    agreement: Callable[[Case], Agreement] = lambda _: ONE_ANSWER
    summary: Callable[[list[JsonRow]], None] = lambda _: None


def options(parser: argparse.ArgumentParser, peers: tuple[str, ...]) -> None:
    parser.add_argument("--rows", default="", help="names or patterns, with commas between (default: all)")
    parser.add_argument("--peers", default=",".join(peers), help="with commas between (default: all)")
    parser.add_argument("--rounds", type=int, default=0, help="of each engine (default: 15)")
    parser.add_argument("--seconds", type=float, default=0.2, help="at least so long for a round (default: 0.2)")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: 2)")
    parser.add_argument("--redraw", action="store_true", help="only draw the chart of the --json file again")


def engine(m: Measured) -> JsonRow:
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


def row(case: Case, found: dict[str, Measured], how: Mapping[str, Any]) -> JsonRow:
    """A row, as JSON."""
    compared: dict[str, JsonRow] = {}
    for peer, m in found.items():
        of = ratios(found[OURS], m) if peer != OURS else []
        if of:
            middle, low, high = (float(f"{v:.4g}") for v in (statistics.median(of), min(of), max(of)))
            compared[peer] = {"median": middle, "low": low, "high": high}
            if peer in case.bars:
                met = compared[peer]["median"] >= NEAR * case.bars[peer]
                compared[peer] |= {"bar": case.bars[peer], "met": met}
            if case.aim:
                compared[peer] |= {"aim": case.aim, "reached": compared[peer]["median"] >= case.aim}
    engines = {n: engine(m) for n, m in found.items()}
    where = {"machine": machine(), "processors": os.cpu_count()}
    return {"case": case.name, "ratios": compared, "engines": engines, **how, **where}


def line(text: str) -> None:
    print(text, flush=True)


def show(made: JsonRow) -> None:
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
        if "aim" in ratio:
            told += f", aim {ratio['aim']}: {'reached' if ratio['reached'] else 'not reached'}"
        spans = " ".join(f"{w} {e[w + '_ms']:>8}" for w in ("median", "p50", "p99", "load", "first"))
        error = "" if e["error"] is None else f"error {e['error']:.1e}"
        peak = "" if e["peak_bytes"] is None else f"{e['peak_bytes'] / 2**20:.0f} MiB"
        line(f"  {name:<14}{e['precision']:<20}{spans} ms  {peak:>9}  {error:<14} {told}")


def run(doc: str | None, races: Races) -> None:
    """The benchmark's main: what its arguments ask for."""
    args = arguments(doc, lambda parser: options(parser, races.peers))
    file = Path(args.json) if args.json and args.json != "-" else None
    rows = json.loads(file.read_text()) if file and file.exists() else []
    if args.redraw:
        assert file, "--redraw needs --json FILE"
        file.with_suffix(".svg").write_text(chart(rows), "utf8")
        return
    rounds = args.rounds or (3 if args.quick else 15)
    patterns = args.rows.split(",") if args.rows else races.quick if args.quick else ["*"]
    wanted = [c for n, c in races.cases.items() if any(fnmatch(n, p) for p in patterns)]
    peers = tuple(args.peers.split(",")) if args.peers else ()
    for unknown in [p for p in patterns if not any(fnmatch(n, p) for n in races.cases)] + [
        p for p in peers if p not in races.peers
    ]:
        sys.exit(f"there is no {unknown!r}; rows: {', '.join(races.cases)}; peers: {', '.join(races.peers)}")
    if args.quick and args.peers == ",".join(races.peers):
        peers = races.quick_peers  # a compiler and another environment take minutes of their own
    made: list[JsonRow] = []
    for case in wanted:
        try:
            competing = races.contestants(case, peers)
        except Missing as reason:
            line(f"{case.name}\n  not run: {reason}")
            continue

        def tell(what: str, name: str = case.name) -> None:
            if sys.stderr.isatty():
                print(f"{name}: {what}".ljust(60), end="\r", file=sys.stderr, flush=True)

        how = {"threads": args.threads, "rounds": rounds, "seconds": args.seconds}
        found = race(competing, races.feeds(case), **how, agreement=races.agreement(case), tell=tell)
        made.append(row(case, found, how))
        if args.json != "-":
            show(made[-1])
        if file:  # after each row: a long run that is stopped leaves what it has
            kept = {r["case"]: r for r in [*rows, *made]}
            rows = [kept[n] for n in races.cases if n in kept]
            file.write_text(json.dumps(rows, indent=1) + "\n")
            file.with_suffix(".svg").write_text(chart(rows), "utf8")
    if args.json == "-":
        print(json.dumps(made, indent=1))
        return
    races.summary(rows or made)
    line(machine())
