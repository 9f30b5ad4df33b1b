"""Random graphs on the GPU that is not there: what the stand-in runs on the processor, kernel by kernel, is what the
operators answer one by one."""

from __future__ import annotations

import warnings

import pytest

import mezzo as mz
from mezzo.ops.types import f32
from mezzo.runtime.backends.cuda.host import HostSteps
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.runtime.ir.infer import infer

from .cupy_standin import Standin
from .random_graphs.generate import generate
from .random_graphs.maker import Case, united
from .random_graphs.oracle import evaluated
from .random_graphs.printed import numbers
from .random_graphs.properties import copied, like, unchanged

TOGETHER = 50  # graphs of one program: compiling its kernels is what takes the time
IN_CI, ALL = 8, 40  # programs


def agrees(case: Case) -> None:
    """Three runs, the last of which replays a capture."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostSteps)
        session = mz.Session(case.graph, device="gpu:0")
        worlds = evaluated(infer(case.graph), case.feeds)
        first = session.run(case.feeds)
        like(first, worlds)
        kept = copied(first)
        for _ in range(2):
            unchanged(kept, session.run(case.feeds), "a later run answers otherwise")


def some(first: int, count: int) -> list[Case]:
    return [generate(seed, most=6, prefix=f"{seed}/") for seed in range(first, first + count)]


@pytest.mark.parametrize(
    "part", [*range(IN_CI), *(pytest.param(part, marks=pytest.mark.soak) for part in range(IN_CI, ALL))]
)
def test_random_graphs_on_the_standin(part: int, standin: Standin) -> None:
    """400 graphs in CI, 2,000 in all."""
    standin.quick = True
    agrees(united(some(part * TOGETHER, TOGETHER)))


@pytest.mark.parametrize("wanted", [("y", ""), ("", "h")], ids=["Y", "Y_h"])
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrent_layer_of_which_a_part_is_wanted(
    op: str, gates: int, wanted: tuple[str, ...], standin: Standin
) -> None:
    g = GraphBuilder()
    x, w, r = g.input("x", f32(3, 2, 5)), numbers(1, 8 * gates, 5) / 4, numbers(1, 8 * gates, 8) / 4
    g.add(Node(op, (x, g.const(w), g.const(r)), wanted, {"hidden_size": 8}))
    graph: Graph = g.graph([n for n in wanted if n])
    agrees(Case(0, graph, {"x": numbers(3, 2, 5)}))
