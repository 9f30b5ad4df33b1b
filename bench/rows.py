"""What every benchmark shares: its arguments, its rows, and how they are printed and written."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One measured case: our figure, the peers' and the floor below which nothing can be."""

    case: str
    unit: str
    ours: float
    peers: dict[str, float] = field(default_factory=dict[str, float])
    floor: float | None = None


def arguments(doc: str | None, more: Callable[[argparse.ArgumentParser], object] = id) -> argparse.Namespace:
    """--quick and --json, which all benchmarks take, and those that `more` adds."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    more(parser)
    parser.add_argument("--quick", action="store_true", help="end within five minutes")
    parser.add_argument("--json", metavar="FILE", help="write the rows to FILE, or - for standard output alone")
    return parser.parse_args()


def write(rows: Sequence[Row], args: argparse.Namespace) -> bool:
    """Write the rows as JSON where that is asked for; whether they are to be printed as a table."""
    text = json.dumps([asdict(r) for r in rows], indent=1)
    if args.json == "-":
        print(text)
    elif args.json:
        Path(args.json).write_text(text + "\n")
    return args.json != "-"


def show(rows: Sequence[Row], args: argparse.Namespace, notes: Sequence[str] = ()) -> None:
    """Print the rows as a table, or as JSON."""
    if not write(rows, args):
        return
    peers = list(dict.fromkeys(p for r in rows for p in r.peers))
    print(f"{'case':<32}{'mezzo':>12}" + "".join(f"{p:>14}" for p in peers) + f"{'floor':>12}{'unit':>6}")
    for r in rows:
        cells = "".join(f"{r.peers[p]:>14.3f}" if p in r.peers else f"{'':>14}" for p in peers)
        floor = f"{r.floor:>12.3f}" if r.floor is not None else f"{'':>12}"
        print(f"{r.case:<32}{r.ours:>12.3f}{cells}{floor}{r.unit:>6}")
    for note in notes:
        print(note)


def users_environment() -> dict[str, str]:
    """The environment of a fresh process as users have it: compiled modules are kept from one start to the next."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def machine() -> str:
    """Processor, Python and library versions, for results worth keeping."""
    names = ("numpy", "onnx", "onnxruntime", "torch")
    found = {n: metadata.version(n) for n in names if any(True for _ in metadata.distributions(name=n))}
    return f"{platform.machine()}, Python {sys.version.split()[0]}, " + ", ".join(f"{n} {v}" for n, v in found.items())
