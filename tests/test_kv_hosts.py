"""Jobs on several hosts, which are network namespaces of this machine: one is cut off, or lost for good.

Needs root and `ip` (Debian's iproute2); skipped, with the reason, where namespaces cannot be made.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mezzo.kvstore.environment import Environment, Role
from mezzo.tools.crew import Member
from mezzo.tools.launch import Scale, launch, members
from mezzo.train.checkpoint import MANIFEST

from .kv_recovery import END, FIRST, PHASES, WANTED, board

ROOT = Path(__file__).parents[1]
LONG, DEADLINE, SLACK = 60.0, 8.0, 30.0
STEPS = 30
PORT = 9191  # every namespace has ports of its own


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


class Hosts:
    """Namespaces a, b and c, with addresses 10.77.0.1 to 10.77.0.3 on one switch; or others."""

    def __init__(self, names: str = "abc") -> None:
        self._prefix = f"mz{os.getpid()}"
        self.names = (*names,)
        self._made: list[str] = []

    def make(self) -> None:
        switch = self._add("s")
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for name in self.names:
            host = self._add(name)
            ip("-n", host, "link", "set", "lo", "up")
            ip("link", "add", "eth", "netns", host, "type", "veth", "peer", "name", f"port-{name}", "netns", switch)
            ip("-n", host, "addr", "add", f"{self.address(name)}/24", "dev", "eth")
            ip("-n", host, "link", "set", "eth", "up")
            ip("-n", switch, "link", "set", f"port-{name}", "master", "bridge")
            ip("-n", switch, "link", "set", f"port-{name}", "up")

    def _add(self, name: str) -> str:
        made = f"{self._prefix}{name}"
        ip("netns", "add", made)
        self._made.append(made)
        return made

    def address(self, name: str) -> str:
        return f"10.77.0.{self.names.index(name) + 1}"

    def on(self, name: str, *command: str) -> tuple[str, ...]:
        """A command as it runs on a host."""
        return ("ip", "netns", "exec", f"{self._prefix}{name}", *command)

    def cut(self, name: str) -> None:
        """Nothing that a host says arrives any more, and it hears nothing."""
        ip("-n", f"{self._prefix}s", "link", "set", f"port-{name}", "down")

    def close(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def made_hosts(names: str = "abc") -> Iterator[Hosts]:
    """Hosts for a test, which is skipped where none can be made."""
    made = Hosts(names)
    try:
        if shutil.which("ip") is None:
            pytest.skip("there is no `ip` here: hosts cannot be made")
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        yield made
    finally:
        made.close()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with made_hosts() as made:
        yield made


def environment(hosts: Hosts, role: Role, rank: int | None, place: str, name: str) -> dict[str, str]:
    """What a process at a place is told, that counts as one of the host `name`."""
    made = Environment(
        role, (hosts.address("a"), PORT), 3, 1, name, rank, hosts.address(place), DEADLINE, key="of these hosts alone"
    )
    return {**os.environ, **made.variables(), "OMP_NUM_THREADS": "1"}


def test_a_host_that_is_cut_off_is_named(hosts: Hosts, tmp_path: Path) -> None:
    """By both others and by servers; the host itself misses what servers answer. All processes end."""
    plan: list[tuple[str, Role, int | None, str]] = [
        ("scheduler", "scheduler", None, "a"),
        ("server", "server", 0, "a"),
    ]
    plan += [(f"worker{rank}", "worker", rank, host) for rank, host in enumerate(hosts.names)]
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, role, rank, place in plan:
            given = {**environment(hosts, role, rank, place, place), "KV_FOLDER": str(tmp_path)}
            with (tmp_path / f"{name}.out").open("wb") as out, (tmp_path / f"{name}.err").open("wb") as err:
                command = hosts.on(place, sys.executable, "-m", "tests.kv_scenarios", "wait_for_ever")
                running[name] = subprocess.Popen(command, cwd=ROOT, env=given, stdout=out, stderr=err)
        end = time.monotonic() + LONG
        while len([*tmp_path.glob("runs-*")]) < 3 and time.monotonic() < end:
            assert all(p.poll() is None for p in running.values()), [f.read_text() for f in tmp_path.glob("*.err")]
            time.sleep(0.02)
        hosts.cut("c")
        for process in running.values():
            process.wait(2 * DEADLINE + SLACK)
        said = [json.loads((tmp_path / f"worker{rank}.out").read_text().splitlines()[-1])["error"] for rank in range(3)]
        assert "host 'c'" in said[0], said
        assert "host 'c'" in said[1], said
        assert "server" in said[2] or "scheduler" in said[2], said
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def trained(folder: Path, hosts: Hosts, lost: bool) -> bytes:
    """The parameters at the end of a training on three hosts, one of which is lost on the way: its worker begins again
    on another one."""
    folder.mkdir()
    made = board(folder, "w+")
    made[:], made[END] = 0, STEPS
    made[WANTED] = PHASES.index("snapshot") if lost else 0  # whoever writes one waits a moment
    command = (sys.executable, "-m", "tests.kv_recovery", str(folder), "0")

    def lose() -> None:
        end = time.monotonic() + LONG
        while not (folder / "kept" / MANIFEST).exists() and time.monotonic() < end:
            time.sleep(0.002)
        hosts.cut("c")
        made[WANTED] = 0

    def job(scale: Scale) -> list[Member]:
        board(folder)[FIRST:] = 0
        places = ("a", "b", "b" if scale.attempt else "c")
        plan: list[tuple[Role, int | None, str, str]] = [("scheduler", None, "a", "a"), ("server", 0, "a", "a")]
        plan += [("worker", rank, place, hosts.names[rank]) for rank, place in enumerate(places)]
        return [
            Member(role, rank or 0, hosts.on(place, *command), environment(hosts, role, rank, place, name))
            for role, rank, place, name in plan
        ]

    if lost:
        threading.Thread(target=lose, daemon=True).start()
    assert launch(job, restarts=int(lost), grace=2.0) == 0
    with np.load(folder / "end.npz") as arrays:
        return b"".join(arrays[name].tobytes() for name in sorted(arrays))


def test_a_host_that_is_lost(hosts: Hosts, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The training goes on from the snapshot, to the bits of one that nothing befell."""
    calm = trained(tmp_path / "calm", hosts, lost=False)
    assert trained(tmp_path / "lost", hosts, lost=True) == calm
    said = capfd.readouterr().err
    assert "all start again" in said
    assert "host 'c'" in said


def test_an_agent_that_dies_before_it_meets_its_workers_is_missed_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, mezzo as mz\n"
        "from mezzo.kvstore import agent\n"
        "agent.start = lambda *given: os.posix_spawn('/bin/false', ['false'], {})\n"
        "mz.kv.create('dist_sync', deadline=300.0)\n"
    )
    began = time.monotonic()
    assert launch(members((sys.executable, str(script)), 2, 1), grace=2.0) == 1
    assert time.monotonic() - began < 100
    said = capfd.readouterr().err
    assert said.count("PeerError: worker 0 on ") == 1
    assert "the agent of this host has ended before it met its workers" in said
