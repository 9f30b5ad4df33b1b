"""Steps of jobs that no machine here holds, in virtual time (tests/simulation/timed.py), beside measured ones.

Measured: one, two and four workers, each a host of its own, wait for 40 ms (they would compute, but share processors)
and push a key of 4 MB to one server (`bench/forecast.py`). How fast a processor moves and sums bytes is taken from the
job of one worker; the steps of two and four follow from the simulation: the figure is that, the peer the measured step,
in ms.

Forecast: hosts of eight workers and as many servers on machines of their own, 16 processors as fast as this one each,
links of 10 Gbit/s and 20 us; 250 ms of computing, in which eight keys of 12.5 MB become final. Figures are computing as
a share of the step in percent, the peers what it would be without overlap, with values of half the bytes (whose packing
takes no time here), and on one level, where each worker speaks for itself.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import ArgumentParser
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path += [str(HERE.parent), str(HERE.parent / "paper"), str(HERE.parents[1])]

from forecast import COMPUTES, SIZE, measured  # noqa: E402
from picture import bars  # noqa: E402
from rows import Row, arguments, machine, show  # noqa: E402
from tests.simulation.timed import Layout, Machines, step_of  # noqa: E402

SMALL = (1, 2, 4)
HOSTS = (1, 2, 10, 64)
HERE_NOW = Machines(link=1.0, latency=2e-5, cores=2, copies=0.0, sums=0.0, message=5e-6, apart=False)
CLUSTER = replace(HERE_NOW, link=1.25e9, cores=16, apart=True)
LARGE = Layout(1, 8, 1, (12_500_000,) * 8, 0.25, steps=2)
WAYS: dict[str, dict[str, Any]] = {
    "two levels": {},
    "no overlap": {"overlap": False},
    "fp16": {"compression": "fp16"},
    "one level": {"levels": 1},
}


def simulated(workers: int, speed: float) -> float:
    """The step of the measured job, with processors that move and sum so many bytes a second."""
    layout = Layout(workers, 1, 1, (4 * SIZE,), COMPUTES, overlap=False)
    return step_of(layout, replace(HERE_NOW, copies=speed, sums=speed))


def calibrated(step: float) -> float:
    """The speed of processors with which one worker takes this step."""
    low, high = 1e8, 1e12
    for _ in range(30):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if simulated(1, middle) > step else (low, middle)
    return (low * high) ** 0.5


def forecast(hosts: int, way: str, speed: float) -> tuple[float, float]:
    """The step of a large job, and how long it took to find."""
    began = time.perf_counter()
    layout = replace(LARGE, hosts=hosts, servers=hosts, **WAYS[way])
    return step_of(layout, replace(CLUSTER, copies=speed, sums=speed)), time.perf_counter() - began


def more(parser: ArgumentParser) -> None:
    parser.add_argument("--svg", type=Path, help="draw the forecast into this file")


def main() -> None:
    args = arguments(__doc__, more)
    rounds, sizes = (3, HOSTS[:-1]) if args.quick else (7, HOSTS)
    steps = {n: statistics.median(measured(n)[0] for _ in range(rounds)) for n in SMALL}
    speed = calibrated(steps[1])
    rows, notes = list[Row](), [machine(), f"a processor moves, or sums, {speed / 1e9:.1f} GB a second"]
    for n in SMALL:
        rows.append(Row(f"{n} workers", "ms", 1e3 * simulated(n, speed), {"measured": 1e3 * steps[n]}))
        notes.append(f"{n} workers: {100 * (simulated(n, speed) / steps[n] - 1):+.1f} %")
    found: dict[tuple[int, str], Future[tuple[float, float]]] = {}
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:  # each replaces names of the product's modules
        for hosts in sizes:
            for way in WAYS:
                found[hosts, way] = pool.submit(forecast, hosts, way, speed)
    shares = {at: 100 * LARGE.computes / future.result()[0] for at, future in found.items()}
    for hosts in sizes:
        ours, *peers = (shares[hosts, way] for way in WAYS)
        name = f"{hosts * LARGE.workers} workers, {hosts} hosts"
        rows.append(Row(name, "%", ours, dict(zip([*WAYS][1:], peers, strict=True))))
    longest = max(found, key=lambda at: found[at].result()[1])
    notes.append(f"the longest: {found[longest].result()[1]:.0f} s for {longest[0]} hosts, {longest[1]}")
    show(rows, args, notes)
    if args.svg:
        groups = {f"{h * LARGE.workers} workers": {way: shares[h, way] for way in WAYS} for h in sizes}
        args.svg.write_text(bars({"computing as a share of a step": groups}, [*WAYS], "%"), "utf8")


if __name__ == "__main__":
    main()
