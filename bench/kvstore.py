"""One push and pull of a KVStore, waited for, with two workers: inside of a host, and over TCP.

`same-host/SIZE` has two workers of one host and no server, `tcp/SIZE` two workers that are each a host of its own and
two servers on others, over loopback; `tcp-beside` has a server beside each worker, whose part of a value lies in memory
that both have, `tcp-one` one server elsewhere, and `tls`, `tls-beside` and `tls-one` are the same under TLS. Values are
float32; arrays come from `kv.empty` and the value is read where it lies; rows in `/ordinary` have arrays of NumPy,
which are copied in and out. Rows ending in `/async` are those of `dist_async`, where nobody waits for anybody. All
through the public verbs.

Floors are bare streams (bench/peers/bare_stream.py): `ring` sends as many bytes as gloo's ring, or as a server beside
each worker, and `tls-ring` the same under TLS; `stream` as many as two workers and one server, without a sum
(`stream-threads`: by two threads for each connection); `plain` is the same row without TLS.

Peers: `gloo` is all_reduce of torch.distributed, `mxnet` push and pull of MXNet 1.9.1 (dist_sync, two workers and two
servers) with one key, `mxnet-16-keys` with the bytes spread over 16 keys; `impi` and `openmpi` are MPI_Allreduce of
Intel MPI (PyPI's impi-rt) and of an OpenMPI on the machine, through mpi4py. Each has processes of its own; rounds are
interleaved. A figure is the median over the rounds of the slower worker's median, in milliseconds, and a ratio the
median over the rounds of the peer's figure over ours. The environments of MXNet and MPI are made on first use.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from peers.environment import mpi_python, mxnet_python
from rows import Row, arguments, machine, show, users_environment

PEERS_AT = Path(__file__).parent / "peers"
SIZES = {"4KB": (4 << 10, 2000), "1MB": (1 << 20, 200), "64MB": (64 << 20, 8)}  # bytes, calls of a round
OURS = "mezzo"
Milliseconds = float


@dataclass(frozen=True)
class Bar:
    """What a row is held to: a figure, or ratios against peers."""

    most: Milliseconds | None = None
    ratios: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Case:
    """One row: our team and how its arrays are made, and what peers do."""

    name: str
    size: str
    team: str
    how: str
    peers: tuple[str, ...] = ()
    bar: Bar = field(default_factory=Bar)


def _cases() -> Iterator[Case]:
    bars = {
        "same-host/4KB": Bar(most=0.02),
        "same-host/64MB": Bar(ratios={"gloo": 3.0, "impi": 2.0}),
        "same-host/64MB/ordinary": Bar(ratios={"impi": 1.0}),
        "tcp/4KB": Bar(most=0.06),
        "tcp/64MB": Bar(ratios={"mxnet": 1.6, "mxnet-16-keys": 0.98}),
        "tcp-beside/64MB": Bar(ratios={"gloo": 1.0}),
        "tcp-one/64MB": Bar(ratios={"stream": 0.9, "stream-threads": 0.9}),
        **{f"tls{where}/64MB": Bar(ratios={"plain": 0.4}) for where in ("", "-beside", "-one")},
    }
    for place in ("same-host", "tcp"):
        for size in SIZES:
            name = f"{place}/{size}"
            peers = ("gloo", "mxnet", *(["mxnet-16-keys"] if size == "64MB" else []))
            peers += ("impi", "openmpi") if place == "same-host" else ()
            yield Case(name, size, place, "empty", peers, bars.get(name, Bar()))
            ordinary = f"{name}/ordinary"
            yield Case(ordinary, size, place, "ordinary", peers, bars.get(ordinary, Bar()))
    for size in SIZES:
        yield Case(f"tcp/{size}/async", size, "tcp-async", "empty")
        for where, peers in {"-beside": ("gloo", "ring"), "-one": ("gloo", "stream", "stream-threads")}.items():
            name = f"tcp{where}/{size}"
            taking = peers if SIZES[size][0] >= 1 << 20 else ("gloo",)  # bare streams have chunks
            yield Case(name, size, f"tcp{where}", "empty", taking, bars.get(name, Bar()))
            yield Case(f"{name}/ordinary", size, f"tcp{where}", "ordinary", taking)
    for where in ("", "-beside", "-one"):
        name = f"tls{where}/64MB"
        yield Case(name, "64MB", f"tls{where}", "empty", ("plain", "ring", "tls-ring"), bars[name])


CASES = {c.name: c for c in _cases()}


class Team:
    """Processes that work together: workers that answer, and others that only serve them."""

    def __init__(self, workers: Sequence[subprocess.Popen[str]], others: Sequence[subprocess.Popen[str]]) -> None:
        self._workers, self._others = workers, others
        self._answers()

    def _answers(self) -> list[object]:
        lines = [worker.stdout.readline() for worker in self._workers if worker.stdout]
        if not all(lines):
            raise RuntimeError("a worker has ended")
        return [json.loads(line) for line in lines]

    def measure(self, size: int, how: str, count: int) -> Milliseconds:
        """The slower worker's median of so many calls."""
        for worker in self._workers:
            assert worker.stdin
            worker.stdin.write(json.dumps({"size": size, "how": how, "count": count}) + "\n")
            worker.stdin.flush()
        return max(statistics.median(times) for times in self._answers() if isinstance(times, list))

    def close(self) -> None:
        for process in (*self._workers, *self._others):
            if process.stdin:
                process.stdin.close()
        for process in (*self._workers, *self._others):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def started(command: Sequence[str], more: Mapping[str, str]) -> subprocess.Popen[str]:
    """A process whose input and output are ours; it shares what is said to people."""
    environment = {**users_environment(), "OMP_NUM_THREADS": "1", **more}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)


def job(
    command: Sequence[str],
    serving: Sequence[str],
    servers: Sequence[str],
    hosts: Sequence[str],
    more: Mapping[str, str] | None = None,
) -> Team:
    """Workers with a scheduler and servers, each on a host, by the contract of DMLC_*."""
    given = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": str(len(hosts)),
        "DMLC_NUM_SERVER": str(len(servers)),
        **(more or {}),
    }
    roles = [("scheduler", "root"), *(("server", host) for host in servers)]
    others = [started(serving, {**given, "DMLC_ROLE": role, "MEZZO_HOST": host}) for role, host in roles]
    workers = [started(command, {**given, "DMLC_ROLE": "worker", "MEZZO_HOST": host}) for host in hosts]
    return Team(workers, others)


def mpi(name: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of two ranks. RuntimeError where OpenMPI is not on this machine."""
    python, program = mpi_python(), str(PEERS_AT / "mpi_kvstore.py")
    if name == "impi":
        return [str(Path(python).parent / "mpiexec"), "-n", "2", python, program], {}
    start = shutil.which("orterun")
    if start is None:
        raise RuntimeError("OpenMPI is not on this machine; Debian has it as openmpi-bin")
    root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    return [start, "-n", "2", "--oversubscribe", python, program], {"MPI4PY_MPIABI": "openmpi", **root}


# hosts of servers, for two workers on hosts of their own
SERVERS = {"": ("three", "four"), "-beside": ("one", "two"), "-one": ("three",)}
SECRET = {"MEZZO_JOB_KEY": "the key of a bench", "MEZZO_TLS": "1"}


def bare(what: str) -> Team:
    """Two workers that exchange bytes with each other, or with one server."""
    command, port = [sys.executable, str(PEERS_AT / "bare_stream.py")], str(free_port())
    if what in ("ring", "tls-ring"):
        return Team([started([*command, what, port, str(rank)], {}) for rank in range(2)], [])
    others = [started([*command, "server" if what == "stream" else "threads", port], {})]
    return Team([started([*command, "worker", port], {}) for _ in range(2)], others)


def team(name: str) -> Team:
    """The processes of one contestant. RuntimeError where they cannot be had."""
    ours = [sys.executable, str(PEERS_AT / "mezzo_kvstore.py")]
    serving = [sys.executable, "-m", "mezzo.kvstore.role"]
    match name:
        case "same-host":
            return job([*ours, "dist_sync"], serving, [], ["one", "one"])
        case "tcp" | "tcp-beside" | "tcp-one":
            return job([*ours, "dist_sync"], serving, SERVERS[name[3:]], ["one", "two"])
        case "tls" | "tls-beside" | "tls-one":
            return job([*ours, "dist_sync"], serving, SERVERS[name[3:]], ["one", "two"], SECRET)
        case "tcp-async":
            return job([*ours, "dist_async"], serving, SERVERS[""], ["one", "two"])
        case "ring" | "tls-ring" | "stream" | "stream-threads":
            return bare(name)
        case "gloo":
            port = str(free_port())
            command = [sys.executable, str(PEERS_AT / "gloo_kvstore.py")]
            return Team([started([*command, str(rank), "2", port], {}) for rank in range(2)], [])
        case "impi" | "openmpi":
            return Team([started(*mpi(name))], [])
    command = [mxnet_python(), str(PEERS_AT / "mxnet_kvstore.py")]
    return job(command, command, ["three", "four"], ["one", "two"])


@contextmanager
def teams(names: Sequence[str]) -> Iterator[dict[str, Team]]:
    """Those that can be had."""
    with ExitStack() as stack:
        made: dict[str, Team] = {}
        for name in dict.fromkeys(names):
            try:
                made[name] = team(name)
                stack.callback(made[name].close)
            except (RuntimeError, OSError) as reason:
                print(f"{name} does not take part: {reason}", file=sys.stderr)
        yield made


def contestants(case: Case, peers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Who runs a row: the team, and what `how` means to it."""
    taking = {OURS: (case.team, case.how)}
    for peer in case.peers:
        if peer in peers:
            elsewhere = {"mxnet-16-keys": ("mxnet", "16"), "plain": (case.team.replace("tls", "tcp"), case.how)}
            taking[peer] = elsewhere.get(peer, (peer, "1"))
    return taking


def race(
    case: Case, taking: Mapping[str, tuple[str, str]], at: Mapping[str, Team], rounds: int, count: int
) -> dict[str, list[Milliseconds]]:
    """The figures of each contestant, by round."""
    size, _ = SIZES[case.size]
    found: dict[str, list[Milliseconds]] = {name: [] for name, (where, _) in taking.items() if where in at}
    for _ in range(rounds):
        for name, figures in found.items():
            where, how = taking[name]
            figures.append(at[where].measure(size, how, count))
    return found


def judged(case: Case, found: Mapping[str, Sequence[Milliseconds]]) -> str:
    """Ratios, and whether bars are met."""
    told = []
    ours = found[OURS]
    for peer, theirs in found.items():
        if peer != OURS:
            ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
            bar = case.bar.ratios.get(peer)
            met = "" if bar is None else f" (bar {bar}: {'met' if ratio >= bar else 'missed'})"
            told.append(f"{ratio:.2f} x {peer}{met}")
    if case.bar.most is not None:
        met = "met" if statistics.median(ours) <= case.bar.most else "missed"
        told.append(f"at most {case.bar.most} ms: {met}")
    return f"{case.name}: {', '.join(told)}" if told else ""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", default="*", help="names or patterns, with commas between (default: all)")
    parser.add_argument(
        "--peers",
        default="gloo,mxnet,mxnet-16-keys,impi,openmpi,ring,tls-ring,stream,stream-threads,plain",
        help="with commas between (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=0, help="of each contestant (default: 9)")


def main() -> None:
    args = arguments(__doc__, options)
    rounds = args.rounds or (3 if args.quick else 9)
    patterns = args.rows.split(",")
    wanted = [c for c in CASES.values() if any(fnmatch(c.name, p) for p in patterns)]
    if not wanted:
        sys.exit(f"there is no row {args.rows!r}; rows: {', '.join(CASES)}")
    rows, notes = [], []
    names = [where for case in wanted for where, _ in contestants(case, args.peers.split(",")).values()]
    with teams(names) as at:
        for case in wanted:
            taking = contestants(case, args.peers.split(","))
            if taking[OURS][0] not in at:
                continue
            count = SIZES[case.size][1]
            found = race(case, taking, at, rounds, max(3, count // 4) if args.quick else count)
            figures = {name: statistics.median(each) for name, each in found.items()}
            ours = figures.pop(OURS)
            rows.append(Row(case.name, "ms", ours, figures))
            notes += [judged(case, found)]
    show(rows, args, [n for n in [*notes, machine(), f"{os.cpu_count()} processors"] if n])


if __name__ == "__main__":
    main()
