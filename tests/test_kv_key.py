"""Jobs of real processes with a key: who has another one does not join, and a stranger disturbs nobody."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import mezzo as mz
from mezzo.kvstore import gate
from mezzo.kvstore.address import parse_address
from mezzo.kvstore.environment import LOOPBACK

from .test_kv_network import LONG, ROOT, SHORT, SLACK, Job
from .test_kv_tls import needs_certificates

KEY, OTHER = "a secret of this job", "the secret of another one"


def outside() -> str:
    """An address of this machine that others can reach. Choosing one sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # an address that documents use, and nobody has
            found = str(sock.getsockname()[0])
        except OSError:
            found = LOOPBACK
    return found


@contextmanager
def job(folder: Path, scenario: str, workers: int, servers: int, deadline: float = LONG) -> Iterator[Job]:
    """A job that has a key, whose processes are started by the test."""
    made = Job(folder, scenario, workers, servers, deadline, "dist_sync")
    made.environment = replace(made.environment, key=KEY)
    try:
        yield made
    finally:
        made.close()


def wait_for(made: Job, files: int) -> None:
    """Until so many workers have said that they run."""
    end = time.monotonic() + LONG
    while len([*made.folder.glob("runs-*")]) < files:
        assert time.monotonic() < end, made.said()
        assert all(p.poll() is None for p in made.processes.values()), made.said()
        time.sleep(0.02)


@pytest.mark.parametrize("given", [OTHER, ""])
def test_workers_with_different_keys_do_not_join(given: str, tmp_path: Path) -> None:
    with job(tmp_path, "nothing", 2, 0, SHORT) as made:
        made.start("scheduler", "scheduler")
        made.start("worker0", "worker", rank=0)
        made.environment = replace(made.environment, key=given)
        made.start("worker1", "worker", rank=1)
        codes = made.wait(SHORT * 3 + SLACK)
        good, stranger = (result["error"] for result in made.results())
        mine, theirs = (
            ("the key of this process is not", "its key is not") if given else ("demands a key", "it has none")
        )
        assert codes["scheduler"] == 1
        assert stranger.startswith("PeerError: scheduler at 127.0.0.1:")
        assert mine in stranger
        assert "MEZZO_JOB_KEY" in stranger
        assert "1 of 2 workers came" in good
        assert "refused connections: 1, the last from 127.0.0.1:" in good
        assert theirs in good
        assert theirs in (tmp_path / "scheduler.err").read_text()
        assert KEY not in made.said()
        assert OTHER not in made.said()


def test_a_server_with_another_key_does_not_join(tmp_path: Path) -> None:
    with job(tmp_path, "nothing", 1, 1, SHORT) as made:
        made.start("scheduler", "scheduler")
        made.start("worker0", "worker")
        made.environment = replace(made.environment, key=OTHER)
        made.start("server0", "server")
        codes = made.wait(SHORT * 3 + SLACK)
        assert codes["server0"] == 1
        assert "the key of this process is not" in (tmp_path / "server0.err").read_text()
        assert "0 of 1 servers came" in made.results()[0]["error"]


TLS_ALERT = b"\x15"  # how a record of TLS begins that says why there is no connection


def strangers(made: Job, address: str, service: str) -> None:
    """Who has no key, another one, speaks too early, or says nothing: each is refused."""
    place, silent = parse_address(address), []
    assert not isinstance(place, str)
    for key in ("", OTHER):
        with pytest.raises(mz.PeerError, match="key"):
            gate.enter(place, LONG, replace(made.environment, key=key), service, "process")
    hello = b"\x16\x03\x01"  # TLS would begin like this
    for words in (b"", b"MZ", b"MZKV" + bytes(44), os.urandom(1 << 16), hello + os.urandom(1 << 16)):
        sock = socket.create_connection(place)
        sock.settimeout(LONG)
        try:
            sock.sendall(words)
            if len(words) > 2:
                assert sock.recv(1) in (b"", TLS_ALERT)
                assert len(sock.recv(1 << 10)) < 16  # the alert is short, and the last that is said
                assert sock.recv(1) == b""
        except ConnectionError:  # closed, with some of it unread
            pass
        silent.append(sock)
    for sock in silent:
        sock.close()


@needs_certificates
def test_strangers_do_not_disturb_a_job(tmp_path: Path) -> None:
    """Over the address of this machine that others reach, where it has one."""
    address = outside()
    with job(tmp_path, "until_told", 2, 1) as made:
        made.environment = replace(made.environment, root=(address, made.environment.root[1]), bind=address)
        made.start("scheduler", "scheduler")
        made.start("server0", "server")
        for rank, host in enumerate("ab"):
            made.start(f"worker{rank}", "worker", host, rank)
        wait_for(made, 2)
        where = (tmp_path / "runs-0").read_text()
        assert where.startswith(f"{address}:")
        strangers(made, f"{address}:{made.environment.root[1]}", gate.SCHEDULER)
        strangers(made, where, gate.server(where))
        (tmp_path / "enough").touch()
        codes = made.wait(LONG + SLACK)
        assert set(codes.values()) == {0}, made.said()
        assert [result["steps"] > 3 for result in made.results()] == [True, True]
        for name in ("scheduler", "server0"):
            assert "refused a connection from" in (tmp_path / f"{name}.err").read_text()
        assert not [name for name in ("worker0", "worker1") if (tmp_path / f"{name}.err").stat().st_size]


def test_an_address_outside_needs_a_key(tmp_path: Path) -> None:
    address = outside()
    if address == LOOPBACK:
        pytest.skip("this machine has no address but loopback")
    made = Job(tmp_path, "nothing", 1, 0, SHORT, "dist_sync")
    made.environment = replace(made.environment, root=(address, made.environment.root[1]))
    for role in ("scheduler", "worker"):
        ended = subprocess.run(
            [sys.executable, "-m", "tests.kv_scenarios", "nothing"],
            cwd=ROOT,
            env={**os.environ, **made.environment.as_role(role).variables()},
            capture_output=True, text=True, timeout=LONG, check=False,
        )  # fmt: skip
        told = ended.stderr if role == "scheduler" else json.loads(ended.stdout)["error"]
        assert f"{address} is outside of this machine, and the job has no key" in told
