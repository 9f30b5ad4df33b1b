"""Keys of jobs: files that hold one, the fresh one of `mezzo launch`, and that none of them is ever shown."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import mezzo as mz
from mezzo.kvstore import secret
from mezzo.kvstore.environment import Environment
from mezzo.tools.launch import launch, members

from .test_kv_environment import GIVEN
from .test_kv_network import LONG, ROOT

KEY = "3a9f of this job"


def key_file(folder: Path, text: str = KEY, mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_comes_from_a_file(mode: int, tmp_path: Path) -> None:
    path = str(key_file(tmp_path, f" {KEY}\n", mode))
    mine = Environment.read({**GIVEN, secret.FILE: path})
    assert (mine.key, mine.key_file) == (KEY, path)
    assert Environment.read(mine.variables()) == mine
    assert KEY not in " ".join(mine.variables().values()), "the file is handed on, not what it holds"
    assert KEY not in repr(mine)
    assert replace(mine, key_file="").key == Environment.read({**GIVEN, "MEZZO_JOB_KEY": f"{KEY}\n"}).key


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe", 0o600)
    return folder / "pipe"


UNFIT: dict[str, tuple[Callable[[Path], Path], str]] = {
    "absent": (lambda folder: folder / "none", "cannot be read: No such file"),
    "a folder": (lambda folder: folder, "it is no regular file"),
    "a pipe": (_pipe, "it is no regular file"),
    "a device": (lambda _: Path("/dev/zero"), "it is no regular file"),
    "for the group": (lambda folder: key_file(folder, mode=0o640), "its mode is 0640"),
    "for all": (lambda folder: key_file(folder, mode=0o604), "its mode is 0604"),
    "empty": (lambda folder: key_file(folder, " \n"), "is empty"),
    "too long": (lambda folder: key_file(folder, KEY * 1000), "more than 4096 bytes"),
}


@pytest.mark.parametrize("how", UNFIT)
def test_a_file_that_holds_no_key(how: str, tmp_path: Path) -> None:
    make, told = UNFIT[how]
    path = make(tmp_path)
    with pytest.raises(mz.InputError, match=secret.FILE) as caught:
        Environment.read({**GIVEN, secret.FILE: str(path)})
    assert told in str(caught.value)
    assert repr(str(path)) in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_file_of_another_user(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    os.chown(path, 12345, -1)
    with pytest.raises(mz.InputError, match="it belongs to user 12345, and this process runs as 0"):
        secret.read_key(str(path))


def test_two_keys_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(mz.InputError, match="both give a key") as caught:
        Environment.read({**GIVEN, secret.FILE: str(key_file(tmp_path)), "MEZZO_JOB_KEY": "another"})
    assert "another" not in str(caught.value)


def test_each_job_that_is_launched_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MEZZO_JOB_KEY", raising=False)
    monkeypatch.delenv(secret.FILE, raising=False)

    def keys() -> set[str]:
        job = members(["program"], workers=2, servers=1)
        assert not [m for m in job if Environment.read(m.environment).key in repr(m)]
        return {Environment.read(m.environment).key for m in job}

    first, second = keys(), keys()
    assert len(first) == len(second) == 1
    assert first != second
    assert all(len(key) == 64 for key in first)
    monkeypatch.setenv("MEZZO_JOB_KEY", KEY)
    assert keys() == {KEY}
    monkeypatch.setenv("MEZZO_JOB_KEY", "")  # as good as none
    assert keys() != {""}
    monkeypatch.setenv(secret.FILE, str(key_file(tmp_path)))
    job = members(["program"], workers=2, servers=1)
    assert {m.environment[secret.FILE] for m in job} == {str(tmp_path / "key")}
    assert {Environment.read(m.environment).key for m in job} == {KEY}
    monkeypatch.setenv(secret.FILE, str(tmp_path))
    with pytest.raises(mz.InputError, match="no regular file"):
        members(["program"], workers=2, servers=1)


SHOWING = """
import os
from pathlib import Path
import mezzo as mz

with mz.kv.create("dist_sync") as kv:
    key = os.environ["MEZZO_JOB_KEY"].encode()
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            commands.append((process / "cmdline").read_bytes())
        except OSError:
            pass
    assert any(b"mezzo.kvstore.role" in c for c in commands) and any(b"mezzo.kvstore.agent" in c for c in commands)
    kv.barrier()
    print("shown" if any(key in c for c in commands) else "hidden")
"""


def test_a_key_is_in_no_list_of_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text(SHOWING)
    job = members([sys.executable, str(tmp_path / "script.py")], workers=2, servers=1)
    assert launch(job) == 0, capfd.readouterr().err
    said = capfd.readouterr()
    assert sorted(said.out.splitlines()) == ["[worker 0]  hidden", "[worker 1]  hidden"]
    assert job[0].environment["MEZZO_JOB_KEY"] not in said.out + said.err


def test_a_process_whose_key_is_open_to_others_ends_with_an_error(tmp_path: Path) -> None:
    given = {**os.environ, **GIVEN, secret.FILE: str(key_file(tmp_path, mode=0o644))}
    ended = subprocess.run(
        [sys.executable, "-m", "mezzo.kvstore.role"],
        cwd=ROOT, env=given, capture_output=True, text=True, timeout=LONG, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "its mode is 0644" in ended.stderr
    assert "chmod 600" in ended.stderr
    assert KEY not in ended.stderr
