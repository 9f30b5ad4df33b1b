"""Jobs whose processes are killed at any moment: they begin again from their snapshots, and end with the same bits."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.tools.crew import Member
from mezzo.tools.launch import Scale, launch, members

from .kv_recovery import END, FIRST, MET, OVER, PHASES, WANTED, board

RARE = 3.0  # seconds after which another phase is wanted: there are no handshakes where nobody begins again
PATIENCE = 300.0  # seconds for any phase to be met, on a machine with much else to do


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Killer(threading.Thread):
    """Kills processes of a job, each when some process has entered a phase: that one, or any other."""

    def __init__(self, folder: Path, kills: int, seed: int, role: str = "") -> None:
        super().__init__(daemon=True)
        self._role = role  # whose processes are killed; those of all if empty
        self._board, self._kills, self._rng = board(folder), kills, random.Random(seed)
        self.done: list[tuple[str, str]] = []  # phase, and who was killed
        self.over = threading.Event()

    def run(self) -> None:
        end = time.monotonic() + PATIENCE
        while len(self.done) < self._kills and time.monotonic() < end and not self.over.is_set():
            phase = self._rng.randrange(1, len(PHASES))
            time.sleep(self._rng.random() * 0.2)
            if (met := self._meet(phase)) and self._kill(met, PHASES[phase]):
                end = time.monotonic() + PATIENCE
        self._board[OVER] = 1

    def _meet(self, phase: int) -> int:
        """The process that has entered the phase, or 0."""
        self._board[MET], self._board[WANTED] = 0, phase
        end = time.monotonic() + RARE
        while not self._board[MET] and time.monotonic() < end and not self.over.is_set():
            time.sleep(0.002)
        self._board[WANTED] = 0
        return int(self._board[MET])

    def _kill(self, met: int, phase: str) -> bool:
        """Kill who is in the phase, or another process of the job, an agent among them, if any lives."""
        names = ("scheduler", *["server"] * 3, *["worker"] * 4)
        those = {int(pid): name for pid, name in zip(self._board[FIRST::2], names, strict=True) if pid}
        those |= {child: "agent" for pid, name in list(those.items()) if name == "worker" for child in children(pid)}
        those = {pid: name for pid, name in those.items() if lives(pid) and self._role in ("", name)}
        if not those:
            return False
        pid = met if met in those and self._rng.random() < 0.5 else self._rng.choice([*those])
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.done.append((phase, those[pid]))
        return True


def trained(
    folder: Path,
    steps: int = 0,
    *,
    kills: int = 0,
    seed: int = 0,
    workers: int = 2,
    hosts: int = 1,
    on_store: bool = False,
    role: str = "",
) -> tuple[bytes, int, list[tuple[str, str]]]:
    """The parameters after a training of so many steps, or else of as many as it takes to kill that often; how many,
    and in which phases who was killed."""
    folder.mkdir()
    made = board(folder, "w+")
    made[:], made[END] = 0, steps
    command = (sys.executable, "-m", "tests.kv_recovery", str(folder), str(int(on_store)))

    def job(scale: Scale) -> list[Member]:
        board(folder)[FIRST:] = 0
        return [replace(m, command=command) for m in members(command, workers, 1, hosts, scale.attempt, kept=kills > 0)]

    killer = Killer(folder, kills, seed, role)
    killer.start()
    try:
        assert launch(job, restarts=kills, grace=2.0) == 0
    finally:
        killer.over.set()
        killer.join()
    with np.load(folder / "end.npz") as arrays:
        return b"".join(arrays[name].tobytes() for name in sorted(arrays)), int(made[END]), killer.done


def killed(folder: Path, kills: int, seed: int, **how: Any) -> list[tuple[str, str]]:
    """In which phases who was killed in a training, which ends with the bits of one that nothing befell."""
    disturbed, steps, done = trained(folder / f"killed {seed}", kills=kills, seed=seed, **how)
    how.pop("role", None)
    undisturbed, *_ = trained(folder / f"calm {seed}", steps, **how)
    assert disturbed == undisturbed, (seed, done)
    assert len(done) == kills
    return done


@pytest.mark.parametrize("on_store", [False, True])
def test_a_server_alone_begins_again(on_store: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It goes on with what it had committed, and nobody else notices."""
    done = killed(tmp_path, 4, on_store, on_store=on_store, role="server")
    assert [who for _, who in done] == ["server"] * 4
    said = capfd.readouterr().err
    assert said.count("server 0 ended by SIGKILL; it starts again with what it had") == 4
    assert "all start again" not in said


@pytest.mark.parametrize("on_store", [False, True])
def test_killed_at_any_moment(on_store: bool, tmp_path: Path) -> None:
    killed(tmp_path, 10, on_store, on_store=on_store)


SOAK_PARTS = 50  # of 20 kills each; the environment variable of this name says which, as first:end


@pytest.mark.soak
def test_killed_a_thousand_times(tmp_path: Path) -> None:
    first, end = map(int, os.environ.get("SOAK_PARTS", f"0:{SOAK_PARTS}").split(":"))
    counted = Counter[tuple[str, str]]()
    for part in range(first, end):
        done = killed(tmp_path, 20, part, workers=3, hosts=2, on_store=bool(part % 2))
        counted.update(done)
        print(f"part {part}: {done}", flush=True)
    phases, roles = (Counter(each[i] for each in counted.elements()) for i in (0, 1))
    print(f"{counted.total()} kills: {phases}, {roles}")
    if end - first == SOAK_PARTS:  # a few kills need not meet everything
        assert {*roles} == {"scheduler", "server", "worker", "agent"}
        assert all(phases[phase] >= counted.total() // 20 for phase in PHASES[1:])
