"""The engines that arrays are tested on, and where a test has a line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mezzo.nd import lazy, pending
from mezzo.runtime.engine import Engine, process, scheduler
from mezzo.runtime.engine.engine import BOUND

MODES = ("threaded", "naive", "in place", "checked", "fused", "fused in place")


class Using:
    """The engine of this process, for a while another one."""

    def __init__(self, mode: str, bound: int = BOUND) -> None:
        self.patch = pytest.MonkeyPatch()
        self.mode, self.bound = mode, bound

    def __enter__(self) -> Engine:
        one = {
            "threaded": lambda: Engine(threads={"compute": 3}, bound=self.bound),
            "naive": lambda: Engine("naive"),
            "in place": lambda: Engine("naive"),
            "checked": lambda: Engine(check=True),
            "fused": lambda: Engine(threads={"compute": 3}),
            "fused in place": lambda: Engine("naive"),
        }[self.mode]()
        self.patch.setattr(process, "_engine", one)
        # with other threads about (of other tests), a naive engine would push
        self.patch.setattr(scheduler, "other_threads", lambda: not self.mode.endswith("in place"))
        assert one.only_calls() == self.mode.endswith("in place")
        self.patch.setattr(lazy, "_on", self.mode.startswith("fused"))
        return one

    def __exit__(self, *_: object) -> None:
        pending.flush()
        self.patch.undo()


@pytest.fixture(params=MODES, name="mode")
def every_mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every mode in turn."""
    with Using(request.param) as engine:
        yield request.param
    with suppress(Exception):  # of workloads that the test let fail
        engine.close()


def line_after(text: str) -> str:
    """Where the file of the caller has a line with this text."""
    file = Path(inspect.stack()[1].filename)
    lines = file.read_text("utf8").splitlines()
    return f"{file.name}:{next(i for i, line in enumerate(lines, 1) if line.strip() == text)}"
