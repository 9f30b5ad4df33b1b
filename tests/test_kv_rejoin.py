"""Workers that die amid a training and are replaced, while the others go on: with the same bits."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mezzo.kvstore.create import create
from mezzo.ops.errors import InputError
from mezzo.tools.cli import cli
from mezzo.tools.crew import Member
from mezzo.tools.launch import Scale, launch, members

WORKERS = 3


def trained(folder: Path, deaths: str = "", servers: int = 0, hosts: int = 1) -> bytes:
    """The parameters after a training in which workers have died."""
    folder.mkdir(exist_ok=True)
    command = (sys.executable, "-m", "tests.kv_rejoin", str(folder), deaths)

    def job(scale: Scale) -> list[Member]:
        made = members(command, WORKERS, servers, hosts, scale.attempt, kept=True, rejoin=True)
        return [replace(m, command=command) if m.role == "worker" else m for m in made]

    assert launch(job, restarts=len(deaths.split(",")), grace=2.0) == 0
    with np.load(folder / "end.npz") as arrays:
        return b"".join(arrays[name].tobytes() for name in sorted(arrays))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return trained(tmp_path_factory.mktemp("calm"))


@pytest.mark.parametrize(
    ("deaths", "servers", "hosts"),
    [
        ("1:5:amid", 0, 1),  # in memory that all share
        ("0:4:amid,2:8:told", 1, 2),  # of two hosts with a server, one after the other; rank 0 among them
        ("0:1:begun,1:3:behind,2:3:amid", 2, 1),  # before the first step, and two at once
        ("1:6:deaf,2:6:told", 1, 3),  # a survivor has not all of a step that others have behind them
    ],
)
def test_others_go_on_to_the_same_bits(
    deaths: str, servers: int, hosts: int, undisturbed: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert trained(tmp_path, deaths, servers, hosts) == undisturbed
    said, died = capfd.readouterr(), len(deaths.split(",")) - deaths.count("deaf")
    assert said.err.count("another takes its place") == died
    assert "all start again" not in said.err
    assert said.out.count("goes on from") == WORKERS + died
    assert "rank 1 catches up" in said.out or "deaf" not in deaths


def test_a_worker_that_fails_by_itself_ends_the_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import mezzo as mz\n"
        "with mz.kv.create('dist_sync') as kv:\n"
        "    if kv.rank:\n"
        "        raise ValueError('no')\n"
        "    kv.barrier()\n"
    )
    assert launch(members((sys.executable, str(script)), 2, 0, rejoin=True), restarts=1, grace=2.0) == 1
    said = capfd.readouterr().err
    assert re.search("rank 1 (failed|ended with code 1): ValueError: no", said)  # by memory, or the scheduler
    assert "another takes its place" not in said


def test_what_a_store_forgets_is_not_made_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A loop that met the others again would go on with an optimizer without its states. All begin again, which is
    said of a Trainer of blocks before."""
    script = tmp_path / "steps.py"
    script.write_text(
        "import os, signal\n"
        "import numpy as np\n"
        "import mezzo as mz\n"
        "from mezzo import gluon\n"
        "with mz.kv.create('dist_sync') as kv:\n"
        "    net = gluon.nn.Dense(2, in_units=3).initialize()\n"
        "    gluon.Trainer(net.collect_params(), 'sgd', kvstore=kv)\n"
        "    kv.init('w', np.zeros(2))\n"
        "    kv.set_optimizer(mz.optimizer.SGD(rate=0.1, momentum=0.9))\n"
        "    if kv.rank and os.environ['MEZZO_ATTEMPT'] == '0':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    try:\n"
        "        kv.pushpull('w', np.ones(2))\n"
        "    except mz.MezzoError:\n"
        "        kv.rejoin()\n"
        "        print('it goes on')\n"
    )
    job = lambda scale: members((sys.executable, str(script)), 2, 1, attempt=scale.attempt, rejoin=True)  # noqa: E731
    assert launch(job, restarts=2, grace=2.0) == 0
    said = capfd.readouterr()
    assert "rank 0: the optimizer's states are on the store, which forgets them when the job gathers" in said.err
    assert "gluon.Trainer does not" in said.err
    assert "it goes on" not in said.out
    assert "all start again; 0 more restarts would follow" in said.err


def test_one_alone_meets_nobody_again() -> None:
    with create("local") as kv:
        assert not kv.rejoins
        assert kv.gathering == 0
        with pytest.raises(InputError, match="no other workers"):
            kv.rejoin()


def test_rejoin_needs_restarts() -> None:
    told = CliRunner().invoke(cli, ["launch", "-n", "2", "--rejoin", "true"])
    assert told.exit_code == 2
    assert "--restarts" in told.output
