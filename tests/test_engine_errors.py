"""Errors that several workloads have: a process tells each of them once."""

from __future__ import annotations

import pytest

from .test_engine import python

SHARED = """
import sys
from mezzo.runtime.engine import engine
gone, how = ValueError("a peer is gone"), sys.argv[1]
def fail():
    raise gone
work = [engine().push(fail, name=f"wait {i}") for i in range(2)]
if how == "raised":  # by a workload
    work[0].wait()
elif how == "caught":
    try:
        work[1].wait()
    except ValueError as error:
        print("ValueError:", error, file=sys.stderr)
elif how == "behind another":
    raise RuntimeError("the step failed") from gone
"""


@pytest.mark.parametrize("how", ["raised", "caught", "behind another"])
def test_an_error_of_several_workloads_is_told_once(how: str) -> None:
    done = python(SHARED, argument=how)
    assert done.stderr.count("ValueError: a peer is gone") == 1
    assert "nobody waited" not in done.stderr
