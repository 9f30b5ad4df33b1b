"""`mezzo launch`: what the processes of a job are told, that their lines come out whole, and how all of them end."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mezzo.kvstore.environment import Environment
from mezzo.ops.errors import InputError
from mezzo.runtime.environment import processors
from mezzo.tools import crew
from mezzo.tools import launch as module
from mezzo.tools.cli import cli
from mezzo.tools.crew import Member
from mezzo.tools.launch import Scale, command_of, launch, members
from mezzo.tools.prefix import _prefixes

PATIENCE = 30.0  # seconds: ten times what anything here takes
SLEEP = "import time; time.sleep(60)"


def member(code: str, *args: Any, role: Any = "worker", rank: int = 0) -> Member:
    """A process that runs some Python, without site packages: it starts in 20 ms."""
    return Member(role, rank, (sys.executable, "-S", "-c", code, *map(str, args)), dict(os.environ))


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_what_a_job_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    job = members(["program"], workers=4, servers=2, hosts=2)
    assert [m.name for m in job] == [
        "scheduler",
        *(f"server {i}" for i in range(2)),
        *(f"worker {i}" for i in range(4)),
    ]
    told = [Environment.read(m.environment) for m in job]
    assert len({e.root for e in told}) == 1
    assert {(e.workers, e.servers) for e in told} == {(4, 2)}
    assert [(e.role, e.rank) for e in told] == [("scheduler", None), *((m.role, m.rank) for m in job[1:])]
    hosts = [e.host for e in told[3:]]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
    assert {m.environment["OMP_NUM_THREADS"] for m in job} == {str(max(1, processors() // 4))}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("MEZZO_KV_DEADLINE", "9")
    (first, *_) = members(["program"], workers=1, servers=0)
    assert first.environment["OMP_NUM_THREADS"] == "7"
    assert Environment.read(first.environment).deadline == 9
    assert [m.role for m in members(["program"], 2, 0)] == ["scheduler", "worker", "worker"]


def test_the_port_of_a_job_is_its_own() -> None:
    """From when its processes are told of it until the job has ended, whoever listens there."""
    job = members(["true"], workers=1, servers=0)
    root = Environment.read(job[0].environment).root
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(root)
    assert launch(job, grace=0.1) == 0
    with socket.socket() as other:
        other.bind(root)


@pytest.mark.parametrize(("workers", "servers", "hosts"), [(0, 1, 1), (2, -1, 1), (2, 1, 3), (2, 0, 2)])
def test_numbers_that_make_no_job(workers: int, servers: int, hosts: int) -> None:
    with pytest.raises(InputError, match="launch"):
        members(["program"], workers, servers, hosts)


def test_what_is_started(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    with pytest.raises(InputError, match="no such file"):
        command_of(str(script), [])
    with pytest.raises(InputError, match="no such program"):
        command_of("no-such-program", [])
    script.touch()
    assert command_of(str(script), ["-x"]) == (sys.executable, str(script), "-x")
    assert command_of("sh", ["-c", ":"])[1:] == ("-c", ":")


WRITER = """
import os, sys
name, count = sys.argv[1], int(sys.argv[2])
for i in range(count):
    for number in (1, 2):
        line = b"%s %d \\xff%s\\n" % (name.encode(), i, b"=" * (i % 97))
        os.write(number, line[:5])
        os.write(number, line[5:])
os.write(1, b"no end")
"""


def test_lines_come_out_whole(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    count = 400
    job = [member(WRITER, f"w{i}", count, rank=i) for i in range(4)]
    assert launch(job) == 0
    for text in capfdbinary.readouterr():
        lines = text.splitlines()
        for i in range(4):
            mine = [line.removeprefix(b"[worker %d] " % i) for line in lines if line.startswith(b"[worker %d] " % i)]
            expected = [b"w%d %d \xff%s" % (i, n, b"=" * (n % 97)) for n in range(count)]
            assert [line for line in mine if line != b"no end"] == expected
        assert len(lines) in (4 * count, 4 * count + 4)


def test_names_in_colours_and_none() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    plain = _prefixes(["worker 0", "scheduler"], (), io.StringIO())
    assert plain == {"worker 0": b"[worker 0]  ", "scheduler": b"[scheduler] ", "launch": b"[launch]    "}
    assert _prefixes(["worker 0"], {"worker 0"}, io.StringIO())["worker 0"] == b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.delenv("NO_COLOR", raising=False)
        coloured = _prefixes(["worker 0"], (), Terminal())["worker 0"]
    assert coloured != plain["worker 0"]
    assert re.sub(rb"\x1b\[[\d;]*m", b"", coloured) == b"[worker 0] "


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(60)
"""
FAILS = """
import os, sys, time
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
print("failing")
sys.exit(3)
"""


def test_all_end_when_one_ends_badly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With what they have started."""
    began, file = time.monotonic(), tmp_path / "pid"
    job = [member(SLEEP, role="scheduler"), member(PARENT, file, rank=0), member(FAILS, file, rank=1)]
    assert launch(job) == 3
    while alive(int(file.read_text())):  # killed, but the kernel may need a moment to end a child of a child
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.01)
    out, err = capfd.readouterr()
    assert out == "[worker 1]  failing\n"
    assert err == "[launch]    worker 1 ended with exit code 3; the others are ended\n"


def test_who_does_not_listen_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
    deaf = "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
    job = [member(f"{deaf}time.sleep(60)"), member("import os, time; time.sleep(0.5); os.kill(os.getpid(), 9)", rank=1)]
    began = time.monotonic()
    assert launch(job, grace=0.2) == 128 + signal.SIGKILL
    assert time.monotonic() - began < PATIENCE
    assert "worker 1 ended by SIGKILL" in capfd.readouterr().err


def test_a_worker_is_blamed_before_those_who_heard_of_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = "import sys; sys.exit(1)"
    late = "import sys, time; time.sleep(0.3); sys.exit(4)"
    with monkeypatch.context() as patient:
        patient.setattr(crew, "SETTLE", PATIENCE)
        assert launch([member(heard, role="scheduler"), member(SLEEP, rank=0), member(late, rank=1)]) == 4
    assert "worker 1 ended with exit code 4" in capfd.readouterr().err
    monkeypatch.setattr(crew, "SETTLE", 0.2)
    assert launch([member(heard, role="scheduler"), member(SLEEP, rank=0)]) == 1
    assert "scheduler ended with exit code 1" in capfd.readouterr().err


def test_who_was_killed_is_blamed_before_who_heard_of_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A signal is nobody else's doing, whatever role the process has; here it comes right after the other's end."""
    awaited = "import os, signal, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.005)\n"
    killed = awaited + "time.sleep(0.02); os.kill(os.getpid(), signal.SIGKILL)"
    fails = "import sys; open(sys.argv[1], 'w').close(); sys.exit(1)"
    heard = tmp_path / "heard"
    job = [member(killed, heard, role="server"), member(fails, heard), member(SLEEP, rank=1)]
    assert launch(job) == 128 + signal.SIGKILL
    assert "server 0 ended by SIGKILL" in capfd.readouterr().err


def counted(folder: Path, code: str) -> Any:
    """A job whose workers note in a folder when they were started, and then run some Python."""
    begun = f"import os, sys, time; open(sys.argv[1] + '/' + str(time.monotonic_ns()), 'w').close()\n{code}"

    def job(scale: Scale) -> list[Member]:
        (folder / f"attempt {scale.attempt}").mkdir(parents=True)
        given = folder / f"attempt {scale.attempt}", scale.attempt
        return [member(begun, *given, rank=rank) for rank in range(scale.workers)]

    return job


def test_a_job_begins_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fails_twice = counted(tmp_path / "a", "sys.exit(7 if int(sys.argv[2]) < 2 else 0)")
    assert launch(fails_twice, restarts=1, workers=2) == 7
    assert launch(counted(tmp_path / "b", "sys.exit(7 if int(sys.argv[2]) < 2 else 0)"), restarts=2, workers=2) == 0
    assert launch(counted(tmp_path / "c", "sys.exit(2)"), restarts=2) == 2
    assert len([*(tmp_path / "c").iterdir()]) == 1
    begun = {path.name: len(list(path.iterdir())) for path in (tmp_path / "b").iterdir()}
    assert begun.keys() == {"attempt 0", "attempt 1", "attempt 2"}
    assert begun["attempt 2"] == 2
    assert "all start again; 0 more restarts would follow" in capfd.readouterr().err


SCALED = """
import sys
from pathlib import Path
from mezzo.tools.launch import launch
from tests.test_launch import counted

from mezzo.tools.crew import Crew

if sys.argv[2] == "untold":
    Crew._tell_guard = lambda self, line: None
print("ready", flush=True)
waits = "while True: time.sleep(60)" if sys.argv[2] != "scales" else "time.sleep(0 if int(sys.argv[2]) == 2 else 60)"
sys.exit(launch(counted(Path(sys.argv[1]), waits), workers=2))
"""


def scaled(folder: Path, how: str) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", SCALED, str(folder), how]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE)


def until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def started(folder: Path, attempt: int) -> int:
    where = folder / f"attempt {attempt}"
    return len(list(where.iterdir())) if where.exists() else 0


def test_workers_fewer_and_more(tmp_path: Path) -> None:
    with scaled(tmp_path, "scales") as process:
        until(lambda: started(tmp_path, 0) == 2)
        process.send_signal(signal.SIGUSR2)
        until(lambda: started(tmp_path, 1) == 3)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE) == 0
    assert started(tmp_path, 2) == 2


def children(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(each for child in found for each in children(child))]


@pytest.mark.parametrize("how", ["waits", "untold"])
def test_a_launcher_that_is_killed_leaves_nobody(how: str, tmp_path: Path) -> None:
    """Nor where it had no time to tell whom it has started."""
    with scaled(tmp_path, how) as process:
        until(lambda: started(tmp_path, 0) == 2)
        those = children(process.pid)
        assert len(those) == 3
        process.kill()
        process.wait(PATIENCE)
        until(lambda: not any(map(alive, those)))


MEETS = """
import os, sys, time
mine, theirs, code = sys.argv[1:]
open(mine, "w").close()
while not os.path.exists(theirs):
    time.sleep(0.01)
sys.exit(int(code))
"""


def test_servers_end_with_the_workers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    stays, leaves = member(SLEEP, role="server"), member("", role="scheduler")
    assert launch([leaves, stays, member(""), member("", rank=1)], grace=0.3) == 0
    assert time.monotonic() - began < PATIENCE
    assert capfd.readouterr() == ("", "")
    a, b = tmp_path / "a", tmp_path / "b"
    assert launch([member(MEETS, a, b, 5, role="server"), member(MEETS, b, a, 0)]) == 5


RETURNS = """
import os, signal, sys, time
begun, ended, how = sys.argv[1:]
if "MEZZO_INCARNATION" not in os.environ:
    os.kill(os.getpid(), signal.SIGKILL)
open(begun, "w").close()
while not os.path.exists(ended):
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(1) if how == "fails" else os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["fails", "is killed"])
def test_a_job_whose_workers_have_ended_well_is_over(
    how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A server that was started again finds nobody to join then, and may be killed once more: that costs nothing."""
    begun, ended = tmp_path / "begun", tmp_path / "ended"

    def job(scale: Scale) -> list[Member]:
        server = replace(member(RETURNS, begun, ended, how, role="server"), kept=os.memfd_create("server"))
        return [server, member(MEETS, ended, begun, 0)]

    assert launch(job, restarts=2) == 0
    said = capfd.readouterr().err
    assert "server 0 ended by SIGKILL; it starts again with what it had; 1 more restart would follow" in said
    assert "after all workers had ended well" in said
    assert "all start again" not in said


SAVES = """
import sys, time
try:
    print("ready")
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    print("saved")
    sys.exit(130)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`mezzo launch` with two workers that are ready."""
    (tmp_path / "script.py").write_text(SAVES)
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "0", str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert {process.stdout.readline() for _ in range(2)} == {b"[worker 0]  ready\n", b"[worker 1]  ready\n"}
        yield process
        process.kill()


def test_ctrl_c_ends_all(running: subprocess.Popen[bytes]) -> None:
    """Workers hear of it first, and may keep what they have."""
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE)
    assert sorted(out.splitlines()) == [b"[worker 0]  saved", b"[worker 1]  saved"]
    assert (running.returncode, err) == (130, b"")


def test_nobody_reads_any_more(running: subprocess.Popen[bytes]) -> None:
    """SIGTERM ends workers, whose last words find a closed pipe."""
    assert running.stdout is not None
    running.stdout.close()
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE) == 143


def test_a_closed_pipe_ends_all(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time\nwhile True:\n    print('more')\n    time.sleep(0.01)\n")
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "0", str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == 1


def test_train_starts_itself_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before this process has run anything: what was given goes to every worker as it is."""
    started: list[Any] = []

    def start(job: Any, **how: Any) -> int:
        started.append((job, how))
        return 0

    monkeypatch.setattr(module, "launch", start)
    given = ["model.onnx", "data.npz", "-o", "out.onnx", "-n", "3", "--batch", "8", "--freeze", "a b*"]
    cli.main(["train", *given], standalone_mode=False)
    ((job, how),) = started
    for attempt in (0, 2):
        made = job(Scale(attempt, 3))
        assert [m.name for m in made] == ["scheduler", "worker 0", "worker 1", "worker 2"]
        assert {m.command for m in made[1:]} == {(sys.executable, "-m", "mezzo", "train", *given)}
        assert {m.environment["MEZZO_ATTEMPT"] for m in made} == {str(attempt)}
    assert how == {"bare": {"worker 0"}, "restarts": 0, "workers": 3}
