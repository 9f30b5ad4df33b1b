"""`.mezzo` files for any number of threads: what a file of two processors computes on one, or on eight."""

from __future__ import annotations

import numpy as np
import pytest

from mezzo.ops import OPS
from mezzo.ops.types import f32
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.execution.session import Session
from mezzo.runtime.file import Opened, encode
from mezzo.runtime.ir.graph import Graph, GraphBuilder

from .graphs import sample_graph
from .test_file import same


def wide(g: GraphBuilder) -> Graph:
    """Products and a convolution whose workspaces depend on the number of threads, one of them in a branch."""
    rng = np.random.default_rng(0)
    x = g.input("x", f32(4, 64, 16, 16))
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in ((96, 64, 3, 3), (512, 1024), (1024, 512))]
    y = g.Reshape(g.Conv(x, g.const(weights[0]), pads=[1, 1, 1, 1]), g.const([-1, 512]))
    h = g.Gelu(g.MatMul(y, g.const(weights[1])))
    branches = [GraphBuilder(n, prefix=f"{n}/") for n in ("then", "else")]
    bodies = [b.graph([b.MatMul(h, b.const(weights[2] * s))]) for b, s in zip(branches, (1, -1), strict=True)]
    return g.graph([g.If(g.Less(g.ReduceMax(x, keepdims=0), g.const(np.float32(9))),
                         then_branch=bodies[0], else_branch=bodies[1])])  # fmt: skip


def test_a_file_serves_any_number_of_threads() -> None:
    """The programs of a file are taken by sessions with other numbers of threads, weights and all; only the room that
    kernels work in is planned again."""
    graph = wide(GraphBuilder())
    feeds = {"x": np.random.default_rng(1).standard_normal((4, 64, 16, 16)).astype(np.float32)}
    data = {n: b"".join(encode(graph, Session(graph, threads=n).variants())) for n in (1, 2, 4)}
    rooms = set()
    for made, file in data.items():
        for threads in (1, 2, 3, 8):
            session, here = Session(Opened(file), threads=threads), Session(graph, threads=threads)
            assert same(session.run(feeds), here.run(feeds))
            assert session.bound_from == ("variant" if made == threads else f"variant for {made} threads")
            assert session.program.target.threads == threads
            assert [s.choice for s in session.program.all_steps()] == [s.choice for s in here.program.all_steps()]
            rooms.add(tuple(s.choice.workspace for s in session.program.all_steps()))
    assert len(rooms) > 1 or library() is None


def test_a_file_with_programs_for_several_numbers_of_threads() -> None:
    graph = wide(GraphBuilder())
    variants = [v for n in (1, 4) for v in Session(graph, threads=n).variants()]
    opened = Opened(b"".join(encode(graph, variants)))
    feeds = {"x": np.ones((4, 64, 16, 16), np.float32)}
    for threads, origin in ((1, "variant"), (2, "variant for 1 threads"), (3, "variant for 4 threads"), (4, "variant")):
        session = Session(opened, threads=threads)
        session.run(feeds)
        assert session.bound_from == origin


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.soak)])
def test_samples_with_another_number_of_threads(every: int) -> None:
    """What a file of other threads computes is what this number of threads computes, whichever kernels depend on it."""
    origins = list[str]()
    samples = [(record, sample) for record in OPS.values() for sample in record.samples]
    for record, sample in samples[::every]:
        graph, feeds = sample_graph(record, sample)
        here = Session(graph, threads=2)
        session = Session(Opened(b"".join(encode(graph, Session(graph, threads=1).variants()))), threads=2)
        assert same(session.run(feeds), here.run(feeds)), record.name
        assert str(session.program) == str(here.program)
        origins.append(session.bound_from)
    assert sum(o.startswith("variant for") for o in origins) > 0.9 * len(origins)
