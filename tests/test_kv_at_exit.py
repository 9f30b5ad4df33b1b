"""Scripts that do not close their store, as those of MXNet: their processes leave the job when they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mezzo.kvstore import at_exit
from mezzo.tools.launch import launch, members

SCRIPT = """
import time
import numpy as np, mezzo as mz
kv = mz.kv.create("dist_sync", deadline=60)
kv.init("w", np.zeros(1000, np.float32))
out = np.empty(1000, np.float32)
kv.pushpull("w", np.ones(1000, np.float32), out=out)
"""
ENDS = {
    "well": 'print("sum", out[0])',
    "one by one": 'time.sleep(kv.rank)\nprint("sum", out[0])',
}


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_who_ends_well_leaves(servers: int, end: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + end)
    assert launch(members([sys.executable, str(tmp_path / "script.py")], workers=2, servers=servers)) == 0
    said = capfd.readouterr()
    assert said.out.count("sum 2.0") == 2
    assert not said.err


@pytest.mark.parametrize("servers", [0, 1])
def test_all_hear_what_ended_a_script(servers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text(f"{SCRIPT}if kv.rank: raise ValueError('no such picture')\nkv.barrier()")
    assert launch(members([sys.executable, str(tmp_path / "script.py")], workers=2, servers=servers)) == 1
    lines = capfd.readouterr().err.splitlines()
    for name in ("scheduler", "worker 0", *(["server 0"] if servers else [])):
        mine = [line for line in lines if line.startswith(f"[{name}]")]
        assert any("worker 1" in line or "rank 1" in line for line in mine), lines
        assert any("ValueError: no such picture" in line for line in mine), lines


class Store:
    """A store that tells what it is closed with."""

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.errors.append(error)
        at_exit.closed(self)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.delattr(sys, "last_value", raising=False)
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.setattr(at_exit, "_open", {})
    made = Store()
    yield made
    at_exit.closed(made)


def test_what_is_closed_is_not_closed_again(store: Store) -> None:
    at_exit.close_at_exit(store, tells=True)
    at_exit._close_all()
    at_exit._close_all()
    assert store.errors == [None]


@pytest.mark.parametrize("tells", [True, False])
def test_an_error_is_told_where_no_other_process_comes(
    tells: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ValueError("no such picture")
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    at_exit.close_at_exit(store, tells)
    at_exit._close_all()
    assert store.errors == [error] * tells


def test_an_error_ends_no_interactive_session(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    at_exit.close_at_exit(store, tells=True)
    at_exit._close_all()
    assert store.errors == [None]


def test_a_child_has_no_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit.close_at_exit(store, tells=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        at_exit._close_all()
    assert store.errors == []
