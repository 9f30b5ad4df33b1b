"""MEZZO_JOB_KEY was documented as the secret of a job, and nothing compared it."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

import mezzo as mz
from mezzo.kvstore.environment import Environment
from mezzo.kvstore.gate import SCHEDULER, enter
from mezzo.kvstore.loop import Loop
from mezzo.kvstore.member import Member
from mezzo.kvstore.scheduler import Scheduler

from ..test_kv_network import free_port


@pytest.mark.parametrize("given", ["another", ""])
def test_a_worker_with_another_key_is_refused(given: str, capfd: pytest.CaptureFixture[str]) -> None:
    job = Environment("scheduler", ("127.0.0.1", free_port()), 1, 0, "h", deadline=60, key="the key")
    scheduler = Scheduler(job)
    thread = threading.Thread(target=scheduler.run)
    thread.start()
    with pytest.raises(mz.PeerError, match="MEZZO_JOB_KEY"):
        enter(job.root, job.deadline, replace(job, key=given), SCHEDULER, "scheduler")
    loop = Loop()
    Member(loop, job, "worker").leave()  # who has the key joins, and the job ends well
    thread.join(60)
    loop.close()
    assert not thread.is_alive()
    assert "scheduler refused a connection" in capfd.readouterr().err
