"""The time from a failure until every other process of a job knows of it, and who is to blame.

Three workers of one host, or on two with a server, push values of a megabyte. `death` kills one (SIGKILL), `frozen`
stops one (SIGSTOP; the figure is what passes beyond the deadline of two seconds), in `configuration` one has another
optimizer, which is found before the first step. A figure is the median over the rounds of the last process to know, in
seconds; every one of them must name the culprit.

The rows of `ranks` are four processes with a communicator in shared memory, whose deadline is a second and a half: one
is killed, stopped, takes longer than that for each call (`slowed`), or finds no memory (`memory`: RLIMIT_AS). Their
figures are all seconds from the failure on, the deadline included.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

from rows import Row, arguments, machine, show, users_environment

WORKER = Path(__file__).parent / "peers" / "failing_worker.py"
DEADLINE, RANKS_DEADLINE = 2.0, 1.5
BARS = {"death": 0.1, "frozen": 0.5} | dict.fromkeys(
    ("ranks-killed", "ranks-frozen", "ranks-slowed", "ranks-memory"), 2.0
)
SIGNALS = {
    "death": signal.SIGKILL, "frozen": signal.SIGSTOP, "ranks-killed": signal.SIGKILL, "ranks-frozen": signal.SIGSTOP,
    "ranks-slowed": signal.SIGUSR1, "ranks-memory": signal.SIGUSR2,
}  # fmt: skip
Case = tuple[str, str, int]  # what happens, the hosts of the workers, servers
CASES: tuple[Case, ...] = (
    ("death", "aaa", 0),
    ("death", "aab", 1),
    ("frozen", "aaa", 0),
    ("frozen", "aab", 1),
    ("configuration", "aaa", 0),
    ("ranks-killed", "aaaa", 0),
    ("ranks-frozen", "aaaa", 0),
    ("ranks-slowed", "aaaa", 0),
    ("ranks-memory", "aaaa", 0),
)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def once(how: str, hosts: str, servers: int) -> float:
    """Seconds until the last of the others knows."""
    given = {
        **users_environment(),
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": str(len(hosts)),
        "DMLC_NUM_SERVER": str(servers),
        "OMP_NUM_THREADS": "1",
    }
    deadline = RANKS_DEADLINE if how.startswith("ranks") else DEADLINE if how == "frozen" else 60.0
    command = [sys.executable, str(WORKER), how, str(deadline)]
    serving = [sys.executable, "-m", "mezzo.kvstore.role"]
    others = [
        subprocess.Popen(serving, env={**given, "DMLC_ROLE": role}, stderr=subprocess.DEVNULL)
        for role in ("scheduler", *["server"] * servers)
    ]
    workers = [
        subprocess.Popen(
            command,
            env={**given, "DMLC_ROLE": "worker", "MEZZO_HOST": host, "MEZZO_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        began = max(_heard(worker)[1] for worker in workers)
        time.sleep(0.1)
        if how != "configuration":
            began = time.monotonic()
            workers[1].send_signal(SIGNALS[how])
        told = [_heard(worker) for rank, worker in enumerate(workers) if rank != 1 or how == "configuration"]
        for what, _, *why in told:
            if what != "failed" or not any(name in why[0] for name in ("rank 1", "worker 1", "ranks 1")):
                raise RuntimeError(f"{how} on {hosts}: {what} {why}")
        return max(at for _, at, *_ in told) - began - (DEADLINE if how == "frozen" else 0.0)
    finally:
        for process in (*workers, *others):
            process.kill()
            process.wait()


def _heard(worker: subprocess.Popen[bytes]) -> tuple[str, float, *tuple[str, ...]]:
    assert worker.stdout
    what, at, *why = json.loads(worker.stdout.readline())
    return what, at, *why


def main() -> None:
    args = arguments(__doc__, lambda parser: parser.add_argument("--rows", default="*", metavar="PATTERN"))
    rows, notes = [], []
    for how, hosts, servers in (case for case in CASES if fnmatch(case[0], args.rows)):
        times = [once(how, hosts, servers) for _ in range(3 if args.quick else 20)]
        name = f"{how}/{'one-host' if len({*hosts}) == 1 else 'two-hosts'}"
        median = statistics.median(times)
        rows.append(Row(name, "s", median))
        bar = BARS.get(how)
        met = "" if bar is None else f"; at most {bar}: {'met' if median <= bar * 1.02 else 'missed'}"
        notes.append(f"{name}: {min(times):.3f} to {max(times):.3f}{met}")
    show(rows, args, [*notes, machine(), f"{os.cpu_count()} processors"])


if __name__ == "__main__":
    main()
