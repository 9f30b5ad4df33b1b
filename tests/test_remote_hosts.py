"""`mezzo launch --hosts a,b`: processes that a shell starts elsewhere, here one that starts them on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import mezzo as mz
from mezzo.tools.cli import cli
from mezzo.tools.hosts import by_shell, evenly, members_on, seen_from
from mezzo.tools.remote import asked, through

from .test_kv_schedulers import _alive

SHELL = """
import os, sys
with open("said", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
os.execv("/bin/sh", ["sh", "-c", sys.argv[2]])
"""
SCRIPT = """
import os, sys
import numpy as np
import mezzo as mz
with mz.kv.create("dist_sync") as kv:
    kv.init("w", np.zeros(3))
    print(os.environ["MEZZO_HOST"], kv.rank, kv.pushpull("w", np.full(3, kv.rank + 1.0)).tolist(), flush=True)
sys.exit(int(sys.argv[1]) * (kv.rank == 2))
"""


def test_a_job_on_hosts(tmp_path: Path) -> None:
    """Every process is started on its host, the job's key on no command line, and exit codes come back."""
    (tmp_path / "shell.py").write_text(SHELL)
    (tmp_path / "script.py").write_text(SCRIPT)
    given = {n: v for n, v in os.environ.items() if not n.startswith(("DMLC_", "MEZZO_"))}
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "3", "--hosts", "127.0.0.1,127.0.0.2"]
    command += ["--ssh", f"{sys.executable} shell.py", "script.py", "7"]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**given, "MEZZO_JOB_KEY": "a secret of theirs"}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 7, ended.stderr
    said = sorted(line.partition("]")[2].strip() for line in ended.stdout.splitlines())
    assert said == [f"127.0.0.{1 + (rank == 2)} {rank} [6.0, 6.0, 6.0]" for rank in range(3)]
    started = (tmp_path / "said").read_text()
    assert sorted(line.split()[0] for line in started.splitlines()) == ["127.0.0.1"] * 3 + ["127.0.0.2"] * 2
    assert "a secret" not in started


def test_a_job_that_is_over_at_once(tmp_path: Path) -> None:
    """Its agents have not met the servers by then, and wait for nobody."""
    (tmp_path / "shell.py").write_text(SHELL)
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "--hosts", "127.0.0.1,127.0.0.2"]
    ended = subprocess.run(
        [*command, "--ssh", f"{sys.executable} shell.py", "script.py", "0"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_worker_that_ends_first_leaves_the_agent_to_others(tmp_path: Path) -> None:
    """The first worker of a host starts the agent, and leaves long before the second."""
    (tmp_path / "shell.py").write_text(SHELL)
    wait = "    time.sleep(2.0 * (kv.rank == 1))\n"
    (tmp_path / "script.py").write_text(
        SCRIPT.replace("import os, sys", "import os, sys, time").replace("sys.exit", wait + "sys.exit")
    )
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "3", "--hosts", "127.0.0.1,127.0.0.2"]
    ended = subprocess.run(
        [*command, "--ssh", f"{sys.executable} shell.py", "script.py", "0"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_runs_elsewhere_ends_with_the_connection(tmp_path: Path) -> None:
    """Also what it has started itself; the folder and the variables are those of the launcher."""
    code = "import os, subprocess, sys; print(os.environ['GIVEN'], os.getpgid(0), flush=True); "
    code += "subprocess.run(['sleep', '100'])"
    line = asked([sys.executable, "-c", code], {"GIVEN": "told"}, "127.0.0.1", 1)
    command = through(sys.executable + ' -c \'import os, sys; os.execv("/bin/sh", ["sh", "-c", sys.argv[2]])\'', "a")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        word, group = process.stdout.readline().decode().split()
        assert word == "told"
        assert _alive({int(group)})
        process.stdin.close()
        assert process.wait(20) == 128 + 15
    until = time.monotonic() + 20
    while _alive({int(group)}) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _alive({int(group)})
    assert json.loads(line)["folder"] == os.getcwd()


def test_hosts_that_make_no_job() -> None:
    for hosts, shares in ((["a", "a"], [1, 1]), (["a", "b"], evenly(1, 2))):
        with pytest.raises(mz.InputError, match="name each once"):
            members_on(hosts, shares, ["true"], 0, {}, "127.0.0.1", by_shell(hosts, "ssh"))
    with pytest.raises(mz.InputError, match="no address of this machine"):
        members_on(["a"], [1], ["true"], 0, {}, "192.0.2.1", by_shell(["a"], "ssh"))
    with pytest.raises(mz.InputError, match="--address"):
        seen_from("nowhere.invalid")
    for options in (["--hosts", "0"], ["--hosts", "a,b", "--rejoin", "--restarts", "1"]):
        assert CliRunner().invoke(cli, ["launch", "-n", "2", *options, "true"]).exit_code == 2
