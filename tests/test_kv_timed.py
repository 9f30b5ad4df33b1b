"""Steps in virtual time: what a closed sum says of small layouts, and what levels, overlap and compression change."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from .conftest import ROOT
from .simulation.timed import SCALE, Layout, Machines, TimedNetwork, TimedWorld, step_of
from .simulation.world import Process

FREE = 1e15  # bytes a second: as good as no time
LINKS = Machines(link=1e9, latency=1e-5, cores=64, copies=FREE, sums=FREE, message=0.0)  # which alone take time
MB = 1 << 20


def close(found: float, expected: float, share: float) -> bool:
    return abs(found / expected - 1) <= share


def test_bytes_take_as_long_as_links_are_slow() -> None:
    """Frames go up one after the other, each comes down when all have given it, and the last one is a frame late."""
    one = Layout(1, 1, 1, (16 * MB,), 0.0, overlap=False)
    assert close(step_of(one, LINKS), 17 * MB / 1e9, 0.02)
    assert close(step_of(replace(one, hosts=4), LINKS), 4 * 17 * MB / 1e9, 0.1), "one server's link has four times that"
    assert close(step_of(replace(one, hosts=4, servers=4), LINKS), 20 * MB / 1e9, 0.2), "and of four each its quarter"
    assert close(step_of(one, replace(LINKS, link=5e8)), 2 * 17 * MB / 1e9, 0.02)


def test_a_link_carries_one_message_after_the_other() -> None:
    w = TimedWorld(LINKS)
    one, two, three = (Process(w, name, name, lambda: None) for name in "abc")
    network = TimedNetwork(w, LINKS.latency, 1.0)
    away = [network.pair(one, two)[0], network.pair(one, three)[0], network.pair(three, two)[0]]
    due = [network.due(end, MB // SCALE) for end in away]
    assert due == pytest.approx([MB / 1e9 + 1e-5, 2 * MB / 1e9 + 1e-5, 2 * MB / 1e9 + 1e-5])


def test_processors_take_their_time() -> None:
    """Who sends, and who receives and sums, work at once; on one processor they take turns."""
    one = Layout(1, 1, 1, (16 * MB,), 0.0, overlap=False)
    many = replace(LINKS, link=FREE, copies=1e9, sums=FREE)
    alone = replace(many, cores=1, apart=False)
    assert close(step_of(one, alone), 4 * 16 * MB / 1e9, 0.02), "sent, received, and the same on the way back"
    assert step_of(one, many) < 0.75 * step_of(one, alone)
    summing = replace(alone, copies=FREE, sums=1e9)
    assert step_of(one, summing) >= 16 * MB / 1e9


def test_computing_hides_what_travels_meanwhile() -> None:
    job = Layout(2, 2, 2, (4 * MB,) * 4, 0.1)
    hidden, shown = step_of(job, LINKS), step_of(replace(job, overlap=False), LINKS)
    assert 0.1 < hidden < 0.1 + 8 * MB / 1e9, "but for the last key"
    assert close(shown, 0.1 + 17 * MB / 1e9, 0.02)
    assert step_of(job, LINKS) == hidden, "nothing happens by chance"


def test_two_levels_and_half_the_bytes() -> None:
    job = Layout(2, 4, 2, (8 * MB,), 0.0, overlap=False)
    plain = step_of(job, LINKS)
    assert close(step_of(replace(job, levels=1), LINKS), 4 * plain, 0.2), "each of four workers by the link of its host"
    assert close(step_of(replace(job, compression="fp16"), LINKS), plain / 2, 0.1)


@pytest.mark.soak
def test_measured_steps_are_reproduced() -> None:
    """Two and four workers, from the job of one."""
    command = [sys.executable, "bench/scaling.py", "--quick", "--json", "-"]
    rows = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=500).stdout)
    for row in rows[1:3]:
        assert close(row["ours"], row["peers"]["measured"], 0.15), row
