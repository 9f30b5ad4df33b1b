"""Jobs whose processes are killed at any moment: they begin again from their snapshots, and end with the same bits."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mezzo.tools.crew import Member
from mezzo.tools.launch import Scale, launch, members

from .kv_recovery import FIRST, MET, PHASES, WANTED, board

STEPS = 30
PATIENCE = 60.0  # seconds for the next phase to be met


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Killer(threading.Thread):
    """Kills processes of a job, each when some process has entered a phase: that one, or any other."""

    def __init__(self, folder: Path, kills: int, seed: int, role: str = "") -> None:
        super().__init__(daemon=True)
        self._role = role  # whose processes are killed; those of all if empty
        self._board, self._kills, self._rng = board(folder), kills, random.Random(seed)
        self.done: list[tuple[str, str]] = []  # phase, and who was killed
        self.over = threading.Event()

    def run(self) -> None:
        made = self._board
        for _ in range(self._kills):
            phase = self._rng.randrange(1, len(PHASES))
            time.sleep(self._rng.random() * 0.2)
            made[MET], made[WANTED] = 0, phase
            end = time.monotonic() + PATIENCE
            while not made[MET]:
                if self.over.is_set() or time.monotonic() > end:
                    return  # the training was quicker
                time.sleep(0.002)
            made[WANTED] = 0
            self._kill(int(made[MET]), PHASES[phase])

    def _kill(self, met: int, phase: str) -> None:
        """Kill who is in the phase, or another process of the job, an agent among them."""
        names = ("scheduler", *["server"] * 3, *["worker"] * 4)
        those = {int(pid): name for pid, name in zip(self._board[FIRST::2], names, strict=True) if pid}
        those = {pid: name for pid, name in those.items() if Path(f"/proc/{pid}").exists()}
        those |= {child: "agent" for pid, name in list(those.items()) if name == "worker" for child in children(pid)}
        pid = met if self._rng.random() < 0.5 else self._rng.choice([*those] or [met])
        if self._role and those.get(pid) != self._role:
            pid = next(pid for pid, name in those.items() if name == self._role)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.done.append((phase, those.get(pid, "worker")))


def trained(
    folder: Path,
    kills: int = 0,
    seed: int = 0,
    *,
    workers: int = 2,
    hosts: int = 1,
    on_store: bool = False,
    role: str = "",
) -> tuple[bytes, list[tuple[str, str]]]:
    """The parameters at the end of a training, of whose processes so many were killed; in which phases, and who."""
    folder.mkdir()
    board(folder, "w+")[:] = 0
    command = (sys.executable, "-m", "tests.kv_recovery", str(folder), str(STEPS), str(int(on_store)))

    def job(scale: Scale) -> list[Member]:
        board(folder)[FIRST:] = 0
        made = members(command, workers, 1, hosts, scale.attempt, kept=kills > 0)
        return [Member(m.role, m.rank, command, m.environment, m.kept) for m in made]

    killer = Killer(folder, kills, seed, role)
    killer.start()
    try:
        assert launch(job, restarts=kills, grace=2.0) == 0
    finally:
        killer.over.set()
        killer.join()
    with np.load(folder / "end.npz") as arrays:
        return b"".join(arrays[name].tobytes() for name in sorted(arrays)), killer.done


@pytest.fixture(scope="module", params=[False, True])
def calm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, bytes]:
    """Where the optimizer runs, and the parameters at the end of a training that nothing befell."""
    on_store = bool(request.param)
    return on_store, trained(tmp_path_factory.mktemp("calm") / "kept", on_store=on_store)[0]


def test_a_server_alone_begins_again(
    calm: tuple[bool, bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It goes on with what it had committed, and nobody else notices."""
    on_store, undisturbed = calm
    disturbed, done = trained(tmp_path / "killed", 4, on_store, on_store=on_store, role="server")
    assert disturbed == undisturbed
    assert [who for _, who in done] == ["server"] * 4
    said = capfd.readouterr().err
    assert said.count("server 0 ended by SIGKILL; it starts again with what it had") == 4
    assert "all start again" not in said


def test_killed_at_any_moment(calm: tuple[bool, bytes], tmp_path: Path) -> None:
    on_store, undisturbed = calm
    disturbed, done = trained(tmp_path / "killed", 10, on_store, on_store=on_store)
    assert disturbed == undisturbed
    assert len(done) == 10


SOAK_PARTS = 50  # of 20 kills each; the environment variable of this name says which, as first:end


@pytest.mark.soak
def test_killed_a_thousand_times(tmp_path: Path) -> None:
    first, end = map(int, os.environ.get("SOAK_PARTS", f"0:{SOAK_PARTS}").split(":"))
    ends = [trained(tmp_path / f"calm{way}", workers=3, hosts=2, on_store=way)[0] for way in (False, True)]
    counted = Counter[tuple[str, str]]()
    for part in range(first, end):
        on_store = part % 2
        made, done = trained(tmp_path / str(part), 20, part, workers=3, hosts=2, on_store=bool(on_store))
        assert made == ends[on_store], (part, done)
        counted.update(done)
        print(f"part {part}: {done}", flush=True)
    phases, roles = (Counter(each[i] for each in counted.elements()) for i in (0, 1))
    print(f"{counted.total()} kills: {phases}, {roles}")
    assert {*roles} == {"scheduler", "server", "worker", "agent"}
    assert all(phases[phase] >= counted.total() // 20 for phase in PHASES[1:])
