"""What is kept on disk of compiled kernels and plans has a limit: what was used longest ago goes first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mezzo as mz
from mezzo.runtime.backends.cuda import cache

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of 1 MiB."""
    monkeypatch.setenv("MEZZO_CACHE", str(tmp_path))
    monkeypatch.setenv("MEZZO_CACHE_SIZE", "1")
    monkeypatch.setattr(cache, "_ROOM", cache._Room())
    cache.safe.cache_clear()
    return tmp_path


def aged(path: Path, seconds: int) -> None:
    """As if a file had been used last so long ago."""
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def held(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.glob("*/*"))


def test_what_was_used_longest_ago_goes_first(small: Path) -> None:
    keys = [cache.key_of(str(i)) for i in range(4)]
    for i, key in enumerate(keys):
        cache.write("cudnn", key, bytes(250_000))
        aged(small / "cudnn" / key, 100 - i)
    mine = small / "pictures" / "mine.png"  # whoever names a folder of his own keeps what is in it
    mine.parent.mkdir()
    mine.write_bytes(bytes(2 * MIB))
    left = small / "cudnn" / ".mezzo-left.part"
    left.write_bytes(b"half")
    aged(left, 2 * cache.LEFT)
    assert cache.read("cudnn", keys[0]) is not None  # used just now
    cache.write("nvrtc", f"{keys[0]}.cubin", bytes(100_000))
    kept = [cache.read("cudnn", key) is not None for key in keys]
    assert kept == [True, False, True, True]
    assert cache.read("nvrtc", f"{keys[0]}.cubin") == bytes(100_000)
    assert mine.exists()
    assert not left.exists()


def test_an_entry_that_is_larger_than_all_may_be_is_not_kept(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write("cudnn", cache.key_of("large"), bytes(MIB))
    assert not (small / "cudnn").exists()
    monkeypatch.setenv("MEZZO_CACHE_SIZE", "0")
    assert cache.kept("cudnn", cache.key_of("any"), lambda: b"made") == b"made"
    assert not (small / "cudnn").exists()


@pytest.mark.skipif(os.name != "posix", reason="Windows has other permissions")
def test_a_folder_that_others_may_write_to_is_not_used(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, opened = cache.key_of("any"), small / "open"
    cache.write("nvrtc", key, b"made")
    assert cache.read("nvrtc", key) == b"made"
    for place, mode in ((small, 0o777), (small, 0o775), (opened, 0o757)):
        cache.safe.cache_clear()
        opened.mkdir(exist_ok=True)
        place.chmod(mode)
        monkeypatch.setenv("MEZZO_CACHE", str(place))
        with pytest.warns(UserWarning, match=f"chmod go-w {place}"):
            assert cache.read("nvrtc", key) is None
        assert cache.kept("nvrtc", key, lambda: b"own") == b"own"
        place.chmod(0o700)
    monkeypatch.setenv("MEZZO_CACHE", str(opened / "deep"))
    opened.chmod(0o777)  # whoever may rename it puts another one there
    cache.safe.cache_clear()
    with pytest.warns(UserWarning, match="others may write"):
        cache.write("nvrtc", key, b"made")
    opened.chmod(0o1777)
    cache.safe.cache_clear()
    cache.write("nvrtc", key, b"made")
    assert cache.read("nvrtc", key) == b"made"
    assert (opened / "deep").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("given", ["-1", "1 GiB", "many"])
def test_a_limit_that_is_no_number(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEZZO_CACHE_SIZE", given)
    with pytest.raises(mz.InputError, match="MiB"):
        cache.limit()


WRITER = """
import sys
from mezzo.runtime.backends.cuda import cache
for i in range(150):
    content = f"{sys.argv[1]} {i}".encode() * 3000
    key = cache.key_of(sys.argv[1], str(i))
    cache.write("nvrtc", key, content)
    for name, sent in ((key, content), (cache.key_of("both"), b"the same" * 3000)):
        found = cache.kept("nvrtc", name, lambda: sent)
        assert found == sent, "half an entry"
"""


def test_two_processes_at_once(small: Path) -> None:
    """Each removes what the other keeps: nobody reads half of an entry, and together they stay within the limit."""
    running: list[Any] = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in ("first", "second")]
    assert [process.wait(120) for process in running] == [0, 0]
    cache.write("nvrtc", cache.key_of("last"), b"")
    assert 0.5 * MIB < held(small) <= 1.1 * MIB
