"""Packages that import onnxruntime, each with ONNX Runtime and with Mezzo in its place: answers, times, memory.

Each call of bench/stand_in_calls.py runs in a process of its own, the two runtimes in turn; a row has the medians over
the rounds, the median ratio of the times (above 1: ours is faster), and the largest difference of a number over the
largest of its list. Packages that are not installed are left out, and named.

    python bench/stand_in.py --rows magika,rapidocr --rounds 3 --json FILE
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rows import arguments, machine
from stand_in_calls import CALLS

CHILD = str(Path(__file__).with_name("stand_in_calls.py"))
RUNTIMES = {"ort": [], "mezzo": ["-m", "mezzo.as_onnxruntime"]}
TOLERANCE = 1e-3


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", default=",".join(CALLS), help="with commas between (default: all)")
    parser.add_argument("--rounds", type=int, default=0, help="of each runtime (default: 3)")


def leaves(value: Any) -> Iterator[Any]:
    """Numbers and texts in order."""
    if isinstance(value, list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def apart(one: Any, other: Any) -> float:
    """The largest difference of two answers over the largest number; infinite where texts or shapes differ."""
    a, b = [*leaves(one)], [*leaves(other)]
    if [type(x) is str for x in a] != [type(x) is str for x in b] or len(a) != len(b):
        return math.inf
    if any(x != y for x, y in zip(a, b, strict=True) if isinstance(x, str)):
        return math.inf
    numbers = [(x, y) for x, y in zip(a, b, strict=True) if isinstance(x, (int, float))]
    largest = max((abs(x) for x, _ in numbers), default=0) or 1
    return max((abs(x - y) for x, y in numbers), default=0) / largest


def once(name: str, runtime: str) -> dict[str, Any]:
    """What one process tells; {"failed": why} where it does not."""
    command = [sys.executable, *RUNTIMES[runtime], CHILD, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["nothing said"]
        return {"failed": lines[-1][:200]}
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def row(name: str, rounds: int) -> dict[str, Any]:
    taken: dict[str, list[dict[str, Any]]] = {runtime: [] for runtime in RUNTIMES}
    for _ in range(rounds):
        for runtime, told in taken.items():
            told.append(once(name, runtime))
            if "failed" in told[-1]:
                return {"row": name, runtime: told[-1]}
    assert taken["mezzo"][0]["by"].startswith("mezzo"), "it was ours that answered"
    made: dict[str, Any] = {"row": name, "apart": apart(taken["ort"][0]["answer"], taken["mezzo"][0]["answer"])}
    for runtime, told in taken.items():
        middle = {key: statistics.median(each[key] for each in told) for key in ("ms", "first_ms", "peak")}
        made[runtime] = {key: float(f"{value:.4g}") for key, value in middle.items()}
    made["ratio"] = round(statistics.median(a["ms"] / b["ms"] for a, b in zip(*taken.values(), strict=True)), 3)
    return made


def main() -> None:
    given = arguments(__doc__, options)
    found = []
    for name in given.rows.split(","):
        made = row(name, given.rounds or (1 if given.quick else 3))
        found.append(made)
        print(json.dumps(made), flush=True)
    good = [made for made in found if "ratio" in made]
    if good:
        middle = statistics.geometric_mean(made["ratio"] for made in good)
        wrong = [made["row"] for made in good if made["apart"] > TOLERANCE]
        print(f"{len(good)} of {len(found)} packages, {middle:.2f} x in the geometric mean; apart: {wrong or 'none'}")
    if given.json:
        Path(given.json).write_text(json.dumps({"machine": machine(), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
