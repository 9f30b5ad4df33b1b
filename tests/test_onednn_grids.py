"""oneDNN's kernels beside all kinds of neighbours, against the operators one by one: a sample, and the whole grid."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mezzo.runtime.backends.onednn import KERNELS
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.compile.lazy_kernel import itself
from mezzo.runtime.execution.session import Session

from .onednn_grids import FAMILIES, Cell, graph_of, grid, some, wrong

# whose neighbours are looked at in tests of their own: recurrent networks, 8-bit numbers, updates, and operators of
# training whose results only their gradients read
ELSEWHERE = ("quantised", "recurrent", "update", "packed_weights")
ALONE = {"onednn.cast", "onednn.layer_norm_train", "onednn.layer_norm_grad", "onednn.max_pool_train",
         "onednn.max_pool_grad"}  # fmt: skip
ISAS = ("AVX2", "AVX512_CORE", "AVX512_CORE_BF16")
pytestmark = pytest.mark.skipif(library() is None, reason="oneDNN is not installed")


def in_child(code: str, isa: str) -> str:
    """What a process prints in which oneDNN may use no more than these instructions."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"from tests.onednn_grids import *\n{code}"],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample(family: str) -> None:
    assert not wrong(some(family, 2))


def test_a_sample_with_avx2_alone() -> None:
    found = in_child("for f in FAMILIES: print(*wrong(some(f, 1, seed=1)), sep='\\n', end='')", "AVX2")
    assert not found, found


def test_a_wrong_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid can fail: an operand that is one larger than it should be is told, with the model that has it."""
    from mezzo.runtime.backends.onednn import postops

    monkeypatch.setitem(postops.LINEAR, "Add", lambda v: (1.0, v + 1))
    cells = [Cell("matmul of two", (5, 11), "", posts, 0) for posts in ((), (("Add", "number"),))]
    (found,) = wrong([cells])
    assert "number" in found
    assert "off by" in found


def test_every_family_of_kernels_is_met() -> None:
    models = [Cell(f, d, "channels last" * (len(d) > 2), (), 0) for f in FAMILIES for d in ((3, 8), (3, 17, 4, 5))]
    graphs = [graph for graph, *_ in (graph_of([m]) for m in models) if graph is not None]
    met = {s.choice.kernel for graph in graphs for s in Session(graph, threads=1).program.steps}
    kernels = [k for k in map(itself, KERNELS) if not any(word in type(k).__module__ for word in ELSEWHERE)]
    loaded = library()
    slow = {"onednn.lrn", "onednn.softmax_grad"}  # the library has fast ones for AVX-512 alone
    missing = slow if loaded is not None and not loaded.isa.startswith("avx512") else set()
    assert {k.name for k in kernels} - ALONE - missing <= met


@pytest.mark.soak
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_grid(family: str, isa: str) -> None:
    found = in_child(f"print(*wrong(list(grid({family!r}))), sep='\\n', end='')", isa)
    assert not found, found


def test_the_grid_is_as_large_as_it_says() -> None:
    groups = list(grid("softmax 1"))
    assert len(groups) > 400
    assert {c.layout for g in groups for c in g} >= {"", "bac", "cdab", "blocks", "channels last"}
