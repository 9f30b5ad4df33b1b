"""Models of MXNet's gluon zoo beside MXNet 1.9.1 itself: the same two files, one call with its input at hand.

Both read `NAME-symbol.json` and `NAME-0001.params`, each in a process of its own with two threads; rounds are
interleaved, and a ratio is the median over the rounds of MXNet's time over ours: above 1, ours is faster. An engine
whose answers differ by more than 1e-4 of the largest has failed. Weights are random; sequences have 7 tokens.

    python bench/mxnet_models.py --rows 'resnet*' --rounds 15 --json bench/results/X.json

The variable MXNET_ZOO names a folder where the models are already (by default they are made in build/bench/mxnet-zoo),
MXNET_PYTHON a Python that has MXNet (by default .venv-mxnet is made).
"""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

from cases import KEPT, ROOT, Case, Missing, framework
from peers.environment import mxnet_python
from racing import Races, run

from mezzo.tools.compare import OURS, Agreement, Contestant, command

MAKER = ROOT / "tests" / "mxnet" / "zoo.py"
ZOO = runpy.run_path(str(MAKER))
CASES = {c.name: c for c in (Case(f"{name}/b1", name) for name in ZOO["MODELS"])}
QUICK = ("mobilenet0_25/b1", "resnet18_v1/b1", "lstm/b1", "transformer/b1")


def model(name: str) -> Path:
    """The symbol's file; MXNet writes it where it is not there yet."""
    folder = Path(os.environ.get("MXNET_ZOO", KEPT / "mxnet-zoo"))
    file = folder / f"{name}-symbol.json"
    if not (folder / f"{name}-io.npz").exists():  # written last
        folder.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run([mxnet_python(), str(MAKER), str(folder), name], check=True, capture_output=True, text=True)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as reason:
            raise Missing(str(getattr(reason, "stderr", "") or reason).strip().splitlines()[-1]) from None
    return file


def contestants(case: Case, peers: tuple[str, ...]) -> list[Contestant]:
    """Ours and MXNet on the same files."""
    settings = {"model": str(model(case.workload))}
    return [Contestant(OURS, command(OURS), settings), *(framework(p, "file", settings) for p in peers)]


def feeds(case: Case) -> dict[str, Any]:
    """One image, or one sequence."""
    x = ZOO["operand"](case.workload)
    return {"data": x[:, :1] if case.workload in ZOO["TEXTS"] else x[:1]}


RACES = Races(
    CASES,
    ("mxnet",),
    QUICK,
    ("mxnet",),
    contestants,
    feeds,
    agreement=lambda _: Agreement(judge="mxnet", tolerance=1e-4),
)

if __name__ == "__main__":
    run(__doc__, RACES)
