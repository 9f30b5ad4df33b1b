"""Files that are replaced as a whole, and what killed writers leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mezzo.ops.regular import open_regular
from mezzo.runtime import files

WRITER = """
import sys, time
from pathlib import Path
from mezzo.runtime.files import replacing
with replacing(Path(sys.argv[1], "model.bin")) as handle:
    handle.write(b"half")
    handle.flush()
    print("written", flush=True)
    time.sleep(60)
"""


def temporary(folder: Path) -> list[Path]:
    return sorted(folder.glob(".mezzo-*"))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.skipif(os.name != "posix", reason="there is no kill -9 on Windows")
def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        (left,) = temporary(tmp_path)
        age(left, 2 * files.LEFT)
        files.replace_file(tmp_path / "other.bin", [b"whole"])
        assert temporary(tmp_path) == [left]  # its writer lives, however long it has written nothing
        writer.kill()
    age(left, files.LEFT / 2)
    files.replace_file(tmp_path / "other.bin", [b"whole"])
    assert temporary(tmp_path) == [left]  # who writes on another host has no lock here
    age(left, 2 * files.LEFT)
    (tmp_path / "mine").write_bytes(b"")
    age(tmp_path / "mine", 2 * files.LEFT)
    (tmp_path / ".mezzo-link").symlink_to(tmp_path / "mine")
    files.replace_file(tmp_path / "other.bin", [b"whole"])
    assert not left.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".mezzo-link", "mine", "other.bin"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has other pipes")
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path, "/dev/null"):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)
    (tmp_path / "file").write_bytes(b"whole")
    (tmp_path / "other").symlink_to(tmp_path / "file")
    with open_regular(tmp_path / "other") as handle:
        assert handle.read() == b"whole"
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "other", follow=False)


def test_a_private_file_is_never_another_ones(tmp_path: Path) -> None:
    """Neither before it is whole nor in the place of a file that all may read."""
    path = tmp_path / "job.json"
    path.write_bytes(b"for all")
    path.chmod(0o644)
    modes = list[int]()

    def pieces() -> Iterator[bytes]:
        modes.extend(p.stat().st_mode & 0o777 for p in tmp_path.iterdir() if p != path)
        yield b"secret"

    files.replace_file(path, pieces(), private=True)
    assert modes == [0o600]
    assert path.stat().st_mode & 0o777 == 0o600
    files.replace_file(tmp_path / "open.json", [b""])
    assert path.read_bytes() == b"secret"
