"""Compression where the link is slow: one push and pull of 64 MB, and trainings, by scheme.

`time` has a worker and a server in two network namespaces, whose link lets 100 Mbit/s through each way (tbf of tc): one
push and pull of a key of 64 MB, packed in both directions. The figure is the median over the rounds, in seconds, the
peer `plain` the same without compression, and the floor the bytes of one direction over the rate. It has to be root.

`training` has the same worker, server and link: 360 steps of a network of 64, 2048 and 10 units on the digits below
(0.6 MB of parameters), from the first to the last step; seconds, and a note has the saving and the accuracy.

`digits` trains a network of 64, 256 and 10 units on 270 of the 360 digits of `mezzo.models.digits` and asks for the
other 90, by two workers on two hosts and a server, over 5 seeds, each of which draws another split: the figure is the
mean accuracy in percent, and a note has the last loss and the bytes on the wire. Everything is packed, small keys too.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rows import Row, arguments, machine, show, users_environment

WORKER = Path(__file__).parent / "peers" / "packing_worker.py"
SCHEMES = ["", "fp16", "bf16", "2bit", "1bit", "topk 0.01", "powersgd 4"]
RATE, SERVERS, WORKERS = "100mbit", "10.77.0.1", "10.77.0.2"
BAR = ("2bit", 8.0)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def link() -> Iterator[tuple[str, str]]:
    """Two namespaces with a slow link between them."""
    names = [f"mezzo{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for name, address in zip(names, (SERVERS, WORKERS), strict=True):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            run("ip", "-n", name, "link", "set", "veth0", "up")
        yield names[0], names[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def slow(name: str) -> None:
    """The link lets less through from this end, from now on: not while keys are declared."""
    limit = ("tbf", "rate", RATE, "burst", "64kb", "latency", "100ms")
    run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "veth0", "root", *limit)


def job(names: tuple[str, str], how: str, schemes: list[str], count: int) -> dict[str, Any]:
    """What rank 0 says of a job of a worker and a server at the ends of the link."""
    given = {
        **users_environment(),
        "DMLC_PS_ROOT_URI": SERVERS,
        "DMLC_PS_ROOT_PORT": "9191",
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "MEZZO_JOB_KEY": secrets.token_hex(16),
        "OMP_NUM_THREADS": "1",
    }
    serving = [sys.executable, "-m", "mezzo.kvstore.role"]
    there, here = (["ip", "netns", "exec", name] for name in names)
    others = [
        subprocess.Popen([*there, *serving], env={**given, "DMLC_ROLE": role, "MEZZO_HOST": "s", "MEZZO_BIND": SERVERS})
        for role in ("scheduler", "server")
    ]
    try:
        own = {**given, "DMLC_ROLE": "worker", "MEZZO_HOST": "w", "MEZZO_BIND": WORKERS}
        command = [*here, sys.executable, str(WORKER), how, json.dumps(schemes), str(count)]
        with subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            if worker.stdout.readline() == "ready\n":
                for name in names:
                    slow(name)
            said: dict[str, Any] = json.loads(worker.communicate("go\n")[0])
        return said
    finally:
        for process in others:
            process.kill()
            process.wait()


def times(schemes: list[str], rounds: int) -> tuple[list[Row], list[str]]:
    with link() as names:
        said = job(names, "time", schemes, rounds)
    median = {scheme: statistics.median(taken) for scheme, taken in said["times"].items()}
    rows, notes = [], []
    for scheme in schemes:
        wire = said["wire"][scheme]
        peers = {"plain": median[""]} if scheme else {}
        rows.append(Row(f"time/{scheme or 'plain'}", "s", median[scheme], peers, wire / 2 * 8 / 100e6))
        ratio = statistics.median(a / b for a, b in zip(said["times"][""], said["times"][scheme], strict=True))
        bar = f"; at least {BAR[1]:g}: {'met' if ratio >= BAR[1] * 0.98 else 'missed'}" if scheme == BAR[0] else ""
        notes.append(f"time/{scheme or 'plain'}: {wire / 1e6:.2f} MB on the wire, {ratio:.1f} x less time{bar}")
    return rows, notes


def trainings(schemes: list[str], rounds: int) -> tuple[list[Row], list[str]]:
    with link() as names:
        said = job(names, "training", schemes, rounds)
    seconds = {scheme: statistics.median(found["seconds"]) for scheme, found in said.items()}
    rows, notes = [], []
    for scheme in schemes:
        name = f"training/{scheme or 'plain'}"
        rows.append(Row(name, "s", seconds[scheme], {"plain": seconds[""]} if scheme else {}))
        saved, right = 1 - seconds[scheme] / seconds[""], statistics.mean(said[scheme]["accuracy"])
        notes.append(f"{name}: {100 * saved:.0f} % of the time saved, accuracy {100 * right:.1f} %")
    return rows, notes


def digits(schemes: list[str], seeds: int) -> tuple[list[Row], list[str]]:
    mezzo = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "1", "--hosts", "2"]
    command = [*mezzo, str(WORKER), "digits", json.dumps(schemes), str(seeds)]
    said = subprocess.run(command, env=users_environment(), check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(said[said.index("{") :])
    rows, notes = [], []
    plain = statistics.mean(found[""]["accuracy"])
    for scheme in schemes:
        mean = {name: statistics.mean(values) for name, values in found[scheme].items()}
        peers = {"plain": 100 * plain} if scheme else {}
        rows.append(Row(f"digits/{scheme or 'plain'}", "%", 100 * mean["accuracy"], peers))
        near = abs(mean["accuracy"] - plain) <= 0.005
        notes.append(
            f"digits/{scheme or 'plain'}: loss {mean['loss']:.4f}, {mean['wire'] / 1e6:.2f} MB; within 0.5 %: {near}"
        )
    return rows, notes


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schemes", default=",".join(SCHEMES[1:]), help="with commas between (default: all)")
    parser.add_argument("--rows", choices=["time", "training", "digits", "all"], default="all")


def main() -> None:
    args = arguments(__doc__, options)
    schemes = ["", *args.schemes.split(",")]
    rows: list[Row] = []
    notes: list[str] = []
    ways = {"time": (times, 2, 15), "training": (trainings, 1, 3), "digits": (digits, 1, 5)}
    wanted = [*ways] if args.rows == "all" else [args.rows]
    if wanted != ["digits"] and (os.geteuid() or not all(map(shutil.which, ("ip", "tc")))):
        sys.exit("packing: rows `time` and `training` need root, and ip and tc (Debian: iproute2)")
    for name in wanted:
        measure, few, many = ways[name]
        more, said = measure(schemes, few if args.quick else many)
        rows, notes = rows + more, notes + said
    show(rows, args, [*notes, machine(), f"{os.cpu_count()} processors"])


if __name__ == "__main__":
    main()
